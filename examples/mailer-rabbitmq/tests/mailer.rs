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
        Ok(Self { database: Database::create(Flavor::MySql).await?, topic: Topic::create(Broker::RabbitMq).await? })
    }

    fn mailer(&self, crash_point: &str) -> Result<Program> {
        let database = self.database.url_as(Account::Owner)?;
        let environment = [
            ("DATABASE_URL", database.as_str()),
            ("AMQP_URL", self.topic.address()),
            ("QUEUE", self.topic.name()),
            ("OUTBOX_CRASH_POINT", crash_point),
        ];
        Program::start(env!("CARGO_BIN_EXE_mailer-rabbitmq"), &environment)
    }

    /// Waits until this many receipts are mailed, each once.
    async fn wait_until_mailed(&self, receipts: i64) -> Result<()> {
        until(PATIENCE, "the mails", || async {
            let mailed = self.database.number("SELECT COUNT(DISTINCT address) FROM mails").await?;
            ensure!(mailed == receipts, "{mailed} of {receipts}");
            Ok(())
        })
        .await?;
        let mails = self.database.number("SELECT COUNT(*) FROM mails").await?;
        ensure!(mails == receipts, "{receipts} receipts have {mails} mails");
        Ok(())
    }
}

fn receipt(number: u64) -> (String, String) {
    ((number % 7).to_string(), format!(r#"{{"address":"customer{number}@example.org","cents":{number}}}"#))
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_that_a_relay_sends_are_mailed_once_and_a_bad_address_stops_nobody() -> Result<()> {
    let stage = Stage::new().await?;
    let relay = Relay::start(
        program::relay()?,
        &Settings::new(&stage.database.url_as(Account::Relay)?).with_broker_of(&stage.topic),
    )?;
    let mut mailer = stage.mailer("")?;
    let mut connection = stage.database.connect().await?;
    let mut tx = connection.begin().await?;
    let bad = ("0".to_owned(), r#"{"address":"nobody","cents":1}"#.to_owned());
    let all = std::iter::once(bad).chain((1..=100).map(receipt));
    let messages = all.map(|(key, body)| Message::new(stage.topic.name(), body).key(key));
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    tx.commit().await?;
    stage.wait_until_mailed(100).await?;
    let paid = "SELECT COUNT(*) FROM mails WHERE address = 'customer42@example.org' AND body = 'You paid 0.42.'";
    ensure!(stage.database.number(paid).await? == 1, "the mail says what was paid");
    let dead = "SELECT COUNT(*) FROM inbox_dead WHERE consumer = 'mailer' AND error LIKE '%no @%'";
    ensure!(stage.database.number(dead).await? == 1, "the bad address is kept as dead");
    mailer.stop(PATIENCE).await?;
    drop(relay);
    Ok(())
}

async fn dies_at(point: &str, effects: i64) -> Result<()> {
    let stage = Stage::new().await?;
    let sent: Vec<Sending> = (1..=60).map(receipt).map(|(key, body)| Sending::new(&key, body)).collect();
    stage.topic.send(&sent).await?;
    let mut victim = stage.mailer(point)?;
    let status = victim.wait_for_end(PATIENCE).await?;
    ensure!(!status.success(), "it was to die at {point}\n{}", victim.log()?);
    let mailed = stage.database.number("SELECT COUNT(*) FROM mails").await?;
    ensure!(mailed >= effects, "{mailed} effects were committed before the crash at {point}");
    ensure!(effects > 0 || mailed == 0, "{mailed} effects without commit");
    let mut next = stage.mailer("")?;
    stage.wait_until_mailed(60).await?;
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
