//! A network that delays, swallows and cuts, between the relay and each of its servers.

use std::{
    slice,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::sqlx::{self, Connection as _};
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    ledger::{Draft, Outcome},
    load::{Load, Running},
    proxy::{Counts, Cut, Direction, Proxy},
    relay::{Metrics, Relay, Settings},
    servers::{Flavor, Kafka, until},
};

use crate::stage::{PATIENCE, Stage, start, work};

/// Messages of two runs of the claims that may be in flight: a lost reply may cost a duplicate of each.
const IN_FLIGHT: usize = 3000;

/// Most connections of a relay to its database: readers, settlers, and one for each of its loops.
const SESSIONS: u64 = 13;

fn endless(stage: &Stage) -> Load {
    Load::new(stage.topic.name()).tasks(4).transactions(u64::MAX).pause(Duration::from_millis(4))
}

/// Creates a stage whose relays reach their database through a proxy; all other programs go past it.
async fn behind_a_proxy(flavor: Flavor, broker: Broker) -> Result<(Stage, Proxy)> {
    let mut stage = Stage::new(flavor, broker).await?;
    let proxy = Proxy::start(&stage.database.url_as(Account::Relay)?).await?;
    stage.settings = stage.settings.clone().set("database", "url", proxy.address());
    Ok((stage, proxy))
}

async fn counted(proxy: &Proxy, what: &str, wanted: impl Fn(Counts) -> bool) -> Result<()> {
    until(PATIENCE, what, || async {
        ensure!(wanted(proxy.counts()), "{:?}", proxy.counts());
        Ok(())
    })
    .await
}

/// Puts a proxy before a broker that does not give up a silent connection for long.
async fn before_a_patient_broker(stage: &Stage) -> Result<(Proxy, Settings)> {
    let proxy = Proxy::start(stage.topic.address()).await?;
    let settings = stage.settings.clone().rabbitmq(&format!("{}?heartbeat=60", proxy.address()));
    Ok((proxy, settings))
}

async fn ready(relay: &Relay) -> Result<()> {
    until(PATIENCE, "readiness", || async {
        let (status, body) = relay.get("/readyz").await?;
        ensure!(status == 200 && body.starts_with("ok\n"), "{status} {body}");
        Ok(())
    })
    .await
}

async fn ended(mut stage: Stage, load: Running, expected: &Expectations) -> Result<()> {
    load.stop().await?;
    stage.drain_and_judge(expected).await?;
    let dead = stage.database.number("SELECT COUNT(*) FROM outbox_dead").await?;
    ensure!(dead == 0, "{dead} messages died of a network");
    Ok(())
}

/// In each direction, and in both. Bytes sent into the black hole arrive after it is healed, from connections that are
/// no longer in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_to_the_database_costs_no_connection_and_no_message() -> Result<()> {
    let (stage, proxy) = behind_a_proxy(Flavor::MySql, Broker::Kafka).await?;
    let mut relays = [stage.relay()?, stage.relay()?];
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    work(&relays, 50.0).await?;
    for directions in [&[Direction::ToServer][..], &[Direction::ToClient], &Direction::BOTH] {
        let held = proxy.counts().held;
        for direction in directions {
            proxy.black_hole(*direction);
        }
        for relay in &mut relays {
            let before = relay.metrics().await?.sum("outbox_relay_db_errors_total");
            let many = |metrics: &Metrics| metrics.sum("outbox_relay_db_errors_total") >= before + 8.0;
            relay.wait_for_metrics(PATIENCE, "calls that pass their deadline", many).await?;
            let (status, body) = relay.get("/readyz").await?;
            ensure!(status == 503 && body.contains("database: "), "{status} {body}");
            ensure!(relay.get("/livez").await?.0 == 200, "a black hole is no reason to be killed");
        }
        ensure!(proxy.counts().held > held, "nothing was in flight");
        proxy.heal();
        for relay in &relays {
            ready(relay).await?;
        }
        work(&relays, 20.0).await?;
        counted(&proxy, "abandoned connections to end", |counts| counts.open <= 2 * SESSIONS).await?;
    }
    ended(stage, load, &Expectations::new().at_least(100).duplicates(IN_FLIGHT)).await
}

/// Half of each round trip's deadline is latency, and every few seconds nothing comes for longer than that.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_database_that_stalls_is_drained() -> Result<()> {
    let (stage, proxy) = behind_a_proxy(Flavor::MariaDb, Broker::RabbitMq).await?;
    for direction in &Direction::BOTH {
        proxy.latency(*direction, Duration::from_millis(100));
    }
    let settings = stage.settings.clone().set("relay", "settle_deadline", "1500ms").set("relay", "lease", "5s");
    let mut relays = [start(&settings)?, start(&settings)?];
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    let samples = |metrics: &Metrics| {
        let labels = r#"operation="floor""#;
        let calls = metrics.sum_where("outbox_relay_db_call_duration_seconds_count", labels);
        calls - metrics.sum_where("outbox_relay_db_errors_total", labels) >= 2.0
    };
    for relay in &mut relays {
        relay.wait_for_metrics(PATIENCE, "calls of which each takes several round trips", samples).await?;
    }
    for _ in 0..2 {
        work(&relays, 100.0).await?;
        let held = proxy.counts().held;
        proxy.black_hole(Direction::ToClient);
        counted(&proxy, "a reply to be held back", |counts| counts.held > held).await?;
        tokio::time::sleep(Duration::from_millis(700)).await;
        proxy.heal();
        for direction in &Direction::BOTH {
            proxy.latency(*direction, Duration::from_millis(100));
        }
    }
    let end = ended(stage, load, &Expectations::new().at_least(100).duplicates(IN_FLIGHT)).await;
    end.with_context(|| relays.each_ref().map(|relay| relay.log().unwrap_or_default()).join("\n"))
}

/// The producer does not know whether it has committed. The server does, and both rows of the transaction agree.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_reply_is_cut_has_happened_and_its_messages_arrive() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let proxy = Proxy::start(stage.database.url()).await?;
    let relay = stage.relay()?;
    let load = endless(&stage).start(&Database::at(proxy.address()), &stage.ledger).await?;
    work(slice::from_ref(&relay), 50.0).await?;
    proxy.cut_replies(20, |request| request.ends_with(b"COMMIT"));
    counted(&proxy, "replies to be cut", |counts| counts.replies_cut == 20).await?;
    work(slice::from_ref(&relay), 50.0).await?;
    load.stop().await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let unknown = stage.ledger.count(Outcome::Unknown);
    ensure!(unknown >= 20, "{unknown} outcomes are unknown");
    let arrived = stage.report().await?.arrived;
    let committed = stage.ledger.count(Outcome::Committed);
    ensure!(arrived == committed + unknown, "{arrived} arrived: {committed} committed, {unknown} unknown");
    stage.judge(&Expectations::new().at_least(100)).await
}

/// Wherever a connection breaks, a transaction exists or does not, and never half of it.
#[tokio::test(flavor = "multi_thread")]
async fn producers_whose_connections_break_anywhere_tear_no_transaction() -> Result<()> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::Kafka).await?;
    let proxy = Proxy::start(stage.database.url()).await?;
    let relay = stage.relay()?;
    let load = endless(&stage).tasks(8).start(&Database::at(proxy.address()), &stage.ledger).await?;
    work(slice::from_ref(&relay), 50.0).await?;
    for (seed, direction) in [(1, Direction::ToServer), (2, Direction::ToClient)] {
        let cuts = proxy.counts().cut;
        proxy.cut(direction, Cut::Within { bytes: 6_000, seed });
        counted(&proxy, "cuts", |counts| counts.cut >= cuts + 100).await?;
        proxy.heal();
    }
    work(slice::from_ref(&relay), 50.0).await?;
    load.stop().await?;
    ensure!(proxy.counts().cut_in_flight > 0, "nothing was in flight");
    stage.database.wait_until_drained(PATIENCE).await?;
    // On a busy machine a publish may pass its deadline: the relay reports that.
    let announced = relay.metrics().await?.sum("outbox_relay_possible_duplicates_total");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of messages")]
    let most = announced as usize;
    stage.drain_and_judge(&Expectations::new().at_least(100).duplicates(most)).await
}

/// Every kind of call between the relay and its database is cut at some place.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_connections_break_anywhere_loses_nothing() -> Result<()> {
    let (stage, proxy) = behind_a_proxy(Flavor::MySql, Broker::Kafka).await?;
    let relays = [stage.relay()?, stage.relay()?];
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    work(&relays, 50.0).await?;
    let bytes = Cut::Within { bytes: 60_000, seed: 3 };
    let packets = Cut::Border { chance: 0.05, seed: 4 };
    for (direction, cut) in [(Direction::ToServer, bytes), (Direction::ToClient, bytes), (Direction::ToClient, packets)]
    {
        let cuts = proxy.counts().cut;
        proxy.cut(direction, cut);
        counted(&proxy, "cuts", |counts| counts.cut >= cuts + 20).await?;
        proxy.heal();
        for relay in &relays {
            ready(relay).await?;
        }
        work(&relays, 20.0).await?;
    }
    ended(stage, load, &Expectations::new().at_least(100).duplicates(IN_FLIGHT)).await
}

/// The database has written a claim or a settlement, and the relay does not know it. A claim goes back by its lease. A
/// settlement is found again and costs no duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_whose_reply_is_cut_is_found_and_costs_no_duplicate() -> Result<()> {
    let (stage, proxy) = behind_a_proxy(Flavor::MySql, Broker::RabbitMq).await?;
    let stage = stage.patient();
    let relay = stage.relay()?;
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    work(slice::from_ref(&relay), 50.0).await?;
    for statement in [&b"REPLACE INTO outbox_sent"[..], b"INSERT INTO outbox_claims"] {
        let cut = proxy.counts().replies_cut;
        proxy.cut_replies(5, move |request| request.windows(statement.len()).any(|part| part == statement));
        counted(&proxy, "replies to be cut", |counts| counts.replies_cut == cut + 5).await?;
        work(slice::from_ref(&relay), 50.0).await?;
    }
    ended(stage, load, &Expectations::new().at_least(100)).await
}

/// A settlement goes on in the server while the relay, cut off, asks for it again. The second settlement finds that the
/// first one has deleted the claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_outlives_its_connection_is_not_taken_for_lost() -> Result<()> {
    let (mut stage, proxy) = behind_a_proxy(Flavor::MariaDb, Broker::Kafka).await?;
    let drafts: Vec<Draft> = (0..300).map(|n| stage.draft(n)).collect();
    stage.commit(&drafts).await?;
    let mut locker = stage.database.plain().await?;
    let mut lock = locker.begin().await?;
    sqlx::query("SELECT id FROM outbox_pending FOR UPDATE").fetch_all(&mut *lock).await?;
    let mut relay =
        start(&stage.settings.clone().set("relay", "lease", "60s").set("relay", "publish_deadline", "20s"))?;
    stage.database.wait_for_lock_waits(Flavor::MariaDb, 1).await?;
    proxy.reset();
    stage.database.wait_for_lock_waits(Flavor::MariaDb, 2).await?;
    lock.commit().await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let settle = "outbox_relay_settle_duration_seconds_count";
    let answered = |m: &Metrics| m.sum(settle) - m.sum_where(settle, "outcome=\"error\"") > 0.5;
    relay.wait_for_metrics(PATIENCE, "an answer to the relay", answered).await?;
    let metrics = relay.metrics_within(PATIENCE).await?;
    ensure!(metrics.sum("outbox_relay_leases_lost_total") < 1.0, "{metrics}");
    ensure!(metrics.sum("outbox_relay_possible_duplicates_total") < 1.0, "{metrics}");
    stage.judge(&Expectations::new().at_least(300)).await
}

/// Kafka has the messages and the relay does not know it. The producer sends them again under the same number, and
/// Kafka keeps one of each.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_of_kafka_that_are_cut_cost_no_duplicate() -> Result<()> {
    let server = Kafka::start().await?;
    let proxy = server.proxy().await?;
    let topic = Topic::create_on(Broker::Kafka, &server.bootstrap()).await?;
    let mut stage = Stage::with(Database::create(Flavor::MySql).await?, topic)?;
    stage.settings = stage.settings.clone().kafka(proxy.address());
    let relay = stage.relay()?;
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    work(slice::from_ref(&relay), 50.0).await?;
    // A request begins with its length and its kind; the kind of a produce request is 0.
    proxy.cut_replies(5, |request| request.get(4..6) == Some(&[0, 0]));
    counted(&proxy, "replies to be cut", |counts| counts.replies_cut == 5).await?;
    work(slice::from_ref(&relay), 50.0).await?;
    ended(stage, load, &Expectations::new().at_least(100).duplicates(IN_FLIGHT)).await
}

/// The broker is far away, and a key has one message in flight. The claim takes longer than its lease, and is kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_takes_longer_than_its_lease_is_renewed_and_kept() -> Result<()> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::RabbitMq).await?;
    let proxy = Proxy::start(stage.topic.address()).await?;
    for direction in &Direction::BOTH {
        proxy.latency(*direction, Duration::from_millis(100));
    }
    stage.settings = stage.settings.clone().rabbitmq(proxy.address());
    stage.settings = stage.settings.clone().set("relay", "lease", "24s").set("relay", "publish_deadline", "8s");
    let drafts: Vec<Draft> = (1..=130).map(|n| stage.draft(0).key("k", n)).collect();
    stage.commit(&drafts).await?;
    let relay = stage.relay()?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let claims = stage.database.number("SELECT COUNT(*) FROM outbox_sent").await?;
    ensure!(claims == 1, "the messages went out in {claims} claims");
    let metrics = relay.metrics_within(PATIENCE).await?;
    ensure!(metrics.sum_where("outbox_relay_lease_renewals_total", r#"result="renewed""#) >= 2.0, "{metrics}");
    ensure!(metrics.sum("outbox_relay_leases_lost_total") < 0.5, "{metrics}");
    stage.judge(&Expectations::new().at_least(130)).await
}

/// RabbitMQ has no such numbers: unconfirmed messages are sent again, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn confirmations_of_rabbitmq_that_are_cut_cost_duplicates_of_their_own_messages() -> Result<()> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::RabbitMq).await?;
    let proxy = Proxy::start(stage.topic.address()).await?;
    stage.settings = stage.settings.clone().rabbitmq(proxy.address());
    let relay = stage.relay()?;
    let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
    work(slice::from_ref(&relay), 50.0).await?;
    for _ in 0..5 {
        let cut = proxy.counts().replies_cut;
        // The payload's property `changed` is the event type of the load.
        proxy.cut_replies(1, |request| request.windows(7).any(|part| part == b"changed"));
        counted(&proxy, "a reply to be cut", |counts| counts.replies_cut > cut).await?;
        work(slice::from_ref(&relay), 20.0).await?;
    }
    load.stop().await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let unconfirmed = relay.metrics().await?.sum("outbox_relay_possible_duplicates_total");
    ensure!(unconfirmed > 0.0, "every message was confirmed");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of messages")]
    let most = unconfirmed as usize;
    stage.drain_and_judge(&Expectations::new().at_least(100).duplicates(most)).await?;
    let dead = stage.database.number("SELECT COUNT(*) FROM outbox_dead").await?;
    ensure!(dead == 0, "{dead} messages died of a network");
    Ok(())
}

/// The broker takes nothing, and more messages wait. A claim needs room for a whole claim, and a single larger message
/// counts as one.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_relay_holds_is_bounded_in_messages_and_in_bytes() -> Result<()> {
    for (bytes, most) in [(10, 40), (10_000, 12), (200_000, 2)] {
        let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?;
        let (proxy, settings) = before_a_patient_broker(&stage).await?;
        let settings = settings.set("relay", "claim_messages", 20).set("relay", "in_flight_messages", 50);
        let settings = settings.set("relay", "claim_bytes", "64KiB").set("relay", "in_flight_bytes", "128KiB");
        let mut relay = start(&settings.set("relay", "lease", "15s").set("relay", "publish_deadline", "12s"))?;
        relay.wait_for_metrics(PATIENCE, "its broker", |m| m.sum("outbox_relay_sink_connected") > 0.5).await?;
        proxy.black_hole(Direction::ToServer);
        let draft = |_| Draft::new(stage.topic.name(), vec![b'x'; bytes]);
        stage.commit(&(0..60).map(draft).collect::<Vec<_>>()).await?;
        let claimed = "SELECT COUNT(*) FROM outbox_claimed_messages";
        stage.database.wait_for(PATIENCE, &format!("SELECT ({claimed}) >= {most}")).await?;
        let renewed = |m: &Metrics| m.sum_where("outbox_relay_lease_renewals_total", r#"result="renewed""#) >= 1.0;
        relay.wait_for_metrics(PATIENCE, "claims that are renewed", renewed).await?;
        let held = stage.database.number(claimed).await?;
        ensure!(held == most, "of {bytes} bytes each the relay holds {held} messages");
        proxy.heal();
        stage.drain_and_judge(&Expectations::new().at_least(60).duplicates(60)).await?;
    }
    Ok(())
}

/// A relay is frozen with a message in flight. Another relay sends that message and the next one of the key, and then
/// the first delivery arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_duplicate_of_a_frozen_relay_comes_behind_newer_messages_of_its_key() -> Result<()> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::RabbitMq).await?;
    stage.settings = stage.settings.clone().set("relay", "lease", "5s").set("relay", "publish_deadline", "3s");
    let (proxy, settings) = before_a_patient_broker(&stage).await?;
    let frozen = start(&settings)?;
    let drafts = [1, 2, 3].map(|n| stage.draft(0).key("k", n));
    let [first, second, third] = &drafts;
    stage.commit(slice::from_ref(first)).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let held = proxy.counts().held;
    proxy.black_hole(Direction::ToServer);
    stage.commit(slice::from_ref(second)).await?;
    counted(&proxy, "a publish on its way", |counts| counts.held > held).await?;
    frozen.pause()?;
    let _other = stage.relay()?;
    stage.commit(slice::from_ref(third)).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    proxy.heal();
    let healed = Instant::now();
    while stage.topic.read().await?.len() < 4 {
        ensure!(healed.elapsed() < PATIENCE, "the first delivery does not arrive");
    }
    let came: Vec<_> = stage.topic.read().await?.iter().map(|arrival| arrival.id).collect();
    ensure!(came == [first, second, third, second].map(|draft| draft.id), "{came:?}");
    stage.judge(&Expectations::new().at_least(3).duplicates(1)).await
}

/// Both brokers are behind a line that breaks anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_broker_connections_break_anywhere_loses_nothing() -> Result<()> {
    let server = Kafka::start().await?;
    let topic = Topic::create_on(Broker::Kafka, &server.bootstrap()).await?;
    let kafka = Stage::with(Database::create(Flavor::MySql).await?, topic)?;
    let rabbitmq = Stage::new(Flavor::MySql, Broker::RabbitMq).await?;
    let proxies = [server.proxy().await?, Proxy::start(rabbitmq.topic.address()).await?];
    for (mut stage, proxy) in [kafka, rabbitmq].into_iter().zip(proxies) {
        stage.settings = match stage.topic.broker() {
            Broker::Kafka => stage.settings.clone().kafka(proxy.address()),
            Broker::RabbitMq => stage.settings.clone().rabbitmq(proxy.address()),
        };
        let relay = stage.relay()?;
        let load = endless(&stage).start(&stage.database, &stage.ledger).await?;
        work(slice::from_ref(&relay), 50.0).await?;
        // A confirmation of RabbitMQ has 21 bytes.
        let bytes = if stage.topic.broker() == Broker::Kafka { 20_000 } else { 4_000 };
        for (seed, direction) in [(5, Direction::ToServer), (6, Direction::ToClient)] {
            let cuts = proxy.counts().cut;
            proxy.cut(direction, Cut::Within { bytes, seed });
            counted(&proxy, "cuts", |counts| counts.cut >= cuts + 5).await?;
            proxy.heal();
            work(slice::from_ref(&relay), 20.0).await?;
        }
        ended(stage, load, &Expectations::new().at_least(100).duplicates(IN_FLIGHT)).await?;
    }
    Ok(())
}
