//! The equipment of every test: a database, workers, and a handler that follows the payload.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox, Uuid,
    sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection, MySqlPool},
};
use outbox_relay::{
    observe::metrics::Metrics,
    settings::RetryConfig,
    worker::{Delivery, Failure, Handler, RunError, Worker},
};
use testkit::{
    accounts::Account,
    database::Database,
    servers::{Flavor, until},
};
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub(crate) use testkit::servers::PATIENCE;
const LANE: u16 = 7;

/// A message for a worker.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) id: Uuid,
    key: String,
    message: Message,
}

/// Creates a message whose payload controls its handler.
pub(crate) fn task(key: &str, payload: &str) -> Task {
    let message = Message::new("tasks", payload).key(key).lane(LANE);
    Task { id: message.id(), key: key.to_owned(), message }
}

pub(crate) fn tasks(count: usize, keys: usize, payload: &str) -> Vec<Task> {
    (0..count).map(|number| task(&format!("key {}", number % keys), payload)).collect()
}

impl Task {
    pub(crate) fn with(mut self, change: impl FnOnce(Message) -> Message) -> Self {
        self.message = change(self.message);
        self
    }
}

pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) pool: MySqlPool,
}

impl Stage {
    pub(crate) async fn new(flavor: Flavor) -> Result<Self> {
        Self::on(Database::create(flavor).await?).await
    }

    pub(crate) async fn on(database: Database) -> Result<Self> {
        let pool = MySqlPool::connect(&database.url_as(Account::Worker)?).await?;
        Ok(Self { database, pool })
    }

    /// Commits messages in one transaction.
    pub(crate) async fn commit(&self, tasks: &[Task]) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        Outbox::new().enqueue_all(&mut tx, tasks.iter().map(|task| task.message.clone())).await?;
        Ok(tx.commit().await?)
    }

    /// Creates a worker that tries three times, after short waits.
    pub(crate) fn worker(&self) -> Worker {
        Worker::new(self.pool.connect_options(), LANE).configure(|config| {
            config.relay.publish_deadline = Duration::from_secs(5);
            config.relay.lease = Duration::from_secs(15);
            let base = Duration::from_millis(20);
            let max = Duration::from_millis(100);
            config.retry = RetryConfig::new(base, max, 3);
        })
    }

    pub(crate) async fn wait_until_drained(&self) -> Result<()> {
        self.database.wait_until_drained(PATIENCE).await
    }

    /// Returns the messages that have an effect, in the order of the effects.
    pub(crate) async fn effects(&self) -> Result<Vec<Uuid>> {
        let ids: Vec<Vec<u8>> =
            sqlx::query_scalar("SELECT message_id FROM test_effects ORDER BY id").fetch_all(&self.pool).await?;
        ids.iter().map(|id| Ok(Uuid::from_slice(id)?)).collect()
    }

    /// Checks that each of these messages has one effect and one receipt, that no other has an effect, and that keys
    /// keep their order.
    pub(crate) async fn assert_done_once(&self, tasks: &[Task]) -> Result<()> {
        let effects = self.effects().await?;
        let tables = self.database.tables().await?;
        ensure!(effects.len() == tasks.len(), "{} messages have {} effects", tasks.len(), effects.len());
        let places: HashMap<Uuid, usize> = effects.iter().enumerate().map(|(place, id)| (*id, place)).collect();
        let mut last: HashMap<&str, usize> = HashMap::new();
        for task in tasks {
            let place = *places.get(&task.id).context("a message without effect")?;
            if let Some(before) = last.insert(&task.key, place) {
                ensure!(before < place, "{} is out of order", task.key);
            }
            let receipts = tables.receipts.get(&task.id).context("a message without receipt")?;
            ensure!(receipts.as_slice() == ["worker"], "{receipts:?}");
        }
        Ok(())
    }
}

/// A running worker in this process.
pub(crate) struct Running {
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

pub(crate) fn start(worker: Worker, does: &Arc<Does>) -> Result<Running> {
    let metrics = Metrics::new()?;
    let stop = CancellationToken::new();
    let run = worker.metrics(Arc::clone(&metrics)).run(Work(Arc::clone(does)), stop.clone().cancelled_owned());
    Ok(Running { metrics, stop, task: tokio::spawn(run) })
}

impl Running {
    pub(crate) fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Stops the worker in order; returns what it has counted.
    pub(crate) async fn stop(self) -> Result<Arc<Metrics>> {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.context("it does not stop")???;
        Ok(self.metrics)
    }
}

/// The state that the handlers of a test share.
pub(crate) struct Does {
    /// Waiting handlers go on with a permit, or when the gate is closed.
    pub(crate) gate: Semaphore,
    waiting: AtomicUsize,
    tries: Mutex<HashMap<Uuid, u32>>,
    pool: MySqlPool,
}

impl Does {
    pub(crate) fn new(stage: &Stage) -> Arc<Self> {
        let gate = Semaphore::new(0);
        let waiting = AtomicUsize::new(0);
        Arc::new(Self { gate, waiting, tries: Mutex::default(), pool: stage.pool.clone() })
    }

    /// Returns how often a message was tried.
    pub(crate) fn tries(&self, task: &Task) -> u32 {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).get(&task.id).copied().unwrap_or_default()
    }

    /// Waits until this many messages are at the gate.
    pub(crate) async fn wait_for_waiting(&self, messages: usize) -> Result<()> {
        until(PATIENCE, "messages at the gate", || async {
            let waiting = self.waiting.load(Ordering::SeqCst);
            ensure!(waiting >= messages, "{waiting} wait");
            Ok(())
        })
        .await
    }

    fn tried(&self, id: Uuid) -> u32 {
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let tries = tries.entry(id).or_default();
        *tries += 1;
        *tries
    }
}

/// Changes of the session that a handler may leave behind.
const LEFT: &str = "USE information_schema; SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY; SET NAMES \
                    latin1, timestamp = 1, SESSION sql_mode = '', SESSION sql_safe_updates = 1, SESSION time_zone = \
                    '+05:00', SESSION sql_select_limit = 1, SESSION completion_type = 2, SESSION max_join_size = 1 \
                    /*!80013 , SESSION max_execution_time = 1, SESSION use_secondary_engine = FORCED */ /*M! , SESSION \
                    max_statement_time = 0.001 */";

struct Work(Arc<Does>);

impl Handler for Work {
    /// Writes the effect first, so that a later failure has an effect to roll back.
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let effect = "INSERT INTO test_effects (message_id) VALUES (?)";
        sqlx::query(effect).bind(message.id.as_bytes().as_slice()).execute(&mut *tx).await?;
        let tries = self.0.tried(message.id);
        match message.contents.payload.as_deref().unwrap_or_default() {
            b"never" => return Err("it never works".into()),
            b"refuse" => return Err(Failure::dead("it is not understood")),
            b"flaky" if tries == 1 => return Err("it works the next time".into()),
            b"passing" if tries <= 6 => return Err(anyhow::Error::from(sqlx::Error::PoolTimedOut).into()),
            b"killed" if tries <= 4 => sqlx::raw_sql("KILL QUERY CONNECTION_ID()").execute(&mut *tx).await.map(drop)?,
            b"hangs up" => sqlx::raw_sql("KILL CONNECTION_ID()").execute(&mut *tx).await.map(drop)?,
            // Like work elsewhere that takes longer than the server waits.
            b"is cut" => {
                let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut *tx).await?;
                sqlx::raw_sql(AssertSqlSafe(format!("KILL {id}"))).execute(&self.0.pool).await?;
            }
            b"later" if tries <= 6 => return Err(Failure::After(Duration::from_millis(20))),
            b"never now" => return Err(Failure::After(Duration::MAX)),
            b"panic" => assert!(tries > 1, "a bug of the handler, on purpose"),
            b"slow" if tries == 1 => std::future::pending().await,
            b"ended" if tries == 1 => sqlx::raw_sql("ROLLBACK").execute(&mut *tx).await.map(drop)?,
            b"commits" if tries == 1 => sqlx::raw_sql("COMMIT").execute(&mut *tx).await.map(drop)?,
            // Settings of the session, and not of the transaction.
            b"leaves" => sqlx::raw_sql(LEFT).execute(&mut *tx).await.map(drop)?,
            b"leaves and fails" => {
                sqlx::raw_sql(LEFT).execute(&mut *tx).await?;
                if tries == 1 {
                    return Err("it works the next time".into());
                }
            }
            b"strict" => {
                let modes: String = sqlx::query_scalar("SELECT @@SESSION.sql_mode").fetch_one(&mut *tx).await?;
                assert!(modes.contains("STRICT_TRANS_TABLES"), "{modes}");
            }
            // Like a deadlock whose error is passed on.
            b"broken" if tries == 1 => {
                sqlx::raw_sql("ROLLBACK").execute(&mut *tx).await?;
                return Err("the database has ended it".into());
            }
            b"nested" => {
                tx.begin().await?.commit().await?;
                if tries == 1 {
                    return Err("it works the next time".into());
                }
            }
            // Like a take-over.
            b"stolen" if tries == 1 => {
                sqlx::raw_sql("DELETE FROM outbox_claims").execute(&self.0.pool).await?;
            }
            b"tell" => {
                Outbox::new().enqueue(&mut *tx, Message::new("tasks", "ok").key("told").lane(LANE)).await?;
                if tries == 1 {
                    return Err("it works the next time".into());
                }
            }
            b"wait" => {
                self.0.waiting.fetch_add(1, Ordering::SeqCst);
                drop(self.0.gate.acquire().await);
            }
            _ => {}
        }
        Ok(())
    }
}
