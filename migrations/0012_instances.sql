-- Running relays and workers, a row each: written every ten seconds, deleted at a stop, and a day after the last heartbeat.
-- lanes: a JSON list, empty if it serves all. sinks: a JSON object, from a sink's name to the reason why it takes nothing, or null.
-- counts: the content of the queue, as a JSON object, and when this process counted it. counting_at: when it began to count last. Of all
-- processes one counts, and the others show its numbers. tail: which lanes the process reads from the binary log, or why none: a word, a
-- colon and a sentence.
CREATE TABLE outbox_instances (
  instance    VARCHAR(100)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  role        VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  version     VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  lanes       MEDIUMTEXT    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  sinks       MEDIUMTEXT    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  in_flight   INT UNSIGNED  NOT NULL,
  started_at  DATETIME(6)   NOT NULL,
  seen_at     DATETIME(6)   NOT NULL,
  counts      VARCHAR(1000) CHARACTER SET ascii COLLATE ascii_bin NULL,
  counted_at  DATETIME(6)   NULL,
  counting_at DATETIME(6)   NULL,
  tail        VARCHAR(500)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  PRIMARY KEY (instance)
) ENGINE = InnoDB;
