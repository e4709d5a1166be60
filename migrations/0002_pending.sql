-- An unsent message that is due. Inserted once, deleted once. Only a take-over updates it (attempts, takeovers).
-- takeovers: claims that were taken over with the message since it was put here. Attempts do not tell which message ends
-- relays: an outage costs many messages some.
CREATE TABLE outbox_pending (
  lane      SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  id        BIGINT UNSIGNED   NOT NULL,
  key_hash  BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  bytes     INT UNSIGNED      NOT NULL DEFAULT 0,
  attempts  SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  takeovers TINYINT UNSIGNED  NOT NULL DEFAULT 0,
  PRIMARY KEY (lane, id)
) ENGINE = InnoDB;
