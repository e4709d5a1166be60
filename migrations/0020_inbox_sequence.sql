-- The highest number that a consumer has processed of a sequenced key, and the ranges below it that it has not. epoch: the epoch in
-- which they count. seen_at: when a number of the key was last noted.
CREATE TABLE inbox_sequence (
  consumer    VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  topic       VARCHAR(249)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_key VARBINARY(1024) NOT NULL,
  sequence    BIGINT UNSIGNED NOT NULL,
  missing     TEXT            CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  epoch       BIGINT UNSIGNED NOT NULL DEFAULT 0,
  seen_at     DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (consumer, topic, message_key)
) ENGINE = InnoDB;
