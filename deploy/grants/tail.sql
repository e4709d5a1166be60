-- Optional. With these rights a relay takes the rows of a lane from the binary log: messages leave within a millisecond or two, and the
-- database has less work (`relay.tail`). They are global: the account can read every change of the whole server, of all schemas.
-- The relay decodes, keeps and logs nothing of other tables.
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'outbox_relay'@'%';
