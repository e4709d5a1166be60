-- The last number of a sequenced key. A service raises it in its own transaction, and holds the lock of that row until it ends: so
-- numbers have no gaps, and their order is the order of the commits. Rows stay: without its row a key would start again at 1.
CREATE TABLE outbox_key_sequence (
  topic         VARCHAR(249)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_key   VARBINARY(1024) NOT NULL,
  last_sequence BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (topic, message_key)
) ENGINE = InnoDB;
