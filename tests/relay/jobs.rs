//! `relay dead retry|release|discard`, `relay jobs` and `relay audit`, with the account of
//! `deploy/grants/operator.sql`.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    sqlx::{self, Connection as _, MySqlConnection},
    store::operate::jobs::{self, Actor, JobBatch, JobChange, NewJob},
};
use serde_json::Value;
use testkit::{
    accounts::Account,
    consume::Broker,
    judge::Expectations,
    ledger::Draft,
    load, on_both_databases,
    relay::Client,
    servers::{Flavor, until},
};

use crate::stage::{PATIENCE, Stage, client};

on_both_databases!(
    a_retry_keeps_the_order_of_keys,
    a_release_lets_a_key_go_on_without_its_dead_message,
    a_discarded_message_is_gone_and_its_key_goes_on,
    killed_relays_repeat_no_message_of_a_job,
    a_job_takes_what_its_plan_shows,
    waiting_messages_go_before_their_time_and_in_order,
    a_stopped_job_leaves_the_rest,
    a_job_that_the_audit_lacks_is_not_carried_out,
    a_job_whose_message_is_locked_lets_others_go_on,
    a_pause_holds_while_a_job_waits_for_a_lock,
    each_account_can_do_its_part_alone,
    a_batch_leaves_out_a_message_that_has_died_again_since_it_was_found,
);

const OPEN: &str = "SELECT COUNT(*) = 0 FROM outbox_jobs WHERE ended_at IS NULL";

/// Gives all pending messages up, with reason `unroutable`. Those with a key hold it.
const BURY: &str = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, \
                    owner) \
    SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), key_hash <> 0, 'unroutable', 'no queue', 'test' \
    FROM outbox_pending; \
    DELETE FROM outbox_pending";

/// Shows a plan, and orders it if it has this number of messages.
async fn order(operator: &Client, command: &str, messages: u64) -> Result<Value> {
    let plan = operator.json(command, &[]).await?;
    ensure!(plan["job"].is_null() && plan["plan"]["messages"] == messages, "{plan:#}");
    let ordered = operator.json(command, &["--yes", "--because", "the queue is bound"]).await?;
    ensure!(ordered["job"].is_u64(), "{ordered:#}");
    Ok(ordered)
}

/// A key's first message is dead and holds it, the second waits, and others have no order.
async fn blocked(flavor: Flavor) -> Result<(Stage, Client, [Draft; 4])> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let topic = stage.topic.name().to_owned();
    stage.settings = stage.settings.clone().first_route([
        ("topics", topic.as_str()),
        ("sink", "kafka"),
        ("topic", "{topic}"),
        ("after_dead", "block"),
    ]);
    let operator = stage.operator()?;
    let keyed = |number| stage.draft(number).unordered_key("k");
    let drafts = [keyed(1), stage.draft(2), keyed(3), stage.draft(4)];
    stage.commit(&drafts[..2]).await?;
    stage.database.execute(BURY).await?;
    stage.commit(&drafts[2..]).await?;
    Ok((stage, operator, drafts))
}

/// The places of these messages in the order of their arrival.
async fn positions(stage: &mut Stage, drafts: [&Draft; 2]) -> Result<[Option<usize>; 2]> {
    let arrivals = stage.topic.read().await?;
    Ok(drafts.map(|draft| arrivals.iter().position(|arrival| arrival.id == draft.id)))
}

async fn a_retry_keeps_the_order_of_keys(flavor: Flavor) -> Result<()> {
    let (mut stage, operator, drafts) = blocked(flavor).await?;
    let _relay = stage.relay()?;
    let waits = "SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'behind'";
    stage.database.wait_for(PATIENCE, waits).await?;
    let ordered = order(&operator, "dead retry --reason unroutable", 2).await?;
    let plan = &ordered["plan"];
    ensure!(plan["keys"] == 1 && plan["waiting"] == 1 && plan["may_arrive_twice"] == 0, "{plan:#}");
    ensure!(plan["samples"][0]["error"] == "no queue" && plan["is_complete"] == true, "{plan:#}");
    stage.database.wait_for(PATIENCE, OPEN).await?;
    stage.drain_and_judge(&Expectations::new().at_least(4)).await?;
    let places = positions(&mut stage, [&drafts[0], &drafts[2]]).await?;
    ensure!(places[0].is_some() && places[0] < places[1], "{places:?}");
    let jobs = operator.json("jobs", &[]).await?;
    let job = &jobs[0];
    ensure!(
        job["state"] == "done" && job["done"] == 2 && job["planned"] == 2 && job["job"] == ordered["job"],
        "{job:#}"
    );
    ensure!(job["actor"] == "alice" && job["reason"] == "the queue is bound", "{job:#}");
    Ok(())
}

async fn a_release_lets_a_key_go_on_without_its_dead_message(flavor: Flavor) -> Result<()> {
    let (mut stage, operator, drafts) = blocked(flavor).await?;
    let _relay = stage.relay()?;
    let ordered = order(&operator, "dead release --all", 1).await?;
    ensure!(ordered["plan"]["left_out"]["no message waits for it"] == 1, "{ordered:#}");
    stage.database.wait_for(PATIENCE, OPEN).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    stage.judge(&Expectations::new().at_least(2).dead([drafts[0].id, drafts[1].id])).await
}

async fn a_discarded_message_is_gone_and_its_key_goes_on(flavor: Flavor) -> Result<()> {
    let (mut stage, operator, drafts) = blocked(flavor).await?;
    let _relay = stage.relay()?;
    order(&operator, &format!("dead discard {}", drafts[0].id), 1).await?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let report = stage.report().await?;
    ensure!(report.lost == [drafts[0].id] && report.arrived == 2, "{report}");
    let left = "SELECT (SELECT COUNT(*) FROM outbox_messages) = 3 AND (SELECT COUNT(*) FROM outbox_dead) = 1";
    ensure!(stage.database.number(left).await? == 1, "more than the message was deleted");
    Ok(())
}

/// Two relays, and one after the other is killed while the job runs. Each message is put back once.
async fn killed_relays_repeat_no_message_of_a_job(flavor: Flavor) -> Result<()> {
    const MESSAGES: usize = 900;
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    let drafts: Vec<_> = (0..MESSAGES).map(|number| stage.draft(number)).collect();
    stage.commit(&drafts).await?;
    stage.database.execute(BURY).await?;
    let mut relays = vec![stage.relay()?, stage.relay()?];
    order(&operator, "dead retry --all --rate 150", MESSAGES as u64).await?;
    for done in [1, 300, 600] {
        stage.database.wait_for(PATIENCE, &format!("SELECT done >= {done} FROM outbox_jobs")).await?;
        let first = relays.remove(0);
        first.kill()?;
        relays.push(stage.relay()?);
    }
    stage.database.wait_for(PATIENCE, OPEN).await?;
    ensure!(
        stage.database.number("SELECT done = 900 FROM outbox_jobs").await? == 1,
        "{:#}",
        operator.json("jobs", &[]).await?
    );
    stage.database.wait_until_drained(PATIENCE).await?;
    // A killed relay may have published what it had claimed: at most two batches.
    stage.judge(&Expectations::new().at_least(MESSAGES).duplicates(3 * 2 * 150)).await
}

/// A message that died after the order is none of its messages; nor is one of another topic.
async fn a_job_takes_what_its_plan_shows(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    let other = Draft::new("elsewhere", "x");
    stage.commit(&[stage.draft(1), stage.draft(2), other.clone()]).await?;
    stage.database.execute(BURY).await?;
    order(&operator, &format!("dead retry --topic {} --error queue", stage.topic.name()), 2).await?;
    stage.commit(&[stage.draft(3)]).await?;
    stage.database.execute(BURY).await?;
    let _relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let left = "SELECT COUNT(*) = 2 FROM outbox_dead d JOIN outbox_messages m ON m.id = d.id";
    ensure!(stage.database.number(left).await? == 1, "{:#}", operator.json("dead list", &[]).await?);
    ensure!(operator.json("jobs", &[]).await?[0]["done"] == 2);
    Ok(())
}

/// A message waits for an hour, a later one of its key behind it; another is scheduled.
async fn waiting_messages_go_before_their_time_and_in_order(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    let drafts = [stage.draft(1).key("k", 1), stage.draft(2).key("k", 2), stage.draft(3)];
    stage.commit(&drafts[..1]).await?;
    let park = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason, error) \
        SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 1, 'parked', 'down' \
        FROM outbox_pending; \
        DELETE FROM outbox_pending";
    stage.database.execute(park).await?;
    let _relay = stage.relay()?;
    stage.commit(&drafts[1..2]).await?;
    let later = |message: outbox_core::Message| message.delay(Duration::from_hours(1));
    load::commit(&stage.database, &stage.ledger, &drafts[2..], later).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'behind'").await?;
    let keys = operator.json("keys blocked", &[]).await?;
    ensure!(keys[0]["messages"] == 2 && keys[0]["reason"] == "parked" && keys[1].is_null(), "{keys:#}");
    let first = keys[0]["id"].as_u64().context("no id")?;
    for key in [first.to_string(), drafts[1].id.to_string(), format!("--topic {} --key k", stage.topic.name())] {
        let key = operator.json(&format!("keys show {key}"), &[]).await?;
        ensure!(key["waiting"] == 2 && key["first"]["id"] == first, "{key:#}");
        ensure!(
            key["first"]["remedy"].as_str().is_some_and(|remedy| remedy.contains("outboxsinkdisconnected")),
            "{key:#}"
        );
        let reasons: Vec<_> = key["rows"].as_array().into_iter().flatten().map(|row| &row["reason"]).collect();
        ensure!(reasons == ["parked", "behind"], "{key:#}");
    }
    let groups = operator.json("delayed list --group-by reason", &[]).await?;
    ensure!(groups["rows"].as_array().is_some_and(|rows| rows.len() == 3), "{groups:#}");
    let plan = &operator.json("delayed retry --all", &[]).await?["plan"];
    ensure!(plan["left_out"]["it is scheduled"] == 1, "{plan:#}");
    ensure!(plan["left_out"]["it is in the queue of its key"] == 1 && plan["may_arrive_twice"] == 1, "{plan:#}");
    operator.done("delayed retry --all --yes --because", &["it is up"]).await?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 2 FROM outbox_sent_messages").await?;
    let scheduled = "SELECT COUNT(*) = 1 FROM outbox_delayed WHERE reason = 'scheduled'";
    ensure!(stage.database.number(scheduled).await? == 1, "the scheduled message has gone, too");
    operator.done("delayed retry --yes --because now", &[&drafts[2].id.to_string()]).await?;
    stage.drain_and_judge(&Expectations::new().at_least(3)).await
}

async fn a_stopped_job_leaves_the_rest(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    stage.commit(&(0..200).map(|number| stage.draft(number)).collect::<Vec<_>>()).await?;
    stage.database.execute(BURY).await?;
    let job = order(&operator, "dead retry --all --rate 1", 200).await?["job"].to_string();
    let _relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, "SELECT done >= 2 FROM outbox_jobs").await?;
    let stopped = operator.run("jobs stop --because", &["too slow", &job]).await?;
    ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    let stopped_job = operator.json("jobs", &[]).await?[0].clone();
    let done = stopped_job["done"].as_i64().context("no number")?;
    ensure!(stopped_job["state"] == "stopped" && done < 200, "{stopped_job:#}");
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_dead").await? == 200 - done, "{stopped_job:#}");
    let again = operator.run("jobs stop --because again", &[&job]).await?;
    ensure!(String::from_utf8_lossy(&again.stderr).contains("has ended already"), "{again:?}");
    let audit = operator.json("audit", &[]).await?;
    ensure!(audit.as_array().is_some_and(|entries| entries.len() == 2), "{audit:#}");
    ensure!(
        audit[0]["action"] == "stop" && audit[0]["reason"] == "too slow" && audit[0]["job"] == audit[1]["job"],
        "{audit:#}"
    );
    ensure!(audit[1]["action"] == "retry" && audit[1]["actor"] == "alice" && audit[1]["messages"] == 200, "{audit:#}");
    let account = audit[1]["account"].as_str().unwrap_or_default();
    ensure!(account.starts_with("outbox_operator@") && audit[1]["via"] == "cli", "{audit:#}");
    Ok(())
}

async fn a_job_whose_message_is_locked_lets_others_go_on(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    let drafts = [stage.draft(1), stage.draft(2)];
    stage.commit(&drafts).await?;
    stage.database.execute(BURY).await?;
    let mut console = stage.database.plain().await?;
    let mut lock = console.begin().await?;
    let first = "SELECT d.id FROM outbox_messages m STRAIGHT_JOIN outbox_dead d ON d.lane = 0 AND d.id = m.id \
                 WHERE m.message_id = ? FOR UPDATE";
    sqlx::query(first).bind(drafts[0].id.as_bytes().as_slice()).fetch_one(&mut *lock).await?;
    for draft in &drafts {
        order(&operator, &format!("dead retry {}", draft.id), 1).await?;
    }
    let _relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM outbox_jobs WHERE ended_at IS NOT NULL").await?;
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_dead").await? == 1, "the locked message was put back");
    lock.rollback().await?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    stage.drain_and_judge(&Expectations::new().at_least(2)).await
}

async fn a_pause_holds_while_a_job_waits_for_a_lock(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    stage.commit(&[stage.draft(1)]).await?;
    stage.database.execute(BURY).await?;
    order(&operator, "dead retry --all", 1).await?;
    let mut console = stage.database.plain().await?;
    let mut lock = console.begin().await?;
    sqlx::query("SELECT job_id FROM outbox_jobs FOR UPDATE").fetch_one(&mut *lock).await?;
    let relay = stage.relay()?;
    let shows = async |is_paused: bool| {
        until(PATIENCE, "the pause or its end", || async {
            let metrics = relay.metrics().await?;
            ensure!((metrics.sum("outbox_relay_paused") > 0.5) == is_paused, "the relay does not know it");
            Ok(metrics.sum_where("outbox_relay_db_call_duration_seconds_count", r#"operation="job""#))
        })
        .await
    };
    Box::pin(until(PATIENCE, "a pause during a job's call", || async {
        let before = shows(false).await?;
        stage.database.wait_for_lock_waits(flavor, 1).await?;
        operator.done("pause --lane 0 --because", &["a repair"]).await?;
        let calls = shows(true).await?;
        operator.done("resume --lane 0 --because", &["it is repaired"]).await?;
        ensure!(calls <= before, "the call ended before the pause was seen");
        Ok(())
    }))
    .await?;
    lock.rollback().await?;
    stage.database.wait_for(PATIENCE, OPEN).await
}

/// An operator writes a job by hand, and no row into the audit.
async fn a_job_that_the_audit_lacks_is_not_carried_out(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    stage.commit(&[stage.draft(1)]).await?;
    stage.database.execute(BURY).await?;
    let ordered = order(&operator, "dead discard --all", 1).await?;
    operator.done("jobs stop --because x", &[&ordered["job"].to_string()]).await?;
    let forged = "INSERT INTO outbox_jobs (action, filter, per_second, created_at, next_at) \
                  SELECT action, filter, per_second, created_at, next_at FROM outbox_jobs";
    let mut connection = MySqlConnection::connect(&operator.url).await?;
    sqlx::raw_sql(forged).execute(&mut connection).await?;
    let relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    relay.wait_for_log(PATIENCE, "a job without its row in the audit is not carried out").await?;
    let jobs = operator.json("jobs", &[]).await?;
    ensure!(jobs[0]["state"] == "refused" && jobs[0]["done"] == 0 && jobs[1]["state"] == "stopped", "{jobs:#}");
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_dead").await? == 1, "the message is discarded");
    Ok(())
}

/// The operator changes no message and no audit; the relay orders nothing.
async fn each_account_can_do_its_part_alone(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    stage.commit(&[stage.draft(1)]).await?;
    stage.database.execute(BURY).await?;
    let plan = operator.run("dead retry --all --yes", &[]).await?;
    ensure!(plan.status.code() == Some(2) && String::from_utf8_lossy(&plan.stderr).contains("--because"), "{plan:?}");
    let nothing = operator.run("dead discard", &[]).await?;
    ensure!(nothing.status.code() == Some(2), "without a filter all is discarded: {nothing:?}");
    order(&operator, "dead retry --all", 1).await?;
    let mut connection = MySqlConnection::connect(&operator.url).await?;
    for denied in [
        "INSERT INTO outbox_audit (at, actor, account) VALUES (UTC_TIMESTAMP(6), 'bob', 'bob@localhost')",
        "INSERT INTO outbox_jobs (action, filter, per_second, created_at, next_at, token) \
         SELECT action, filter, per_second, created_at, next_at, 7 FROM outbox_jobs",
        "UPDATE outbox_audit SET reason = ''",
        "DELETE FROM outbox_audit",
        "DELETE FROM outbox_jobs",
        "UPDATE outbox_jobs SET done = 0",
        "DELETE FROM outbox_dead",
        "SELECT payload FROM outbox_messages",
    ] {
        let refused = sqlx::raw_sql(denied).execute(&mut connection).await;
        ensure!(refused.is_err_and(|error| error.to_string().contains("denied")), "the operator can: {denied}");
    }
    for (at, account) in [("UTC_TIMESTAMP(6)", "'bob@localhost'"), ("'2020-01-01'", "USER()")] {
        let forged = format!(
            "INSERT INTO outbox_audit_entries (at, actor, account, via, action, target, reason) \
             VALUES ({at}, 'bob', {account}, 'cli', 'discard', '', '')"
        );
        let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(forged)).execute(&mut connection).await;
        ensure!(
            refused.is_err_and(|error| error.to_string().contains("CHECK OPTION")),
            "{account} at {at} is recorded"
        );
    }
    let relay = client(stage.database.url_as(Account::Relay)?);
    let refused = relay.run("dead retry --all --yes --because x", &[]).await?;
    let text = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(1) && text.contains("deploy/grants/operator.sql"), "{text}");
    ensure!(
        stage.database.number("SELECT COUNT(*) FROM outbox_jobs").await? == 1,
        "the relay's account has ordered a job"
    );
    Ok(())
}

/// Another job has put the message back between the read of a batch and its change, and it has died again.
async fn a_batch_leaves_out_a_message_that_has_died_again_since_it_was_found(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    stage.commit(&[stage.draft(1)]).await?;
    stage.database.execute(BURY).await?;
    let mut db = stage.database.connect().await?;
    let id: u64 = sqlx::query_scalar("SELECT id FROM outbox_dead").fetch_one(&mut db).await?;
    let actor = Actor { name: "alice", via: "test", reason: "x" };
    for (change, action) in
        [(JobChange::Discard, "discard"), (JobChange::Retry, "retry"), (JobChange::Release, "release")]
    {
        let order = NewJob { action, filter: "{}", per_second: 100, messages: 1 };
        jobs::order(&mut db, &order, &actor).await?;
        let late = "UPDATE outbox_jobs SET next_at = created_at; UPDATE outbox_dead \
                    SET died_at = UTC_TIMESTAMP(6), holds_key = 1";
        stage.database.execute(late).await?;
        let due = jobs::due(&mut db).await?;
        let job = due.first().context("no job is due")?;
        let last = (0, id);
        let pause = Duration::ZERO;
        let token = 7;
        let batch = JobBatch { job, change, lane: 0, ids: &[id], last, is_last: true, pause, token };
        ensure!(jobs::carry_out(&mut db, &batch).await?, "{action}: the batch was not carried out");
        let stays =
            "SELECT COUNT(*) = 1 AND (SELECT COUNT(*) FROM outbox_messages) = 1 FROM outbox_dead WHERE holds_key = 1";
        ensure!(stage.database.number(stays).await? == 1, "{action}: the message of another death was changed");
    }
    Ok(())
}
