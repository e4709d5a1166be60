//! Lanes that wait hold up no others.

use std::{
    cell::Cell,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use mysql_outbox::config::{self, Config, Inputs, Route, Secret};
use outbox_relay::{
    observe::{health::Health, metrics::Metrics},
    run::{Relay, RunError},
    sink::{Feed, KeyOrder, Outcome, Outgoing, PublishError, Receipt, Sink, null::Null, stdout::Stdout},
};
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    judge::Expectations,
    ledger::Draft,
    load,
    relay::Settings,
    servers::{Flavor, until},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::stage::{PATIENCE, Stage};

/// Kafka takes messages while RabbitMQ cannot be reached; each has a lane.
#[tokio::test]
async fn a_lane_whose_sink_is_down_does_not_disturb_the_other() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let nowhere: Vec<Draft> = (1..=200).map(|n| Draft::new("nowhere", "").key("k", n)).collect();
    load::commit(&stage.database, &stage.ledger, &nowhere, |message| message.lane(1)).await?;
    stage.settings = Settings::new(&stage.database.url_as(Account::Relay)?)
        .patient()
        .kafka(stage.topic.address())
        .rabbitmq("amqp://guest:guest@127.0.0.1:1/%2f")
        .route([("topics", "nowhere"), ("sink", "rabbitmq"), ("exchange", "nowhere")])
        .route([("topics", "*"), ("sink", "kafka")]);
    let relay = stage.relay()?;
    load::Load::new(stage.topic.name()).transactions(100).run(&stage.database, &stage.ledger).await?;
    let through = "SELECT COUNT(*) = 0 FROM outbox_pending WHERE lane = 0";
    stage.database.wait_for(PATIENCE, through).await?;
    let spent = "SELECT (SELECT COALESCE(MAX(attempts), 0) FROM outbox_pending) \
                 + (SELECT COALESCE(MAX(attempts), 0) FROM outbox_delayed)";
    ensure!(stage.database.number(spent).await? == 0, "an outage spends no attempt");
    let expected = Expectations::new().at_least(250).waiting(nowhere.iter().map(|draft| draft.id));
    stage.report().await?.assert_ok(&expected)?;
    let connected = relay.metrics().await?.sum_where("outbox_relay_sink_connected", "rabbitmq");
    ensure!(connected.abs() < 0.5, "the metric says that RabbitMQ is connected");
    Ok(())
}

/// A relay in this process. Its sink `stuck` gets the topic `slow`, another one the other topics.
struct Embedded {
    health: Arc<Health>,
    stop: watch::Sender<()>,
    relay: JoinHandle<Result<(), RunError>>,
}

impl Embedded {
    fn start(stage: &Stage, stuck: Feed, publish_deadline: Duration) -> Result<Self> {
        let url = ("RELAY__DATABASE__URL".to_owned(), stage.database.url_as(Account::Relay)?);
        let mut inputs = Inputs::default();
        inputs.variables = vec![url];
        let mut config = config::load_for_database(&inputs)?.config;
        config.routes = vec![Route::new("slow", "stuck"), Route::new("*", "null")];
        config.relay.lease = 2 * PATIENCE;
        config.relay.publish_deadline = publish_deadline;
        (config.relay.in_flight_messages, config.relay.claim_messages) = (200, 50);
        let metrics = Metrics::new()?;
        let health = Health::new(Arc::clone(&metrics));
        let (stop, stopped) = watch::channel(());
        let stopped = async move {
            stopped.clone().changed().await.ok();
        };
        let feeds = vec![stuck, Feed::new("null", Arc::new(Null), 4, 100)];
        let relay = Relay::with_sinks(config, feeds, metrics, Arc::clone(&health))?;
        Ok(Self { health, stop, relay: tokio::spawn(relay.run(stopped)) })
    }

    async fn stop(self) -> Result<()> {
        self.stop.send(())?;
        Ok(self.relay.await??)
    }
}

/// Answers once its channel says so.
struct Stuck(watch::Receiver<bool>);

#[async_trait::async_trait]
impl Sink for Stuck {
    fn key_order(&self, _message: &Outgoing) -> KeyOrder {
        KeyOrder::OneInFlight
    }

    async fn publish(&self, batch: &[Outgoing], _deadline: Instant) -> Vec<Outcome> {
        self.0.clone().wait_for(|released| *released).await.ok();
        batch.iter().map(|_| Ok(Receipt::new("there"))).collect()
    }

    async fn check(&self, _deadline: Instant) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

/// All lanes share the room for messages in flight.
#[tokio::test]
async fn a_lane_whose_sink_takes_nothing_leaves_room_for_the_other() -> Result<()> {
    let stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let drafts = |topic: &str| (0..400).map(|_| Draft::new(topic, "")).collect::<Vec<_>>();
    load::commit(&stage.database, &stage.ledger, &drafts("slow"), |message| message.lane(1)).await?;
    let (release, released) = watch::channel(false);
    let embedded = Embedded::start(&stage, Feed::new("stuck", Arc::new(Stuck(released)), 4, 100), PATIENCE)?;
    let claimed = "SELECT COALESCE(SUM(JSON_LENGTH(message_ids)), 0) >= 150 FROM outbox_claims";
    stage.database.wait_for(PATIENCE, claimed).await?;
    stage.commit(&drafts("quick")).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 400 FROM outbox_sent_messages").await?;
    release.send(true)?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 800 FROM outbox_sent_messages").await?;
    embedded.stop().await
}

/// A pipe whose reader has stopped, until the channel ends. Says so when it is written to.
struct Pipe(mpsc::UnboundedSender<()>, std::sync::mpsc::Receiver<()>);

impl io::Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(()).ok();
        self.1.recv().ok();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_sink_that_blocks_its_thread_holds_up_its_own_lane_alone_and_is_named() -> Result<()> {
    let stage = Stage::new(Flavor::MariaDb, Broker::Kafka).await?;
    let drafts = |topic: &str| (0..50).map(|_| Draft::new(topic, "")).collect::<Vec<_>>();
    let ((held, mut holds), (reader, pipe)) = (mpsc::unbounded_channel(), std::sync::mpsc::channel());
    let pipe = Stdout::to(Pipe(held, pipe));
    let embedded = Embedded::start(&stage, Feed::new("stuck", Arc::new(pipe), 1, 100), Duration::from_secs(1))?;
    load::commit(&stage.database, &stage.ledger, &drafts("slow"), |message| message.lane(1)).await?;
    holds.recv().await.context("nothing was written")?;
    stage.commit(&drafts("quick")).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 50 FROM outbox_sent_messages").await?;
    until(PATIENCE, "the sink to be named", || async {
        let sinks = embedded.health.sinks();
        let why = sinks.get("stuck").cloned().flatten().unwrap_or_default();
        ensure!(why.contains("the sink stuck blocks its thread"), "{sinks:?}");
        Ok(())
    })
    .await?;
    drop(reader);
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 100 FROM outbox_sent_messages").await?;
    embedded.stop().await
}

#[tokio::test]
async fn a_relay_with_a_route_to_a_sink_that_does_not_exist_is_not_made() -> Result<()> {
    let mut inputs = Inputs::default();
    inputs.variables = vec![("RELAY__DATABASE__URL".to_owned(), "mysql://relay@127.0.0.1/shop".to_owned())];
    let mut config = config::load_for_database(&inputs)?.config;
    config.routes = vec![Route::new("orders", "null"), Route::new("*", "nul")];
    let metrics = Metrics::new()?;
    let health = Health::new(Arc::clone(&metrics));
    let made = Relay::with_sinks(config, vec![Feed::new("null", Arc::new(Null), 4, 100)], metrics, health);
    let error = made.err().context("the relay was made")?.to_string();
    ensure!(error == "a route for `*` names the sink `nul`, which the relay lacks: it has null", "{error}");
    Ok(())
}

#[tokio::test]
async fn a_relay_whose_publishes_could_outlast_its_lease_is_not_made() -> Result<()> {
    let mut config = Config::default();
    config.database.url = Secret::new("mysql://relay@127.0.0.1/shop");
    config.relay.publish_deadline = config.relay.lease;
    let metrics = Metrics::new()?;
    let health = Health::new(Arc::clone(&metrics));
    let error = Relay::with_sinks(config, Vec::new(), metrics, health).err().context("the relay was made")?.to_string();
    ensure!(error.starts_with("the lease (30s) is shorter than publish_deadline"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_scheduled_message_holds_up_no_later_one_of_its_key() -> Result<()> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::RabbitMq).await?.patient();
    let scheduled = [stage.draft(0).unordered_key("k")];
    let later = |message: outbox_core::Message| message.delay(Duration::from_secs(3600));
    load::commit(&stage.database, &stage.ledger, &scheduled, later).await?;
    stage.commit(&[stage.draft(1).key("k", 1), stage.draft(2).key("k", 2)]).await?;
    let _relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 2 FROM outbox_sent_messages").await?;
    stage.report().await?.assert_ok(&Expectations::new().at_least(3).waiting(scheduled.map(|draft| draft.id)))
}

#[tokio::test]
async fn a_relay_that_stops_gives_the_purging_to_the_next_at_once() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let settings = Settings::new(&database.url_as(Account::Relay)?).null().route([("topics", "*"), ("sink", "null")]);
    let held = "SELECT COUNT(*) FROM outbox_leases WHERE lease_until > UTC_TIMESTAMP(6)";
    for round in 1..=5 {
        let mut relay = crate::stage::start(&settings)?;
        database.wait_for(PATIENCE, held).await?;
        relay.stop(PATIENCE).await?;
        let free = held.replace("COUNT(*)", "COUNT(*) = 0");
        // A lease lasts a minute.
        let freed = database.wait_for(Duration::from_secs(30), &free).await;
        freed.with_context(|| format!("round {round}: nobody purges before the lease ends"))?;
    }
    Ok(())
}

/// Old receipts are purged with their messages; fresh ones, dead messages and waiting ones stay.
#[tokio::test]
async fn only_what_is_sent_and_old_is_purged() -> Result<()> {
    let stage = Stage::new(Flavor::MariaDb, Broker::RabbitMq).await?;
    let dead = [Draft::new("nowhere", "")];
    stage.commit(&dead).await?;
    stage.commit(&[stage.draft(1), stage.draft(2)]).await?;
    let later = |message: outbox_core::Message| message.delay(Duration::from_secs(3600));
    load::commit(&stage.database, &stage.ledger, &[stage.draft(3)], later).await?;
    let settings = stage.settings.clone().set("retention", "sent", "1h").set("retention", "dead", "1h");
    let mut relay = crate::stage::start(&settings)?;
    let idle = "SELECT (SELECT COUNT(*) FROM outbox_pending) + (SELECT COUNT(*) FROM outbox_claims) = 0";
    stage.database.wait_for(PATIENCE, idle).await?;
    let age = "UPDATE outbox_sent SET sent_at = sent_at - INTERVAL 2 HOUR";
    stage.database.execute(age).await?;
    stage.commit(&[stage.draft(4)]).await?;
    stage.database.wait_for(PATIENCE, idle).await?;
    relay.stop(PATIENCE).await?;
    let _relay = crate::stage::start(&settings)?;
    let left = "SELECT (SELECT COUNT(*) FROM outbox_messages) = 3 AND (SELECT COUNT(*) FROM outbox_sent_messages) = 1 \
                AND (SELECT COUNT(*) FROM outbox_dead) = 1 AND (SELECT COUNT(*) FROM outbox_delayed) = 1";
    stage.database.wait_for(PATIENCE, left).await?;
    let orphans = stage.database.tables().await?.orphans;
    ensure!(orphans.is_empty(), "{orphans:?}");
    Ok(())
}

/// Any service can write to any lane, once and never again.
#[tokio::test]
async fn many_lanes_share_a_few_connections_and_each_goes_on_after_a_pause() -> Result<()> {
    const LANES: u16 = 60;
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let mut relay = stage.relay()?;
    for round in [1_u8, 2] {
        for lane in 0..LANES {
            let draft = stage.draft(0).key(format!("k{lane}"), round.into());
            load::commit(&stage.database, &stage.ledger, &[draft], |message| message.lane(lane * 7)).await?;
        }
        stage.database.wait_until_drained(PATIENCE).await?;
        // Waits until the lanes are idle: then no claimer looks at a single one.
        let looks = Cell::new(-1.0);
        until(PATIENCE, "lanes in which nobody looks", || async {
            let now = relay.metrics().await?.sum("outbox_relay_claims_total");
            ensure!(now - looks.replace(now) < 0.5, "{now} looks");
            Ok(())
        })
        .await?;
    }
    let lanes = |metrics: &testkit::relay::Metrics| metrics.sum("outbox_relay_lanes") >= f64::from(LANES);
    relay.wait_for_metrics(PATIENCE, "all lanes", lanes).await?;
    let open = stage.database.number(&format!("SELECT COUNT(*) FROM {}", Flavor::MySql.sessions())).await?;
    ensure!(open <= 16 + 4, "the relay of {LANES} lanes and this test have {open} connections");
    stage.judge(&Expectations::new().at_least(2 * usize::from(LANES))).await
}
