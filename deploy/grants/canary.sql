-- A relay with `canary.topic` needs this privilege besides those of `relay.sql`: it enqueues messages of its own. With
-- this line its password allows to write messages, too.
--
-- Run this file after `relay.sql`, with the outbox's database as the default one:
--   mysql shop < deploy/grants/canary.sql

GRANT INSERT (message_id, topic, message_key, event_type, content_type, headers, payload, created_at, due_at, expires_at) ON outbox_messages TO 'outbox_relay'@'%';
