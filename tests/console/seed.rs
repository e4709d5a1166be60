//! An outbox with every fault that a page shows, and with hostile texts in each field.

use anyhow::{Context as _, Result};
use outbox_core::{Message, Uuid};
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    inbox,
    ledger::{Draft, Ledger},
    load,
    relay::{Client, Relay, Settings},
    servers::Flavor,
};
use tokio::sync::OnceCell;

use crate::stage::{Console, PATIENCE};

/// Would make an element, and run a script.
pub(crate) const MARKUP: &str = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">";
/// Would show what follows from right to left.
pub(crate) const BIDI: &str = "order-\u{202e}gnp.exe\u{2066}\u{7}";

/// The lane that is paused.
const PAUSED: u16 = 3;

/// The outbox, which tests only look at.
pub(crate) struct Seed {
    pub(crate) database: Database,
    pub(crate) console: Console,
    _relay: Relay,
    /// A message of each state, with the name of the state.
    pub(crate) messages: [(&'static str, Uuid); 7],
}

const STATES: [&str; 7] = ["sent", "dead", "unroutable", "behind", "parked", "paused", "no-route"];

/// The seed of this process.
pub(crate) async fn seed() -> Result<&'static Seed> {
    static SEED: OnceCell<Seed> = OnceCell::const_new();
    SEED.get_or_try_init(Seed::new).await
}

impl Seed {
    async fn new() -> Result<Self> {
        let database = Database::create(Flavor::MySql).await?;
        let mut topic = Topic::create(Broker::Kafka).await?;
        let queue = Topic::create(Broker::RabbitMq).await?;
        database.execute(include_str!("../../deploy/grants/revealer.sql")).await?;
        let operator = Client::new(env!("CARGO_BIN_EXE_relay"), database.url_as(Account::Operator)?);
        operator.done(&format!("pause --lane {PAUSED} --because"), &[MARKUP]).await?;
        // A relay that runs already sees the pause a little later.
        let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings(&database, &topic, &queue)?)?;
        let missing = format!("missing-{}", topic.name());
        let draft = |topic: &str| Draft::new(topic, r#"{"total": 12}"#).described(MARKUP, "application/json");
        let large = Draft::new(topic.name(), vec![b'x'; 30_000]).unordered_key("large");
        let drafts = [
            draft(topic.name()).header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            large,
            draft(&missing).unordered_key(BIDI),
            draft(&missing).unordered_key(BIDI),
            draft("down"),
            draft(topic.name()).unordered_key("paused"),
            draft("nowhere"),
        ];
        let commit = async |drafts: &[Draft], change: &(dyn Fn(Message) -> Message + Sync)| {
            load::commit(&database, &Ledger::new(), drafts, change).await
        };
        commit(&drafts[..5], &|message| message).await?;
        commit(&drafts[5..6], &|message| message.lane(PAUSED)).await?;
        commit(&drafts[6..], &|message| message).await?;
        let healthy: Vec<_> = (0..4).map(|key| draft(topic.name()).unordered_key(format!("key {key}"))).collect();
        commit(&[healthy, vec![draft(queue.name())]].concat(), &|message| message).await?;
        database.wait_for(PATIENCE, SETTLED).await.with_context(|| relay.log().unwrap_or_default())?;
        operator.done("dead retry --all --yes --because", &[MARKUP]).await?;
        let again = format!("SELECT ({SETTLED}) AND (SELECT COUNT(*) FROM outbox_jobs WHERE ended_at IS NOT NULL) = 1");
        database.wait_for(PATIENCE, &again).await?;
        inbox::process(&database, "billing", topic.read().await?).await?;
        database.execute(&hostile(&drafts[1])).await?;
        let console = Console::start(&database.url_as(Account::Operator)?).await?;
        let mut messages = STATES.map(|state| (state, Uuid::nil()));
        messages.iter_mut().zip(&drafts).for_each(|((_, id), draft)| *id = draft.id);
        Ok(Self { database, console, _relay: relay, messages })
    }

    /// The pages of its messages, and of orders: names and addresses.
    pub(crate) async fn pages(&self) -> Result<Vec<(String, String)>> {
        let dead = self.database.number("SELECT CAST(id AS SIGNED) FROM outbox_dead").await?;
        let job = self.database.number("SELECT CAST(job_id AS SIGNED) FROM outbox_jobs").await?;
        let messages = self.messages.iter().flat_map(|(state, id)| {
            [
                (format!("message-{state}"), format!("/message/{id}")),
                (format!("key-{state}"), format!("/key?message={id}")),
            ]
        });
        let orders = [
            ("retry", format!("/order/dead/retry?message={dead}")),
            ("discard", format!("/order/dead/discard?message={dead}")),
            ("release", format!("/order/dead/release?message={dead}")),
            ("hurry", "/order/delayed/retry?all=true".to_owned()),
            ("send-again", "/order/replay?since=1h".to_owned()),
            ("pause", "/order/pause?lane=1".to_owned()),
            ("resume", format!("/order/resume?lane={PAUSED}")),
            ("stop", format!("/order/jobs/stop?job={job}")),
            ("found", "/messages?state=delayed".to_owned()),
            ("dead-of-a-reason", "/dead?reason=too_large".to_owned()),
        ];
        let orders = orders.map(|(name, address)| (name.to_owned(), address));
        Ok(messages.chain(orders).collect())
    }
}

fn settings(database: &Database, topic: &Topic, queue: &Topic) -> Result<Settings> {
    let kafka = |topics| [("topics", topics), ("sink", "kafka"), ("topic", "{topic}")];
    let queued = [("sink", "rabbitmq"), ("exchange", queue.name()), ("routing_key", "{topic}")];
    let settings = Settings::new(&database.url_as(Account::Relay)?).patient();
    Ok(settings
        .kafka(topic.address())
        .kafka_property("message.max.bytes", "20000")
        .rabbitmq(queue.address())
        .sink_key("down", "type", "rabbitmq")
        .sink_key("down", "url", "amqp://guest:guest@127.0.0.1:9")
        .route(kafka(topic.name()))
        .route(kafka("missing-*"))
        .route([("topics", queue.name())].into_iter().chain(queued))
        .route([("topics", "down"), ("sink", "down"), ("exchange", "orders"), ("routing_key", "{topic}")])
        .set("relay", "first_destination_grace", "1h"))
}

const SETTLED: &str = "SELECT (SELECT COUNT(*) FROM outbox_sent_messages) = 6 \
    AND (SELECT COUNT(*) FROM outbox_dead WHERE reason = 'too_large') = 1 \
    AND (SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'unroutable') = 1 \
    AND (SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'behind') = 1 \
    AND (SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'parked') = 1 \
    AND (SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'no_route') = 1 \
    AND (SELECT COUNT(*) FROM outbox_pending) = 1";

/// Texts that brokers and handlers may have written, and a job.
fn hostile(dead: &Draft) -> String {
    let markup = MARKUP.replace('\'', "''");
    format!(
        "UPDATE outbox_dead SET error = '{BIDI} {markup}'; \
         INSERT INTO inbox_dead (consumer, message_id, topic, event_type, headers, attempts, died_at, reason, error) \
         VALUES ('billing', X'{id}', '{markup}', '{markup}', NULL, 3, UTC_TIMESTAMP(6), 'failed', '{markup}')",
        id = dead.id.simple(),
    )
}
