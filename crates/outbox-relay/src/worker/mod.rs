//! Works without a broker: a service's own handler takes the place of the sinks, and each claim is one transaction.
//!
//! ```no_run
//! use outbox_core::sqlx::{self, MySqlConnection, MySqlPool};
//! use outbox_relay::worker::{Delivery, Failure, Handler, Worker, stop_signal};
//!
//! struct Billing;
//!
//! impl Handler for Billing {
//!     async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
//!         let order: u64 = message.json()?;
//!         sqlx::query("INSERT INTO invoices (order_id) VALUES (?)").bind(order).execute(tx).await?;
//!         Ok(())
//!     }
//! }
//!
//! # async fn work(pool: MySqlPool) -> Result<(), outbox_relay::worker::RunError> {
//! Worker::new(pool.connect_options(), 7).concurrency(8).run(Billing, stop_signal()).await
//! # }
//! ```
//!
//! The handler's writes, the removal from the queue, the receipt and the end of the claim are committed together, under
//! the claim's fence. So the effect of a message in this database happens once. All other parts are the relay's own:
//! claims, leases, take-over, order per key, delayed and expiring messages, retries, dead messages, purge, metrics.
//! docs/worker.md has the rules.

mod ahead;
mod claims;
mod turn;

use std::{net::SocketAddr, sync::Arc, time::Duration};

pub use outbox_consumer::{BoxError, Delivery, Failure, Handler, Router, Unknown, handler_fn, in_span, stop_signal};
use outbox_core::{sqlx::mysql::MySqlConnectOptions, store::settle::losses::Losses};
use tokio::{
    sync::{Mutex, mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::{ahead::Ahead, claims::Claims};
pub use crate::error::RunError;
use crate::{
    database::Login,
    keepers::renew,
    observe::{
        health::Health,
        http::{self, Sources},
        metrics::Metrics,
    },
    pipeline::{
        lanes,
        read::{Reader, route::Routes},
        settle::Settler,
    },
    run,
    settings::{self, AfterDead, Config, Route},
    state::{context::Context, role::ProcessKind},
};

/// The receipt of a worker's messages, and the label `sink` of its metrics.
const NAME: &str = "worker";

/// Gives the messages of one lane to a handler. Any number of processes may serve one lane; they need no supervisor.
///
/// A lane belongs to the workers or to the relays that first serve it, and the others leave it alone. So start a worker
/// before its lane has messages, or give relays `relay.lanes` without it. Releases before this one do not ask.
pub struct Worker {
    options: Arc<MySqlConnectOptions>,
    config: Config,
    concurrency: usize,
    after_dead: AfterDead,
    metrics: Option<Arc<Metrics>>,
}

impl Worker {
    /// Creates a worker for this lane, with `pool.connect_options()` or other options. It has connections of its own,
    /// about ten and one more for each transaction. It does not connect yet.
    ///
    /// The account needs the rights of `deploy/grants/relay.sql`, and rights on the tables of the handler.
    #[must_use]
    pub fn new(options: impl Into<Arc<MySqlConnectOptions>>, lane: u16) -> Self {
        let mut config = settings::Config::default();
        config.relay.lanes = vec![lane];
        config.relay.claim_messages = 1;
        config.http.listen = None;
        Self { options: options.into(), config, concurrency: 8, after_dead: AfterDead::Skip, metrics: None }
    }

    /// Sets the most transactions that are open at the same time, from 1 to 1,000; by default 8. No two of them have
    /// messages of one key.
    #[must_use]
    pub fn concurrency(mut self, transactions: usize) -> Self {
        self.concurrency = transactions.clamp(1, 1000);
        self
    }

    /// Sets the most messages that share a claim and a transaction, from 1 to 1,000; by default 1. More are faster,
    /// because a commit costs as much for ten messages as for one. If one of them ends the transaction (a deadlock, a
    /// time-out, a panic), the others are done again. A failure that the handler returns does not affect them.
    #[must_use]
    pub fn batch(mut self, messages: usize) -> Self {
        self.config.relay.claim_messages = messages.clamp(1, 1000);
        self
    }

    /// Sets the time that the handler may take for a message, by default 10 s. After it the work of the message is
    /// rolled back, and counts as failed. The lease becomes as long as that needs.
    #[must_use]
    pub fn deadline(mut self, time: Duration) -> Self {
        let relay = &mut self.config.relay;
        relay.publish_deadline = time;
        let need = relay.shortest_lease();
        // This must fit even just before a renewal, which comes after a third of the lease.
        relay.lease = relay.lease.max((need * 3 / 2).min(need + renew::LONGEST));
        self
    }

    /// Sets the effect of a dead message on the later ones of its key; by default they go on.
    #[must_use]
    pub fn after_dead(mut self, what: AfterDead) -> Self {
        self.after_dead = what;
        self
    }

    /// Serves `/metrics`, `/livez` and `/readyz` at this address; by default nowhere. There is no authentication.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.config.http.listen = Some(address);
        self
    }

    /// Counts in these metrics, for a service that shows them itself.
    #[must_use]
    pub fn metrics(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Changes any other setting: times, retries, retention. They mean the same as for a relay in
    /// docs/configuration.md; database, sinks and routes are ignored.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Works until `stop` ends. Then finishes the work in progress, and releases the rest.
    ///
    /// Waits for a database that is down and for tables that do not exist yet. Fails for an impossible setting, a lane
    /// of relays, an address in use, tables of another version, or a bug of this library.
    pub async fn run<H: Handler>(self, handler: H, stop: impl Future<Output = ()> + Send) -> Result<(), RunError> {
        let relay = &self.config.relay;
        let ahead = Ahead::new(self.concurrency, relay);
        run::check(relay)?;
        let metrics = match self.metrics {
            Some(metrics) => metrics,
            None => Metrics::new().map_err(|error| RunError::Internal(error.to_string()))?,
        };
        let health = Health::new(Arc::clone(&metrics));
        let ended = CancellationToken::new();
        let _ends = ended.clone().drop_guard();
        if let Some(address) = self.config.http.listen {
            let listener = http::bind(address).await?;
            let sources = Sources { metrics: Arc::clone(&metrics), health: Arc::clone(&health) };
            tokio::spawn(http::serve(listener, sources, ended.cancelled_owned()));
        }
        let login = Login::Given(self.options);
        let after_dead = self.after_dead;
        let role = ProcessKind::Worker { batch: self.config.relay.claim_messages };
        let context = Arc::new(Context::new(self.config, login, metrics, health, role));
        run::supervise(&context, || start(&context, ahead, handler, after_dead), stop).await
    }
}

/// Starts the tasks through which a message passes, joined by channels.
fn start<H: Handler>(
    context: &Arc<Context>,
    ahead: Ahead,
    handler: H,
    after_dead: AfterDead,
) -> JoinSet<Result<(), RunError>> {
    let (claims, claimed) = mpsc::channel(1);
    let (finished, queue) = mpsc::unbounded_channel();
    // No part asks which claims are settled: no two claims share a key.
    let (settled, _) = mpsc::unbounded_channel();
    let (_always, open) = watch::channel(true);
    let reader = Reader::new(context, Routes::new(&[route(after_dead)]));
    let database = context.login.options().ok().and_then(|options| options.get_database().map(str::to_owned));
    let capacity = ahead.capacity();
    let context = Arc::clone(context);
    let losses = Losses::default();
    let streaks = parking_lot::Mutex::default();
    let settler = Settler {
        context: Arc::clone(&context),
        queue: Arc::new(Mutex::new(queue)),
        settled: settled.clone(),
        tail: None,
    };
    let worker = Claims {
        context: Arc::clone(&context),
        ahead,
        reader,
        handler,
        database,
        after_dead,
        finished,
        losses,
        streaks,
    };

    let mut tasks = JoinSet::new();
    tasks.spawn(lanes::run(context, capacity, open, (claims, settled)));
    tasks.spawn(worker.run(claimed));
    tasks.spawn(async move {
        settler.run().await;
        Ok(())
    });
    tasks
}

/// Returns the route of every message to the handler, unchanged.
fn route(after_dead: AfterDead) -> Route {
    Route { after_dead, ..Route::new("*", NAME) }
}

#[cfg(test)]
mod tests {
    use outbox_core::sqlx::MySqlConnection;

    use super::*;

    fn worker() -> Worker {
        Worker::new(MySqlConnectOptions::new(), 7)
    }

    struct Nothing;

    impl Handler for Nothing {
        async fn handle(&self, _: &mut MySqlConnection, _: &Delivery) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn the_error_of_a_run_is_of_the_kind_of_its_remedy() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let ended = worker().listen(address).run(Nothing, std::future::pending()).await;
        assert!(matches!(ended, Err(RunError::Listen { address: it, .. }) if it == address), "{ended:?}");
        let hasty = worker().configure(|config| config.relay.lease = Duration::from_secs(1));
        let ended = hasty.run(Nothing, std::future::pending()).await;
        assert!(matches!(ended, Err(RunError::Configuration(_))), "{ended:?}");
    }

    #[test]
    fn a_worker_serves_its_lane_alone_and_shows_nothing_unless_told() {
        let config = worker().config;
        assert_eq!((config.relay.lanes, config.relay.claim_messages), (vec![7], 1));
        assert!(config.http.listen.is_none() && config.relay.lease > Duration::ZERO && config.retry.max_attempts > 1);
    }

    #[test]
    fn a_longer_deadline_makes_the_lease_longer_and_one_that_does_not_fit_is_refused() {
        let patient = worker().deadline(Duration::from_secs(300));
        assert_eq!(patient.config.relay.lease, Duration::from_secs(330));
        assert_eq!(worker().deadline(Duration::from_secs(20)).config.relay.lease, Duration::from_secs(45));
        assert!(run::check(&patient.config.relay).is_ok());
        let hasty = patient.configure(|config| config.relay.lease = Duration::from_secs(30));
        assert!(run::check(&hasty.config.relay).unwrap_err().to_string().contains("310s"));
    }
}
