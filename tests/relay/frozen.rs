//! Servers that freeze, with connections open and no answer, and producers that do not know whether they have
//! committed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    ledger::Outcome,
    load::Load,
    relay::Metrics,
    servers::{Flavor, MySql, RabbitMq},
};

use crate::stage::{PATIENCE, Stage, start, work};

fn endless(stage: &Stage) -> Load {
    Load::new(stage.topic.name()).tasks(4).transactions(u64::MAX).pause(Duration::from_millis(2))
}

fn published(least: f64) -> impl Fn(&Metrics) -> bool {
    move |metrics| metrics.sum("outbox_relay_published_messages_total") >= least
}

fn hangs(metrics: &Metrics) -> bool {
    metrics.sum("outbox_relay_in_flight_messages") >= 1.0
}

/// The database is killed under relays and producers: a producer in COMMIT does not know its outcome.
#[tokio::test]
async fn a_mariadb_that_is_killed_under_producers_tears_no_transaction() -> Result<()> {
    let mut server = MySql::start(Flavor::MariaDb).await?;
    let mut stage = Stage::with(Database::create_on(&server.url()).await?, Topic::create(Broker::RabbitMq).await?)?;
    let relays = [stage.relay()?, stage.relay()?];
    let load = endless(&stage).tasks(16).start(&stage.database, &stage.ledger).await?;
    for _ in 0..2 {
        work(&relays, 30.0).await?;
        server.kill()?;
        server.restart().await?;
    }
    let before = stage.ledger.count(Outcome::Committed);
    testkit::servers::until(PATIENCE, "commits after the restart", || async {
        ensure!(stage.ledger.count(Outcome::Committed) > before + 50, "none yet");
        Ok(())
    })
    .await?;
    load.stop().await?;
    stage.drain_and_judge(&Expectations::new().at_least(100).duplicates(3000)).await
}

/// The database is frozen for longer than a lease of three seconds: all claims have expired when it goes on.
#[tokio::test]
async fn a_database_that_freezes_beyond_the_lease_costs_duplicates_at_most() -> Result<()> {
    let server = MySql::start(Flavor::MySql).await?;
    let mut stage = Stage::with(Database::create_on(&server.url()).await?, Topic::create(Broker::Kafka).await?)?;
    let mut relays = [stage.relay()?, stage.relay()?];
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    work(&relays, 60.0).await?;
    server.pause()?;
    let frozen = Instant::now();
    for relay in &mut relays {
        let many = |metrics: &Metrics| metrics.sum("outbox_relay_db_errors_total") >= 8.0;
        relay.wait_for_metrics(PATIENCE, "calls that pass their deadline", many).await?;
        ensure!(relay.get("/livez").await?.0 == 200, "a frozen database is no reason to be killed");
    }
    // The length of the fault; a frozen database cannot report the age of leases.
    tokio::time::sleep(Duration::from_secs(4).saturating_sub(frozen.elapsed())).await;
    server.resume()?;
    load.stop().await?;
    stage.drain_and_judge(&Expectations::new().at_least(50).duplicates(3000)).await
}

/// RabbitMQ freezes: a stop still ends in time, without an error, and releases the messages in flight.
#[tokio::test]
async fn a_relay_stops_in_time_while_its_broker_is_frozen() -> Result<()> {
    let server = RabbitMq::start().await?;
    let topic = Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?;
    let mut stage = Stage::with(Database::create(Flavor::MariaDb).await?, topic)?;
    stage.settings = stage.settings.clone().set("relay", "lease", "60s").set("relay", "publish_deadline", "30s");
    stage.settings = stage.settings.clone().set("relay", "settle_deadline", "5s");
    let mut relay = start(&stage.settings.clone().set("relay", "stop_deadline", "3s"))?;
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    relay.wait_for_metrics(PATIENCE, "work", published(30.0)).await?;
    server.pause()?;
    relay.wait_for_metrics(PATIENCE, "a publish that hangs", hangs).await?;
    relay.stop(Duration::from_secs(40)).await?;
    let claims = stage.database.number("SELECT COUNT(*) FROM outbox_claims").await?;
    ensure!(claims == 0, "{claims} claims were not given back");
    load.stop().await?;
    server.resume()?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(30).duplicates(3000)).await?;
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_dead").await? == 0);
    Ok(())
}

/// A stop takes its time if the broker does not answer; a second signal does not wait for that.
#[tokio::test]
async fn a_second_signal_ends_a_relay_at_once() -> Result<()> {
    let server = RabbitMq::start().await?;
    let topic = Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?;
    let mut stage = Stage::with(Database::create(Flavor::MariaDb).await?, topic)?;
    stage.settings = stage.settings.clone().set("relay", "lease", "60s").set("relay", "publish_deadline", "30s");
    let mut relay = start(&stage.settings.clone().set("relay", "stop_deadline", "40s"))?;
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    relay.wait_for_metrics(PATIENCE, "work", published(30.0)).await?;
    server.pause()?;
    relay.wait_for_metrics(PATIENCE, "a publish that hangs", hangs).await?;
    load.stop().await?;
    relay.terminate()?;
    relay.wait_for_log(PATIENCE, "stopping").await?;
    relay.terminate()?;
    let status = relay.wait_for_end(Duration::from_secs(20)).await?;
    ensure!(status.code() == Some(1), "it ended with {status}");
    Ok(())
}
