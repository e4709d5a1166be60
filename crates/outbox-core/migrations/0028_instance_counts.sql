-- The content of the queue, as a JSON object, and when this process counted it. counting_at: when it began to count last. Of all processes
-- one counts, and the others show its numbers.
ALTER TABLE outbox_instances ADD COLUMN counts VARCHAR(1000) CHARACTER SET ascii COLLATE ascii_bin NULL, ADD COLUMN counted_at DATETIME(6) NULL, ADD COLUMN counting_at DATETIME(6) NULL, ALGORITHM = INSTANT;
