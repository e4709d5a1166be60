-- The time of a message's first replay. Receipts of later claims are of replays. Earlier releases leave it out.
ALTER TABLE outbox_replays ADD COLUMN first_at DATETIME(6) NULL, ALGORITHM = INSTANT;
