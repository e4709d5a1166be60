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

-- The highest number that a consumer has processed of a sequenced key, and the ranges below it that it has not.
CREATE TABLE inbox_sequence (
  consumer    VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  topic       VARCHAR(249)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_key VARBINARY(1024) NOT NULL,
  sequence    BIGINT UNSIGNED NOT NULL,
  missing     TEXT            CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  PRIMARY KEY (consumer, topic, message_key)
) ENGINE = InnoDB;
