-- A message that a consumer gave up on. The broker no longer has it, so it is kept here with all its bytes.
CREATE TABLE inbox_dead (
  consumer     VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_id   BINARY(16)   NOT NULL,
  topic        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  message_key  MEDIUMBLOB   NULL,
  event_type   VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  content_type VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  headers      MEDIUMTEXT   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  payload      LONGBLOB     NULL,
  attempts     INT UNSIGNED NOT NULL,
  died_at      DATETIME(6)  NOT NULL,
  reason       VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  error        VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  PRIMARY KEY (consumer, message_id),
  KEY inbox_dead_died_at (died_at)
) ENGINE = InnoDB;
