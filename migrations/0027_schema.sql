-- One row: the smallest versions that these tables serve. A version is the number of the newest migration that a program knows.
-- Readers only read these tables, or consume (the inbox, named leases). Writers enqueue, claim or settle: relays, workers, services.
CREATE TABLE outbox_schema (
  id              TINYINT UNSIGNED NOT NULL,
  smallest_reader BIGINT UNSIGNED  NOT NULL,
  smallest_writer BIGINT UNSIGNED  NOT NULL,
  PRIMARY KEY (id)
) ENGINE = InnoDB;
