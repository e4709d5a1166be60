-- When a number of the key was last noted. NULL: before this column came. The purge of keys goes by it.
ALTER TABLE inbox_sequence ADD COLUMN seen_at DATETIME(6) NULL, ALGORITHM = INSTANT;
