-- A message that the relay gave up on. holds_key: later messages of its key wait for the operator.
CREATE TABLE outbox_dead (
  lane      SMALLINT UNSIGNED NOT NULL,
  id        BIGINT UNSIGNED   NOT NULL,
  key_hash  BIGINT UNSIGNED   NOT NULL,
  bytes     INT UNSIGNED      NOT NULL,
  attempts  SMALLINT UNSIGNED NOT NULL,
  died_at   DATETIME(6)       NOT NULL,
  holds_key TINYINT UNSIGNED  NOT NULL DEFAULT 0,
  reason    VARCHAR(32)       CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  error     VARCHAR(500)      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  owner     VARCHAR(100)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  PRIMARY KEY (lane, id),
  KEY outbox_dead_key (lane, holds_key, key_hash, id)
) ENGINE = InnoDB;
