-- The kind of a claim: 0 names its messages. The others are tails, of which a lane has one at the most: 1 is on all rows of its lane up
-- to the mark, and takes more; 2 takes no more; 3 is forming. Relays of earlier releases do not know tails: see `sealed` of outbox_head.
ALTER TABLE outbox_claims
  ADD COLUMN kind TINYINT UNSIGNED NOT NULL DEFAULT 0, ADD COLUMN mark BIGINT UNSIGNED NOT NULL DEFAULT 0, ALGORITHM = INSTANT;
