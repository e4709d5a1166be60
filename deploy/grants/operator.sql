-- What an operator needs: the rights of viewer.sql, and those to order what relays and consumers then do (`relay dead retry`, `release`
-- and `discard`, `delayed retry`, `replay`, `jobs stop`, `pause`, `resume`, `inbox retry`). It reads no key, header or payload (of `traceparent` the id of the
-- trace, through a view), and changes no message and no row of the audit.
-- With `relay replay --to` it decides to which destination of the brokers the relays send contents again.
--
-- Run this file after `relay migrate up`, with the outbox's database as the default one:
--   CREATE USER 'outbox_operator'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < deploy/grants/operator.sql

GRANT SELECT (id, message_id, topic, event_type, created_at, due_at, expires_at) ON outbox_messages TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_pending TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_delayed TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_dead    TO 'outbox_operator'@'%';
GRANT SELECT (claim_id, lane, owner, lease_until, claimed_at, message_ids, kind, mark) ON outbox_claims TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_sent    TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_claimed_messages TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_sent_messages    TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_listed_messages  TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_head TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_instances TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_replays TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_attempts TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_leases TO 'outbox_operator'@'%';
GRANT SELECT ON inbox_processed TO 'outbox_operator'@'%';
GRANT SELECT (consumer, message_id, topic, event_type, attempts, died_at, reason, error) ON inbox_dead TO 'outbox_operator'@'%';

-- Order and stop jobs, pause and resume; the record of who did it and why. The view takes rows with the login and the time of the
-- session alone, and relays carry out no job without its row in the audit.
GRANT SELECT, INSERT (action, filter, per_second, created_at, next_at), UPDATE (ended_at, is_stopped) ON outbox_jobs TO 'outbox_operator'@'%';
GRANT SELECT, INSERT, DELETE ON outbox_controls TO 'outbox_operator'@'%';
GRANT SELECT, INSERT (consumer, message_id, last_id, ordered_at, busy_until) ON inbox_retries TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_audit TO 'outbox_operator'@'%';
GRANT INSERT ON outbox_audit_entries TO 'outbox_operator'@'%';

-- The version check.
GRANT SELECT ON outbox_migrations TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_schema TO 'outbox_operator'@'%';
