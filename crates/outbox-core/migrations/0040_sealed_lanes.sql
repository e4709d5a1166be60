-- The version of a lane before it was sealed. While it has a tail, its version is the largest number: no text can raise it, so that
-- relays of earlier releases claim nothing.
ALTER TABLE outbox_head ADD COLUMN sealed BIGINT UNSIGNED NOT NULL DEFAULT 0, ALGORITHM = INSTANT;
