-- A lane. version is the compare-and-set under which its claims are made one after the other.
CREATE TABLE outbox_head (
  lane    SMALLINT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  claimer BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  low     BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  PRIMARY KEY (lane)
) ENGINE = InnoDB;
