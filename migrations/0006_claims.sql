-- A claim: who publishes which messages, until when. The row is the lease, and its token is the fence.
-- kind: 0 names its messages. The others are tails, of which a lane has one at the most: 1 is on all rows of its lane up to the mark,
-- and takes more. 2 takes no more. 3 is forming.
CREATE TABLE outbox_claims (
  claim_id    BIGINT UNSIGNED   NOT NULL AUTO_INCREMENT,
  lane        SMALLINT UNSIGNED NOT NULL,
  owner       VARCHAR(100)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  lease_token BIGINT UNSIGNED   NOT NULL,
  lease_until DATETIME(6)       NOT NULL,
  claimed_at  DATETIME(6)       NOT NULL,
  message_ids MEDIUMTEXT        CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  key_hashes  MEDIUMBLOB        NOT NULL,
  kind        TINYINT UNSIGNED  NOT NULL DEFAULT 0,
  mark        BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  PRIMARY KEY (claim_id)
) ENGINE = InnoDB;
