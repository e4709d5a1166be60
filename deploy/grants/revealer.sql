-- For an account of viewer.sql or operator.sql that may also read keys, headers and payloads. `relay messages show --reveal` records
-- that in the audit.
--
-- Run this file after the other one, with the outbox's database as the default one, and the name of the account in place of
-- outbox_operator:
--   mysql shop < deploy/grants/revealer.sql

GRANT SELECT ON outbox_messages TO 'outbox_operator'@'%';
GRANT SELECT ON outbox_audit TO 'outbox_operator'@'%';
GRANT INSERT ON outbox_audit_entries TO 'outbox_operator'@'%';
