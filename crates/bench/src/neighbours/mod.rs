//! A steady load to ten destinations beside a neighbour that is sick, hot, or many.

mod blocked;
mod lanes;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use outbox_core::Message;
use serde_json::{Map, Value, json};
use testkit::relay::Settings;

use crate::{
    Broker, Common,
    drain::precise,
    latency::{Sent, WARM_UP, at, latencies, load},
    listen::{Arrivals, first_arrivals, listen, wait_for},
    setup::{Stage, enqueue, judge, payload, ready},
};

/// The sizes of the loads.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Size {
    /// Messages per second of the steady load.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// Seconds of each load that count, after a warm-up of three.
    #[arg(long, default_value_t = 15)]
    seconds: u32,
    /// Messages of each hot key, unroutable messages, and messages of each busy lane.
    #[arg(long, default_value_t = 20_000)]
    rows: u64,
    /// Hot keys, divided among two lanes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    hot_keys: u64,
    /// Lanes with one message each, beside ten busy lanes.
    #[arg(long, default_value_t = 190)]
    lanes: u16,
    /// Messages behind a blocked key.
    #[arg(long, default_value_t = 200_000)]
    blocked: u64,
}

/// A neighbour of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Neighbour {
    SickDestination,
    HotKey,
    Unroutable,
    SlowLane,
    Lanes,
    Blocked,
}

/// The number of destinations of the steady load.
const DESTINATIONS: usize = 10;
/// The interval of messages for the sick destination.
const SICK_EVERY: Duration = Duration::from_millis(10);
/// The longest wait for a backlog.
const PATIENCE: Duration = Duration::from_secs(300);
/// Goals for the load: the smallest share of its rate; the largest p99 as a factor and an addend in milliseconds.
/// Beside a hot key: the largest p99 in milliseconds.
const RATE_KEPT: f64 = 0.9;
const P99: (f64, f64) = (2.0, 50.0);
const P99_BESIDE_HOT_KEY: f64 = 250.0;
/// Goals for the hot key and for busy lanes: the smallest share of the rate alone, and the smallest ratio of the first
/// lane's time to the last's.
const EVEN: f64 = 0.9;
/// The largest number of connections of a relay, for any number of lanes; the cost limit of idle lanes, as a factor of
/// one lane's.
const CONNECTIONS: f64 = 16.0;
const IDLE: f64 = 1.5;
/// Goals beside a slow lane and beside a blocked key: the smallest share of the rate. Rows behind a blocked key: the
/// largest number of rows that are written a second while nothing happens, and the smallest share of a drain's rate at
/// which they are released.
const NEARLY_ALL: f64 = 0.95;
const QUIET: f64 = 1.0;
const RELEASED: f64 = 0.5;

type Figures = Map<String, Value>;

pub(crate) async fn measure(common: &Common, size: Size, only: &[Neighbour]) -> Result<(Value, bool)> {
    let mut report = Figures::new();
    report.insert("broker".into(), json!(common.broker));
    let without = beside_a_sick_destination(common, size, false).await?;
    report.extend(figures(
        "without",
        [
            ("p99_ms", json!(without.p99_ms)),
            ("lost", json!(without.lost)),
            ("out_of_order", json!(without.out_of_order)),
        ],
    ));
    for neighbour in Neighbour::value_variants().iter().filter(|it| only.is_empty() || only.contains(it)) {
        report.extend(match neighbour {
            Neighbour::SickDestination => sick_destination(common, size, &without).await?,
            // Kafka publishes many messages of a key at a time: its backlog would be empty before the load begins. Only
            // the order of keys makes a sink slow.
            Neighbour::HotKey | Neighbour::SlowLane if common.broker == Broker::Kafka => Figures::new(),
            Neighbour::HotKey => beside_a_hot_key(common, size).await?,
            Neighbour::Unroutable => beside_unroutable(common, size, &without).await?,
            Neighbour::SlowLane => lanes::beside_a_slow_lane(common, size, &without).await?,
            Neighbour::Lanes => lanes::with_many_lanes(common, size).await?,
            Neighbour::Blocked => blocked::behind_a_blocked_key(common, size).await?,
        });
    }
    let faults = report.iter().filter(|(name, _)| name.ends_with("lost") || name.ends_with("out_of_order"));
    let good = faults.into_iter().all(|(_, count)| count.as_u64() == Some(0));
    Ok((Value::Object(report), good))
}

/// The goals of the measured neighbours, each with whether the figures reach it.
pub(crate) fn goals(report: &Figures) -> Figures {
    let figure = |name: &str| report.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let in_time = figure("sick_destination_p99_ms") <= P99.0 * figure("without_p99_ms") + P99.1;
    let goals = [
        ("sick_destination", "others_keep_their_rate", figure("sick_destination_rate_ratio") >= RATE_KEPT),
        ("sick_destination", "others_are_in_time", in_time),
        ("sick_destination", "others_have_no_duplicates", figure("sick_destination_duplicates") == 0.0),
        ("hot_key", "others_are_in_time", figure("hot_key_p99_ms") <= P99_BESIDE_HOT_KEY),
        ("hot_key", "keeps_its_rate", figure("hot_key_rate_ratio") >= EVEN),
        ("unroutable", "good_ones_keep_their_rate", figure("unroutable_rate_ratio") >= RATE_KEPT),
        ("slow_lane", "others_keep_their_rate", figure("slow_lane_rate_ratio") >= NEARLY_ALL),
        ("slow_lane", "others_are_in_time", figure("slow_lane_p99_ms") <= P99.0 * figure("without_p99_ms")),
        ("blocked", "rows_are_not_written", figure("blocked_rows_written_per_second") <= QUIET),
        ("blocked", "others_drain", figure("blocked_drain_ratio") >= NEARLY_ALL),
        ("blocked", "rows_are_released", figure("blocked_release_ratio") >= RELEASED),
        ("lanes", "take_few_connections", figure("lanes_connections_of_a_relay") <= CONNECTIONS),
        ("lanes", "cost_little_when_idle", figure("lanes_idle_cost_ratio") <= IDLE),
        ("lanes", "are_even", figure("lanes_fastest_to_slowest") >= EVEN),
    ];
    let is_measured = |neighbour: &str| report.keys().any(|figure| figure.starts_with(neighbour));
    let goals = goals.into_iter().filter(|(neighbour, ..)| is_measured(neighbour));
    goals.map(|(neighbour, goal, reached)| (format!("{neighbour}_{goal}"), json!(reached))).collect()
}

/// A stage with the destinations of the steady load, and settings of a relay that sends to any destination.
async fn stage(common: &Common) -> Result<(Stage, Settings)> {
    let mut stage = Stage::new(common).await?;
    stage.beside(DESTINATIONS - 1).await?;
    let settings = match common.broker {
        Broker::Kafka => stage.settings(false)?,
        Broker::Rabbitmq => stage.settings(false)?.first_route([
            ("topics", "*"),
            ("sink", "rabbitmq"),
            ("exchange", "{topic}"),
            ("routing_key", "{topic}"),
        ]),
    };
    Ok((stage, settings))
}

/// Rate, latency and faults of the load on the ten destinations.
struct Others {
    per_second: f64,
    p99_ms: f64,
    lost: u64,
    duplicates: u64,
    out_of_order: u64,
}

impl Others {
    /// The figures beside a neighbour of this name.
    fn figures(&self, neighbour: &str, without: &Self) -> Figures {
        figures(
            neighbour,
            [
                ("rate_ratio", json!(self.per_second / without.per_second)),
                ("p99_ms", json!(self.p99_ms)),
                ("lost", json!(self.lost)),
                ("duplicates", json!(self.duplicates)),
                ("out_of_order", json!(self.out_of_order)),
            ],
        )
    }
}

async fn others(stage: &Stage, common: &Common, rate: u32, seconds: u32) -> Result<Others> {
    let arrivals = Arrivals::default();
    let listener = listen(&stage.topic, &stage.topics, Arc::clone(&arrivals)).await?;
    let sent = load(stage, common, rate, seconds + WARM_UP).await?;
    wait_for(&arrivals, sent.len() as u64).await;
    listener.abort();
    let arrivals = arrivals.lock().await.clone();
    let verdict = judge(arrivals.iter().map(|(number, _)| *number), sent.len() as u64, common.keys);
    let (late, _) = latencies(&sent, &arrivals, rate)?;
    Ok(Others {
        per_second: per_second(&sent, &arrivals),
        p99_ms: at(&late, 0.99),
        lost: verdict.lost,
        duplicates: verdict.duplicates,
        out_of_order: verdict.out_of_order,
    })
}

/// Messages per second from the first due time to the last arrival.
fn per_second(sent: &[Sent], arrivals: &[(u64, Instant)]) -> f64 {
    let first = first_arrivals(arrivals);
    match (sent.iter().map(|sent| sent.due).min(), first.values().max()) {
        (Some(start), Some(end)) => precise(first.len() as u64) / (*end - start).as_secs_f64().max(0.001),
        _ => 0.0,
    }
}

async fn sick_destination(common: &Common, size: Size, without: &Others) -> Result<Figures> {
    let with = beside_a_sick_destination(common, size, true).await?;
    Ok(with.figures("sick_destination", without))
}

/// A sick destination: a Kafka topic with too few replicas, or a RabbitMQ queue that is full.
async fn beside_a_sick_destination(common: &Common, size: Size, is_sick: bool) -> Result<Others> {
    let (mut stage, settings) = stage(common).await?;
    let sick = match common.broker {
        Broker::Kafka => stage.topic.beside_replicated(2).await?,
        Broker::Rabbitmq => stage.topic.beside(Some(10)).await?,
    };
    let mut relay = stage.start(&settings)?;
    ready(&relay).await?;
    let mut db = stage.database.connect().await?;
    let bytes = common.bytes;
    let neighbour = async {
        let mut each = tokio::time::interval(SICK_EVERY);
        for number in 0.. {
            each.tick().await;
            let message = Message::new(&sick, payload(number, bytes)).key(format!("sick-{}", number % 100));
            enqueue(&mut db, message).await?;
        }
        anyhow::Ok(())
    };
    let others = others(&stage, common, size.rate, size.seconds);
    let others = if is_sick {
        tokio::select! {
            ended = neighbour => anyhow::bail!("the neighbour ended: {ended:?}"),
            others = others => others?,
        }
    } else {
        others.await?
    };
    relay.stop(Duration::from_secs(30)).await?;
    stage.remove().await?;
    Ok(others)
}

/// Keys with a large backlog: alone, and beside half of the steady load.
async fn beside_a_hot_key(common: &Common, size: Size) -> Result<Figures> {
    let (alone, _) = hot_key(common, size, false).await?;
    let (with, others) = hot_key(common, size, true).await?;
    let others = others.context("the others were not measured")?;
    Ok(figures(
        "hot_key",
        [
            ("per_second_alone", json!(alone)),
            ("rate_ratio", json!(with / alone)),
            ("p99_ms", json!(others.p99_ms)),
            ("lost", json!(others.lost)),
            ("out_of_order", json!(others.out_of_order)),
        ],
    ))
}

/// The rate of the hot keys, and the figures of the load beside it.
async fn hot_key(common: &Common, size: Size, has_others: bool) -> Result<(f64, Option<Others>)> {
    let (mut stage, settings) = stage(common).await?;
    let hot = stage.topic.beside(None).await?;
    let of_key = |number: u64| {
        let key = number % size.hot_keys;
        let lane = number % size.hot_keys % 2;
        Message::new(&hot, payload(number, common.bytes)).key(format!("hot-{key}")).lane(u16::from(lane == 1))
    };
    stage.fill_with(size.rows * size.hot_keys, of_key).await?;
    let mut relay = stage.start(&settings)?;
    ready(&relay).await?;
    let others = if has_others { Some(others(&stage, common, size.rate / 2, size.seconds).await?) } else { None };
    stage.database.wait_until_drained(PATIENCE).await?;
    let rate = sent_per_second(&stage, &hot).await?;
    relay.stop(Duration::from_secs(30)).await?;
    stage.remove().await?;
    Ok((rate, others))
}

/// A backlog of unroutable messages.
async fn beside_unroutable(common: &Common, size: Size, without: &Others) -> Result<Figures> {
    let (stage, settings) = stage(common).await?;
    let nowhere = |number| Message::new("no-such-destination", payload(number, common.bytes)).key(number.to_string());
    stage.fill_with(size.rows, nowhere).await?;
    let mut relay = stage.start(&settings)?;
    ready(&relay).await?;
    let with = others(&stage, common, size.rate, size.seconds).await?;
    relay.stop(Duration::from_secs(30)).await?;
    stage.remove().await?;
    Ok(with.figures("unroutable", without))
}

/// The rate at which the messages of a topic were sent, by their receipts.
async fn sent_per_second(stage: &Stage, topic: &str) -> Result<f64> {
    let sql = format!(
        "SELECT CAST(COUNT(*) * 1000000 / GREATEST(TIMESTAMPDIFF(MICROSECOND, MIN(s.sent_at), MAX(s.sent_at)), \
         1) AS SIGNED) \
         FROM outbox_sent_messages s JOIN outbox_messages m ON m.id = s.id WHERE m.topic = '{topic}'"
    );
    Ok(precise(stage.database.number(&sql).await?.unsigned_abs()))
}

fn figures<const N: usize>(of: &str, figures: [(&str, Value); N]) -> Figures {
    figures.into_iter().map(|(name, value)| (format!("{of}_{name}"), value)).collect()
}
