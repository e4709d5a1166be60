-- What a service needs that consumes into a database of its own, without relay, and purges its inbox there (`InboxPurge`),
-- besides its rights on its own tables. It enqueues nothing: a service that also does gets the lines of service.sql too.
--
-- Run this file after `relay migrate up` or `outbox_core::migrate`, with the service's database as the default one:
--   CREATE USER 'outbox_consumer'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < deploy/grants/consumer.sql

-- Consume, retry dead messages, purge.
GRANT INSERT, SELECT, UPDATE (processed_at), DELETE ON inbox_processed TO 'outbox_consumer'@'%';
GRANT INSERT, SELECT, DELETE ON inbox_dead TO 'outbox_consumer'@'%';
GRANT INSERT, SELECT, UPDATE, DELETE ON inbox_sequence TO 'outbox_consumer'@'%';
GRANT INSERT, SELECT, UPDATE, DELETE ON inbox_started TO 'outbox_consumer'@'%';
GRANT SELECT, UPDATE (last_id, taken_at, busy_until, ended_at, processed, failed) ON inbox_retries TO 'outbox_consumer'@'%';

-- One purging process at a time, and other named leases.
GRANT SELECT, INSERT, UPDATE ON outbox_leases TO 'outbox_consumer'@'%';
GRANT SELECT ON outbox_epochs TO 'outbox_consumer'@'%';

-- For a service that checks the version of the tables when it starts.
GRANT SELECT ON outbox_migrations TO 'outbox_consumer'@'%';
GRANT SELECT ON outbox_schema TO 'outbox_consumer'@'%';
