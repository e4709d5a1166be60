//! Makes the parts of a relay, joins them by channels, and stops them in order.

use std::{
    collections::{BTreeSet, HashMap},
    panic::resume_unwind,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use outbox_core::{
    SchemaError, check_schema,
    sqlx::{self, Connection as _, MySqlConnection},
    store::{
        claim::{lanes::take_for, lease, read},
        operate::controls,
        schema::counters,
        settle,
    },
};
use tokio::{
    sync::{Mutex, mpsc, watch},
    task::JoinSet,
};

pub use crate::error::RunError;
use crate::{
    database,
    keepers::{canary, floor, gauges, jobs, pauses, promote, purge, renew, takeover},
    observe::{health::Health, metrics::Metrics, traces::Traces},
    pipeline::{
        claim::Claimed,
        lanes,
        publish::{Publisher, outlet::Outlets},
        read::{Reader, route::Routes},
        settle::{Finished, Settler},
    },
    settings::{Binding, Config, RelayConfig, SinkConfig},
    sink::Feed,
    state::{
        capacity::Capacity,
        context::Context,
        role::ProcessKind,
        session::{self, Session},
    },
};

/// Pause between two tries with a database that is down, or has no tables yet.
const WAIT: Duration = Duration::from_secs(1);
/// A database without an answer for this duration is tried anew: a dozen round trips to a slow one take seconds.
const SILENCE: Duration = Duration::from_secs(30);
/// The time that the loops beside the pipeline have to end, if the database does not answer.
const ENDING: Duration = Duration::from_secs(5);

/// Checks that no work can begin that could outlast its lease.
pub(crate) fn check(relay: &RelayConfig) -> Result<(), RunError> {
    let need = relay.shortest_lease();
    let lease = relay.lease;
    if need <= lease {
        return Ok(());
    }
    Err(RunError::configuration(format!(
        "the lease ({lease:?}) is shorter than publish_deadline + settle_deadline + safety = {need:?}: raise it"
    )))
}

/// A relay that can be run, and nudged while it runs.
pub struct Relay {
    pub(crate) context: Arc<Context>,
    routes: Routes,
    feeds: Vec<Feed>,
}

impl Relay {
    /// Creates a relay with the sinks of its configuration. It does not connect yet.
    pub fn new(config: Config, metrics: Arc<Metrics>, health: Arc<Health>) -> Result<Self, RunError> {
        let feeds = config.sinks.iter().map(|(name, sink)| sink.broker().feed(name)).collect::<Result<_, _>>()?;
        Self::with_sinks(config, feeds, metrics, health)
    }

    /// Creates a relay with other sinks, for embedding and tests. A route to another sink is an error, and a lease that a
    /// publish and its settlement could outlast.
    pub fn with_sinks(
        config: Config,
        feeds: Vec<Feed>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Result<Self, RunError> {
        check(&config.relay)?;
        let binding = |sink: &Feed| config.sinks.get(&sink.name).map_or(Binding::KAFKA, |sink| sink.broker().binding());
        let sinks: HashMap<_, _> = feeds.iter().map(|feed| (feed.name.clone(), binding(feed))).collect();
        if let Some(route) = config.routes.iter().find(|route| !sinks.contains_key(&route.sink)) {
            let names: BTreeSet<_> = sinks.keys().map(String::as_str).collect();
            let names = Vec::from_iter(names).join(", ");
            let topics = &route.topics;
            let sink = &route.sink;
            let problem =
                format!("a route for `{topics}` names the sink `{sink}`, which the relay lacks: it has {names}");
            return Err(RunError::configuration(problem));
        }
        let routes = Routes::new(&config.routes).with_sinks(sinks);
        let unusable = |error| RunError::configuration(format!("the database URL cannot be used: {error}"));
        database::options(&config.database).map_err(unusable)?;
        let login = database::Login::Configured(config.database.clone());
        let mut context = Context::new(config, login, metrics, health, ProcessKind::Relay);
        let system = |(name, sink): (&String, &SinkConfig)| (name.clone(), sink.broker().system());
        let systems = context.config.sinks.iter().map(system).collect();
        context.traces = Traces::new(&context.config, &context.owner, systems)?;
        Ok(Self { context: Arc::new(context), routes, feeds })
    }

    /// Returns a handle that wakes the relay at once after a commit in the same process.
    pub fn nudge(&self) -> impl Fn() + Send + Sync + 'static {
        let context = Arc::clone(&self.context);
        move || context.nudge.notify_waiters()
    }

    /// Runs until `shutdown` is done; then finishes what is in flight, releases the rest, and returns.
    ///
    /// Waits for a database that is down and for tables that do not exist yet. A schema unknown to this version is an
    /// error.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), RunError> {
        let context = Arc::clone(&self.context);
        let ended = supervise(&context, || self.start_pipeline(), shutdown).await;
        if let Some(traces) = &context.traces {
            traces.end().await;
        }
        ended
    }

    /// Starts the tasks through which a message passes, joined by channels.
    fn start_pipeline(self) -> JoinSet<Result<(), RunError>> {
        let context = self.context;
        let relay = &context.config.relay;
        let capacity = Capacity::new(relay);
        let (claims, claimed) = mpsc::channel::<Claimed>(relay.readers);
        let (finished, queue) = mpsc::unbounded_channel::<Finished>();
        let (settled, settled_events) = mpsc::unbounded_channel();
        let (events, sink_events) = mpsc::unbounded_channel();
        let (open, is_open) = watch::channel(false);

        let mut tasks = JoinSet::new();
        tasks.spawn(lanes::run(Arc::clone(&context), capacity, is_open, (claims, settled.clone())));
        let reader = Arc::new(Reader::new(&context, self.routes));
        let reads = in_order(claimed, relay.readers, move |claim| {
            let reader = Arc::clone(&reader);
            async move { reader.read(claim).await }
        });
        let outlets = Outlets::new(&context, self.feeds, events, open);
        let publisher = Publisher::new(&context, outlets, finished);
        tasks.spawn(async move {
            publisher.run(reads, sink_events, settled_events).await;
            Ok(())
        });
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..relay.settlers {
            let settler = Settler {
                context: Arc::clone(&context),
                queue: Arc::clone(&queue),
                settled: settled.clone(),
                tail: None,
            };
            tasks.spawn(async move {
                settler.run().await;
                Ok(())
            });
        }
        tasks
    }
}

/// Runs a pipeline, and the loops beside it, until `shutdown` is done. Then finishes what is in flight and releases the
/// rest. Calls `start` once the database has the tables of this version.
pub(crate) async fn supervise(
    context: &Arc<Context>,
    start: impl FnOnce() -> JoinSet<Result<(), RunError>>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    let mut shutdown = std::pin::pin!(shutdown);
    tokio::select! {
        ready = wait_for_database(context) => ready?,
        () = &mut shutdown => return Ok(()),
    }
    let name = context.role.name();
    tracing::info!(owner = context.owner, "{name} started");
    let mut keepers = start_keepers(context);
    let mut pipeline = start();
    tokio::select! {
        () = &mut shutdown => {}
        ended = first_end(&mut pipeline, &mut keepers) => ended?,
    }
    tracing::info!("stopping: no more claims; finishing what is in flight");
    stop(context, &mut pipeline).await?;
    // All but the renewals end by themselves. The purge releases its lease, so that another relay goes on at once.
    let ended = async { while keepers.len() > 1 && keepers.join_next().await.is_some() {} };
    tokio::time::timeout(ENDING, ended).await.ok();
    keepers.shutdown().await;
    // Nothing more is claimed or published, but for a claim that the server has not executed yet.
    tokio::time::timeout(ENDING, pipeline.shutdown()).await.ok();
    release_rest(context).await;
    tracing::info!("{name} stopped");
    Ok(())
}

/// Reads several claims at a time, each in a task of its own, and yields them in their order. A panic of a read goes on
/// in the stream's owner.
fn in_order<C, R, F>(claims: mpsc::Receiver<C>, most: usize, read: F) -> stream::BoxStream<'static, R::Output>
where
    C: Send + 'static,
    R: Future<Output: Send> + Send + 'static,
    F: Fn(C) -> R + Send + 'static,
{
    let claims = stream::unfold(claims, async |mut claims| claims.recv().await.map(|claim| (claim, claims)));
    let reads = claims.map(move |claim| tokio::spawn(read(claim))).buffered(most);
    // Any error but a panic means that the runtime ends.
    reads.filter_map(async |read| read.map_err(|error| error.try_into_panic().map(resume_unwind)).ok()).boxed()
}

/// Starts the loops beside the pipeline.
fn start_keepers(context: &Arc<Context>) -> JoinSet<()> {
    let mut keepers = JoinSet::new();
    keepers.spawn(renew::run(Arc::clone(context)));
    keepers.spawn(takeover::run(Arc::clone(context)));
    keepers.spawn(promote::run(Arc::clone(context)));
    keepers.spawn(purge::run(Arc::clone(context)));
    keepers.spawn(floor::run(Arc::clone(context)));
    keepers.spawn(pauses::run(Arc::clone(context)));
    keepers.spawn(jobs::run(Arc::clone(context)));
    keepers.spawn(gauges::run(Arc::clone(context)));
    if let (ProcessKind::Relay, Some(topic)) = (context.role, &context.config.canary.topic) {
        keepers.spawn(canary::run(Arc::clone(context), topic.clone()));
    }
    keepers
}

/// Waits for the first part that ends. No part ends by itself, so that one takes the relay down.
async fn first_end(pipeline: &mut JoinSet<Result<(), RunError>>, keepers: &mut JoinSet<()>) -> Result<(), RunError> {
    tokio::select! {
        Some(ended) = pipeline.join_next() => ended??,
        Some(ended) = keepers.join_next() => ended?,
    }
    Err(RunError::Internal("it ended by itself".to_owned()))
}

/// Stops in three steps. First there are no more claims. Then there are no more publishes, once no time would be left
/// for one and for its settlement. Then the stop is over.
async fn stop(context: &Context, pipeline: &mut JoinSet<Result<(), RunError>>) -> Result<(), RunError> {
    context.stop.cancel();
    let relay = &context.config.relay;
    let finish = relay.stop_deadline.saturating_sub(relay.under_lease());
    let hurry = context.hurry.clone();
    let hurry = async move {
        tokio::time::sleep(finish).await;
        hurry.cancel();
        std::future::pending::<()>().await;
    };
    let ended = async {
        while let Some(ended) = pipeline.join_next().await {
            ended??;
        }
        Ok(())
    };
    tokio::select! {
        ended = ended => ended,
        () = hurry => Ok(()),
        () = tokio::time::sleep(relay.stop_deadline) => {
            tracing::warn!("the stop deadline passed with messages in flight: their claims are to be released, and \
                            they are sent again");
            Ok(())
        }
    }
}

/// Releases what is still claimed, so that other relays need not wait for the leases to end. Asks the database for the
/// claims: a claimer that was aborted does not know its last one.
async fn release_rest(context: &Arc<Context>) {
    let mut abandoned = context.leases.all();
    // Messages that cannot be settled would be sent again at once, without a spent attempt. A take-over counts one.
    abandoned.retain(|tenure| tenure.is_abandoned());
    let mut session = Session::new(context);
    let release = async |db: &mut MySqlConnection| {
        let mut claims = lease::of_owner(db, &context.owner).await?;
        claims.retain(|claim| !abandoned.iter().any(|tenure| tenure.is(*claim)));
        if claims.is_empty() { Ok(0) } else { lease::release(db, &claims).await }
    };
    match session.run("release", release).await {
        Ok(0) => {}
        Err(_) if context.leases.all().is_empty() => {}
        Ok(claims) => tracing::warn!(claims, "released claims: messages in flight are sent again"),
        Err(_) => tracing::warn!("claims that are left could not be released: they end with their leases"),
    }
}

/// Waits until the database answers, has tables that serve this version, and has given a worker its lane.
async fn wait_for_database(context: &Context) -> Result<(), RunError> {
    loop {
        let problem = match tokio::time::timeout(SILENCE, look_at_database(context)).await {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(problem))) => problem,
            Ok(Err(error)) => return Err(error),
            Err(_elapsed) => "it takes connections and does not answer".to_owned(),
        };
        tracing::warn!(problem, "waiting for the database");
        context.health.dependency("database", Err(problem));
        tokio::time::sleep(WAIT).await;
    }
}

/// Returns the trouble of the database, if it can pass; otherwise an error.
async fn look_at_database(context: &Context) -> Result<Option<String>, RunError> {
    let mut connection = match session::connect(context).await {
        Ok(connection) => connection,
        Err(error) => return Ok(Some(session::describe(&error))),
    };
    let found = match check_schema(&mut connection).await {
        Ok(()) => is_ready(&mut connection).await.map_err(SchemaError::from),
        Err(error) => Err(error),
    };
    match found {
        Ok(behind) => {
            let problem = match behind {
                Some(behind) => Some(behind.to_string()),
                None => take_lanes(context, &mut connection).await?,
            };
            connection.close().await.ok();
            Ok(problem)
        }
        Err(error @ (SchemaError::Newer { .. } | SchemaError::Changed { .. })) => Err(error.into()),
        Err(SchemaError::Database(error)) => Ok(Some(session::trouble(&mut connection, &error).await)),
        Err(error) => Ok(Some(error.to_string())),
    }
}

/// Makes the lanes of a worker its own before they have messages, so that relays of all lanes leave them alone. Returns
/// the trouble of the database, if it can pass.
async fn take_lanes(context: &Context, connection: &mut MySqlConnection) -> Result<Option<String>, RunError> {
    let own: &[u16] = if context.role.shares_keys() { &[] } else { &context.config.relay.lanes };
    for lane in own {
        match take_for(connection, *lane, context.role.name()).await {
            Ok(kind) if kind != context.role.name() => {
                return Err(RunError::configuration(format!(
                    "lane {lane} belongs to relays, which have served it: give the worker another lane, or see \
                     docs/worker.md"
                )));
            }
            Ok(_) => {}
            Err(error) => return Ok(Some(session::trouble(connection, &error).await)),
        }
    }
    Ok(None)
}

/// Looks for a counter that is behind, and for a privilege to read, to settle or to learn of pauses that the account
/// lacks, as with the GRANT files of an earlier release: such a relay would claim messages, and could not send or
/// settle them, or would claim none.
async fn is_ready(connection: &mut MySqlConnection) -> Result<Option<counters::Behind>, sqlx::Error> {
    read::messages(connection, &[]).await?;
    settle::try_all(connection).await?;
    controls::orders(connection).await?;
    counters::behind(connection).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_that_panics_ends_the_task_that_waits_for_it() {
        let (claims, claimed) = mpsc::channel(4);
        for claim in [1, 2, 3] {
            claims.send(claim).await.unwrap();
        }
        drop(claims);
        let read = |claim: u64| async move {
            assert!(claim != 2, "a bug");
            claim
        };
        let mut reads = in_order(claimed, 2, read);
        assert_eq!(reads.next().await, Some(1));
        let ended = tokio::spawn(async move { reads.next().await }).await;
        assert!(ended.unwrap_err().is_panic());
    }
}
