-- The highest number that a consumer has processed of a sequenced key, and the ranges below it that it has not.
CREATE TABLE inbox_sequence (
  consumer    VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  topic       VARCHAR(249)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_key VARBINARY(1024) NOT NULL,
  sequence    BIGINT UNSIGNED NOT NULL,
  missing     TEXT            CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  PRIMARY KEY (consumer, topic, message_key)
) ENGINE = InnoDB;
