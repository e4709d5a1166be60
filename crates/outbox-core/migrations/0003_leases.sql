-- Named leases get a number that grows with each new holder: the fence against one that was paused past its lease.
ALTER TABLE outbox_leases ADD COLUMN fence BIGINT UNSIGNED NOT NULL DEFAULT 0;
