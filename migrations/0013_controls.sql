-- Pauses of operators: of a lane (its number), a sink (its name), or a destination (sink and destination with a slash between
-- them). ends_at: the end of the pause, NULL if it lasts until it is resumed.
CREATE TABLE outbox_controls (
  kind      VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  name      VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  paused_at DATETIME(6)  NOT NULL,
  ends_at   DATETIME(6)  NULL,
  actor     VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  reason    VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (kind, name)
) ENGINE = InnoDB;
