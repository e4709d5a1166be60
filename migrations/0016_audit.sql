-- Actions of operators, written in the transaction of the action. Accounts of operators can add rows and read them, no more.
-- account is the database's name for the login, with the host that it came from. actor is the name that the program gave.
CREATE TABLE outbox_audit (
  audit_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  at       DATETIME(6)     NOT NULL,
  actor    VARCHAR(100)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  account  VARCHAR(300)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  via      VARCHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  action   VARCHAR(32)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  target   TEXT            CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  reason   VARCHAR(500)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  job_id   BIGINT UNSIGNED NULL,
  messages BIGINT UNSIGNED NULL,
  PRIMARY KEY (audit_id)
) ENGINE = InnoDB;
