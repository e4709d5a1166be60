//! No payload, key, header value or password is in any log, metric or error.

use anyhow::{Context as _, Result, ensure};
use testkit::{
    consume::Broker,
    database::Database,
    judge::Expectations,
    ledger::{Draft, Ledger},
    load,
    relay::{Relay, Settings},
    servers::{Flavor, until},
};

use crate::stage::{PATIENCE, Stage, start};

const CANARY: &str = "canary-5bd1e995";
const USER: &str = "outbox_canary";

#[tokio::test]
async fn nothing_of_a_message_and_no_password_is_ever_printed() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?.patient();
    let url = stage.database.url().replace("root@", &format!("{USER}:{CANARY}@"));
    let user = format!("CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{CANARY}'; GRANT ALL ON *.* TO {USER}@'%'");
    stage.database.execute(&user).await?;
    stage.settings = stage.settings.clone().set("database", "url", url).set("log", "level", "trace");
    let message = |topic: &str| Draft::new(topic, CANARY).unordered_key(CANARY).header("h", CANARY);
    let unroutable = message("nowhere");
    stage.commit(&[message(stage.topic.name()), unroutable.clone()]).await?;
    let relay = stage.relay()?;
    let outcome = stage.drain_and_judge(&Expectations::new().at_least(2).dead([unroutable.id])).await;
    outcome.map_err(|error| error.context(relay.log().unwrap_or_default()))?;
    is_silent(&relay, &stage.database).await
}

/// Checks that neither the relay's pages nor its tables have the canary.
async fn is_silent(relay: &Relay, database: &Database) -> Result<()> {
    for page in [relay.log()?, relay.get("/metrics").await?.1, relay.get("/readyz").await?.1] {
        let line = page.lines().find(|line| line.contains(CANARY));
        ensure!(line.is_none(), "{line:?}");
    }
    for table in ["outbox_dead", "outbox_delayed"] {
        let errors = format!("SELECT COUNT(*) FROM {table} WHERE error LIKE '%{CANARY}%'");
        ensure!(database.number(&errors).await? == 0, "it is in an error in {table}");
    }
    Ok(())
}

/// Returns one broker of each kind that refuses the login, and one of each that does not run, with what is said of
/// them.
async fn brokers() -> Result<[(&'static str, String, &'static str); 4]> {
    let kafka = |brokers: &str| {
        format!(
            "type = 'kafka'\nbrokers = '{brokers}'\n[properties]\n'security.protocol' = 'sasl_plaintext'\n\
             'sasl.mechanism' = 'PLAIN'\n'sasl.username' = '{USER}'\n'sasl.password' = '{CANARY}'"
        )
    };
    let rabbit = |place: &str| format!("type = 'rabbitmq'\nurl = 'amqp://{USER}:{CANARY}@{place}'");
    let bootstrap = Broker::Kafka.address().await?;
    let amqp = Broker::RabbitMq.address().await?;
    let (_, place) = amqp.split_once('@').context("no login")?;
    Ok([
        ("kafka_refuses", kafka(&bootstrap), "this listener knows no SASL: correct `brokers`"),
        ("kafka_away", kafka("127.0.0.1:1"), "nothing listens there: start the broker"),
        ("rabbit_refuses", rabbit(place), "user or password is wrong"),
        ("rabbit_away", rabbit("127.0.0.1:1/%2f"), "nothing listens there: start the broker"),
    ])
}

#[tokio::test]
async fn no_password_of_a_broker_that_cannot_be_used_is_ever_printed() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let brokers = brokers().await?;
    let mut settings = Settings::new(database.url()).null().set("log", "level", "trace");
    for (name, sink, _) in &brokers {
        let exchange = name.starts_with("rabbit").then_some(("exchange", "e"));
        let route = [("topics", *name), ("sink", *name)].into_iter().chain(exchange);
        settings = settings.set("sinks", name, sink.parse::<toml::Table>()?).route(route);
    }
    let drafts =
        brokers.each_ref().map(|(name, ..)| Draft::new(name, CANARY).unordered_key(CANARY).header("h", CANARY));
    load::commit(&database, &Ledger::new(), &drafts, |message| message).await?;
    let relay = start(&settings)?;
    database.wait_for(PATIENCE, "SELECT COUNT(*) = 4 FROM outbox_delayed WHERE reason = 'parked'").await?;
    until(PATIENCE, "what is wrong with each", || async {
        let page = relay.get("/readyz").await?.1;
        let log = relay.log()?;
        for (name, _, sentence) in &brokers {
            let told = |text: &str| text.lines().any(|line| line.contains(name) && line.contains(sentence));
            ensure!(told(&page) && told(&log), "{name}: {page}");
        }
        Ok(())
    })
    .await?;
    is_silent(&relay, &database).await
}
