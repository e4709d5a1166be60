//! Destinations that take nothing for a while: the outcomes of their messages, and of the others.

use std::{cell::Cell, time::Duration};

use anyhow::{Context as _, Result, ensure};
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    ledger::Draft,
    load::Load,
    relay::{Metrics, Relay},
    servers::{self, Flavor, KafkaCluster, RabbitMq, until},
};

use crate::stage::{PATIENCE, Stage};

const REFUSING: &str = "outbox_relay_refusing_destinations";
const DOUBTFUL: &str = "outbox_relay_possible_duplicates_total";

fn keyed(topic: &str, key: &'static str, numbers: std::ops::RangeInclusive<u64>) -> Vec<Draft> {
    numbers.map(|number| Draft::new(topic, number.to_string()).key(key, number)).collect()
}

#[tokio::test]
async fn a_topic_that_is_made_after_its_first_messages_gets_them_in_order() -> Result<()> {
    let address = Broker::Kafka.address().await?;
    let topic = Topic::of_kafka(&address, &format!("late-{}", uuid::Uuid::now_v7()));
    let mut stage = Stage::with(Database::create(Flavor::MySql).await?, topic)?.patient();
    stage.settings = stage.settings.clone().set("relay", "unroutable_grace", "1h");
    stage.commit(&[keyed(stage.topic.name(), "a", 1..=50), keyed(stage.topic.name(), "b", 1..=50)].concat()).await?;
    let mut relay = stage.relay()?;
    // Each message has been in flight, or behind one that was.
    let all = "SELECT COUNT(*) = 100 FROM outbox_delayed WHERE attempts = 0 AND reason IN ('unroutable', 'behind')";
    stage.database.wait_for(PATIENCE, all).await?;
    stage.commit(&keyed(stage.topic.name(), "a", 51..=60)).await?;
    ensure!((relay.metrics().await?.sum(REFUSING) - 1.0).abs() < 0.5, "no destination is said to refuse messages");
    servers::create_topic(&address, stage.topic.name(), 4).await?;
    stage.drain_and_judge(&Expectations::new().at_least(110)).await?;
    relay.wait_for_metrics(PATIENCE, "nothing to be refused", |metrics| metrics.sum(REFUSING) < 0.5).await
}

#[tokio::test]
async fn of_a_destination_that_stays_away_a_hundred_messages_are_dead_and_the_others_arrive_in_the_end() -> Result<()> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::RabbitMq).await?.patient();
    let exchange = beside(&mut stage).await?;
    stage.topic.delete_exchange(&exchange).await?;
    commit_300(&stage, &exchange).await?;
    let mut relay = stage.relay()?;
    relay.wait_for_log(PATIENCE, BRAKED).await?;
    let before = refused(&relay).await?;
    let again = |metrics: &Metrics| metrics.sum("outbox_relay_publish_failures_total") > before;
    relay.wait_for_metrics(PATIENCE, "another try", again).await?;
    stage.topic.bring_back(&exchange).await?;
    the_others_arrive(&mut stage, "unroutable").await
}

/// A missing grant ends the channel, for all messages in flight on it.
#[tokio::test]
async fn a_grant_that_is_refused_costs_the_others_nothing_once_it_is_known() -> Result<()> {
    let server = RabbitMq::start().await?;
    let (mut stage, forbidden) = with_a_login(&server).await?;
    let only = format!("^{}$", stage.topic.name());
    allow(&server, &only).await?;
    commit_300(&stage, &forbidden).await?;
    let mut relay = stage.relay()?;
    // Without any other confirmation all destinations of the sink would refuse.
    let load = Load::new(stage.topic.name()).tasks(4).transactions(u64::MAX).pause(Duration::from_millis(4));
    let load = load.start(&stage.database, &stage.ledger).await?;
    relay.wait_for_log(PATIENCE, BRAKED).await?;
    // From time to time one of the refused messages is tried, while others are in flight.
    let before = relay.metrics().await?.sum(DOUBTFUL);
    let three_more = refused(&relay).await? + 3.0;
    let many = |metrics: &Metrics| metrics.sum("outbox_relay_publish_failures_total") >= three_more;
    relay.wait_for_metrics(PATIENCE, "three more tries", many).await?;
    load.stop().await?;
    let doubtful = relay.metrics().await?.sum(DOUBTFUL) - before;
    ensure!(doubtful < 0.5, "{doubtful} messages may have been sent twice");
    allow(&server, ".*").await?;
    the_others_arrive(&mut stage, "refused").await
}

/// The login has lost its rights.
#[tokio::test]
async fn if_all_destinations_of_a_sink_refuse_it_is_said_to_take_nothing_and_no_message_is_dead() -> Result<()> {
    let server = RabbitMq::start().await?;
    let (mut stage, other) = with_a_login(&server).await?;
    allow(&server, "^$").await?;
    commit_300(&stage, &other).await?;
    commit_300(&stage, stage.topic.name()).await?;
    let mut relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 600 FROM outbox_delayed").await?;
    // A destination is tried once a second at most, so some tries come after the grace of a second.
    let six_more = refused(&relay).await? + 6.0;
    let many = |metrics: &Metrics| metrics.sum("outbox_relay_publish_failures_total") >= six_more;
    relay.wait_for_metrics(PATIENCE, "six more tries", many).await?;
    let dead = stage.database.tables().await?.dead;
    ensure!(dead.is_empty(), "{} messages are dead: {dead:?}", dead.len());
    let (ready, told) = relay.get("/readyz").await?;
    let words = "all destinations in use refuse their messages: the relay may not write to this exchange";
    ensure!(ready == 200 && told.contains(words), "{ready}: {told}");
    let beat = "SELECT COUNT(*) = 1 FROM outbox_instances WHERE sinks LIKE '%all destinations in use refuse%'";
    stage.database.wait_for(PATIENCE, beat).await?;
    allow(&server, ".*").await?;
    stage.drain_and_judge(&Expectations::new().at_least(600)).await?;
    let (_, told) = relay.get("/readyz").await?;
    ensure!(!told.contains("refuse"), "{told}");
    Ok(())
}

/// A stage with two destinations, to which the relay writes with a login of its own.
async fn with_a_login(server: &RabbitMq) -> Result<(Stage, String)> {
    let topic = Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?;
    let mut stage = Stage::with(Database::create(Flavor::MySql).await?, topic)?.patient();
    let other = beside(&mut stage).await?;
    let place = server.amqp_url().replace("guest:guest@", "relay:secret@");
    ensure!(place.contains("relay:secret@"), "the address has no login");
    stage.settings = stage.settings.clone().sink_key("rabbitmq", "url", place);
    server.ctl(&["add_user", "relay", "secret"]).await?;
    Ok((stage, other))
}

/// Lets the login write to exchanges whose name matches this.
async fn allow(server: &RabbitMq, write: &str) -> Result<()> {
    server.ctl(&["set_permissions", "relay", ".*", write, ".*"]).await.map(drop)
}

/// The topic wants all three replicas in sync, and one of the brokers is down.
#[tokio::test]
async fn a_kafka_topic_that_confirms_nothing_holds_up_no_other() -> Result<()> {
    let mut cluster = KafkaCluster::start().await?;
    let topic = Topic::create_on(Broker::Kafka, &cluster.bootstrap()).await?;
    let mut stage = Stage::with(Database::create(Flavor::MySql).await?, topic)?;
    let silent = stage.topic.beside_replicated(3).await?;
    cluster.kill()?;
    cluster.led_by_others().await?;
    stage.settings = stage.settings.patient().set("relay", "publish_deadline", "6s");
    let silent = [keyed(&silent, "a", 1..=50), keyed(&silent, "b", 1..=50)].concat();
    stage.commit(&silent).await?;
    let mut relay = stage.relay()?;
    relay.wait_for_metrics(PATIENCE, "the relay", |_| true).await?;
    let mut good = 0;
    // The first two messages in flight, and three more tries.
    while unconfirmed(&relay.metrics().await?) < 5.0 {
        stage.commit(&(good..good + 20).map(|number| stage.draft(number)).collect::<Vec<_>>()).await?;
        good += 20;
        let sent = format!("SELECT COUNT(*) >= {good} FROM outbox_sent_messages");
        stage.database.wait_for(PATIENCE, &sent).await?;
    }
    ensure!((relay.metrics().await?.sum(REFUSING) - 1.0).abs() < 0.5, "no destination is said to take nothing");
    let log = relay.log()?;
    ensure!(!log.contains("the sink is unavailable"), "one topic was taken for the sink:\n{log}");
    let spent = stage.database.number("SELECT CAST(COALESCE(SUM(attempts), 0) AS SIGNED) FROM outbox_delayed").await?;
    ensure!(spent < 20, "{spent} attempts were spent, by messages that were not on the way");
    cluster.restart().await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    // A silent message that was tried may have been written, and the relay reports that. No other message may arrive
    // twice.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of messages")]
    let tried = unconfirmed(&relay.metrics().await?) as usize;
    let silent = silent.iter().map(|draft| draft.id);
    stage.judge(&Expectations::new().at_least(good + 100).duplicates_among(silent).duplicates(tried)).await?;
    relay.wait_for_metrics(PATIENCE, "all to be taken", |metrics| metrics.sum(REFUSING) < 0.5).await
}

/// The queue's process is stopped, as in a quorum queue whose other nodes are down.
#[tokio::test]
async fn a_rabbitmq_queue_that_confirms_nothing_holds_up_no_other() -> Result<()> {
    let server = RabbitMq::start().await?;
    let topic = Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?;
    let mut stage = Stage::with(Database::create(Flavor::MySql).await?, topic)?;
    let silent = beside(&mut stage).await?;
    stage.settings = stage.settings.patient().set("relay", "publish_deadline", "6s");
    server.suspend_queue(&silent).await?;
    let mut relay = stage.relay()?;
    relay.wait_for_metrics(PATIENCE, "the relay", |_| true).await?;
    stage.commit(&keyed(&silent, "a", 1..=50)).await?;
    let wait_for = async |what: &str, wanted: &dyn Fn(&Metrics) -> bool| {
        let are_as_wanted = || async {
            ensure!(wanted(&relay.metrics().await?), "the metrics are not as wanted");
            Ok(())
        };
        until(PATIENCE, what, are_as_wanted).await
    };
    // Without any other confirmation the relay would be right to drop the connection.
    let mut good = 0;
    let mut wanted = 0.0;
    let checked = Cell::new(false);
    let others = async {
        while !checked.get() {
            stage.commit(&(good..good + 20).map(|number| stage.draft(number)).collect::<Vec<_>>()).await?;
            (good, wanted) = (good + 20, wanted + 20.0);
            let published = |metrics: &Metrics| metrics.sum("outbox_relay_published_messages_total") >= wanted;
            wait_for("the others to be published", &published).await?;
        }
        Ok(())
    };
    let checks = async {
        wait_for("a silent destination", &|metrics| metrics.sum(REFUSING) > 0.5).await?;
        let before = connection(&server).await?;
        let tried = unconfirmed(&relay.metrics().await?);
        wait_for("two tries", &|metrics| unconfirmed(metrics) > tried + 1.5).await?;
        let after = connection(&server).await?;
        let log = relay.log()?;
        ensure!(before == after, "the connection was dropped: {before}, then {after}:\n{log}");
        ensure!(!log.contains("the sink is unavailable"), "one queue was taken for the sink:\n{log}");
        checked.set(true);
        anyhow::Ok(())
    };
    tokio::try_join!(others, checks)?;
    server.resume_queue(&silent).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let silent =
        stage.ledger.entries().into_iter().filter(|entry| entry.contents.topic == silent).map(|entry| entry.id);
    let expected = Expectations::new().at_least(good + 50).duplicates_among(silent);
    stage.judge(&expected).await
}

/// Returns the connection of the relay, as the broker names it.
async fn connection(server: &RabbitMq) -> Result<String> {
    until(PATIENCE, "a connection of the relay", || async {
        // The command may wait without end for a connection that is being opened. A second call answers.
        let list = ["--timeout", "30", "list_connections", "--quiet", "pid", "client_properties"];
        let connections = server.ctl(&list).await?;
        let line =
            connections.lines().find(|line| line.contains("outbox-relay")).context("no connection of a relay")?;
        Ok(line.to_owned())
    })
    .await
}

/// The relay's log text when it rejects no more messages of a destination.
const BRAKED: &str = "the others wait until the destination takes one";

/// Returns the number of messages that were refused.
async fn refused(relay: &Relay) -> Result<f64> {
    Ok(relay.metrics().await?.sum("outbox_relay_publish_failures_total"))
}

/// Returns the number of messages that were in flight and not confirmed.
fn unconfirmed(metrics: &Metrics) -> f64 {
    metrics.sum_where("outbox_relay_publish_failures_total", "reason=\"unconfirmed\"")
}

async fn the_others_arrive(stage: &mut Stage, reason: &str) -> Result<()> {
    stage.database.wait_until_drained(PATIENCE).await?;
    let dead = stage.database.tables().await?.dead;
    ensure!(dead.len() == 100 && dead.values().all(|it| it == reason), "{} messages are dead: {dead:?}", dead.len());
    stage.judge(&Expectations::new().at_least(300).dead(dead.into_keys())).await
}

/// Makes one more exchange with a queue, and a route to it.
pub(crate) async fn beside(stage: &mut Stage) -> Result<String> {
    let name = stage.topic.beside(None).await?;
    let route = [("topics", name.as_str()), ("sink", "rabbitmq"), ("exchange", &name), ("routing_key", "{topic}")];
    stage.settings = stage.settings.clone().first_route(route);
    Ok(name)
}

async fn commit_300(stage: &Stage, topic: &str) -> Result<()> {
    stage.commit(&(0..300).map(|number| Draft::new(topic, number.to_string())).collect::<Vec<_>>()).await
}
