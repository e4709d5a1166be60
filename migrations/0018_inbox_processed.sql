-- A message that a consumer has processed.
CREATE TABLE inbox_processed (
  consumer     VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_id   BINARY(16)   NOT NULL,
  processed_at DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (consumer, message_id),
  KEY inbox_processed_at (processed_at)
) ENGINE = InnoDB;
