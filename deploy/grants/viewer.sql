-- What the commands need that only look: `relay why`, `status`, `jobs`, `controls`, `audit`, `instances`, `keys`, `messages`, `inbox`,
-- `purge --dry-run`, and `list` of `pending`, `delayed` and `dead`. It reads no key, header or payload (of
-- `traceparent` the id of the trace, through a view), and changes nothing.
--
-- Run this file after `relay migrate up`, with the outbox's database as the default one:
--   CREATE USER 'outbox_viewer'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < deploy/grants/viewer.sql

GRANT SELECT (id, message_id, topic, event_type, created_at, due_at, expires_at) ON outbox_messages TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_pending TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_delayed TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_dead    TO 'outbox_viewer'@'%';
GRANT SELECT (claim_id, lane, owner, lease_until, claimed_at, message_ids, kind, mark) ON outbox_claims TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_sent    TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_claimed_messages TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_sent_messages    TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_listed_messages  TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_head TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_instances TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_replays TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_attempts TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_leases TO 'outbox_viewer'@'%';
GRANT SELECT ON inbox_processed TO 'outbox_viewer'@'%';
GRANT SELECT (consumer, message_id, topic, event_type, attempts, died_at, reason, error) ON inbox_dead TO 'outbox_viewer'@'%';
GRANT SELECT ON inbox_retries TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_jobs    TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_audit   TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_controls TO 'outbox_viewer'@'%';

-- The version check.
GRANT SELECT ON outbox_migrations TO 'outbox_viewer'@'%';
GRANT SELECT ON outbox_schema TO 'outbox_viewer'@'%';
