-- Orders of operators to put back, release or discard dead messages, or to put back delayed ones. Relays carry them out in batches.
-- token is the fence of a batch, last_lane and last_id are its end. done: messages changed so far. per_second: their rate. filter: JSON.
CREATE TABLE outbox_jobs (
  job_id     BIGINT UNSIGNED   NOT NULL AUTO_INCREMENT,
  action     VARCHAR(32)       CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  filter     TEXT              CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  per_second INT UNSIGNED      NOT NULL,
  created_at DATETIME(6)       NOT NULL,
  next_at    DATETIME(6)       NOT NULL,
  ended_at   DATETIME(6)       NULL,
  is_stopped TINYINT UNSIGNED  NOT NULL DEFAULT 0,
  last_lane  SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  last_id    BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  done       BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  token      BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  PRIMARY KEY (job_id),
  KEY outbox_jobs_open (ended_at, next_at)
) ENGINE = InnoDB;
