-- The kind of a claim: 0 names its messages; 1 stands for all rows of its lane up to the mark, and takes more; 2 stands, and takes no
-- more. Earlier releases know only the first: relays make others when `relay.standing_claims` is on.
ALTER TABLE outbox_claims
  ADD COLUMN kind TINYINT UNSIGNED NOT NULL DEFAULT 0, ADD COLUMN mark BIGINT UNSIGNED NOT NULL DEFAULT 0, ALGORITHM = INSTANT;
