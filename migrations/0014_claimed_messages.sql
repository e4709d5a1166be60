-- Who holds message 123, until when: one row per claimed message.
CREATE VIEW outbox_claimed_messages AS
  SELECT m.id, c.claim_id, c.lane, c.owner, c.claimed_at, c.lease_until
  FROM outbox_claims c,
       JSON_TABLE(IF(JSON_VALID(c.message_ids), c.message_ids, '[]'), '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) m;
