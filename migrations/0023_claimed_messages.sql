-- Who holds message 123, until when: one row per claimed message. The owner of a tail may have any pending row up to the mark.
CREATE VIEW outbox_claimed_messages AS
  SELECT m.id, c.claim_id, c.lane, c.owner, c.claimed_at, c.lease_until, c.kind
  FROM outbox_claims c,
       JSON_TABLE(IF(JSON_VALID(c.message_ids), c.message_ids, '[]'), '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) m
  UNION ALL
  SELECT p.id, c.claim_id, c.lane, c.owner, c.claimed_at, c.lease_until, c.kind
  FROM outbox_claims c JOIN outbox_pending p ON p.lane = c.lane AND p.id <= c.mark
  WHERE c.kind > 0;
