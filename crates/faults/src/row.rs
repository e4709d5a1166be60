//! A row of the table, and its cases.

use anyhow::Result;
use futures_util::future::BoxFuture;
use testkit::{consume::Broker, servers::Flavor};

use crate::arena::Arena;

/// A fault and where it strikes.
pub struct Row {
    /// Its name on the command line, for example `R1`.
    pub id: &'static str,
    /// The fault.
    pub fault: &'static str,
    /// The row's own requirement, beside those of every run.
    pub shows: &'static str,
    /// Where it strikes.
    pub cases: Vec<Case>,
}

/// What a case does: it starts what it needs, strikes, heals, and leaves in the arena what it expects.
pub type Strike = Box<dyn for<'a> Fn(&'a mut Arena) -> BoxFuture<'a, Result<()>> + Send + Sync>;

/// One place where a fault strikes.
pub struct Case {
    /// Its name within the row, for example `after_claim`.
    pub name: String,
    /// The database.
    pub flavor: Flavor,
    /// The broker.
    pub broker: Broker,
    /// Its own servers, because it stops or changes them; the others are shared.
    pub own: Own,
    /// Whether it belongs to the short form.
    pub short: bool,
    /// The words of `relay status` while the fault lasts: see [`Arena::told`]. Empty if the fault is too short to ask.
    pub told: &'static str,
    /// The alerts that may fire, beside those that the case waits for.
    pub alerts: Vec<&'static str>,
    /// What it does.
    pub strike: Strike,
}

/// The case's own servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Own {
    /// The database server, with these arguments.
    pub database: Option<&'static [&'static str]>,
    /// Whether the clock of that server can be stepped.
    pub clock: bool,
    /// The broker.
    pub broker: OwnBroker,
}

/// A case's own broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnBroker {
    /// No broker of its own: it uses the shared one.
    #[default]
    None,
    /// One node.
    One,
    /// Three nodes (Kafka).
    Three,
}

impl Case {
    /// A case on MySQL and Kafka, with shared servers.
    pub fn new<F>(name: &str, strike: F) -> Self
    where
        F: for<'a> Fn(&'a mut Arena) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
    {
        Self {
            name: name.to_owned(),
            flavor: Flavor::MySql,
            broker: Broker::Kafka,
            own: Own::default(),
            short: false,
            told: "",
            alerts: Vec::new(),
            strike: Box::new(strike),
        }
    }

    /// On these servers.
    #[must_use]
    pub fn on(mut self, flavor: Flavor, broker: Broker) -> Self {
        (self.flavor, self.broker) = (flavor, broker);
        self
    }

    /// With a database server of its own.
    #[must_use]
    pub fn own_database(self) -> Self {
        self.own_database_with(&[])
    }

    /// With a database server of its own that is started with these arguments.
    #[must_use]
    pub fn own_database_with(mut self, arguments: &'static [&'static str]) -> Self {
        self.own.database = Some(arguments);
        self
    }

    /// With a database server of its own, whose clock can be stepped.
    #[must_use]
    pub fn own_clock(mut self) -> Self {
        self.own.clock = true;
        self.own_database()
    }

    /// With a broker of its own.
    #[must_use]
    pub fn own_broker(mut self) -> Self {
        self.own.broker = OwnBroker::One;
        self
    }

    /// With three brokers of its own.
    #[must_use]
    pub fn three_brokers(mut self) -> Self {
        self.own.broker = OwnBroker::Three;
        self
    }

    /// Belongs to the short form.
    #[must_use]
    pub fn short(mut self) -> Self {
        self.short = true;
        self
    }

    /// While the fault lasts, the verdict on a lane has these words.
    #[must_use]
    pub fn told(mut self, words: &'static str) -> Self {
        self.told = words;
        self
    }

    /// These alerts may fire, beside those that the case waits for.
    #[must_use]
    pub fn may_raise(mut self, alerts: &[&'static str]) -> Self {
        self.alerts = alerts.to_vec();
        self
    }

    /// Its name, with the names of the servers.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} ({:?}, {:?})", self.name, self.flavor, self.broker)
    }
}
