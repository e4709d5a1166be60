-- The time for which the message was scheduled. NULL: it was due when it was enqueued.
ALTER TABLE outbox_messages ADD COLUMN due_at DATETIME(6) NULL, ALGORITHM = INSTANT;
