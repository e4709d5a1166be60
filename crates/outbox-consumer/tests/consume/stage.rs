//! What every test needs: a database, a topic, consumers, and a handler that does as the payload says.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use outbox_consumer::{
    Delivery, Failure, Handler, Metrics, Retry, kafka,
    outbox_core::{
        Uuid,
        sqlx::{self, MySqlConnection, MySqlPool, mysql::MySqlPoolOptions},
    },
    prometheus::{Registry, proto::MetricFamily},
    rabbitmq,
};
use testkit::{
    accounts::Account,
    consume::{Broker, Sending, Topic},
    database::Database,
    servers::{Flavor, until},
};
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub(crate) use testkit::servers::PATIENCE;

/// Short waits, so that tests are.
pub(crate) const RETRY: Retry = Retry::new(Duration::from_millis(5), Duration::from_millis(50), 3);

pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) topic: Topic,
    pub(crate) pool: MySqlPool,
}

impl Stage {
    pub(crate) async fn new(broker: Broker) -> Result<Self> {
        Self::with(Topic::create(broker).await?).await
    }

    pub(crate) async fn with(topic: Topic) -> Result<Self> {
        Self::on(Database::create(Flavor::MySql).await?, topic).await
    }

    pub(crate) async fn on(database: Database, topic: Topic) -> Result<Self> {
        let pool = MySqlPoolOptions::new().max_connections(12).connect(&database.url_as(Account::Service)?).await?;
        Ok(Self { database, topic, pool })
    }

    pub(crate) fn kafka(&self) -> Result<kafka::Consumer> {
        let consumer = kafka::Consumer::new(self.topic.address(), self.topic.name(), self.pool.clone())?;
        Ok(consumer.topic(self.topic.name()).retry(RETRY).stop_deadline(PATIENCE))
    }

    pub(crate) fn rabbitmq(&self) -> Result<rabbitmq::Consumer> {
        let name = self.topic.name();
        Ok(rabbitmq::Consumer::new(self.topic.address(), name, name, self.pool.clone())?.retry(RETRY))
    }

    /// A consumer of the topic's broker with the usual settings.
    pub(crate) fn consume(&self, does: &Arc<Does>) -> Result<Running> {
        match self.topic.broker() {
            Broker::Kafka => Self::start_kafka(self.kafka()?, does),
            Broker::RabbitMq => Self::start_rabbitmq(self.rabbitmq()?, does),
        }
    }

    pub(crate) fn start_kafka(consumer: kafka::Consumer, does: &Arc<Does>) -> Result<Running> {
        let registry = Registry::new();
        let stop = CancellationToken::new();
        let run =
            consumer.metrics(Metrics::register(&registry)?).run(Work(Arc::clone(does)), stop.clone().cancelled_owned());
        Ok(Running { registry, stop, task: tokio::spawn(async move { Ok(run.await?) }) })
    }

    pub(crate) fn start_rabbitmq(consumer: rabbitmq::Consumer, does: &Arc<Does>) -> Result<Running> {
        let registry = Registry::new();
        let stop = CancellationToken::new();
        let run =
            consumer.metrics(Metrics::register(&registry)?).run(Work(Arc::clone(does)), stop.clone().cancelled_owned());
        Ok(Running { registry, stop, task: tokio::spawn(async move { Ok(run.await?) }) })
    }

    /// Waits until so many messages have an effect, or are dead.
    pub(crate) async fn wait_for(&self, messages: usize) -> Result<()> {
        let sql = "SELECT (SELECT COUNT(*) FROM test_effects) + (SELECT COUNT(*) FROM inbox_dead)";
        until(PATIENCE, "effects", || async {
            let found = self.database.number(sql).await?;
            ensure!(found >= i64::try_from(messages)?, "{found} of {messages}");
            Ok(())
        })
        .await
    }

    /// The messages whose effects are in the database, in the order of the effects.
    pub(crate) async fn effects(&self) -> Result<Vec<Uuid>> {
        let sql = "SELECT message_id FROM test_effects ORDER BY id";
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(sql).fetch_all(&self.pool).await?;
        ids.iter().map(|id| Ok(Uuid::from_slice(id)?)).collect()
    }

    /// Each of these messages has one effect, no other has any, and the effects of each key are in the order of its
    /// messages.
    pub(crate) async fn assert_once_and_in_order(&self, sent: &[Sending]) -> Result<()> {
        let effects = self.effects().await?;
        assert_eq!(effects.len(), sent.len(), "effects and messages");
        let place: HashMap<Uuid, usize> = effects.iter().enumerate().map(|(place, id)| (*id, place)).collect();
        assert_eq!(place.len(), sent.len(), "different messages that have an effect");
        let mut last = HashMap::new();
        for message in sent {
            let place = *place.get(&message.id.context("no id")?).context("a message without effect")?;
            if let Some(before) = last.insert(message.key.clone(), place) {
                assert!(before < place, "key {:?} is out of order", message.key);
            }
        }
        Ok(())
    }
}

/// Messages of a few keys.
pub(crate) fn messages(count: usize, keys: usize, payload: &str) -> Vec<Sending> {
    (0..count).map(|number| Sending::new(&format!("key {}", number % keys), payload)).collect()
}

/// A consumer that runs in this process.
pub(crate) struct Running {
    registry: Registry,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// Stops it in order.
    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.context("it does not stop")??
    }

    /// Waits for its end, for which nobody asks.
    pub(crate) async fn end(self) -> Result<()> {
        tokio::time::timeout(PATIENCE, self.task).await.context("it does not end")??
    }

    /// Asks it to stop.
    pub(crate) fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Looks at it when it has ended, and all is counted.
    pub(crate) async fn stop_and(self, look: impl FnOnce(&Self)) -> Result<()> {
        let Self { registry, stop, task } = self;
        stop.cancel();
        tokio::time::timeout(PATIENCE, task).await.context("it does not stop")???;
        look(&Self { registry, stop, task: tokio::spawn(async { Ok(()) }) });
        Ok(())
    }

    /// The value of a counter or gauge; of messages those with this result, where one is given.
    pub(crate) fn metric(&self, name: &str, result: &str) -> f64 {
        self.labelled(name, if result.is_empty() { "" } else { "result" }, result)
    }

    /// The sum over the series with this label, or over all.
    pub(crate) fn labelled(&self, name: &str, label: &str, value: &str) -> f64 {
        let families = self.registry.gather();
        let series = families.iter().filter(|family| family.name() == name).flat_map(MetricFamily::get_metric);
        let labelled = series.filter(|metric| {
            label.is_empty() || metric.get_label().iter().any(|it| it.name() == label && it.value() == value)
        });
        labelled.map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value()).sum()
    }

    /// Whether there is such a metric yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.registry.gather().iter().any(|family| family.name() == name)
    }

    pub(crate) async fn wait_for_metric(&self, name: &str, result: &str, at_least: f64) -> Result<()> {
        until(PATIENCE, name, || async {
            let value = self.metric(name, result);
            ensure!(value >= at_least, "{name} {result} is {value}");
            Ok(())
        })
        .await
    }
}

/// What the handlers of a test share.
pub(crate) struct Does {
    /// One permit for each message that may go on; closed: all.
    pub(crate) gate: Semaphore,
    /// Whether `requeue` means it.
    pub(crate) requeues: bool,
    tries: Mutex<HashMap<Uuid, u32>>,
}

impl Does {
    /// With an open gate.
    pub(crate) fn work() -> Arc<Self> {
        let does = Self { gate: Semaphore::new(0), requeues: false, tries: Mutex::default() };
        does.gate.close();
        Arc::new(does)
    }

    /// Messages wait until the gate is opened.
    pub(crate) fn wait() -> Arc<Self> {
        Arc::new(Self { gate: Semaphore::new(0), requeues: false, tries: Mutex::default() })
    }

    /// With an open gate, and messages that say so are left to others.
    pub(crate) fn leave() -> Arc<Self> {
        let does = Self { gate: Semaphore::new(0), requeues: true, tries: Mutex::default() };
        does.gate.close();
        Arc::new(does)
    }

    /// How often a message was tried.
    pub(crate) fn tries(&self, id: Uuid) -> u32 {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied().unwrap_or_default()
    }

    fn tried(&self, id: Uuid) -> u32 {
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let tries = tries.entry(id).or_default();
        *tries += 1;
        *tries
    }
}

/// An error that cannot even be shown.
#[derive(Debug)]
struct Bug;

impl std::error::Error for Bug {}

impl fmt::Display for Bug {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whoever turns it into text panics, outside of the handler.
        Err(fmt::Error)
    }
}

pub(crate) struct Work(pub(crate) Arc<Does>);

impl Handler for Work {
    /// Writes the effect first, so that what fails after it has something to take back.
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let sql = "INSERT INTO test_effects (message_id) VALUES (?)";
        sqlx::query(sql).bind(message.id.as_bytes().as_slice()).execute(&mut *tx).await?;
        if let Ok(permit) = self.0.gate.acquire().await {
            permit.forget();
        }
        let tries = self.0.tried(message.id);
        match message.contents.payload.as_deref().unwrap_or_default() {
            b"never" => Err("it never works".into()),
            payload if payload.starts_with(b"refuse") => Err(Failure::dead("it is not understood")),
            b"flaky" if tries == 1 => Err("it works the next time".into()),
            b"panic" => {
                assert!(tries > 1, "a bug of the handler, on purpose");
                Ok(())
            }
            b"ended" if tries == 1 => {
                sqlx::raw_sql("ROLLBACK").execute(&mut *tx).await?;
                Ok(())
            }
            b"passing" if tries <= 6 => Err(anyhow::Error::from(sqlx::Error::PoolTimedOut).into()),
            b"killed" if tries <= 4 => {
                sqlx::raw_sql("KILL QUERY CONNECTION_ID()").execute(&mut *tx).await.map(drop).map_err(Failure::from)
            }
            b"hangs up" => {
                sqlx::raw_sql("KILL CONNECTION_ID()").execute(&mut *tx).await.map(drop).map_err(Failure::from)
            }
            b"later" if tries <= 6 => Err(Failure::After(Duration::from_millis(5))),
            b"after" => Err(Failure::After(Failure::LONGEST_IN_MEMORY)),
            b"leave" if self.0.requeues => Err(Failure::requeue("somebody else may do it")),
            b"bug" => Err(Bug.into()),
            b"json" => message.json::<u64>().map(drop),
            _ => Ok(()),
        }
    }
}
