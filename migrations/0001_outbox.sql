-- The tables of the outbox. ARCHITECTURE.md says what a row of each means and who writes it.
-- Times are UTC, by the database's clock. Plain SQL that MySQL 8.0.13 and MariaDB 10.6 both know.

-- A message: immutable, written by the service in its own transaction.
CREATE TABLE outbox_messages (
  id           BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  message_id   BINARY(16)      NOT NULL,
  topic        VARCHAR(249)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_key  VARBINARY(1024) NULL,
  event_type   VARCHAR(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  content_type VARCHAR(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  headers      MEDIUMTEXT      CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  payload      LONGBLOB        NULL,
  created_at   DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  expires_at   DATETIME(6)     NULL,
  PRIMARY KEY (id),
  UNIQUE KEY outbox_messages_message_id (message_id)
) ENGINE = InnoDB;

-- An unsent message that is due. Inserted once, deleted once; only a take-over updates it (attempts).
CREATE TABLE outbox_pending (
  lane     SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  id       BIGINT UNSIGNED   NOT NULL,
  key_hash BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  bytes    INT UNSIGNED      NOT NULL DEFAULT 0,
  attempts SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (lane, id)
) ENGINE = InnoDB;

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

-- A claim: who publishes which messages, until when. The row is the lease; its token is the fence.
CREATE TABLE outbox_claims (
  claim_id    BIGINT UNSIGNED   NOT NULL AUTO_INCREMENT,
  lane        SMALLINT UNSIGNED NOT NULL,
  owner       VARCHAR(100)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  lease_token BIGINT UNSIGNED   NOT NULL,
  lease_until DATETIME(6)       NOT NULL,
  claimed_at  DATETIME(6)       NOT NULL,
  message_ids MEDIUMTEXT        CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  key_hashes  MEDIUMBLOB        NOT NULL,
  PRIMARY KEY (claim_id)
) ENGINE = InnoDB;

-- A lane. version is the compare-and-set under which its claims are made one after the other.
CREATE TABLE outbox_head (
  lane    SMALLINT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  claimer BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  low     BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  PRIMARY KEY (lane)
) ENGINE = InnoDB;

-- Lane 0 is where messages go unless the service says otherwise; relays give other lanes their heads.
INSERT INTO outbox_head (lane) VALUES (0);

-- The mark of one settled claim: what was sent, when, by whom, and where the broker put it. The number of a claim may come
-- again (after TRUNCATE, or a copy of the tables without their counters); its token does not.
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

-- A message that a consumer has processed.
CREATE TABLE inbox_processed (
  consumer     VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_id   BINARY(16)   NOT NULL,
  processed_at DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (consumer, message_id),
  KEY inbox_processed_at (processed_at)
) ENGINE = InnoDB;

-- A named lease: one process at a time does a piece of housekeeping.
CREATE TABLE outbox_leases (
  name        VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  owner       VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  lease_until DATETIME(6)     NOT NULL,
  PRIMARY KEY (name)
) ENGINE = InnoDB;

-- Who holds message 123, until when: one row per claimed message.
CREATE VIEW outbox_claimed_messages AS
  SELECT m.id, c.claim_id, c.lane, c.owner, c.claimed_at, c.lease_until
  FROM outbox_claims c,
       JSON_TABLE(IF(JSON_VALID(c.message_ids), c.message_ids, '[]'), '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) m;

-- Where message 123 went: one row per sent message.
CREATE VIEW outbox_sent_messages AS
  SELECT m.id, s.claim_id, s.lane, s.owner, s.sent_at,
         IF(JSON_VALID(s.receipts), JSON_UNQUOTE(JSON_EXTRACT(s.receipts, CONCAT('$[', m.position - 1, ']'))), NULL) AS receipt
  FROM outbox_sent s,
       JSON_TABLE(IF(JSON_VALID(s.message_ids), s.message_ids, '[]'), '$[*]' COLUMNS (position FOR ORDINALITY, id BIGINT UNSIGNED PATH '$')) m;
