//! The table of all keys: those of `sections.rs` and `process.rs`. The program's configuration follows it: reading,
//! checking, `config show`, `config example` and docs/configuration.md.

use super::{
    AfterDead, Binding, Database, Envelope, OnRejected, RelayConfig, Retention, RetryConfig, Route,
    process::{ApiConfig, Canary, ConsoleConfig, Http, Log, Tracing},
    section::Words,
    sink_type::{self, SINK_TYPES},
    value::ValueKind,
};

/// The value of a key that is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unset {
    /// This value.
    Default(&'static str),
    /// Nothing: it may be left out. An example of a value.
    Optional(&'static str),
    /// Nothing: it must be given. An example of a value.
    Required(&'static str),
}

/// A key of the configuration.
#[derive(Debug)]
pub struct ConfigKey {
    /// Its path; `*` stands for the name of a sink, the number of a route or the name of a property.
    pub path: &'static str,
    /// The values that it takes.
    pub kind: ValueKind,
    /// Its value when it is not given.
    pub unset: Unset,
    /// The types of sink that it belongs to; empty: all.
    pub only: &'static [&'static str],
    /// Its meaning.
    pub help: &'static str,
}

impl Unset {
    /// Returns the default, if there is one.
    #[must_use]
    pub const fn default(self) -> Option<&'static str> {
        match self {
            Self::Default(text) => Some(text),
            Self::Optional(_) | Self::Required(_) => None,
        }
    }
}

impl ConfigKey {
    /// The last part of the path.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// Whether it holds properties of librdkafka, whose names contain dots.
    #[must_use]
    pub fn is_map(&self) -> bool {
        self.name() == "*"
    }

    /// The value that stands for it in an example, and in the table of defaults.
    #[must_use]
    pub fn sample(&self) -> &'static str {
        let (Unset::Default(text) | Unset::Optional(text) | Unset::Required(text)) = self.unset;
        text
    }
}

/// The sections, in the order of the example, and what they are for.
pub const SECTIONS: &[(&str, &str)] = &[
    ("database", "Where the tables are."),
    ("relay", "How this relay claims and publishes."),
    ("retry", "What happens to a message that was not confirmed."),
    ("retention", "How long rows are kept; 0: for ever."),
    ("http", "The listener for `/metrics`, `/livez` and `/readyz`."),
    ("api", "The listener of `relay api`."),
    ("console", "The pages of `relay console`, which listens as `relay api` does."),
    ("log", "Logs, on standard error."),
    ("tracing", "Spans of the relay, over OTLP."),
    ("canary", "A message of the relay's own, now and then, that it reads at its destination."),
    ("sinks.*", "A broker, under a name of lowercase letters, digits and `_`."),
    (
        "routes.*",
        "Which messages go where: the first route whose pattern matches the topic decides. In variables and flags \
         routes are numbered from 0.",
    ),
];

pub const TAILS: Words<bool, 2> = [("auto", true), ("off", false)];
pub const ORDERS: Words<bool, 2> = [("strict", false), ("pipelined", true)];
pub const ON_REJECTED: Words<OnRejected, 2> = [("dead", OnRejected::Dead), ("retry", OnRejected::Retry)];
pub const AFTER_DEAD: Words<AfterDead, 2> = [("skip", AfterDead::Skip), ("block", AfterDead::Block)];
pub const ENVELOPES: Words<fn(Binding) -> Envelope, 4> = [
    ("raw", |_| Envelope::Raw),
    ("cloudevents-binary", Envelope::CloudEventsBinary),
    ("cloudevents-json", Envelope::CloudEventsJson),
    ("debezium", |_| Envelope::Debezium),
];

/// The keyword `type` is no name of a field.
const SINK_TYPE: ConfigKey = ConfigKey {
    path: "sinks.*.type",
    kind: ValueKind::Choice(const { &sink_type::words() }),
    unset: Unset::Required("kafka"),
    only: &[],
    help: "The kind of broker. `stdout` writes a JSON line per message; `null` confirms everything and sends nothing, \
           for measuring.",
};

/// All keys but those of the types of sink, by section.
pub const KEYS: &[&[&[ConfigKey]]] = &[
    Database::KEYS,
    RelayConfig::KEYS,
    RetryConfig::KEYS,
    Retention::KEYS,
    Http::KEYS,
    ApiConfig::KEYS,
    ConsoleConfig::KEYS,
    Log::KEYS,
    Tracing::KEYS,
    Canary::KEYS,
    &[&[SINK_TYPE]],
    Route::KEYS,
];

/// Returns all keys. Several types of sink may have a key of the same path, each with its own meaning.
pub fn keys() -> impl Iterator<Item = &'static ConfigKey> {
    let of_types = SINK_TYPES.iter().flat_map(|sink_type| sink_type.keys);
    KEYS.iter().chain(of_types).copied().flatten().copied().flatten()
}
