-- An order of an operator to retry messages that are dead at a consumer, which carries it out. message_id: one of them, or NULL: all.
-- last_id: the last one that a process began with, busy_until: how long that may take.
CREATE TABLE inbox_retries (
  retry_id   BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  consumer   VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_id BINARY(16)      NULL,
  last_id    BINARY(16)      NOT NULL,
  ordered_at DATETIME(6)     NOT NULL,
  taken_at   DATETIME(6)     NULL,
  busy_until DATETIME(6)     NOT NULL,
  ended_at   DATETIME(6)     NULL,
  processed  BIGINT UNSIGNED NOT NULL DEFAULT 0,
  failed     BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (retry_id),
  KEY inbox_retries_open (consumer, ended_at)
) ENGINE = InnoDB;
