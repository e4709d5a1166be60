-- A restore or failover after which `relay recover` was run. epoch is the time of the recovery, in seconds since 1970, so that no epoch
-- comes again, whatever snapshot is restored. Messages from first_id on belong to it. margin, unsent and account are for people.
CREATE TABLE outbox_epochs (
  epoch    BIGINT UNSIGNED NOT NULL,
  first_id BIGINT UNSIGNED NOT NULL,
  margin   BIGINT UNSIGNED NOT NULL,
  unsent   BIGINT UNSIGNED NOT NULL,
  account  VARCHAR(300)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (epoch)
) ENGINE = InnoDB;
