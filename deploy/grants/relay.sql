-- What `relay run` needs. It cannot read a business table, and it cannot write or change a message.
--
-- Run this file after `relay migrate up`, with the outbox's database as the default one:
--   CREATE USER 'outbox_relay'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < deploy/grants/relay.sql

-- Read to publish; deleted by the purge.
GRANT SELECT, DELETE ON outbox_messages TO 'outbox_relay'@'%';

-- Claim, renew, settle, take over, promote.
GRANT SELECT, INSERT, UPDATE (attempts, takeovers), DELETE ON outbox_pending TO 'outbox_relay'@'%';
GRANT SELECT, INSERT, UPDATE (lease_until), DELETE ON outbox_claims  TO 'outbox_relay'@'%';
GRANT SELECT, INSERT, DELETE ON outbox_delayed TO 'outbox_relay'@'%';
GRANT SELECT, INSERT, DELETE ON outbox_sent    TO 'outbox_relay'@'%';
GRANT SELECT, INSERT, DELETE ON outbox_dead    TO 'outbox_relay'@'%';
GRANT SELECT, INSERT, UPDATE ON outbox_head    TO 'outbox_relay'@'%';

-- To find a counter that would give numbers again, at the start. The epoch of sequenced messages and of named leases.
GRANT SELECT ON outbox_key_sequence TO 'outbox_relay'@'%';
GRANT SELECT ON outbox_epochs TO 'outbox_relay'@'%';

-- Housekeeping: one purging relay at a time, the inbox's retention, the version check.
GRANT SELECT, INSERT, UPDATE ON outbox_leases TO 'outbox_relay'@'%';
GRANT SELECT, DELETE ON inbox_processed TO 'outbox_relay'@'%';
GRANT SELECT ON outbox_migrations TO 'outbox_relay'@'%';
GRANT SELECT ON outbox_schema TO 'outbox_relay'@'%';

-- Follow what operators order and the audit has; delete both after their retention. It can order nothing, and writes no audit.
GRANT SELECT, UPDATE (next_at, ended_at, is_stopped, last_lane, last_id, done, token), DELETE ON outbox_jobs TO 'outbox_relay'@'%';
GRANT SELECT (audit_id, at, action, target, job_id), DELETE ON outbox_audit TO 'outbox_relay'@'%';
GRANT SELECT, DELETE ON outbox_controls TO 'outbox_relay'@'%';
GRANT UPDATE (holds_key) ON outbox_dead TO 'outbox_relay'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_replays TO 'outbox_relay'@'%';
GRANT SELECT, INSERT, DELETE ON outbox_attempts TO 'outbox_relay'@'%';

-- Show operators that it runs.
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_instances TO 'outbox_relay'@'%';

-- For operators who ask "who holds message 123" and "where did it go" with this account.
GRANT SELECT ON outbox_claimed_messages TO 'outbox_relay'@'%';
GRANT SELECT ON outbox_sent_messages    TO 'outbox_relay'@'%';
GRANT SELECT ON outbox_listed_messages  TO 'outbox_relay'@'%';
GRANT SELECT (consumer, message_id, topic, event_type, attempts, died_at, reason, error) ON inbox_dead TO 'outbox_relay'@'%';

-- Optional. With PROCESS the relay sees how old the oldest writing transaction is, and need not wait for
-- `max_transaction_age` before it stops looking for late commits. The privilege is global and also shows the
-- statements that other sessions are running, so it is off here.
-- GRANT PROCESS ON *.* TO 'outbox_relay'@'%';
