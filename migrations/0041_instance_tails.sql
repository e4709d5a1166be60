-- Which lanes the process reads from the binary log, or why none: a word, a colon and a sentence.
ALTER TABLE outbox_instances ADD COLUMN tail VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, ALGORITHM = INSTANT;
