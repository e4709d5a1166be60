-- Messages without contents. key_hash is the number that the rows of states have for the key: so an account that may not read keys
-- finds the messages of a key that it knows. trace_id is the trace in which the message was enqueued: the second part of its W3C header
-- `traceparent`. No other value of a header can come out of it.
CREATE VIEW outbox_listed_messages AS
  SELECT m.id, m.message_id, m.topic, m.event_type, m.created_at, m.due_at, m.expires_at,
         IF(m.message_key IS NULL, 0, GREATEST(1, CAST(CONV(LEFT(SHA2(CONCAT(m.topic, 0x00, m.message_key), 256), 16), 16, 10) AS UNSIGNED))) AS key_hash,
         IF(JSON_VALID(m.headers), NULLIF(SUBSTR(REGEXP_SUBSTR(JSON_UNQUOTE(JSON_EXTRACT(m.headers, '$.traceparent')), '(?-i)^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-'), 4, 32), ''), NULL) AS trace_id
  FROM outbox_messages m;
