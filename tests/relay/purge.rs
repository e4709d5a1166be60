//! `relay purge --dry-run`, with the account of `deploy/grants/viewer.sql`.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::store::operate::purge;
use serde_json::Value;
use testkit::{consume::Broker, database::Database, on_both_databases, servers::Flavor};

use crate::stage::{PATIENCE, Stage, account, client};

on_both_databases!(
    what_a_dry_run_counts_is_what_the_purge_then_deletes,
    the_purge_leaves_a_dead_message_that_holds_its_key_to_an_operator,
);

const VIEWER: &str = include_str!("../../deploy/grants/viewer.sql");

/// Six old messages: four are sent, and one of these twice; one more is sent and pending again, one dead. A young one
/// of each kind. Old and young rows of the inbox, heartbeats, pauses, jobs and the audit. The first receipts are unreadable or from the future.
const ROWS: &str = "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, \
                    receipts) \
    WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 120) \
    SELECT 1000 + i, 1, 3, 'x', '2020-01-02', IF(i > 60, '2999-01-01', '2020-01-02'), IF(i > 60, '[1]', '[-1]'), '[]' \
    FROM n; \
    INSERT INTO outbox_jobs (job_id, action, filter, per_second, created_at, next_at, ended_at) VALUES \
    (1, 'replay', '{}', 1, '2020-01-01', '2020-01-01', '2020-01-02'), (2, 'retry', '{}', 1, '2020-01-01', \
    '2020-01-01', '2020-01-02'), \
    (3, 'retry', '{}', 1, '2020-01-01', '2020-01-01', UTC_TIMESTAMP(6)), (4, 'retry', '{}', 1, '2020-01-01', \
    '2999-01-01', NULL); \
    INSERT INTO outbox_audit (at, actor, account, via, action, target, reason) VALUES \
    ('2999-01-01', 'a', 'a', 'cli', 'pause', '', ''), ('2020-01-02', 'a', 'a', 'cli', 'pause', '', ''), \
    (UTC_TIMESTAMP(6), 'a', 'a', 'cli', 'pause', '', ''); \
    INSERT INTO outbox_messages (id, message_id, topic, payload, created_at) VALUES \
    (1, X'01', 'a', '', '2020-01-01'), (2, X'02', 'a', '', '2020-01-01'), (3, X'03', 'a', '', '2020-01-01'), \
    (4, X'04', 'a', '', '2020-01-01'), (5, X'05', 'a', '', '2020-01-01'), (6, X'06', 'a', '', '2020-01-01'), \
    (7, X'07', 'a', '', '2020-01-01'), (8, X'08', 'a', '', '2020-01-01'); \
    INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, receipts) VALUES \
    (1, 1, 3, 'x', '2020-01-02', '2020-01-02', '[1,2]', '[]'), (2, 1, 3, 'x', '2020-01-02', '2020-01-03', '[2,3,4,5]', \
    '[]'), \
    (3, 1, 3, 'x', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '[7]', '[]'), (4, 1, 3, 'x', '2020-01-02', '2020-01-02', 'x', \
    '[]'); \
    INSERT INTO outbox_pending (lane, id) VALUES (3, 5); \
    INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, reason, owner) VALUES \
    (3, 6, 0, 0, 1, '2020-01-05', 'x', 'x'), (3, 8, 0, 0, 1, UTC_TIMESTAMP(6), 'x', 'x'); \
    INSERT INTO inbox_processed (consumer, message_id, processed_at) \
    VALUES ('a', X'01', '2020-01-06'), ('a', X'02', UTC_TIMESTAMP(6)); \
    INSERT INTO outbox_instances (instance, role, version, lanes, sinks, in_flight, started_at, seen_at) VALUES \
    ('old', 'relay', '1', '[]', '{}', 0, '2020-01-01', '2020-01-01'), ('young', 'relay', '1', '[]', '{}', 0, \
    '2020-01-01', UTC_TIMESTAMP(6)); \
    INSERT INTO outbox_controls (kind, name, paused_at, ends_at, actor, reason) \
    VALUES ('instance', 'old', '2020-01-01', NULL, 'a', 'x'), \
    ('lane', '3', '2020-01-01', NULL, 'a', 'x'), ('lane', '4', '2020-01-01', '2020-01-02', 'a', 'x')";

/// The rows that are left in the tables of all kinds.
const LEFT: &str = "SELECT CONCAT_WS(' ', (SELECT COUNT(*) FROM outbox_messages), (SELECT COUNT(*) FROM outbox_dead), \
    (SELECT COUNT(*) FROM inbox_processed), (SELECT COUNT(*) FROM outbox_instances \
    WHERE instance IN ('old', 'young')), \
    (SELECT COUNT(*) FROM outbox_controls), (SELECT COUNT(*) FROM outbox_jobs), (SELECT COUNT(*) FROM outbox_audit))";

/// The number of rows of each kind.
fn rows(answer: &Value) -> Vec<(String, u64)> {
    let row =
        |kind: &Value| (kind["kind"].as_str().unwrap_or_default().to_owned(), kind["rows"].as_u64().unwrap_or(99));
    answer["kinds"].as_array().into_iter().flatten().map(row).collect()
}

async fn what_a_dry_run_counts_is_what_the_purge_then_deletes(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let viewer = client(account(&stage.database, &VIEWER.replace("outbox_viewer", "{user}")).await?);
    stage.database.execute(ROWS).await?;
    let before = viewer.json("purge --dry-run", &[]).await?;
    let expected = [("sent", 4), ("dead", 1), ("inbox", 1), ("jobs", 2), ("audit", 1), ("instances", 1), ("pauses", 2)];
    ensure!(rows(&before) == expected.map(|(kind, rows)| (kind.to_owned(), rows)), "{before:#}");
    let sent = &before["kinds"][0];
    ensure!(sent["oldest"] == "2020-01-02T00:00:00Z" && sent["retention_seconds"] == 7 * 86_400, "{before:#}");
    ensure!(sent["stays"] == "1 more are to be sent again" && sent["is_complete"] == true, "{before:#}");
    ensure!(before["purger"].is_null(), "{before:#}");
    let forever = viewer.json("purge --dry-run --set retention.dead=0", &[]).await?;
    let dead = &forever["kinds"][1];
    let is_told = dead["stays"] == "retention.dead is 0: all are kept for ever" && dead["retention_seconds"].is_null();
    ensure!(is_told && dead["rows"] == 0, "{forever:#}");
    let table = viewer.done("purge --dry-run --set retention.inbox=0", &[]).await?;
    for part in ["7 d", "30 d", "for ever", "2020-01-05T00:00:00Z"] {
        ensure!(table.contains(part), "{part}: {table}");
    }
    ensure!(
        stage.database.number(&format!("SELECT ({LEFT}) = '8 2 2 2 3 4 3'")).await? == 1,
        "a dry run has deleted rows"
    );

    let relay = stage.relay()?;
    let left = format!("SELECT ({LEFT}) = '3 1 1 1 1 2 2'");
    stage.database.wait_for(PATIENCE, &left).await.with_context(|| relay.log().unwrap_or_default())?;
    let after = viewer.json("purge --dry-run", &[]).await?;
    ensure!(rows(&after).iter().all(|(_, rows)| *rows == 0), "{after:#}");
    let instances = viewer.json("instances", &[]).await?;
    let names: Vec<_> = instances.as_array().into_iter().flatten().map(|it| &it["instance"]).collect();
    ensure!(after["purger"].is_string() && names.contains(&&after["purger"]), "{after:#} {instances:#}");
    Ok(())
}

async fn the_purge_leaves_a_dead_message_that_holds_its_key_to_an_operator(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let rows = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, owner) \
                VALUES \
        (0, 1, 7, 0, 1, '2020-01-05', 1, 'x', 'x'), (0, 2, 7, 0, 1, '2020-01-05', 0, 'x', 'x')";
    database.execute(rows).await?;
    let mut db = database.connect().await?;
    let day = Duration::from_hours(24);
    ensure!(purge::old_dead(&mut db, day, 100).await?.rows == 1, "the forecast counts both");
    ensure!(purge::dead(&mut db, day, 100).await? == 1, "both were deleted");
    database.execute("UPDATE outbox_dead SET holds_key = 0").await?;
    ensure!(purge::dead(&mut db, day, 100).await? == 1, "a released one stays");
    Ok(())
}
