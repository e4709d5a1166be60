//! The consumer behind a relay whose route has the envelope `debezium`.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use from_debezium::{apply, create_tables, header};
use outbox_core::{
    Message, Outbox, Uuid,
    sqlx::{Connection as _, MySqlPool},
};
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    program::{self, Program},
    relay::{Relay, Settings},
    servers::{Flavor, PATIENCE, create_topic, until},
};
use tokio::time::timeout;

struct Stage {
    database: Database,
    brokers: String,
    /// Tests share the broker: each has an aggregate type of its own.
    aggregate_type: String,
}

impl Stage {
    async fn new() -> Result<Self> {
        let database = Database::create(Flavor::MySql).await?;
        let brokers = Broker::Kafka.address().await?;
        let stage = Self { database, brokers, aggregate_type: format!("Order-{}", Uuid::now_v7()) };
        create_topic(&stage.brokers, &stage.topic(), 4).await?;
        Ok(stage)
    }

    /// The topic to which the router, and so the relay, sends the events of the aggregate type.
    fn topic(&self) -> String {
        format!("outbox.event.{}", self.aggregate_type)
    }

    fn relay(&self) -> Result<Relay> {
        let settings = Settings::new(&self.database.url_as(Account::Relay)?).kafka(&self.brokers);
        let route = [("topics", "*"), ("sink", "kafka"), ("topic", "outbox.event.{topic}"), ("envelope", "debezium")];
        Relay::start(program::relay()?, &settings.route(route))
    }

    /// Commits orders, numbered from 1, each with a second event that is not for this consumer.
    async fn enqueue(&self, orders: u64) -> Result<()> {
        let types = ["OrderCreated", "OrderLineUpdated"];
        let mut connection = self.database.connect().await?;
        let mut tx = connection.begin().await?;
        let messages = (1..=orders).flat_map(|order| types.map(|it| event(&self.aggregate_type, order, it)));
        Outbox::new().enqueue_all(&mut tx, messages).await?;
        Ok(tx.commit().await?)
    }

    /// Reads the topic from its beginning with a new group, until this many different events have come. Returns the
    /// number of events that were applied.
    async fn read(&self, pool: &MySqlPool, group: &str, events: usize) -> Result<usize> {
        let group = format!("{}-{group}", self.aggregate_type);
        let consumer = from_debezium::consumer(&self.brokers, &group, &self.topic())?;
        let mut seen = HashSet::new();
        let mut applied = 0;
        while seen.len() < events {
            let record = timeout(PATIENCE, consumer.recv()).await.context("no record")??;
            seen.insert(header(&record, "id").context("no header `id`")?.to_owned());
            applied += usize::from(apply(pool, &record).await?);
        }
        Ok(applied)
    }

    /// Waits until the orders 1 to `orders` are shipped, each once and to its customer.
    async fn wait_until_shipped(&self, orders: i64) -> Result<()> {
        until(PATIENCE, "the shipments", || async {
            let shipped = self.database.number("SELECT COUNT(DISTINCT order_id) FROM shipments").await?;
            ensure!(shipped == orders, "{shipped} of {orders}");
            Ok(())
        })
        .await?;
        let right = "SELECT COUNT(*) FROM shipments WHERE customer_id = order_id % 7";
        for shipments in ["SELECT COUNT(*) FROM shipments", right] {
            let found = self.database.number(shipments).await?;
            ensure!(found == orders, "{shipments}: {found} for {orders} orders");
        }
        Ok(())
    }
}

/// An event of an order, as services wrote it into the table that Debezium read.
fn event(aggregate_type: &str, order: u64, event_type: &str) -> Message {
    let payload = format!(r#"{{"id": {order}, "lineItems": [], "customerId": {}}}"#, order % 7);
    Message::new(aggregate_type, payload).key(order.to_string()).event_type(event_type)
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_a_relay_sends_are_shipped_once() -> Result<()> {
    let stage = Stage::new().await?;
    let topic = stage.topic();
    let database = stage.database.url_as(Account::Owner)?;
    let environment = [
        ("DATABASE_URL", database.as_str()),
        ("KAFKA_BROKERS", stage.brokers.as_str()),
        ("TOPIC", topic.as_str()),
        ("GROUP_ID", topic.as_str()),
    ];
    let mut shipping = Program::start(env!("CARGO_BIN_EXE_from-debezium"), &environment)?;
    // As in a migration from Debezium, the messages wait for a relay.
    stage.enqueue(100).await?;
    let relay = stage.relay()?;
    stage.wait_until_shipped(100).await.with_context(|| shipping.log().unwrap_or_default())?;
    shipping.stop(PATIENCE).await?;
    drop(relay);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_read_twice_has_one_effect() -> Result<()> {
    let stage = Stage::new().await?;
    let pool = MySqlPool::connect(&stage.database.url_as(Account::Owner)?).await?;
    create_tables(&pool).await?;
    stage.enqueue(100).await?;
    let relay = stage.relay()?;
    let first = stage.read(&pool, "first", 200).await?;
    let second = stage.read(&pool, "second", 200).await?;
    ensure!((first, second) == (100, 0), "{first} and {second} events did something");
    stage.wait_until_shipped(100).await?;
    drop(relay);
    Ok(())
}
