-- The epoch in which the numbers of the row count.
ALTER TABLE inbox_sequence ADD COLUMN epoch BIGINT UNSIGNED NOT NULL DEFAULT 0, ALGORITHM = INSTANT;
