//! The remains of a dead relay, counted to the message: another relay takes over, and sends only claimed messages
//! twice.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Uuid,
    sqlx::{self, Row as _},
};
use testkit::{
    accounts::Account,
    consume::Broker,
    judge::{Expectations, Report},
    ledger::Draft,
    load::Load,
    proxy::Proxy,
    relay::Metrics,
    servers::Flavor,
};

use crate::stage::{PATIENCE, Stage, start};

#[tokio::test]
async fn a_relay_that_dies_after_its_claim_leaves_nothing_to_be_sent_twice() -> Result<()> {
    let report = dies_at("after_claim").await?;
    ensure!(report.duplicates.is_empty(), "{report}");
    Ok(())
}

#[tokio::test]
async fn a_relay_that_dies_after_publishing_leaves_its_claims_to_be_sent_twice() -> Result<()> {
    let report = dies_at("after_publish").await?;
    ensure!(!report.duplicates.is_empty(), "nothing shown: nothing had been published");
    Ok(())
}

#[tokio::test]
async fn a_relay_that_dies_in_mid_settle_has_settled_or_has_not() -> Result<()> {
    dies_at("mid_settle").await.map(drop)
}

/// A relay dies at this point with a backlog before it, and another takes over.
async fn dies_at(point: &str) -> Result<Report> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::RabbitMq).await?;
    let draft = |n: u64| stage.draft(0).key(format!("key {}", n % 30), n / 30 + 1);
    stage.commit(&(0..300).map(draft).collect::<Vec<Draft>>()).await?;
    stage.settings = stage.settings.clone().set("relay", "claim_messages", 100);
    let mut first = start(&stage.settings.clone().crash_at(point))?;
    ensure!(!first.wait_for_end(PATIENCE).await?.success(), "it was to die at {point}");
    let claimed = claimed(&stage).await?;
    let second = start(&stage.settings.clone().patient())?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let metrics = second.metrics_within(PATIENCE).await?;
    let takeovers = metrics.sum("outbox_relay_lease_takeovers_total");
    let announced = metrics.sum_where("outbox_relay_possible_duplicates_total", r#"cause="takeover""#);
    let report = stage.report().await?;
    // The server may have finished the last settlement of the dead relay.
    let shown = takeovers >= 1.0 || point == "mid_settle";
    let expected = Expectations::new().at_least(300).witness("a take-over", shown);
    report.assert_ok(&expected.duplicates_among(claimed))?;
    twice_at_most(&report)?;
    let duplicates = report.duplicates.len();
    ensure!(f64::from(u32::try_from(duplicates)?) <= announced, "{duplicates} duplicates, {announced} announced");
    Ok(report)
}

/// Returns the messages of all live claims.
async fn claimed(stage: &Stage) -> Result<HashSet<Uuid>> {
    let sql = "SELECT message_id FROM outbox_claimed_messages JOIN outbox_messages USING (id)";
    let rows = sqlx::query(sql).fetch_all(&mut stage.database.connect().await?).await?;
    rows.iter().map(|row| Uuid::from_slice(row.try_get(0)?).context("no UUID")).collect()
}

fn twice_at_most(report: &Report) -> Result<()> {
    let different: HashSet<_> = report.duplicates.iter().collect();
    ensure!(different.len() == report.duplicates.len(), "a message came three times");
    Ok(())
}

/// The server takes the claim over, and the relay does not know it. The relay counts the messages, and not the
/// take-over.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_whose_reply_is_lost_counts_its_messages() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    stage.commit(&(0..100).map(|n| stage.draft(n)).collect::<Vec<_>>()).await?;
    start(&stage.settings.clone().crash_at("after_publish"))?.wait_for_end(PATIENCE).await?;
    let claimed = claimed(&stage).await?;
    let proxy = Proxy::start(&stage.database.url_as(Account::Relay)?).await?;
    let settings = stage.settings.clone().patient().set("relay", "settle_deadline", "5s");
    proxy.black_hole_after(|request| request.windows(10).any(|part| part == b"taken_over"));
    let mut second = start(&settings.set("database", "url", proxy.address()))?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_claims").await?;
    let unanswered =
        |metrics: &Metrics| metrics.sum_where("outbox_relay_db_errors_total", r#"operation="take_over""#) >= 1.0;
    second.wait_for_metrics(PATIENCE, "the take-over to pass its deadline", unanswered).await?;
    proxy.heal();
    stage.database.wait_until_drained(PATIENCE).await?;
    let metrics = second.metrics_within(PATIENCE).await?;
    let announced = metrics.sum_where("outbox_relay_possible_duplicates_total", r#"cause="takeover""#);
    let due = f64::from(u32::try_from(claimed.len())?);
    ensure!((announced - due).abs() < 0.5, "{due} messages were claimed, {announced} announced");
    ensure!(metrics.sum("outbox_relay_lease_takeovers_total") < 0.5, "nothing shown: the reply came");
    let expected = Expectations::new().at_least(100).duplicates_among(claimed);
    stage.report().await?.assert_ok(&expected)
}

#[tokio::test]
async fn a_relay_that_dies_while_it_renews_is_taken_over_under_load() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let load = Load::new(stage.topic.name()).tasks(2).transactions(u64::MAX).pause(Duration::from_millis(5));
    let load = load.start(&stage.database, &stage.ledger).await?;
    let mut claimed = HashSet::new();
    // The relay gives nothing up before it dies.
    let settings = stage.settings.clone().set("relay", "lease", "6s").set("relay", "publish_deadline", "4s");
    for _ in 0..20 {
        start(&settings.clone().crash_at("before_renew"))?.wait_for_end(PATIENCE).await?;
        // The server may have finished its last settlement. Messages that are claimed after the lease has passed stay
        // claimed.
        let over = "SELECT COUNT(*) = 0 OR MAX(lease_until) < UTC_TIMESTAMP(6) FROM outbox_claims";
        stage.database.wait_for(PATIENCE, over).await?;
        claimed = self::claimed(&stage).await?;
        if !claimed.is_empty() {
            break;
        }
    }
    ensure!(!claimed.is_empty(), "no relay died with a claim");
    let mut second = start(&stage.settings.clone().patient())?;
    let taken_over = |metrics: &Metrics| metrics.sum("outbox_relay_lease_takeovers_total") >= 1.0;
    second.wait_for_metrics(PATIENCE, "a take-over", taken_over).await?;
    load.stop().await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let expected = Expectations::new().at_least(50);
    let report = stage.report().await?;
    report.assert_ok(&expected.duplicates_among(claimed))?;
    twice_at_most(&report)
}
