-- The mark of one settled claim: what was sent, when, by whom, and where the broker put it. The number of a claim may come
-- again (after TRUNCATE, or in a copy of the tables without their counters), and its token does not.
CREATE TABLE outbox_sent (
  receipt_id  BIGINT UNSIGNED   NOT NULL AUTO_INCREMENT,
  claim_id    BIGINT UNSIGNED   NOT NULL,
  lease_token BIGINT UNSIGNED   NOT NULL,
  lane        SMALLINT UNSIGNED NOT NULL,
  owner       VARCHAR(100)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  claimed_at  DATETIME(6)       NOT NULL,
  sent_at     DATETIME(6)       NOT NULL,
  message_ids MEDIUMTEXT        CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  receipts    MEDIUMTEXT        CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (receipt_id),
  UNIQUE KEY outbox_sent_claim (claim_id, lease_token)
) ENGINE = InnoDB;
