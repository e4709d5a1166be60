-- A message that may have ended a process, while another one works on it. Each further end is counted.
CREATE TABLE inbox_started (
  consumer   VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  message_id BINARY(16)   NOT NULL,
  starts     INT UNSIGNED NOT NULL,
  started_at DATETIME(6)  NOT NULL,
  PRIMARY KEY (consumer, message_id)
) ENGINE = InnoDB;
