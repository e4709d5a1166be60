-- Messages without contents. key_hash is the number that the rows of states have for the key: so an account that may not read keys
-- finds the messages of a key that it knows.
CREATE VIEW outbox_listed_messages AS
  SELECT m.id, m.message_id, m.topic, m.event_type, m.created_at, m.due_at, m.expires_at,
         IF(m.message_key IS NULL, 0, GREATEST(1, CAST(CONV(LEFT(SHA2(CONCAT(m.topic, 0x00, m.message_key), 256), 16), 16, 10) AS UNSIGNED))) AS key_hash
  FROM outbox_messages m;
