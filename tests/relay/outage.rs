//! Servers that are down, die, or refuse.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    ledger::Draft,
    load::Load,
    servers::{Flavor, Kafka, MySql, RabbitMq, free_port, until},
};

use crate::stage::{PATIENCE, Stage};

/// Checks that no attempt was spent and no message is dead: no message is the cause of an outage.
async fn nothing_was_spent(stage: &Stage) -> Result<()> {
    let dead = stage.database.number("SELECT COUNT(*) FROM outbox_dead").await?;
    ensure!(dead == 0, "{dead} messages died of an outage");
    Ok(())
}

fn steady(stage: &Stage) -> Load {
    Load::new(stage.topic.name()).tasks(2).transactions(u64::MAX).pause(Duration::from_millis(5))
}

#[tokio::test]
async fn a_mysql_that_is_killed_and_restarted_is_drained() -> Result<()> {
    let mut server = MySql::start(Flavor::MySql).await?;
    let mut stage = Stage::with(Database::create_on(&server.url()).await?, Topic::create(Broker::Kafka).await?)?;
    let relays = [stage.relay()?, stage.relay()?];
    let drafts: Vec<Draft> = (1..=3000).map(|n| Draft::new(stage.topic.name(), vec![0; 2000]).key("k", n)).collect();
    stage.commit(&drafts).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) < 3000 FROM outbox_pending").await?;
    server.kill()?;
    for relay in &relays {
        until(PATIENCE, "the outage to be noticed", || async {
            ensure!(relay.get("/readyz").await?.0 == 503);
            Ok(())
        })
        .await?;
        ensure!(relay.get("/livez").await?.0 == 200);
    }
    server.restart().await?;
    stage.drain_and_judge(&Expectations::new().at_least(3000).duplicates(3000)).await?;
    nothing_was_spent(&stage).await
}

#[tokio::test]
async fn a_kafka_that_is_killed_and_restarted_is_drained() -> Result<()> {
    let mut server = Kafka::start().await?;
    let topic = Topic::create_on(Broker::Kafka, &server.bootstrap()).await?;
    broker_outage(Stage::with(Database::create(Flavor::MySql).await?, topic)?, &mut server).await
}

#[tokio::test]
async fn a_rabbitmq_that_is_killed_and_restarted_is_drained() -> Result<()> {
    let mut server = RabbitMq::start().await?;
    let topic = Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?;
    broker_outage(Stage::with(Database::create(Flavor::MySql).await?, topic)?, &mut server).await
}

/// A broker of one test.
trait Server {
    fn kill(&mut self) -> Result<()>;
    async fn restart(&mut self) -> Result<()>;
}

impl Server for Kafka {
    fn kill(&mut self) -> Result<()> {
        Self::kill(self)
    }

    async fn restart(&mut self) -> Result<()> {
        Self::restart(self).await
    }
}

impl Server for RabbitMq {
    fn kill(&mut self) -> Result<()> {
        Self::kill(self)
    }

    async fn restart(&mut self) -> Result<()> {
        Self::restart(self).await
    }
}

async fn broker_outage(mut stage: Stage, server: &mut impl Server) -> Result<()> {
    let mut relay = stage.relay()?;
    let load = steady(&stage).start(&stage.database, &stage.ledger).await?;
    relay.wait_for_metrics(PATIENCE, "work", |m| m.sum("outbox_relay_published_messages_total") > 50.0).await?;
    server.kill()?;
    relay.wait_for_metrics(PATIENCE, "the outage", |m| m.sum("outbox_relay_sink_connected") < 0.5).await?;
    let (status, body) = relay.get("/readyz").await?;
    ensure!(status == 200 && body.starts_with("sink "), "ready, and the broker is down: {status} {body}");
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) > 100 FROM outbox_pending").await?;
    server.restart().await?;
    load.stop().await?;
    stage.drain_and_judge(&Expectations::new().at_least(150).duplicates(3000)).await?;
    let metrics = relay.metrics_within(PATIENCE).await?;
    let spent = metrics.sum_where("outbox_relay_retries_scheduled_total", r#"reason="unconfirmed""#);
    let unconfirmed = metrics.sum_where("outbox_relay_possible_duplicates_total", "unconfirmed");
    ensure!(spent <= unconfirmed, "{spent} attempts were spent, {unconfirmed} messages were on the way");
    nothing_was_spent(&stage).await
}

#[tokio::test]
async fn a_relay_that_starts_before_its_database_waits_for_it() -> Result<()> {
    let mut server = MySql::start(Flavor::MySql).await?;
    let mut stage = Stage::with(Database::create_on(&server.url()).await?, Topic::create(Broker::Kafka).await?)?;
    stage.commit(&[stage.draft(1)]).await?;
    server.kill()?;
    let relay = stage.relay()?;
    relay.wait_for_log(PATIENCE, "waiting for the database").await?;
    ensure!(relay.get("/readyz").await?.0 == 503);
    server.restart().await?;
    stage.drain_and_judge(&Expectations::new()).await
}

#[tokio::test]
async fn a_relay_that_starts_before_its_broker_waits_and_spends_nothing() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let drafts: Vec<Draft> = (0..100).map(|number| stage.draft(number)).collect();
    stage.commit(&drafts).await?;
    let nowhere = format!("127.0.0.1:{}", free_port()?);
    let mut relay = crate::stage::start(&stage.settings.clone().kafka(&nowhere))?;
    relay.wait_for_log(PATIENCE, "cannot be reached").await?;
    let (status, body) = relay.get("/readyz").await?;
    ensure!(status == 200 && body.starts_with("sink kafka: "), "{status} {body}");
    let spent = stage.database.number("SELECT COUNT(*) FROM outbox_pending WHERE attempts > 0").await?;
    ensure!(spent == 0 && stage.database.number("SELECT COUNT(*) FROM outbox_pending").await? == 100);
    relay.stop(PATIENCE).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(100)).await
}

#[tokio::test]
async fn a_tenth_unroutable_on_rabbitmq_is_dead_and_no_neighbour_is() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?.patient();
    let nowhere = format!("nowhere-{}", stage.topic.name());
    let draft = |number: usize| {
        let topic = if number % 10 == 3 { nowhere.as_str() } else { stage.topic.name() };
        Draft::new(topic, format!("payload {number}"))
    };
    let drafts: Vec<Draft> = (0..1000).map(draft).collect();
    let unroutable: Vec<_> = drafts.iter().skip(3).step_by(10).map(|draft| draft.id).collect();
    stage.commit(&drafts).await?;
    let relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(1000).dead(unroutable)).await?;
    let metrics = relay.metrics().await?;
    let dead = metrics.sum_where("outbox_relay_dead_messages_total", "reason=\"unroutable\"");
    ensure!((dead - 100.0).abs() < 0.5, "the metric counts {dead} dead messages");
    Ok(())
}
