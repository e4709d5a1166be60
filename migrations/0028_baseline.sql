-- No program knows less than this.
INSERT IGNORE INTO outbox_schema (id, smallest_reader, smallest_writer) VALUES (1, 28, 28);
