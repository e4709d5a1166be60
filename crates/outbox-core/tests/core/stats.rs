//! What is counted of the queue.

use anyhow::{Result, ensure};
use outbox_core::{
    sqlx::{self, AssertSqlSafe, MySqlConnection},
    store::operate::{
        controls, find,
        jobs::{self, Actor, NewJob},
        stats,
    },
};
use testkit::{accounts::Account, database::Database, on_both_databases, servers::Flavor};

/// A message of a hundred seconds for each number; those from 8 on were scheduled.
const MESSAGES: &str = "INSERT INTO outbox_messages (id, message_id, topic, created_at, due_at) \
    SELECT n, UNHEX(LPAD(HEX(n), 32, '0')), 't', UTC_TIMESTAMP(6) - INTERVAL IF(n < 8, n * 100, 86400) SECOND, \
    IF(n < 8, NULL, UTC_TIMESTAMP(6) - INTERVAL 10 SECOND) \
    FROM (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION \
    SELECT 7 UNION SELECT 8) numbers";
/// Of these, 1 is due; 2 is in a paused lane; 8 was made pending ten seconds ago.
const PENDING: &str = "INSERT INTO outbox_pending (lane, id) VALUES (0, 1), (1, 2), (2, 8); \
    INSERT INTO outbox_controls (kind, name, paused_at, ends_at, actor, reason) VALUES \
    ('lane', '1', UTC_TIMESTAMP(6), NULL, 'alice', 'x'), ('sink', '0', UTC_TIMESTAMP(6), NULL, 'alice', 'x'), \
    ('lane', '0', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 1 SECOND, 'alice', 'over')";
/// The others wait, each for a reason of its own.
const DELAYED: &str = "INSERT INTO outbox_delayed (lane, id, key_hash, due_at, holds_key, reason) VALUES \
    (0, 3, 3, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 1, 'unconfirmed'), (0, 4, 0, UTC_TIMESTAMP(6), 0, 'parked'), \
    (0, 5, 3, '9999-12-31', 1, 'behind'), (0, 6, 0, UTC_TIMESTAMP(6), 0, 'paused'), \
    (0, 7, 0, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 0, 'scheduled')";

on_both_databases!(
    a_claim_whose_list_cannot_be_read_is_counted_without_messages,
    lags_begin_when_a_message_is_due_and_are_told_by_cause,
    a_key_is_blocked_once_and_only_by_what_an_operator_must_treat,
    a_lane_that_sends_nothing_is_seen_beside_one_that_sends_much,
    pauses_and_the_newest_job_are_read_together,
    a_reason_has_the_error_of_most_of_its_messages,
    a_destination_that_worked_before_is_known_by_its_receipts,
);

async fn pauses_and_the_newest_job_are_read_together(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = database.plain().await?;
    ensure!(controls::orders(&mut db).await? == (Vec::new(), 0));
    let order = NewJob { action: "hurry", filter: "{}", per_second: 1, messages: 0 };
    let actor = Actor { name: "alice", via: "test", reason: "x" };
    let job = jobs::order(&mut db, &order, &actor).await?;
    ensure!(controls::orders(&mut db).await? == (Vec::new(), job), "without a pause");
    database.execute(PENDING).await?;
    let (pauses, newest) = controls::orders(&mut db).await?;
    let names: Vec<_> = pauses.iter().map(|it| (it.kind.as_str(), it.name.as_str(), it.actor.as_str())).collect();
    ensure!(names == [("lane", "1", "alice"), ("sink", "0", "alice")] && newest == job, "{names:?}, {newest}");
    Ok(())
}

async fn a_reason_has_the_error_of_most_of_its_messages(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let rows = "INSERT INTO outbox_delayed (lane, id, due_at, reason, error) \
                VALUES (0, 1, UTC_TIMESTAMP(6), 'parked', 'z'), \
        (0, 2, UTC_TIMESTAMP(6), 'parked', 'b'), (0, 3, UTC_TIMESTAMP(6), 'parked', 'b'), (0, 4, UTC_TIMESTAMP(6), \
        'behind', NULL), \
        (1, 5, UTC_TIMESTAMP(6), 'paused', 'a')";
    database.execute(rows).await?;
    let lanes = stats::lanes(&mut database.connect().await?).await?;
    let found: Vec<_> = lanes
        .iter()
        .flat_map(|lane| &lane.delayed)
        .map(|it| (it.reason.as_str(), it.messages, it.error.as_str(), it.share))
        .collect();
    ensure!(found == [("parked", 3, "b", 2), ("behind", 1, "", 0), ("paused", 1, "a", 1)], "{found:?}");
    Ok(())
}

async fn a_destination_that_worked_before_is_known_by_its_receipts(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = database.session_of(Account::Relay).await?;
    ensure!(!find::has_lately_sent(&mut db, "orders/").await?, "there is no receipt");
    let receipt = "INSERT INTO outbox_sent (receipt_id, claim_id, lease_token, lane, owner, claimed_at, sent_at, \
                   message_ids, receipts) VALUES";
    let values = |number: u64, places: &str| {
        format!("{receipt} ({number}, {number}, 1, 0, 'a', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '[1]', '{places}')")
    };
    database.execute(&values(1, r#"["old/0@1"]"#)).await?;
    database.execute(&values(1001, r#"["orders/0@1","events/order.paid","Größe/0@1"]"#)).await?;
    for (place, is_known) in [
        ("orders/", true),
        ("events/order.paid", true),
        ("Größe/", true),
        ("order", true),
        ("rders/", false),
        ("ORDERS/", false),
        ("old/", false),
    ] {
        let found = find::has_lately_sent(&mut db, place).await?;
        ensure!(found == is_known, "{place}: {found}");
    }
    Ok(())
}

/// It may stand for as long as somebody has written: the gauges of all relays go on meanwhile.
async fn a_claim_whose_list_cannot_be_read_is_counted_without_messages(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    for ids in ["[7,8]", "not JSON", "[1, 2", ""] {
        let claim =
            "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, key_hashes)";
        let sql = format!("{claim} VALUES (0, 'somebody', 7, '9999-01-01', UTC_TIMESTAMP(6), '{ids}', '')");
        database.execute(&sql).await?;
    }
    let stats = stats::stats(&mut database.connect().await?).await?;
    ensure!((stats.leased, stats.expired_leases) == (2, 0), "{stats:?}");
    Ok(())
}

async fn lags_begin_when_a_message_is_due_and_are_told_by_cause(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    for sql in [MESSAGES, PENDING, DELAYED] {
        database.execute(sql).await?;
    }
    let lags = async |causes: [(&str, u64); 6]| {
        let stats = stats::stats(&mut database.connect().await?).await?;
        // The test itself takes time.
        let is_near = |((name, micros), (expected, seconds)): ((&str, u64), (&str, u64))| {
            name == expected && (seconds..seconds + 50).contains(&(micros / 1_000_000))
        };
        ensure!(stats.lags.all().into_iter().zip(causes).all(is_near), "{stats:?}");
        anyhow::Ok(stats)
    };
    let scheduled = |seconds| {
        [("due", 100), ("retry", 300), ("parked", 400), ("blocked", 500), ("paused", 600), ("scheduled", seconds)]
    };
    let stats = lags(scheduled(0)).await?;
    ensure!((stats.pending, stats.delayed) == (3, 5), "{stats:?}");
    database.execute("UPDATE outbox_delayed SET due_at = UTC_TIMESTAMP(6) - INTERVAL 70 SECOND WHERE id = 7").await?;
    lags(scheduled(70)).await.map(drop)
}

async fn a_key_is_blocked_once_and_only_by_what_an_operator_must_treat(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let dead = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, owner) \
                VALUES \
        (0, 1, 7, 0, 1, '2020-01-01', 1, 'expired', 'a'), (0, 2, 7, 0, 1, '2021-01-01', 1, 'too_large', 'a'), \
        (0, 3, 8, 0, 1, '2022-01-01', 0, 'too_large', 'a'), (1, 4, 7, 0, 1, '2023-01-01', 1, 'refused', 'a')";
    let delayed = "INSERT INTO outbox_delayed (lane, id, key_hash, due_at, holds_key, reason) VALUES \
        (0, 5, 7, '9999-12-31', 1, 'behind'), (0, 6, 7, '9999-12-31', 1, 'behind'), (0, 7, 9, '9999-12-31', 1, \
        'unroutable'), \
        (0, 8, 10, '9999-12-31', 1, 'unconfirmed'), (0, 9, 0, '9999-12-31', 0, 'no_route')";
    database.execute(&format!("{dead}; {delayed}")).await?;
    let stats = stats::stats(&mut database.connect().await?).await?;
    // Key 7 in two lanes, and key 9.
    ensure!((stats.dead, stats.expired, stats.blocked_keys) == (4, 1, 3), "{stats:?}");
    ensure!(stats.dead_since == Some(1_640_995_200_000_000), "{stats:?}");
    Ok(())
}

/// Lane 1 has thousands of receipts a minute, lane 2 a single one. That of lane 3 is old, and those of lane 4 name no
/// message.
async fn a_lane_that_sends_nothing_is_seen_beside_one_that_sends_much(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = database.plain().await?;
    let receipts = async |db: &mut MySqlConnection, lane: u16, number: u64, age: u64, ids: &str| {
        let times = format!("UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL {age} SECOND");
        let rows: Vec<_> =
            (0..number).map(|claim| format!("({lane}, {lane}{claim:04}, 7, 'a', {times}, '{ids}', '[]')")).collect();
        let rows = rows.join(", ");
        let columns = "lane, claim_id, lease_token, owner, claimed_at, sent_at, message_ids, receipts";
        sqlx::raw_sql(AssertSqlSafe(format!("INSERT INTO outbox_sent ({columns}) VALUES {rows}"))).execute(db).await?;
        anyhow::Ok(())
    };
    let found = async |db: &mut MySqlConnection| {
        let lanes = stats::lanes(db).await?;
        anyhow::Ok(lanes.iter().map(|lane| (lane.lane, lane.sends, lane.sent)).collect::<Vec<_>>())
    };
    ensure!(found(&mut db).await?.is_empty());
    receipts(&mut db, 3, 500, 3600, "[1]").await?;
    ensure!(found(&mut db).await?.is_empty());
    receipts(&mut db, 2, 1, 30, "[2]").await?;
    receipts(&mut db, 4, 3, 20, "[]").await?;
    receipts(&mut db, 1, 1500, 0, "[3,4]").await?;
    ensure!(found(&mut db).await? == [(1, true, 3000), (2, true, 0), (4, false, 0)], "{:?}", found(&mut db).await?);
    Ok(())
}
