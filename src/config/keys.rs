//! The table of all keys. Reading, checking, `config show`, `config example` and docs/configuration.md follow it.

use super::{
    AfterDead, Binding, Envelope, LogFormat, OnRejected,
    value::Kind::{
        self, Address, Choice, Count, Duration, File, Lanes, Level, Property, Retention, Secret, Size, Switch, Text,
    },
};

/// The value of a key that is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unset {
    /// This value.
    Default(&'static str),
    /// Nothing: it may be left out. An example of a value.
    Optional(&'static str),
    /// Nothing: it must be given. An example of a value.
    Required(&'static str),
}

/// A key of the configuration.
#[derive(Debug)]
pub(super) struct ConfigKey {
    /// Its path; `*` stands for the name of a sink, the number of a route or the name of a property.
    pub(super) path: &'static str,
    /// The values that it takes.
    pub(super) kind: Kind,
    /// Its value when it is not given.
    pub(super) unset: Unset,
    /// The types of sink that it belongs to; empty: all.
    pub(super) only: &'static [&'static str],
    /// Its meaning.
    pub(super) help: &'static str,
}

impl ConfigKey {
    /// The last part of the path.
    pub(super) fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// Whether it holds properties of librdkafka, whose names contain dots.
    pub(super) fn is_map(&self) -> bool {
        self.name() == "*"
    }

    /// The value that stands for it in an example, and in the table of defaults.
    pub(super) fn sample(&self) -> &'static str {
        let (Unset::Default(text) | Unset::Optional(text) | Unset::Required(text)) = self.unset;
        text
    }
}

/// The sections, in the order of the example, and what they are for.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("database", "Where the tables are."),
    ("relay", "How this relay claims and publishes."),
    ("retry", "What happens to a message that was not confirmed."),
    ("retention", "How long rows are kept; 0: for ever."),
    ("http", "The listener for `/metrics`, `/livez` and `/readyz`."),
    ("log", "Logs, on standard error."),
    ("sinks.*", "A broker, under a name of lowercase letters, digits and `_`."),
    (
        "routes.*",
        "Which messages go where: the first route whose pattern matches the topic decides. In variables and flags routes are numbered from 0.",
    ),
];

/// The words of a choice, and what they mean.
pub(super) type Words<T, const N: usize> = [(&'static str, T); N];

pub(super) const SINK_TYPES: Words<SinkType, 4> = [
    ("kafka", SinkType::Kafka),
    ("rabbitmq", SinkType::RabbitMq),
    ("stdout", SinkType::Stdout),
    ("null", SinkType::Null),
];
pub(super) const LOG_FORMATS: Words<LogFormat, 2> = [("text", LogFormat::Text), ("json", LogFormat::Json)];
pub(super) const ORDERS: Words<bool, 2> = [("strict", false), ("pipelined", true)];
pub(super) const ON_REJECTED: Words<OnRejected, 2> = [("dead", OnRejected::Dead), ("retry", OnRejected::Retry)];
pub(super) const AFTER_DEAD: Words<AfterDead, 2> = [("skip", AfterDead::Skip), ("block", AfterDead::Block)];
pub(super) const ENVELOPES: Words<fn(Binding) -> Envelope, 4> = [
    ("raw", |_| Envelope::Raw),
    ("cloudevents-binary", Envelope::CloudEventsBinary),
    ("cloudevents-json", Envelope::CloudEventsJson),
    ("debezium", |_| Envelope::Debezium),
];

#[expect(clippy::indexing_slicing, reason = "it runs in the compiler")]
const fn words<T: Copy, const N: usize>(choices: &Words<T, N>) -> [&'static str; N] {
    let mut words = [""; N];
    let mut index = 0;
    while index < N {
        words[index] = choices[index].0;
        index += 1;
    }
    words
}

const KAFKA: &[&str] = &["kafka"];
const RABBIT: &[&str] = &["rabbitmq"];

const fn any(path: &'static str, kind: Kind, unset: Unset, help: &'static str) -> ConfigKey {
    ConfigKey { path, kind, unset, only: &[], help }
}

const fn only(only: &'static [&'static str], mut key: ConfigKey) -> ConfigKey {
    key.only = only;
    key
}

const fn default(path: &'static str, kind: Kind, text: &'static str, help: &'static str) -> ConfigKey {
    any(path, kind, Unset::Default(text), help)
}

const fn optional(path: &'static str, kind: Kind, text: &'static str, help: &'static str) -> ConfigKey {
    any(path, kind, Unset::Optional(text), help)
}

const fn required(path: &'static str, kind: Kind, text: &'static str, help: &'static str) -> ConfigKey {
    any(path, kind, Unset::Required(text), help)
}

/// A kind of broker, as `type` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SinkType {
    Kafka,
    RabbitMq,
    Stdout,
    Null,
}

/// All keys.
pub(super) const KEYS: &[ConfigKey] = &[
    required(
        "database.url",
        Secret,
        "mysql://relay@db.example:3306/shop",
        "`mysql://user:password@host:port/database`, with `?socket=/path` for a Unix socket. Elsewhere than on this machine the server must have a certificate that is valid for its name, unless the URL says otherwise (`?ssl-mode=REQUIRED`); `?ssl-ca=/path` names an authority of your own.",
    ),
    optional("database.url_file", File, "/run/secrets/database_url", "A file with the URL."),
    optional("database.password", Secret, "secret", "The password, if the URL has none."),
    optional("database.password_file", File, "/run/secrets/database_password", "A file with the password."),
    default(
        "database.plaintext",
        Switch,
        "false",
        "Allows a password to go to another machine without TLS (`?ssl-mode=DISABLED`): who is between the two can take it.",
    ),
    optional(
        "relay.owner",
        Text,
        "relay-1",
        "The name under which this process holds claims; at most 90 characters. Not set: host and process id.",
    ),
    default("relay.lanes", Lanes, "[]", "The lanes that this relay serves. None: all."),
    default("relay.lease", Duration, "30s", "How long a claim is valid without renewal."),
    default("relay.publish_deadline", Duration, "10s", "How long one publish may take."),
    default(
        "relay.settle_deadline",
        Duration,
        "5s",
        "How long writing back its outcome, or any other call of the database, may take; connecting has as long again. A read past millions of deleted rows gets up to 40 s.",
    ),
    default(
        "relay.unroutable_grace",
        Duration,
        "30s",
        "How long messages wait, without an attempt, for a destination that does not exist, has no queue, or refuses the relay. Then up to 100 of them are rejected, and the others wait until it takes one.",
    ),
    default("relay.safety", Duration, "5s", "What the lease has left when both deadlines have passed."),
    default(
        "relay.max_transaction_age",
        Duration,
        "60s",
        "The longest transaction that a service keeps open after it has enqueued. A longer one no longer holds back the floor; where the relay may not see the server's open transactions (privilege PROCESS) the floor always waits for so long.",
    ),
    default("relay.claim_messages", Count(1, 10_000), "1000", "Most messages of one claim."),
    default("relay.claim_bytes", Size, "4MiB", "Most bytes of one claim; a larger message is claimed alone."),
    default(
        "relay.in_flight_messages",
        Count(1, 1_000_000),
        "12000",
        "Most messages that are claimed and not settled.",
    ),
    default("relay.in_flight_bytes", Size, "32MiB", "Most bytes that are claimed and not published."),
    default("relay.readers", Count(1, 64), "2", "Connections that read payloads."),
    default("relay.settlers", Count(1, 64), "2", "Connections that write outcomes back."),
    default(
        "relay.claim_interval",
        Duration,
        "8ms",
        "The shortest time from one small claim of a lane to the next: less is sooner, and costs the database more.",
    ),
    default(
        "relay.poll_interval",
        Duration,
        "100ms",
        "The longest pause between two looks into an empty queue; three times as long after ten seconds without a message.",
    ),
    default("relay.stop_deadline", Duration, "15s", "How long a stop may take before what is in flight is given up."),
    default(
        "retry.base",
        Duration,
        "1s",
        "Upper bound of the first wait; each further bound is twice the last, and the wait a random part of it.",
    ),
    default("retry.max", Duration, "5m", "Upper bound of every wait."),
    default("retry.max_attempts", Count(1, 10_000), "20", "After so many attempts the message is dead."),
    default("retention.sent", Retention, "7d", "Sent messages and their receipts."),
    default("retention.dead", Retention, "30d", "Dead messages."),
    default(
        "retention.inbox",
        Retention,
        "7d",
        "Rows of the inbox. A message that is delivered again after that time takes effect again.",
    ),
    default(
        "http.listen",
        Address,
        "127.0.0.1:9464",
        "Address and port; `off`: none. There is no authentication: elsewhere than on loopback keep it inside a trusted network.",
    ),
    default("log.level", Level, "info", "A level, or a filter such as `info,outbox_relay=debug`."),
    default("log.format", Choice(const { &words(&LOG_FORMATS) }), "text", "Text for people or JSON for programs."),
    required(
        "sinks.*.type",
        Choice(const { &words(&SINK_TYPES) }),
        "kafka",
        "The kind of broker. `stdout` writes a JSON line per message; `null` confirms everything and sends nothing, for measuring.",
    ),
    only(
        KAFKA,
        required("sinks.*.brokers", Text, "kafka-1:9093,kafka-2:9093", "`host:port`, several separated by commas."),
    ),
    only(
        RABBIT,
        required(
            "sinks.*.url",
            Secret,
            "amqps://relay@rabbit.example:5671/%2f",
            "`amqps://user:password@host:port/vhost`.",
        ),
    ),
    only(RABBIT, optional("sinks.*.url_file", File, "/run/secrets/rabbit_url", "A file with the URL.")),
    only(RABBIT, optional("sinks.*.password", Secret, "secret", "The password, if the URL has none.")),
    only(RABBIT, optional("sinks.*.password_file", File, "/run/secrets/rabbit_password", "A file with the password.")),
    only(
        RABBIT,
        optional(
            "sinks.*.ca_file",
            File,
            "/etc/outbox-relay/ca.pem",
            "Certificates of the authorities to trust, as PEM. Not set: those of the system.",
        ),
    ),
    only(
        RABBIT,
        optional(
            "sinks.*.certificate_file",
            File,
            "/etc/outbox-relay/client.pem",
            "A certificate to show to the broker, with its chain, as PEM. Needs `key_file`.",
        ),
    ),
    only(
        RABBIT,
        optional("sinks.*.key_file", File, "/etc/outbox-relay/client.key", "The key of that certificate, as PEM."),
    ),
    only(RABBIT, default("sinks.*.channels", Count(1, 255), "4", "Channels that publish at the same time.")),
    only(RABBIT, default("sinks.*.window", Count(1, 10_000), "512", "Most unconfirmed messages of one channel.")),
    only(
        &["kafka", "rabbitmq"],
        default("sinks.*.plaintext", Switch, "false", "Allows a connection without TLS to another machine."),
    ),
    only(
        KAFKA,
        optional(
            "sinks.*.properties.*",
            Property,
            "",
            "Properties of librdkafka under their own names, for example `security.protocol`, `ssl.ca.location`, `sasl.username`, `linger.ms`. With `_file` behind its name a property is read from a file (`\"sasl.password_file\"`). Those that weaken delivery or order are refused. In variables `_` stands for the dot.",
        ),
    ),
    required("routes.*.topics", Text, "*", "Topics, with `*` for any number of characters."),
    required("routes.*.sink", Text, "main", "The sink's name."),
    only(
        KAFKA,
        default("routes.*.topic", Text, "{topic}", "Kafka topic; `{topic}`, `{type}` and `{lane}` are replaced."),
    ),
    only(
        RABBIT,
        required(
            "routes.*.exchange",
            Text,
            "amq.topic",
            "RabbitMQ exchange, empty for the default one; `{topic}`, `{type}` and `{lane}` are replaced.",
        ),
    ),
    only(
        RABBIT,
        default(
            "routes.*.routing_key",
            Text,
            "{topic}",
            "Routing key; `{topic}`, `{type}`, `{key}` and `{lane}` are replaced.",
        ),
    ),
    only(
        RABBIT,
        default(
            "routes.*.order",
            Choice(const { &words(&ORDERS) }),
            "strict",
            "`strict`: one unconfirmed message per key. `pipelined`: several, which is faster for a hot key; after a nack or a lost connection its messages can be out of order.",
        ),
    ),
    default(
        "routes.*.on_rejected",
        Choice(const { &words(&ON_REJECTED) }),
        "dead",
        "What becomes of a message that the broker rejects: dead at once, or tried again up to the limit of attempts.",
    ),
    default(
        "routes.*.after_dead",
        Choice(const { &words(&AFTER_DEAD) }),
        "skip",
        "What a dead message means for the later ones of its key: they go on, or they wait until it is retried or discarded.",
    ),
    default(
        "routes.*.envelope",
        Choice(const { &words(&ENVELOPES) }),
        "raw",
        "The shape on the wire: docs/envelopes.md describes each.",
    ),
    default(
        "routes.*.source",
        Text,
        "/{topic}",
        "The attribute `source` of CloudEvents, a URI reference; `{topic}` and `{lane}` are replaced.",
    ),
];
