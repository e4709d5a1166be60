-- Where message 123 went: one row per sent message.
CREATE VIEW outbox_sent_messages AS
  SELECT m.id, s.claim_id, s.lane, s.owner, s.sent_at,
         IF(JSON_VALID(s.receipts), JSON_UNQUOTE(JSON_EXTRACT(s.receipts, CONCAT('$[', m.position - 1, ']'))), NULL) AS receipt
  FROM outbox_sent s,
       JSON_TABLE(IF(JSON_VALID(s.message_ids), s.message_ids, '[]'), '$[*]' COLUMNS (position FOR ORDINALITY, id BIGINT UNSIGNED PATH '$')) m;
