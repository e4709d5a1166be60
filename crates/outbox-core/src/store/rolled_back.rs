//! Enqueues, settlements and batches of jobs whose transaction the server rolls back between two statements without an
//! error, as a Galera node may do. Each statement after the rollback commits by itself.

use anyhow::{Context as _, Result, ensure};
use sqlx::{Connection as _, MySqlConnection};
use testkit::{database::Database, on_both_databases, servers::Flavor};

use crate::store::{
    NO_SUCH_SAVEPOINT,
    claim::{self, NewClaim, NewClaims, lease::ClaimLease},
    enqueue::insert_text,
    error_number,
    operate::{
        jobs::{self, Actor, JobBatch, JobChange, NewJob},
        replay::Again,
    },
    reason::DelayReason,
    session,
    settle::{
        self, Dead, Delayed, Settlement, Way,
        work::{self, Finish},
    },
    text::{Reply, Text, sql},
};
use crate::{Message, Outbox};

on_both_databases!(
    an_enqueue_that_is_rolled_back_in_its_middle_sends_nothing,
    a_settlement_that_is_rolled_back_in_its_middle_loses_no_message,
    a_worker_whose_transaction_is_rolled_back_in_its_settlement_settles_no_lost_work,
    work_that_is_rolled_back_while_it_is_kept_is_noticed,
    a_batch_of_a_job_that_is_rolled_back_in_its_middle_changes_nothing,
);

/// Few pending rows are deleted one by one, many as ranges.
const COUNTS: [u64; 2] = [3, 300];
const LEASE: std::time::Duration = std::time::Duration::from_secs(600);

/// Messages without a row in any table and without a receipt.
const LOST: &str = "SELECT COUNT(*) FROM outbox_messages m WHERE NOT EXISTS (SELECT 1 FROM outbox_pending p \
                    WHERE p.id = m.id) \
    AND NOT EXISTS (SELECT 1 FROM outbox_delayed d WHERE d.id = m.id) AND NOT EXISTS (SELECT 1 FROM outbox_dead x \
    WHERE x.id = m.id) \
    AND NOT EXISTS (SELECT 1 FROM outbox_sent_messages s WHERE s.id = m.id)";
const EMPTY: &str = "DELETE FROM outbox_messages; DELETE FROM outbox_pending; DELETE FROM outbox_delayed; DELETE \
                     FROM outbox_dead; \
    DELETE FROM outbox_sent; DELETE FROM outbox_claims; DELETE FROM test_orders";

async fn claimed(db: &mut MySqlConnection, count: u64) -> Result<(ClaimLease, Vec<u64>)> {
    let mut tx = db.begin().await?;
    Outbox::new().enqueue_all(&mut tx, (0..count).map(|_| Message::new("orders", "x"))).await?;
    tx.commit().await?;
    let ids: Vec<u64> = sqlx::query_scalar("SELECT id FROM outbox_pending ORDER BY id").fetch_all(&mut *db).await?;
    let version = sqlx::query_scalar("SELECT version FROM outbox_head WHERE lane = 0").fetch_one(&mut *db).await?;
    let lease_token = version + 100;
    let new = NewClaims {
        lane: 0,
        version,
        low: 0,
        owner: "me",
        lease: LEASE,
        claims: &[NewClaim { lease_token, message_ids: &ids, key_hashes: &[] }],
        behind: &[],
    };
    let lease = claim::claim(db, &new).await?.first().copied().context("another claim was made")?;
    Ok((lease, ids))
}

/// A third each is sent, delayed and dead.
fn outcomes(ids: &[u64]) -> Settlement {
    let mut settlement = Settlement::default();
    for (id, outcome) in ids.iter().copied().zip([0, 1, 2].into_iter().cycle()) {
        let error = String::from("; refused");
        match outcome {
            0 => settlement.sent.push((id, "0/1".into())),
            1 => settlement.delayed.push(Delayed {
                id,
                wait: Some(LEASE),
                spent: true,
                reason: DelayReason::Unconfirmed,
                error,
            }),
            _ => settlement.dead.push(Dead { id, spent: true, holds_key: false, reason: "rejected", error }),
        }
    }
    settlement
}

/// Runs the statements with a ROLLBACK before the one at `cut`; the first error ends the text.
async fn cut_at(db: &mut MySqlConnection, text: &Text, cut: usize) -> Result<Vec<Reply>, sqlx::Error> {
    let mut replies = Vec::new();
    for (index, statement) in text.statements().into_iter().enumerate() {
        if index == cut {
            session::rollback(db).await?;
        }
        replies.extend(statement.run(db).await?);
    }
    Ok(replies)
}

async fn a_settlement_that_is_rolled_back_in_its_middle_loses_no_message(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = database.plain().await?;
    session::prepare(&mut db).await?;
    for count in COUNTS {
        for cut in 1.. {
            let (lease, ids) = claimed(&mut db, count).await?;
            let outcomes = outcomes(&ids);
            let claims = [(lease, &outcomes)];
            let text = settle::settlement(&claims, Way::Ranges);
            let statements = text.statements().len();
            if cut == statements {
                break;
            }
            let ended = cut_at(&mut db, &text, cut).await.and_then(|replies| settle::ended(&replies));
            let is_settled = settle::settled(&mut db, &[lease]).await? == [lease];
            // A rollback just before COMMIT goes unnoticed.
            ensure!(ended.is_ok() == is_settled || cut == statements - 1, "before statement {cut}: {ended:?}");
            let lost = database.number(LOST).await?;
            ensure!(lost == 0, "{lost} of {count} messages are lost by a rollback before statement {cut}");
            // A live claim can still be settled.
            if !is_settled {
                ensure!(settle::settle(&mut db, &claims, Way::Ranges).await? == [lease], "not settled after {cut}");
            }
            ensure!(database.number("SELECT COUNT(*) FROM outbox_pending").await? == 0, "pending after {cut}");
            database.execute(EMPTY).await?;
        }
        database.execute(EMPTY).await?;
    }
    Ok(())
}

async fn an_enqueue_that_is_rolled_back_in_its_middle_sends_nothing(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = database.plain().await?;
    let message = || Message::new("orders", "x").key("7");
    for messages in [vec![message(), message()], vec![message().delay(LEASE), message()], vec![message().sequenced()]] {
        for cut in 0.. {
            let text = insert_text(&messages, &vec![None; messages.len()]);
            if cut == text.statements().len() {
                break;
            }
            sqlx::raw_sql("START TRANSACTION").execute(&mut db).await?;
            let done = cut_at(&mut db, &text, cut).await;
            let left = "SELECT (SELECT COUNT(*) FROM outbox_messages) + (SELECT COUNT(*) FROM outbox_pending) \
                + (SELECT COUNT(*) FROM outbox_delayed) + (SELECT COUNT(*) FROM outbox_key_sequence)";
            // On MySQL nothing proves the transaction of the last rows.
            let proof = 2 + messages.iter().filter(|message| message.sequenced).count();
            let is_unseen = flavor == Flavor::MySql && cut > proof;
            ensure!(done.is_err() != is_unseen, "before statement {cut}: {:?}", done.err());
            if flavor == Flavor::MariaDb {
                ensure!(database.number(left).await? == 0, "a rollback before statement {cut} leaves a row");
            }
            let whole = "SELECT COUNT(*) FROM outbox_messages m WHERE EXISTS (SELECT 1 FROM outbox_pending p \
                         WHERE p.id = m.id) \
                OR EXISTS (SELECT 1 FROM outbox_delayed d WHERE d.id = m.id)";
            ensure!(database.number(whole).await? == 0, "a message that was rolled back before statement {cut} is due");
            database.execute(EMPTY).await?;
        }
    }
    Ok(())
}

/// A transaction of a worker, with its work.
async fn work(db: &mut MySqlConnection) -> Result<()> {
    work::begin(db, LEASE).await?;
    sqlx::query("INSERT INTO test_orders (message_id) VALUES (REPEAT('x', 16))").execute(db).await?;
    Ok(())
}

async fn a_worker_whose_transaction_is_rolled_back_in_its_settlement_settles_no_lost_work(
    flavor: Flavor,
) -> Result<()> {
    let database = Database::create(flavor).await?;
    for cut in 0.. {
        let mut db = database.plain().await?;
        session::prepare(&mut db).await?;
        let (lease, ids) = claimed(&mut db, 3).await?;
        let settlement = outcomes(&ids);
        work(&mut db).await?;
        let text = work::finishing(None, lease, &settlement);
        // A rollback just before COMMIT goes unnoticed.
        if text.statements().get(cut).is_none_or(|statement| statement.contains("COMMIT")) {
            break;
        }
        let outcome = cut_at(&mut db, &text, cut).await;
        let finish = work::conclude(&mut db, lease, outcome).await?;
        // ROW_COUNT is that of the rollback then.
        let is_fence = text.statements().get(cut).is_some_and(|statement| statement.contains("ROW_COUNT"));
        let expected = if is_fence { Finish::Lost } else { Finish::Ended };
        ensure!(finish == expected, "a rollback before statement {cut}: {finish:?}");
        let pending = database.number("SELECT COUNT(*) FROM outbox_pending").await?;
        ensure!(pending == 3, "a rollback before statement {cut} settled work that is not there: {pending} pending");
        let receipts = database.number("SELECT COUNT(*) FROM outbox_sent").await?;
        ensure!(receipts == 0, "a rollback before statement {cut} leaves a receipt of messages that are pending");
        // The claim is live, and its next settlement finds no rows of this one.
        let mut again = database.plain().await?;
        session::prepare(&mut again).await?;
        work(&mut again).await?;
        let finish = work::finish(&mut again, None, lease, &settlement).await;
        ensure!(matches!(finish, Ok(Finish::Committed)), "after a rollback before statement {cut}: {finish:?}");
        let settled = database.number("SELECT COUNT(*) = 1 FROM test_orders").await?;
        ensure!(settled == 1 && database.number(LOST).await? == 0, "not settled after {cut}");
        database.execute(EMPTY).await?;
    }
    Ok(())
}

async fn work_that_is_rolled_back_while_it_is_kept_is_noticed(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    for cut in 0..work::KEEP.split(';').count() {
        let mut db = database.plain().await?;
        session::prepare(&mut db).await?;
        work(&mut db).await?;
        let kept = cut_at(&mut db, &sql!("{keep}", keep = work::KEEP), cut).await;
        let number = kept.err().and_then(|error| error_number(&error));
        ensure!(number == Some(NO_SUCH_SAVEPOINT), "a rollback before statement {cut} goes unnoticed");
    }
    Ok(())
}

async fn a_batch_of_a_job_that_is_rolled_back_in_its_middle_changes_nothing(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = database.plain().await?;
    session::prepare(&mut db).await?;
    let (lease, ids) = claimed(&mut db, 3).await?;
    let mut settlement = Settlement::default();
    let dead = |id| Dead { id, spent: true, holds_key: true, reason: "rejected", error: String::new() };
    settlement.dead = ids.iter().copied().map(dead).collect();
    settle::settle(&mut db, &[(lease, &settlement)], Way::Ranges).await?;
    database.execute("UPDATE outbox_dead SET holds_key = 1").await?;
    let order = NewJob { action: "retry", filter: "{}", per_second: 1, messages: 3 };
    jobs::order(&mut db, &order, &Actor { name: "me", via: "test", reason: "test" }).await?;
    database.execute("UPDATE outbox_jobs SET next_at = UTC_TIMESTAMP(6)").await?;
    let job = jobs::due(&mut db).await?.pop().context("the job is not due")?;
    let again: Vec<_> = ids.iter().map(|id| Again { lane: 0, id: *id, key_hash: 1, bytes: 1 }).collect();
    for change in [JobChange::Retry, JobChange::Release, JobChange::Discard, JobChange::Replay(&again, None)] {
        let last = (0, ids[2]);
        let pause = std::time::Duration::ZERO;
        let batch = JobBatch { job: &job, change, lane: 0, ids: &ids, last, is_last: false, pause, token: 7 };
        let text = jobs::text(&batch);
        // Before its first change, the third statement, there is nothing to roll back.
        for cut in 3..text.statements().len() {
            cut_at(&mut db, &text, cut).await?;
            ensure!(jobs::due(&mut db).await? == [job.clone()], "{change:?}, a rollback before {cut} moves the job on");
            let left = "SELECT (SELECT COUNT(*) FROM outbox_messages) + 10 * (SELECT COUNT(*) FROM outbox_dead \
                        WHERE holds_key = 1) \
                        + 100 * (SELECT COUNT(*) FROM outbox_pending) + 1000 * (SELECT COUNT(*) FROM outbox_replays)";
            let left = database.number(left).await?;
            ensure!(left == 33, "{change:?}, a rollback before {cut} leaves {left}");
        }
    }
    // Another relay carries out the same batch at the same time.
    let batch = JobBatch {
        job: &job,
        change: JobChange::Retry,
        lane: 0,
        ids: &ids,
        last: (0, ids[2]),
        is_last: true,
        pause: LEASE,
        token: 7,
    };
    let head = async |db: &mut MySqlConnection| {
        sqlx::query_as::<_, (u64, u64)>("SELECT version, low FROM outbox_head WHERE lane = 0").fetch_one(db).await
    };
    database.execute("UPDATE outbox_head SET low = 4000000000").await?;
    let (version, _) = head(&mut db).await?;
    ensure!(jobs::carry_out(&mut db, &batch).await?);
    // So no claim is made on an earlier look, and later looks include the rows.
    let found = head(&mut db).await?;
    ensure!(found == (version + 1, ids[0]), "version and low are {found:?}");
    let late = JobBatch { change: JobChange::Discard, token: 8, ..batch };
    ensure!(!jobs::carry_out(&mut db, &late).await?, "two relays carried out one batch");
    let done = "SELECT COUNT(*) FROM outbox_pending p, outbox_jobs j WHERE j.done = 3 AND j.ended_at IS NOT NULL";
    ensure!(database.number(done).await? == 3 && database.number(LOST).await? == 0);
    Ok(())
}
