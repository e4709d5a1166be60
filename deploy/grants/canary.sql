-- What a relay with `canary.topic` needs besides `relay.sql`: it enqueues messages of its own. With this line whoever
-- has its password can write messages, too.
--
-- Run this file after `relay.sql`, with the outbox's database as the default one:
--   mysql shop < deploy/grants/canary.sql

GRANT INSERT ON outbox_messages TO 'outbox_relay'@'%';
