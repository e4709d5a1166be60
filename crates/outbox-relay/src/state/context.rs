//! The shared state of a running relay.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    database::Login,
    destination::Destination,
    observe::{health::Health, metrics::Metrics, traces::Traces},
    settings::Config,
    state::{controls::Controls, idle::Idle, leases::HeldClaims, queues::Queues, role::ProcessKind, stream::Stream},
};

/// The shared state of a running relay.
pub struct Context {
    /// The effective configuration.
    pub config: Config,
    /// The name under which this process holds claims: the configured one and a random suffix. The suffix keeps a
    /// restarted process from taking its predecessor's claims for its own.
    pub owner: String,
    /// The login to the database.
    pub login: Login,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The answers of `/livez` and `/readyz`.
    pub health: Arc<Health>,
    /// The claims that this process holds.
    pub leases: HeldClaims,
    /// The state of the queues of keys on which this process works.
    pub queues: Queues,
    /// The pauses of operators.
    pub controls: Controls,
    /// The lanes that wait for a message.
    pub idle: Idle,
    /// The stream of the binary log.
    pub stream: Stream,
    /// Destinations that refuse and took no message of this process: whether another one has seen them work. `None`:
    /// not asked yet.
    pub(crate) unproven: Mutex<HashMap<Arc<Destination>, Option<bool>>>,
    /// No message with a smaller id can still be committed.
    pub floor: AtomicU64,
    /// Wakes the claimers, for example after an enqueue in this process.
    pub nudge: Notify,
    /// Stops claiming; claimed messages are finished.
    pub stop: CancellationToken,
    /// Stops publishing; messages that are not published are released.
    pub hurry: CancellationToken,
    /// How this process claims: as a relay or as a worker.
    pub role: ProcessKind,
    /// The exporter of spans.
    pub(crate) traces: Option<Traces>,
}

impl Context {
    /// Creates the shared state before a relay runs, with a name for its claims that no other process has.
    #[must_use]
    pub fn new(config: Config, login: Login, metrics: Arc<Metrics>, health: Arc<Health>, role: ProcessKind) -> Self {
        let owner = format!("{}/{:08x}", config.relay.owner, rand::random::<u32>());
        Self {
            controls: Controls::new(&owner),
            owner,
            login,
            metrics,
            health,
            leases: HeldClaims::default(),
            queues: Queues::new(!role.shares_keys(), config.relay.claim_messages),
            idle: Idle::default(),
            stream: Stream::default(),
            unproven: Mutex::default(),
            floor: AtomicU64::new(0),
            nudge: Notify::new(),
            stop: CancellationToken::new(),
            hurry: CancellationToken::new(),
            role,
            traces: None,
            config,
        }
    }

    /// Creates the state for tests of single parts: its database does not exist.
    #[cfg(test)]
    pub(crate) fn without_database() -> Arc<Self> {
        Self::with_database("mysql://nobody@127.0.0.1:1/none")
    }

    /// Creates the state for tests of single parts.
    #[cfg(test)]
    pub(crate) fn with_database(url: &str) -> Arc<Self> {
        let mut config = Config::default();
        config.database.url = crate::settings::Secret::new(url);
        config.relay.publish_deadline = Duration::from_millis(100);
        let metrics = Metrics::new().unwrap();
        let health = Health::new(Arc::clone(&metrics));
        let login = Login::Configured(config.database.clone());
        Arc::new(Self::new(config, login, metrics, health, ProcessKind::Relay))
    }

    /// Sleeps; returns false if the relay is stopped.
    pub async fn sleep(&self, time: Duration) -> bool {
        self.stop.run_until_cancelled(tokio::time::sleep(time)).await.is_some()
    }

    /// Returns the sinks, each with the reason why it takes nothing.
    #[must_use]
    pub fn sinks(&self) -> BTreeMap<String, Option<String>> {
        let configured = self.config.sinks.keys().map(|name| (name.clone(), None));
        configured.chain(self.health.sinks()).collect()
    }

    /// Notes that a loop is alive.
    pub fn alive(&self, name: &'static str) {
        self.health.loop_ok(name);
    }
}
