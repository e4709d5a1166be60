-- Who serves the lane: relay or worker. NULL: nobody has since this column came. Earlier releases leave it out.
ALTER TABLE outbox_head ADD COLUMN kind VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NULL, ALGORITHM = INSTANT;
