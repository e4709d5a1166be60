-- Claims that were taken over with the message since it was put here: one that ends relays is found by them. Attempts do not tell: an
-- outage costs many messages some.
ALTER TABLE outbox_pending ADD COLUMN takeovers TINYINT UNSIGNED NOT NULL DEFAULT 0;
