//! The program between a relay and a database, killed at each point where a crash could lose or repeat an effect.

use anyhow::{Result, ensure};
use outbox_core::{Message, Outbox, sqlx::Connection as _};
use testkit::{
    accounts::Account,
    consume::{Broker, Sending, Topic},
    database::Database,
    program::{self, Program},
    relay::{Relay, Settings},
    servers::{Flavor, PATIENCE, until},
};

struct Stage {
    database: Database,
    topic: Topic,
}

impl Stage {
    async fn new() -> Result<Self> {
        Ok(Self { database: Database::create(Flavor::MySql).await?, topic: Topic::create(Broker::Kafka).await? })
    }

    fn billing(&self, crash_point: &str) -> Result<Program> {
        let database = self.database.url_as(Account::Owner)?;
        let environment = [
            ("DATABASE_URL", database.as_str()),
            ("KAFKA_BROKERS", self.topic.address()),
            ("TOPIC", self.topic.name()),
            // Tests share the broker: each has a group of its own.
            ("CONSUMER", self.topic.name()),
            ("OUTBOX_CRASH_POINT", crash_point),
        ];
        Program::start(env!("CARGO_BIN_EXE_billing-kafka"), &environment)
    }

    /// Waits until the orders 1 to `orders` are booked, each once.
    async fn wait_until_booked(&self, orders: i64) -> Result<()> {
        until(PATIENCE, "the invoices", || async {
            let booked = self.database.number("SELECT COUNT(DISTINCT order_id) FROM invoices").await?;
            ensure!(booked == orders, "{booked} of {orders}");
            Ok(())
        })
        .await?;
        let invoices = self.database.number("SELECT COUNT(*) FROM invoices").await?;
        ensure!(invoices == orders, "{orders} orders have {invoices} invoices");
        let out_of_order = "SELECT COUNT(*) FROM invoices a JOIN invoices b \
                            ON a.customer = b.customer AND a.id < b.id AND a.order_id > b.order_id";
        ensure!(self.database.number(out_of_order).await? == 0, "invoices of a customer are out of order");
        Ok(())
    }
}

fn order(id: u64) -> (String, String) {
    let customer = id % 7;
    (customer.to_string(), format!(r#"{{"id":{id},"customer":{customer},"cents":{}}}"#, id * 100))
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_a_relay_sends_are_booked_once() -> Result<()> {
    let stage = Stage::new().await?;
    let relay = Relay::start(
        program::relay()?,
        &Settings::new(&stage.database.url_as(Account::Relay)?).with_broker_of(&stage.topic),
    )?;
    let mut billing = stage.billing("")?;
    let mut connection = stage.database.connect().await?;
    let mut tx = connection.begin().await?;
    let messages = (1..=200).map(order).map(|(key, body)| Message::new(stage.topic.name(), body).key(key));
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    tx.commit().await?;
    stage.wait_until_booked(200).await?;
    let cents = stage.database.number("SELECT CAST(SUM(cents) AS SIGNED) FROM invoices").await?;
    ensure!(cents == 100 * 200 * 201 / 2, "{cents} cents");
    billing.stop(PATIENCE).await?;
    drop(relay);
    Ok(())
}

async fn dies_at(point: &str, effects: i64) -> Result<()> {
    let stage = Stage::new().await?;
    let sent: Vec<Sending> = (1..=60).map(order).map(|(key, body)| Sending::new(&key, body)).collect();
    stage.topic.send(&sent).await?;
    let mut victim = stage.billing(point)?;
    let status = victim.wait_for_end(PATIENCE).await?;
    ensure!(!status.success(), "it was to die at {point}\n{}", victim.log()?);
    let booked = stage.database.number("SELECT COUNT(*) FROM invoices").await?;
    ensure!(booked >= effects, "{booked} effects were committed before the crash at {point}");
    ensure!(effects > 0 || booked == 0, "{booked} effects without commit");
    let mut next = stage.billing("")?;
    stage.wait_until_booked(60).await?;
    next.stop(PATIENCE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_before_the_commit_leaves_one_effect_each() -> Result<()> {
    dies_at("before_commit", 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_commit_and_acknowledgement_leaves_one_effect_each() -> Result<()> {
    dies_at("before_acknowledge", 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_killed_under_load_leave_one_effect_each() -> Result<()> {
    let stage = Stage::new().await?;
    let mut survivor = stage.billing("")?;
    let mut sent = 0;
    for _ in 0..3 {
        let mut victim = stage.billing("")?;
        for _ in 0..15 {
            let some: Vec<Sending> =
                (sent + 1..=sent + 20).map(order).map(|(key, body)| Sending::new(&key, body)).collect();
            stage.topic.send(&some).await?;
            sent += 20;
        }
        let booked = format!("SELECT COUNT(*) >= {} FROM invoices", sent / 2);
        stage.database.wait_for(PATIENCE, &booked).await?;
        victim.kill()?;
        victim.wait_for_end(PATIENCE).await?;
    }
    stage.wait_until_booked(i64::try_from(sent)?).await?;
    survivor.stop(PATIENCE).await
}
