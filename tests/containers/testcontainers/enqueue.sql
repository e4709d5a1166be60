START TRANSACTION;
INSERT INTO outbox_messages (message_id, topic, payload)
VALUES (UNHEX(REPLACE(UUID(), '-', '')), 'orders', '{"order":42}');
INSERT INTO outbox_pending (id, lane, key_hash, bytes) VALUES (LAST_INSERT_ID(), 0, 0, 12);
COMMIT;
