-- Lane 0 is where messages go unless the service says otherwise. Relays give other lanes their heads.
INSERT IGNORE INTO outbox_head (lane) VALUES (0);
