-- What a service needs to enqueue and to use the inbox, besides its rights on its own tables. It cannot mark a message
-- as sent, change or delete one, read the payload of one that is not dead, or touch a claim.
--
-- Run this file after `relay migrate up`, with the outbox's database as the default one:
--   CREATE USER 'outbox_service'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < deploy/grants/service.sql

-- Producing. The two columns that are read make a message due, and name the guilty one after a duplicate id. Attempts, the hold
-- on a key, an error and the number of a message are not the service's to write.
GRANT INSERT (message_id, topic, message_key, event_type, content_type, headers, payload, created_at, due_at, expires_at), SELECT (id, message_id) ON outbox_messages TO 'outbox_service'@'%';
GRANT INSERT (id, lane, key_hash, bytes) ON outbox_pending TO 'outbox_service'@'%';
GRANT INSERT (id, lane, key_hash, bytes, due_at, reason) ON outbox_delayed TO 'outbox_service'@'%';
GRANT INSERT, SELECT, UPDATE ON outbox_key_sequence TO 'outbox_service'@'%';

-- For a service that asks how long messages have been waiting, or limits that (`backlog`, `max_backlog_age`).
GRANT SELECT (id, created_at) ON outbox_messages TO 'outbox_service'@'%';
GRANT SELECT (lane, id) ON outbox_pending TO 'outbox_service'@'%';

-- Consuming.
GRANT INSERT, SELECT, UPDATE (processed_at) ON inbox_processed TO 'outbox_service'@'%';
GRANT INSERT, SELECT, DELETE ON inbox_dead TO 'outbox_service'@'%';
GRANT INSERT, SELECT, UPDATE ON inbox_sequence TO 'outbox_service'@'%';
GRANT INSERT, SELECT, UPDATE, DELETE ON inbox_started TO 'outbox_service'@'%';
GRANT SELECT, UPDATE (last_id, taken_at, busy_until, ended_at, processed, failed) ON inbox_retries TO 'outbox_service'@'%';

-- Named leases, for services that use them.
GRANT SELECT, INSERT, UPDATE ON outbox_leases TO 'outbox_service'@'%';
GRANT SELECT ON outbox_epochs TO 'outbox_service'@'%';

-- For a service that checks the version of the tables when it starts.
GRANT SELECT ON outbox_migrations TO 'outbox_service'@'%';
GRANT SELECT ON outbox_schema TO 'outbox_service'@'%';
