-- A lane. version is the compare-and-set under which its claims are made one after the other. kind: who serves the lane, relay or worker.
-- NULL: nobody has. While the lane has a tail, its version is the largest number, which no text can raise. sealed: the version before.
CREATE TABLE outbox_head (
  lane    SMALLINT UNSIGNED NOT NULL,
  version BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  claimer BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  low     BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  kind    VARCHAR(8)        CHARACTER SET ascii COLLATE ascii_bin NULL,
  sealed  BIGINT UNSIGNED   NOT NULL DEFAULT 0,
  PRIMARY KEY (lane)
) ENGINE = InnoDB;
