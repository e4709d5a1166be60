//! The dashboards and the alerts, evaluated by Prometheus on a relay and a consumer at work.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::{future, time::Duration};

use anyhow::{Context as _, Result, ensure};
use outbox_consumer::{handler_fn, kafka, prometheus::Registry};
use outbox_core::sqlx::{self, MySqlPool};
use serde_json::Value;
use testkit::{
    accounts::Account,
    consume::Broker,
    ledger::Draft,
    load::{self, Load},
    relay::Metrics,
    servers::{Flavor, Prometheus, serve, until},
};

use crate::{
    round_trip::{GRANTS, with_canaries},
    stage::{PATIENCE, Stage},
};

const DASHBOARDS: [&str; 3] = [
    include_str!("../../dashboards/overview.json"),
    include_str!("../../dashboards/deep-dive.json"),
    include_str!("../../dashboards/consumers.json"),
];

/// The expressions of all panels, over a window that has passed when they are evaluated.
fn expressions() -> Result<Vec<String>> {
    let mut all = Vec::new();
    for dashboard in DASHBOARDS {
        let dashboard: Value = serde_json::from_str(dashboard)?;
        let panels = dashboard["panels"].as_array().context("no panels")?.iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        all.extend(targets.filter_map(|target| target["expr"].as_str()).map(chosen));
    }
    Ok(all)
}

/// An expression with the values that a user would choose.
fn chosen(expression: &str) -> String {
    let values = [
        ("$job", ".*"),
        ("$service", ".*"),
        ("$instance", ".*"),
        ("$consumer", ".*"),
        ("$__rate_interval", "1m"),
        ("$__range", "1m"),
    ];
    values.iter().fold(expression.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// Consumes the topic until the runtime ends. Returns the port of its metrics.
async fn consume(stage: &Stage) -> Result<u16> {
    let registry = Registry::new();
    let name = stage.topic.name();
    let pool = MySqlPool::connect(stage.database.url_as(Account::Service)?.as_str()).await?;
    let consumer = kafka::Consumer::new(stage.topic.address(), name, pool)?.topic(name);
    let consumer = consumer.metrics(outbox_consumer::Metrics::register(&registry)?);
    let handler = handler_fn(|_, _| Box::pin(async { Ok(()) }));
    tokio::spawn(consumer.run(handler, future::pending()));
    serve(registry).await
}

/// Takes the relay's connections away.
async fn break_connections(stage: &Stage) -> Result<()> {
    let ids = format!("SELECT id FROM {} WHERE user LIKE '%relay%'", Flavor::MySql.sessions());
    let mut admin = stage.database.plain().await?;
    let ids: Vec<i64> = sqlx::query_scalar(sqlx::AssertSqlSafe(ids)).fetch_all(&mut admin).await?;
    ensure!(!ids.is_empty(), "the relay has no connection");
    for id in ids {
        // One that has ended by itself is unknown.
        stage.database.execute(&format!("KILL {id}")).await.ok();
    }
    Ok(())
}

/// Each panel has data once messages are sent, fail, expire and are refused. What never happens is at 0.
#[tokio::test]
async fn every_panel_has_data_and_every_rule_is_evaluated() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let missing = format!("missing-{}", stage.topic.name());
    let route = [("topics", missing.as_str()), ("sink", "kafka"), ("topic", "{topic}")];
    stage.settings = stage.settings.clone().first_route(route);
    stage = with_canaries(stage).await?;
    stage.database.execute(GRANTS).await?;
    let mut relay = stage.relay()?;
    let page = consume(&stage).await?;
    let prometheus = Prometheus::start(&[("outbox", &[relay.port()]), ("shop", &[page])]).await?;
    stage.operator()?.done("pause", &["--lane", "7", "--because", "a repair"]).await?;
    let load = Load::new(stage.topic.name()).transactions(u64::MAX).pause(Duration::from_millis(20));
    let load = load.start(&stage.database, &stage.ledger).await?;
    load::commit(&stage.database, &stage.ledger, &[Draft::new(&missing, "x")], |message| message).await?;
    load::commit(&stage.database, &stage.ledger, &[stage.draft(0)], |message| message.expires_after(Duration::ZERO))
        .await?;
    let is_at_work = |metrics: &Metrics| metrics.sum("outbox_relay_published_messages_total") > 100.0;
    relay.wait_for_metrics(PATIENCE, "work", is_at_work).await?;
    break_connections(&stage).await?;
    let expressions = expressions()?;
    ensure!(expressions.len() > 60, "only {} expressions", expressions.len());
    until(PATIENCE, "data in each panel", async || {
        let mut empty = Vec::new();
        for expression in &expressions {
            let series = prometheus.query(expression).await?;
            if series.iter().all(|series| series["value"][1] == "NaN") {
                empty.push(expression);
            }
        }
        ensure!(empty.is_empty(), "no data: {empty:#?}");
        Ok(())
    })
    .await?;
    let rules = prometheus.read("rules").await?;
    let groups = rules["data"]["groups"].as_array().context("no rules")?;
    let rules: Vec<_> = groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten()).collect();
    ensure!(rules.len() > 15 && rules.iter().all(|rule| rule["health"] == "ok"), "{rules:#?}");
    load.stop().await?;
    relay.stop(PATIENCE).await
}
