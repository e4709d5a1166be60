//! What the purge deletes, and what it must leave alone.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{Connection as _, raw_sql},
    store::operate::{
        jobs::{self, Actor, JobBatch, JobChange, NewJob},
        purge,
    },
};
use testkit::{accounts::Account, database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    a_dead_message_that_is_being_put_back_is_kept,
    a_dead_message_that_is_being_purged_is_not_put_back,
    a_sent_message_that_is_to_be_sent_again_is_kept,
    receipts_without_messages_are_purged_and_unreadable_ones_hold_up_nobody,
);

const DEAD: &str = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, reason, owner) \
                    SELECT lane, id, key_hash, bytes, 0, UTC_TIMESTAMP(6) - INTERVAL 1 DAY, 'expired', '' \
                    FROM outbox_pending; \
                    DELETE FROM outbox_pending";
const DEAD_ONE: &str = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, reason, owner) \
                        SELECT lane, id, key_hash, bytes, 0, UTC_TIMESTAMP(6), 'expired', '' FROM outbox_pending \
                        WHERE id = 3";
const BACK: &str = "INSERT INTO outbox_pending (lane, id, key_hash, bytes) \
                    SELECT lane, id, key_hash, bytes FROM outbox_dead WHERE lane = 0 AND id = 1; \
                    DELETE FROM outbox_dead WHERE lane = 0 AND id = 1";

async fn enqueued(database: &Database, messages: usize) -> Result<()> {
    let mut connection = database.plain().await?;
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue_all(&mut tx, (0..messages).map(|_| Message::new("orders", "x"))).await?;
    Ok(tx.commit().await?)
}

async fn a_dead_message_that_is_being_put_back_is_kept(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    enqueued(&database, 3).await?;
    database.execute(DEAD).await?;
    let mut operator = database.connect().await?;
    let mut relay = database.session_of(Account::Owner).await?;
    let mut back = operator.begin().await?;
    raw_sql(BACK).execute(&mut *back).await?;
    let age = Duration::from_secs(3600);
    ensure!(purge::dead(&mut relay, age, 1000).await? == 2);
    back.commit().await?;
    ensure!(purge::dead(&mut relay, age, 1000).await? == 0);
    let kept = "SELECT COUNT(*) FROM outbox_pending JOIN outbox_messages USING (id)";
    ensure!(database.number(kept).await? == 1, "the message that was put back is gone");
    ensure!(database.number("SELECT COUNT(*) FROM outbox_messages").await? == 1);
    Ok(())
}

/// A job waits for the purge. Otherwise the message would be pending without its contents.
async fn a_dead_message_that_is_being_purged_is_not_put_back(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    enqueued(&database, 1).await?;
    database.execute(DEAD).await?;
    let mut purging = database.connect().await?;
    let mut relay = database.session_of(Account::Owner).await?;
    let order = NewJob { action: "retry", filter: "{}", per_second: 1, messages: 1 };
    jobs::order(&mut relay, &order, &Actor { name: "me", via: "test", reason: "test" }).await?;
    database.execute("UPDATE outbox_jobs SET next_at = UTC_TIMESTAMP(6)").await?;
    let job = jobs::due(&mut relay).await?.pop().context("the job is not due")?;
    let change = JobChange::Retry;
    let pause = Duration::ZERO;
    let batch = JobBatch { job: &job, change, lane: 0, ids: &[1], last: (0, 1), is_last: true, pause, token: 7 };
    let mut purge = purging.begin().await?;
    raw_sql("SELECT id FROM outbox_dead FOR UPDATE").fetch_all(&mut *purge).await?;
    let purged = async {
        database.wait_for_lock_waits(flavor, 1).await?;
        raw_sql("DELETE FROM outbox_dead; DELETE FROM outbox_messages").execute(&mut *purge).await?;
        anyhow::Ok(purge.commit().await?)
    };
    let (is_done, purged) = tokio::join!(jobs::carry_out(&mut relay, &batch), purged);
    purged?;
    ensure!(is_done?, "another relay was faster");
    ensure!(
        database.number("SELECT COUNT(*) FROM outbox_pending").await? == 0,
        "a message is pending without contents"
    );
    ensure!(database.number("SELECT COUNT(*) FROM outbox_jobs WHERE done = 0").await? == 1);
    Ok(())
}

/// It waits, is put off or is dead for longer than sent messages are kept.
async fn a_sent_message_that_is_to_be_sent_again_is_kept(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    enqueued(&database, 4).await?;
    let receipt = "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, \
                   receipts) \
                   VALUES (1, 0, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 1 DAY, '[1, 2, 3, 4]', '[]')";
    let elsewhere = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, reason, holds_key) \
                     SELECT lane, id, key_hash, bytes, 0, UTC_TIMESTAMP(6), 'scheduled', 0 FROM outbox_pending \
                     WHERE id = 2";
    for text in [
        receipt,
        elsewhere,
        "DELETE FROM outbox_pending WHERE id = 2",
        DEAD_ONE,
        "DELETE FROM outbox_pending WHERE id > 2",
        "INSERT INTO outbox_replays (id, job_id) VALUES (1, 1), (2, 1), (4, 1)",
    ] {
        database.execute(text).await?;
    }
    ensure!(
        purge::sent(&mut database.session_of(Account::Owner).await?, Duration::from_secs(3600), &mut 0, 1000).await?
            == (1, 1)
    );
    ensure!(
        database.number("SELECT COUNT(*) FROM outbox_messages WHERE id < 4").await? == 3,
        "a message that waits is gone"
    );
    ensure!(
        database.number("SELECT COUNT(*) = 2 FROM outbox_replays WHERE id < 4").await? == 1,
        "the wrong marks are gone"
    );
    Ok(())
}

async fn receipts_without_messages_are_purged_and_unreadable_ones_hold_up_nobody(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    enqueued(&database, 1).await?;
    database.execute("DELETE FROM outbox_pending").await?;
    let mark = |claim: u32, ids: &str| {
        format!(
            "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, receipts) \
             SELECT {claim}, 0, 0, '', created_at, created_at - INTERVAL 1 DAY, {ids}, '[]' FROM outbox_messages"
        )
    };
    let unreadable = [(1, "'nonsense'"), (2, "'['"), (5, "'{}'"), (6, "'[-1]'")];
    for (claim, ids) in unreadable.into_iter().chain([(3, "'[]'"), (4, "'[]'"), (20_000, "CONCAT('[', id, ']')")]) {
        database.execute(&mark(claim, ids)).await?;
    }
    let mut relay = database.session_of(Account::Owner).await?;
    let age = Duration::from_secs(3600);
    ensure!(purge::sent(&mut relay, age, &mut 0, 2).await? == (3, 1));
    ensure!(purge::sent(&mut relay, age, &mut 0, 2).await? == (0, 0));
    ensure!(database.number("SELECT COUNT(*) FROM outbox_sent").await? == 4, "unreadable receipts are kept");
    Ok(())
}
