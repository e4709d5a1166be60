-- Messages that a replay has sent again, with the last job that did so: they go out with the header outbox-replay. Deleted with the message.
-- destination: the sink and the destination that get the message in place of those of its route, with a slash between them.
-- first_at: the time of the first replay. Receipts of later claims are of replays.
CREATE TABLE outbox_replays (
  id          BIGINT UNSIGNED NOT NULL,
  job_id      BIGINT UNSIGNED NOT NULL,
  destination TEXT            CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  first_at    DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (id)
) ENGINE = InnoDB;
