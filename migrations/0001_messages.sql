-- A message: immutable, written by the service in its own transaction. due_at: the time for which it was scheduled, or NULL: it was due
-- when it was enqueued.
CREATE TABLE outbox_messages (
  id           BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  message_id   BINARY(16)      NOT NULL,
  topic        VARCHAR(249)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_key  VARBINARY(1024) NULL,
  event_type   VARCHAR(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  content_type VARCHAR(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  headers      MEDIUMTEXT      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  payload      LONGBLOB        NULL,
  created_at   DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  expires_at   DATETIME(6)     NULL,
  due_at       DATETIME(6)     NULL,
  PRIMARY KEY (id),
  UNIQUE KEY outbox_messages_message_id (message_id)
) ENGINE = InnoDB;
