-- A named lease: one process at a time does a piece of work. fence grows with each new holder: a process that was paused past
-- its lease has a lower one.
CREATE TABLE outbox_leases (
  name        VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  owner       VARCHAR(100)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  lease_until DATETIME(6)     NOT NULL,
  fence       BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (name)
) ENGINE = InnoDB;
