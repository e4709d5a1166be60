-- Optional. With these rights a relay takes the rows of a lane from the binary log: messages leave within a millisecond or two, and the
-- database has less work (`relay.tail`). They are global: the account can read every change of the whole server, of all schemas.
-- The relay decodes, keeps and logs nothing of other tables. Another account can have them (`database.log_user`). It also needs
-- SELECT on outbox_messages, outbox_pending, outbox_delayed, outbox_dead and outbox_claims.
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'outbox_relay'@'%';
