//! Many lanes, most of them idle, and a lane whose sink is slow.

use std::time::Duration;

use anyhow::Result;
use outbox_core::Message;
use serde_json::json;
use testkit::{
    accounts::Account,
    proxy::{Direction, Proxy},
    relay::Relay,
};

use super::{Figures, Others, PATIENCE, Size, figures, others, stage};
use crate::{
    Common,
    drain::precise,
    idle::UNTIL_QUIET,
    setup::{Stage, message, payload, ready},
};

const NOW: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
const BUSY_LANES: u16 = 10;
/// The slow lane, and its keys: RabbitMQ has one message of each in flight, so that it takes 200 a second.
const SLOW_LANE: u16 = 1;
const SLOW_KEYS: u64 = 20;
const SLOW: Duration = Duration::from_millis(100);

/// A lane with a backlog whose sink is slow, beside the steady load in another lane.
pub(super) async fn beside_a_slow_lane(common: &Common, size: Size, without: &Others) -> Result<Figures> {
    let (mut stage, settings) = stage(common).await?;
    let slow = stage.topic.beside(None).await?;
    let (user, address) = stage.topic.address().rsplit_once('@').unwrap_or(("", stage.topic.address()));
    let (address, path) = address.split_once('/').unwrap_or((address, ""));
    let proxy = Proxy::start(address).await?;
    proxy.latency(Direction::ToClient, SLOW);
    let url = format!("{user}@{}/{path}", proxy.address());
    let settings = settings.sink_key("slow", "type", "rabbitmq").sink_key("slow", "url", url.as_str()).first_route([
        ("topics", slow.as_str()),
        ("sink", "slow"),
        ("exchange", ""),
        ("routing_key", "{topic}"),
    ]);
    let key = |number| format!("slow-{}", number % SLOW_KEYS);
    let backlog = |number| Message::new(&slow, payload(number, common.bytes)).key(key(number)).lane(SLOW_LANE);
    stage.fill_with(size.rows, backlog).await?;
    let mut relay = stage.start(&settings)?;
    ready(&relay).await?;
    let with = others(&stage, common, size.rate, size.seconds).await?;
    let left = format!("SELECT COUNT(*) FROM outbox_pending WHERE lane = {SLOW_LANE}");
    let left = stage.database.number(&left).await?;
    relay.stop(Duration::from_secs(60)).await?;
    stage.remove().await?;
    let mut found = with.figures("slow_lane", without);
    found.extend(figures("slow_lane", [("left", json!(left))]));
    Ok(found)
}

/// Two relays: the cost of many idle lanes, and whether busy lanes beside them get equal shares.
pub(super) async fn with_many_lanes(common: &Common, size: Size) -> Result<Figures> {
    let (stage, settings) = stage(common).await?;
    let without = idle(&stage, &[], size).await?;
    let mut relays = vec![stage.start(&settings)?, stage.start(&settings)?];
    for relay in &relays {
        ready(relay).await?;
    }
    stage.fill_with(1, |number| message(stage.topic.name(), common, number)).await?;
    let one = idle(&stage, &relays, size).await?;
    stage
        .fill_with(u64::from(size.lanes), |number| {
            let lane = u16::try_from(number).unwrap_or(0) + BUSY_LANES;
            message(stage.topic.name(), common, number).lane(lane)
        })
        .await?;
    let many = idle(&stage, &relays, size).await?;
    let open = format!(
        "SELECT COUNT(*) FROM performance_schema.threads WHERE processlist_db = DATABASE() AND processlist_user = '{}'",
        stage.database.url_as(Account::Relay)?.split(['/', ':']).nth(3).unwrap_or_default()
    );
    let connections = precise(stage.database.number(&open).await?.unsigned_abs()) / precise(relays.len() as u64);

    for relay in &relays {
        relay.pause()?;
    }
    let before = stage.database.number("SELECT CAST(MAX(id) AS SIGNED) FROM outbox_messages").await?;
    let lanes = u64::from(BUSY_LANES);
    let drained = |number| message(stage.topic.name(), common, number).lane(u16::try_from(number % lanes).unwrap_or(0));
    stage.fill_with(size.rows * lanes, drained).await?;
    let started = stage.database.number(NOW).await?;
    for relay in &relays {
        relay.resume()?;
    }
    stage.database.wait_until_drained(PATIENCE).await?;
    let [fastest, slowest] = ["MIN", "MAX"].map(|which| {
        format!(
            "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {which}(at)) FROM (SELECT s.lane, MAX(s.sent_at) AS at \
             FROM outbox_sent_messages s WHERE s.id > {before} GROUP BY s.lane) lanes"
        )
    });
    let took = async |sql: &str| anyhow::Ok(precise((stage.database.number(sql).await? - started).unsigned_abs()));
    let even = took(&fastest).await? / took(&slowest).await?;
    for relay in &mut relays {
        relay.stop(Duration::from_secs(30)).await?;
    }
    stage.remove().await?;
    Ok(figures(
        "lanes",
        [
            ("connections_of_a_relay", json!(connections)),
            ("idle_mysql_added_percent_with_one", json!(one - without)),
            ("idle_mysql_added_percent", json!(many - without)),
            ("idle_cost_ratio", json!((many - without) / (one - without))),
            ("fastest_to_slowest", json!(even)),
        ],
    ))
}

/// MySQL's CPU without a load, in percent of a core.
async fn idle(stage: &Stage, relays: &[Relay], size: Size) -> Result<f64> {
    stage.database.wait_until_drained(Duration::from_secs(60)).await?;
    let all: Vec<&Relay> = relays.iter().collect();
    tokio::time::sleep(UNTIL_QUIET).await;
    let before = stage.costs(&all).await?;
    tokio::time::sleep(Duration::from_secs(size.seconds.into())).await;
    let used = stage.costs(&all).await?.since(&before);
    Ok(used.percent(used.mysql))
}
