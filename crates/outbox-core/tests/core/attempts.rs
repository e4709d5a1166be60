//! The failures of a message that the tables keep.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection},
    store::{
        claim::{
            self, Look, NewClaim, NewClaims,
            lease::{self, ClaimLease},
            promote,
        },
        operate::{
            jobs::{self, Actor, JobBatch, JobChange, NewJob},
            purge,
        },
        reason::DelayReason,
        session,
        settle::{
            self, Dead, Delayed, Settlement, Way,
            attempts::{self, FailureRow},
        },
    },
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    the_last_twenty_failures_are_kept,
    a_take_over_is_a_failure_and_a_wait_without_an_attempt_is_none,
    failures_go_with_their_message,
);

async fn with_messages(flavor: Flavor, count: usize) -> Result<(Database, MySqlConnection)> {
    let database = Database::create(flavor).await?;
    let mut db = database.plain().await?;
    session::prepare(&mut db).await?;
    let mut tx = db.begin().await?;
    Outbox::new().enqueue_all(&mut tx, (0..count).map(|_| Message::new("orders", "x"))).await?;
    tx.commit().await?;
    Ok((database, db))
}

async fn claim(db: &mut MySqlConnection, message_ids: &[u64]) -> Result<ClaimLease> {
    let look = Look { owner: "me", limit: 1, ..Look::default() };
    let version = claim::look(db, &look).await?.version.unwrap_or(0);
    let lease = Duration::from_secs(30);
    let lease_token = 8;
    let key_hashes = &[][..];
    let behind = &[][..];
    let new = NewClaims {
        lane: 0,
        version,
        low: 0,
        owner: "me",
        lease,
        claims: &[NewClaim { lease_token, message_ids, key_hashes }],
        behind,
    };
    claim::claim(db, &new).await?.first().copied().context("another claim was faster")
}

fn late(id: u64, spent: bool, error: &str) -> Delayed {
    Delayed { id, wait: Some(Duration::ZERO), spent, reason: DelayReason::Unconfirmed, error: error.to_owned() }
}

fn rejected(id: u64, spent: bool) -> Dead {
    Dead { id, spent, holds_key: false, reason: "rejected", error: "no".to_owned() }
}

async fn settle(db: &mut MySqlConnection, held: ClaimLease, delayed: Vec<Delayed>, dead: Vec<Dead>) -> Result<()> {
    let settlement = Settlement { delayed, dead, ..Settlement::default() };
    ensure!(settle::settle(db, &[(held, &settlement)], Way::OneByOne).await? == [held]);
    Ok(())
}

fn shown(failures: &[FailureRow]) -> Vec<(u16, &str, &str)> {
    failures.iter().map(|it| (it.attempt, it.reason.as_str(), it.error.as_deref().unwrap_or("-"))).collect()
}

async fn the_last_twenty_failures_are_kept(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    for number in 1..=23 {
        let held = claim(&mut db, &[1]).await?;
        settle(&mut db, held, vec![late(1, true, &format!("error {number}"))], vec![]).await?;
        promote::promote(&mut db, 0, &[1]).await?;
    }
    let held = claim(&mut db, &[1]).await?;
    settle(&mut db, held, vec![], vec![rejected(1, false)]).await?;
    let failures = attempts::of(&mut db, 1).await?;
    let errors: Vec<String> = (5..=23).map(|number| format!("error {number}")).collect();
    let mut expected: Vec<_> =
        (5..).zip(&errors).map(|(number, error)| (number, "unconfirmed", error.as_str())).collect();
    expected.push((24, "rejected", "no"));
    assert_eq!(shown(&failures), expected);
    let retry = "INSERT INTO outbox_pending (lane, id, key_hash, bytes) SELECT lane, id, key_hash, bytes \
                 FROM outbox_dead; \
                 DELETE FROM outbox_dead";
    database.execute(retry).await?;
    let held = claim(&mut db, &[1]).await?;
    settle(&mut db, held, vec![late(1, true, "again")], vec![]).await?;
    let after = attempts::of(&mut db, 1).await?;
    expected.remove(0);
    expected.push((1, "unconfirmed", "again"));
    assert_eq!(shown(&after), expected, "a retry begins to count again, and replaces the oldest");
    ensure!(failures.iter().all(|it| it.owner == "me" && it.failed_at > 1_700_000_000_000_000), "{failures:?}");
    Ok(())
}

async fn a_take_over_is_a_failure_and_a_wait_without_an_attempt_is_none(flavor: Flavor) -> Result<()> {
    let (_database, mut db) = with_messages(flavor, 2).await?;
    claim(&mut db, &[1, 2]).await?;
    sqlx::raw_sql("SET timestamp = 2147000000").execute(&mut db).await?;
    let expired = lease::expired(&mut db, 0).await?;
    ensure!(lease::take_over(&mut db, expired.first().context("its lease has passed")?).await?);
    let held = claim(&mut db, &[1, 2]).await?;
    settle(&mut db, held, vec![late(1, false, "parked"), late(2, true, "late")], vec![]).await?;
    assert_eq!(shown(&attempts::of(&mut db, 1).await?), [(1, "taken_over", "-")]);
    assert_eq!(shown(&attempts::of(&mut db, 2).await?), [(1, "taken_over", "-"), (2, "unconfirmed", "late")]);
    Ok(())
}

/// It is purged as sent, as dead, or discarded.
async fn failures_go_with_their_message(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 4).await?;
    let held = claim(&mut db, &[1, 2, 3, 4]).await?;
    let delayed = (1..=4).map(|id| late(id, true, "late")).collect();
    settle(&mut db, held, delayed, vec![]).await?;
    promote::promote(&mut db, 0, &[1, 2, 3, 4]).await?;
    let held = claim(&mut db, &[1, 2, 3]).await?;
    let dead = vec![rejected(2, true), rejected(3, true)];
    let settlement = Settlement { sent: vec![(1, String::new())], dead, ..Settlement::default() };
    ensure!(settle::settle(&mut db, &[(held, &settlement)], Way::OneByOne).await? == [held]);
    database.execute("INSERT INTO outbox_replays (id, job_id) VALUES (1, 1), (2, 1), (3, 1), (4, 1)").await?;

    let order = NewJob { action: "discard", filter: "{}", per_second: 1, messages: 1 };
    jobs::order(&mut db, &order, &Actor { name: "me", via: "test", reason: "test" }).await?;
    database.execute("UPDATE outbox_jobs SET next_at = UTC_TIMESTAMP(6)").await?;
    let job = jobs::due(&mut db).await?.pop().context("the job is not due")?;
    let change = JobChange::Discard;
    let pause = Duration::ZERO;
    let batch = JobBatch { job: &job, change, lane: 0, ids: &[2], last: (0, 2), is_last: true, pause, token: 7 };
    ensure!(jobs::carry_out(&mut db, &batch).await?);
    sqlx::raw_sql("SET timestamp = 2147000000").execute(&mut db).await?;
    let age = Duration::from_secs(60);
    ensure!(purge::sent(&mut db, age, &mut 0, 10).await? == (2, 1) && purge::dead(&mut db, age, 10).await? == 1);
    for table in ["outbox_messages", "outbox_attempts", "outbox_replays"] {
        let left = format!("SELECT CAST(SUM(id) AS SIGNED) FROM {table}");
        ensure!(database.number(&left).await? == 4, "{table} has rows of other messages than the fourth");
    }
    ensure!(attempts::of(&mut db, 4).await?.len() == 1);
    Ok(())
}
