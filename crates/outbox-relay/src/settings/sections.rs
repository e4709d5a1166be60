//! The typed sections of the settings. A new key is one entry under `read` of its [`section!`].

use super::{
    AfterDead, Envelope, LogLogin, OnRejected, Secret,
    keys::{AFTER_DEAD, ENVELOPES, ON_REJECTED, TAILS},
    section::section,
};

section! {
    /// Where the tables are.
    Database in "database";
    keys {
        /// `mysql://user:password@host:port/database`, with `?socket=/path` for a Unix socket. Elsewhere than on this
        /// machine the server must have a certificate that is valid for its name, unless the URL says otherwise
        /// (`?ssl-mode=REQUIRED`); `?ssl-ca=/path` names an authority of your own.
        url: Secret = Required "mysql://outbox_relay@db.example:3306/shop";
        /// A file with the URL.
        url_file: File = Optional "/run/secrets/database_url";
        /// The password, if the URL has none.
        password: Secret = Optional "secret";
        /// A file with the password.
        password_file: File = Optional "/run/secrets/database_password";
        /// The account that reads the binary log (`relay.tail`), on the same server. Not set: that of the URL.
        log_user: Text = Optional "outbox_log";
        /// Its password.
        log_password: Secret = Optional "secret";
        /// A file with that password.
        log_password_file: File = Optional "/run/secrets/log_password";
    }
    given {
        /// `mysql://user@host:port/database`, and the password if it is not given apart.
        url: Secret;
        /// The password, if it is not part of the URL.
        password: Option<Secret>;
        /// The login that reads the binary log; `None`: that of the URL.
        log: Option<LogLogin>;
    }
    read {
        /// Allows a password to go to another machine without TLS (`?ssl-mode=DISABLED`): the network between the two
        /// can read it.
        plaintext: Switch = Default "false";
    }
}

section! {
    /// How a relay claims and publishes.
    RelayConfig in "relay";
    keys {
        /// The name under which this process holds claims; at most 90 characters. Not set: host and process id.
        owner: Text = Optional "relay-1";
    }
    given {
        /// The name under which this process holds claims; by default host and process id. A random suffix is added to
        /// either.
        owner: String;
    }
    read {
        /// The lanes that this relay serves. None: all.
        lanes: Lanes = Default "[]";
        /// How long a claim is valid without renewal.
        lease: Duration = Default "30s";
        /// How long one publish may take.
        publish_deadline: Duration = Default "10s";
        /// How long a settlement, or any other call of the database, may take; connecting has as long again. A read
        /// past millions of deleted rows gets up to 40 s.
        settle_deadline: Duration = Default "5s";
        /// How long messages wait, without an attempt, for a destination that does not exist, has no queue, or refuses
        /// the relay. Then up to 100 of them are rejected, and the others wait until it takes one.
        unroutable_grace: Duration = Default "30s";
        /// The same for a destination that has never taken a message, if it is longer: after a first start the topics
        /// and queues may still have to be made.
        first_destination_grace: Duration = Default "1h";
        /// The rest of the lease after both deadlines.
        safety: Duration = Default "5s";
        /// The longest transaction that a service keeps open after it has enqueued. A longer one no longer holds back
        /// the floor. Where the relay may not see the server's open transactions (privilege PROCESS) the floor always
        /// waits this time.
        max_transaction_age: Duration = Default "60s";
        /// Most messages of one claim.
        claim_messages: Count(1, 10_000) = Default "3000";
        /// Most bytes of one claim; a larger message is claimed alone.
        claim_bytes: Size = Default "4MiB";
        /// Most messages that are claimed and not settled.
        in_flight_messages: Count(1, 1_000_000) = Default "12000";
        /// Most bytes that are claimed and not published.
        in_flight_bytes: Size = Default "32MiB";
        /// Connections that read payloads.
        readers: Count(1, 64) = Default "2";
        /// Connections that write outcomes back.
        settlers: Count(1, 64) = Default "2";
        /// The shortest time from one small claim of a lane to the next: a shorter one publishes sooner, and costs the
        /// database more.
        claim_interval: Duration = Default "8ms";
        /// Whether one relay at a time may take a lane without a backlog for itself, and read its rows from the binary
        /// log: messages leave within a millisecond or two, at less cost. `auto`: where the server allows it (see
        /// docs/deployment.md).
        tail: Words(TAILS: bool) = Default "auto";
        /// The longest pause between two looks into an empty queue; three times as long after ten seconds without a
        /// message, and three seconds where the binary log shows new messages (`relay.tail`).
        poll_interval: Duration = Default "100ms";
        /// How long a stop may take before messages in flight are given up.
        stop_deadline: Duration = Default "15s";
    }
}

section! {
    /// The retries of a message that was not confirmed: exponential, with full jitter.
    RetryConfig in "retry";
    keys {}
    given {}
    read {
        /// Upper bound of the first wait; each further bound is twice the last, and the wait a random part of it.
        base: Duration = Default "1s";
        /// Upper bound of every wait.
        max: Duration = Default "5m";
        /// After this number of attempts the message is dead. A relay that dies spends one for each message that it had
        /// claimed: with 1, a message may be dead that was never sent.
        max_attempts: Count(1, 10_000) = Default "20";
    }
}

impl Copy for RetryConfig {}

section! {
    /// How long rows are kept; 0 means for ever.
    Retention in "retention";
    keys {}
    given {}
    read {
        /// Sent messages and their receipts.
        sent: Retention = Default "7d";
        /// Dead messages, but for those that hold their key: these stay until an operator retries, releases or discards
        /// them.
        dead: Retention = Default "30d";
        /// Rows of the inbox. A message that is delivered again after that time takes effect again.
        inbox: Retention = Default "7d";
        /// Ended jobs of operators, and the audit of their actions.
        audit: Retention = Default "365d";
    }
}

section! {
    /// A rule for the destination of messages.
    Route in "routes.*";
    keys {}
    given {
        /// Kafka topic, RabbitMQ exchange or path; `{topic}`, `{type}` and `{lane}` are replaced.
        target: String;
        /// RabbitMQ's routing key; `{topic}`, `{type}`, `{key}` and `{lane}` are replaced.
        routing_key: String;
        /// Whether a key may have several unconfirmed messages on a sink that does not keep their order.
        pipelined: bool;
        /// The shape that its messages have on the wire.
        envelope: Envelope;
        /// The retries of its messages; `None`: those of `[retry]`.
        retry: Option<RetryConfig>;
    }
    read {
        /// Topics, with `*` for any number of characters.
        topics: Text = Required "*";
        /// The sink's name.
        sink: Text = Required "main";
        /// The outcome of a message that the broker rejects: dead at once, or tried again up to the limit of attempts.
        on_rejected: Words(ON_REJECTED: OnRejected) = Default "dead";
        /// The effect of a dead message on the later ones of its key: they go on, or they wait until it is retried or
        /// discarded.
        after_dead: Words(AFTER_DEAD: AfterDead) = Default "skip";
        /// The attribute `source` of CloudEvents, a URI reference; `{topic}` and `{lane}` are replaced.
        source: Text = Default "/{topic}";
    }
    keys {
        /// The shape on the wire: docs/envelopes.md describes each.
        envelope: Words(ENVELOPES: fn(Binding) -> Envelope) = Default "raw";
        /// `retry.base` for messages of this route.
        retry_base: Duration = Optional "1s";
        /// `retry.max` for messages of this route.
        retry_max: Duration = Optional "5m";
        /// `retry.max_attempts` for messages of this route. A lower number ends messages at their next failure; a
        /// higher one brings none back.
        max_attempts: Count(1, 10_000) = Optional "20";
    }
}
