-- The account that creates and upgrades the outbox tables: `relay migrate up`, which checks these privileges before it changes
-- anything. It has no access to any other table.
--
-- Make the account first, then run this file with the outbox's database as the default one, before the first migration:
--   CREATE USER 'outbox_migrator'@'%' IDENTIFIED BY '…' REQUIRE SSL;
--   mysql shop < deploy/grants/migrator.sql
-- A release that adds a table says so in CHANGELOG.md and adds its line here.

GRANT CREATE, ALTER, DROP, INDEX, SELECT ON outbox_pending TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_delayed  TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX, INSERT ON outbox_head TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_dead     TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_leases   TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON inbox_processed TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON inbox_dead      TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON inbox_sequence  TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON inbox_started   TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON inbox_retries   TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_key_sequence TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX, SELECT, INSERT, UPDATE ON outbox_schema TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_epochs   TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_jobs     TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_controls TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_instances TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_replays  TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX ON outbox_attempts TO 'outbox_migrator'@'%';

-- The views run with the rights of the account that made them, so it must be able to read what they show, and to write what is
-- written through them. (CREATE beside
-- CREATE VIEW: a privilege on something that does not exist yet is accepted only together with CREATE.)
GRANT CREATE, ALTER, DROP, INDEX, SELECT ON outbox_messages TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX, SELECT ON outbox_claims TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX, SELECT ON outbox_sent   TO 'outbox_migrator'@'%';
GRANT CREATE, ALTER, DROP, INDEX, SELECT, INSERT ON outbox_audit TO 'outbox_migrator'@'%';
GRANT CREATE, CREATE VIEW, DROP, SHOW VIEW, SELECT ON outbox_audit_entries TO 'outbox_migrator'@'%';
GRANT CREATE, CREATE VIEW, DROP, SHOW VIEW, SELECT ON outbox_claimed_messages TO 'outbox_migrator'@'%';
GRANT CREATE, CREATE VIEW, DROP, SHOW VIEW, SELECT ON outbox_sent_messages    TO 'outbox_migrator'@'%';
GRANT CREATE, CREATE VIEW, DROP, SHOW VIEW, SELECT ON outbox_listed_messages  TO 'outbox_migrator'@'%';

-- The record of what was applied.
GRANT CREATE, ALTER, SELECT, INSERT, UPDATE ON outbox_migrations TO 'outbox_migrator'@'%';
