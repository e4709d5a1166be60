-- Messages that a replay has sent again, with the last job that did so: they go out with the header outbox-replay. Deleted with the message.
CREATE TABLE outbox_replays (
  id     BIGINT UNSIGNED NOT NULL,
  job_id BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (id)
) ENGINE = InnoDB;
