//! An operator's work by hand, and its consequences.

use anyhow::{Result, ensure};
use testkit::{consume::Broker, judge::Expectations, relay::Metrics, servers::Flavor};

use crate::stage::{PATIENCE, Stage, start};

/// The relay has published its claim, and is alive. Another relay sends the claim again long before its lease would
/// have ended.
#[tokio::test]
async fn a_claim_that_is_deleted_by_hand_is_sent_again_at_once_and_counted_by_its_relay() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    stage.settings = stage.settings.clone().set("relay", "lease", "10m");
    let mut first = start(&stage.settings.clone().pause_at("before_settle"))?;
    stage.commit(&(0..100).map(|n| stage.draft(n)).collect::<Vec<_>>()).await?;
    first.wait_for_pause(PATIENCE).await?;
    stage.database.execute("DELETE FROM outbox_claims").await?;
    let _second = stage.relay()?;
    stage.database.wait_until_drained(PATIENCE).await?;
    first.resume()?;
    let lost = |metrics: &Metrics| metrics.sum("outbox_relay_leases_lost_total") >= 1.0;
    first.wait_for_metrics(PATIENCE, "it to miss its claim", lost).await?;
    let counted = first.metrics().await?.sum_where("outbox_relay_possible_duplicates_total", r#"cause="takeover""#);
    ensure!((counted - 100.0).abs() < 0.5, "it counts {counted}");
    let report = stage.report().await?;
    ensure!(report.duplicates.len() == 100, "{report}");
    report.assert_ok(&Expectations::new().at_least(100).duplicates(100))
}

/// As after TRUNCATE, or in a copy of the tables without their counters: before a relay starts, and while it runs.
#[tokio::test]
async fn a_claim_number_that_comes_again_does_no_harm() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let mut relay = stage.relay()?;
    for round in 0..3_usize {
        for number in 0..5 {
            stage.commit(&[stage.draft(5 * round + number)]).await?;
            stage.database.wait_until_drained(PATIENCE).await?;
        }
        if round == 0 {
            relay.stop(PATIENCE).await?;
        }
        stage.database.execute("TRUNCATE TABLE outbox_claims").await?;
        if round == 0 {
            relay = stage.relay()?;
        }
    }
    let numbers = "SELECT COUNT(*) > COUNT(DISTINCT claim_id) FROM outbox_sent";
    ensure!(stage.database.number(numbers).await? == 1, "nothing shown: each claim had a number of its own");
    stage.drain_and_judge(&Expectations::new().at_least(15)).await?;
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_sent_messages").await? == 15);
    Ok(())
}

#[tokio::test]
async fn a_message_whose_pending_row_is_deleted_by_hand_is_never_sent() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let [deleted, other] = [1, 2].map(|n| [stage.draft(n)]);
    stage.commit(&deleted).await?;
    stage.database.execute("DELETE FROM outbox_pending").await?;
    stage.commit(&other).await?;
    let _relay = stage.relay()?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let report = stage.report().await?;
    ensure!(report.lost == [deleted[0].id] && report.arrived == 1, "{report}");
    Ok(())
}

/// A message that had arrived is dead. A job puts it back and it is sent; an operator puts it back by hand again.
#[tokio::test]
async fn what_is_put_back_by_hand_arrives_again_and_no_metric_says_so() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    stage.commit(&[stage.draft(1)]).await?;
    start(&stage.settings.clone().crash_at("after_publish"))?.wait_for_end(PATIENCE).await?;
    // The take-over is the first attempt, and the last.
    let relay = start(&stage.settings.clone().patient().set("retry", "max_attempts", 1))?;
    let dead = "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'attempts_exhausted'";
    stage.database.wait_for(PATIENCE, dead).await?;
    let retry = "dead retry --reason attempts_exhausted --yes --because test";
    let ordered = stage.operator()?.json(retry, &[]).await?;
    ensure!(ordered.pointer("/plan/may_arrive_twice") == Some(&1.into()), "{ordered}");
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_dead").await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let sent = "UPDATE outbox_head SET version = version + 1, claimer = 0, low = 0; \
                INSERT INTO outbox_pending (lane, id, bytes) SELECT 0, id, 1 FROM outbox_messages";
    stage.database.execute(sent).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let report = stage.report().await?;
    ensure!(report.duplicates.len() == 2, "{report}");
    let counted = relay.metrics_within(PATIENCE).await?.sum("outbox_relay_possible_duplicates_total");
    ensure!((counted - 1.0).abs() < 0.5, "the take-over counts one, the relay {counted}");
    Ok(())
}
