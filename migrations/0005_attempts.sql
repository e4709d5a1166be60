-- The last twenty failures of a message: attempts that failed, the failure that made it dead, and take-overs from a relay that ended.
-- slot: 0 to 19, the one after that of the failure before, so that a later failure replaces the oldest. Deleted with the message.
CREATE TABLE outbox_attempts (
  id        BIGINT UNSIGNED   NOT NULL,
  slot      TINYINT UNSIGNED  NOT NULL,
  attempt   SMALLINT UNSIGNED NOT NULL,
  failed_at DATETIME(6)       NOT NULL,
  owner     VARCHAR(100)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  reason    VARCHAR(32)       CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  error     VARCHAR(500)      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  PRIMARY KEY (id, slot)
) ENGINE = InnoDB;
