-- A message that waits for a time. holds_key: later messages of its key wait behind it.
CREATE TABLE outbox_delayed (
  lane      SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  id        BIGINT UNSIGNED   NOT NULL,
  key_hash  BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  bytes     INT UNSIGNED      NOT NULL DEFAULT 0,
  attempts  SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  due_at    DATETIME(6)       NOT NULL,
  holds_key TINYINT UNSIGNED  NOT NULL DEFAULT 0,
  reason    VARCHAR(32)       CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  error     VARCHAR(500)      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  PRIMARY KEY (lane, id),
  KEY outbox_delayed_due (due_at),
  KEY outbox_delayed_key (lane, holds_key, key_hash, id)
) ENGINE = InnoDB;
