-- What `relay recover` needs, after a restored backup or the promotion of a replica that was behind. It reads no key, header or payload.
--
-- Run this file with the outbox's database as the default one:
--   CREATE USER 'outbox_recovery'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < deploy/grants/recovery.sql

-- What is unsent.
GRANT SELECT (id, topic, created_at) ON outbox_messages TO 'outbox_recovery'@'%';
GRANT SELECT ON outbox_pending TO 'outbox_recovery'@'%';
GRANT SELECT ON outbox_delayed TO 'outbox_recovery'@'%';
GRANT SELECT ON outbox_dead    TO 'outbox_recovery'@'%';

-- The counters.
GRANT ALTER ON outbox_messages TO 'outbox_recovery'@'%';
GRANT ALTER, SELECT ON outbox_claims TO 'outbox_recovery'@'%';
GRANT ALTER, SELECT ON outbox_sent   TO 'outbox_recovery'@'%';
GRANT SELECT, UPDATE (last_sequence) ON outbox_key_sequence TO 'outbox_recovery'@'%';
GRANT SELECT, UPDATE (fence) ON outbox_leases TO 'outbox_recovery'@'%';

-- The epoch, and the version check.
GRANT SELECT, INSERT ON outbox_epochs TO 'outbox_recovery'@'%';
GRANT SELECT ON outbox_migrations TO 'outbox_recovery'@'%';
GRANT SELECT ON outbox_schema TO 'outbox_recovery'@'%';
