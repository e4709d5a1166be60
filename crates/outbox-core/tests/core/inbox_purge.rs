//! The purge of an inbox without a relay: what it deletes, and what it must leave alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Inbox, InboxPurge, Sequence,
    sqlx::{Connection as _, MySqlPool, raw_sql},
    store::inbox::purge::{self, KeyPosition},
};
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    servers::{Flavor, PATIENCE, until},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

on_both_databases!(
    old_rows_are_purged_with_the_account_of_a_consumer,
    a_relay_that_purges_keeps_the_processed_messages_to_itself,
    one_process_purges_and_another_takes_its_place,
    what_a_transaction_holds_is_left_out,
    keys_of_a_consumer_that_keeps_refused_messages_stay,
    a_purged_key_begins_anew_and_no_earlier,
);

const HOUR: Duration = Duration::from_secs(3600);
/// Five old rows and a young one in each table, and a key without a time.
const ROWS: &str = "\
    INSERT INTO inbox_processed (consumer, message_id, processed_at) VALUES \
    ('a', 'old 1', '2020-01-01'), ('a', 'old 2', '2020-01-01'), ('a', 'old 3', '2020-01-01'), ('b', 'old 1', \
    '2020-01-01'), \
    ('b', 'old 2', '2020-01-01'), ('b', 'young', UTC_TIMESTAMP(6)); \
    INSERT INTO inbox_dead (consumer, message_id, topic, attempts, died_at, reason) VALUES \
    ('a', 'old 1', 't', 1, '2020-01-01', 'refused'), ('a', 'old 2', 't', 1, '2020-01-01', 'refused'), \
    ('a', 'old 3', 't', 1, '2020-01-01', 'refused'), ('b', 'old 1', 't', 1, '2020-01-01', 'refused'), \
    ('b', 'old 2', 't', 1, '2020-01-01', 'refused'), ('b', 'young', 't', 1, UTC_TIMESTAMP(6), 'refused'); \
    INSERT INTO inbox_sequence (consumer, topic, message_key, sequence, missing, seen_at) VALUES \
    ('a', 't', '', 1, '[]', '2020-01-01'), ('a', 't', 'k', 1, '[]', '2020-01-01'), ('a', 'u', 'k', 1, '[]', \
    '2020-01-01'), \
    ('b', 't', X'00', 1, '[]', '2020-01-01'), ('b', 't', 'j', 1, '[]', UTC_TIMESTAMP(6)), ('b', 't', 'k', 1, '[]', \
    '2020-01-01'), \
    ('b', 't', 'young', 1, '[]', UTC_TIMESTAMP(6))";
const OLD: &str = "INSERT INTO inbox_processed (consumer, message_id, processed_at) VALUES ('a', 'old', '2020-01-01')";

/// A purge that runs, and the number of rows that it has reported.
struct Running {
    rows: Arc<AtomicU64>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

async fn start(database: &Database, purge: InboxPurge) -> Result<Running> {
    let rows = Arc::new(AtomicU64::new(0));
    let stop = CancellationToken::new();
    let counted = Arc::clone(&rows);
    let stopped = stop.clone();
    let purge = purge.observe(move |it| {
        counted.fetch_add(it.processed + it.dead + it.sequences, Ordering::SeqCst);
    });
    let pool = MySqlPool::connect(&database.url_as(Account::Consumer)?).await?;
    Ok(Running { rows, stop, task: tokio::spawn(async move { purge.run(&pool, stopped.cancelled()).await }) })
}

impl Running {
    /// Waits until it has reported this number of rows.
    async fn reported(self, rows: u64) -> Result<Self> {
        let enough = || async {
            let reported = self.rows.load(Ordering::SeqCst);
            ensure!(reported >= rows, "{reported} rows are reported");
            Ok(())
        };
        until(PATIENCE, "the report", enough).await?;
        Ok(self)
    }

    async fn stop(self) -> Result<u64> {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.context("it does not stop")??;
        Ok(self.rows.load(Ordering::SeqCst))
    }
}

async fn old_rows_are_purged_with_the_account_of_a_consumer(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute(ROWS).await?;
    let purge = start(&database, InboxPurge::new().batch(2)).await?;
    let left = "SELECT (SELECT COUNT(*) FROM inbox_processed) = 1 AND (SELECT COUNT(*) FROM inbox_dead) = 1 \
                AND (SELECT COUNT(*) FROM inbox_sequence) = 2 \
                AND (SELECT COUNT(*) FROM inbox_sequence WHERE seen_at > '2021-01-01') = 2";
    database.wait_for(PATIENCE, left).await?;
    let young = "SELECT (SELECT COUNT(*) FROM inbox_processed WHERE message_id LIKE 'young%') \
                 + (SELECT COUNT(*) FROM inbox_dead WHERE message_id LIKE 'young%') \
                 + (SELECT COUNT(*) FROM inbox_sequence WHERE message_key IN ('j', 'young'))";
    ensure!(database.number(young).await? == 4, "the wrong rows are gone");
    ensure!(purge.reported(15).await?.stop().await? == 15, "not each row was reported once");
    let free =
        "SELECT COUNT(*) FROM outbox_leases WHERE name = 'outbox/inbox-purge' AND lease_until < UTC_TIMESTAMP(6)";
    ensure!(database.number(free).await? == 1, "the lease outlives the purge");
    Ok(())
}

async fn a_relay_that_purges_keeps_the_processed_messages_to_itself(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let relay = "INSERT INTO outbox_leases (name, owner, lease_until, fence) VALUES \
                 ('outbox/purge', 'a relay', UTC_TIMESTAMP(6) + INTERVAL 1 DAY, 1)";
    for text in [relay, ROWS] {
        database.execute(text).await?;
    }
    let purge = start(&database, InboxPurge::new()).await?;
    // They come after the processed messages in each pass.
    database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM inbox_dead").await?;
    ensure!(database.number("SELECT COUNT(*) FROM inbox_processed").await? == 6, "they are the relay's");
    // A relay that restarts has no lease for a while. One that never comes back has its row deleted by an operator.
    database.execute("UPDATE outbox_leases SET lease_until = '2020-01-01' WHERE owner = 'a relay'").await?;
    database
        .execute(
            "INSERT INTO inbox_dead (consumer, message_id, topic, attempts, died_at, reason) \
                      VALUES ('a', 'again', 't', 1, '2020-01-01', 'refused')",
        )
        .await?;
    database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM inbox_dead").await?;
    ensure!(database.number("SELECT COUNT(*) FROM inbox_processed").await? == 6, "they are the relay's that restarts");
    database.execute("DELETE FROM outbox_leases WHERE owner = 'a relay'").await?;
    database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM inbox_processed").await?;
    purge.stop().await.map(drop)
}

async fn one_process_purges_and_another_takes_its_place(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute(OLD).await?;
    let first = start(&database, InboxPurge::new()).await?.reported(1).await?;
    let second = start(&database, InboxPurge::new()).await?;
    database.execute(OLD).await?;
    let first = first.reported(2).await?;
    ensure!(second.rows.load(Ordering::SeqCst) == 0, "two purge at the same time");
    ensure!(first.stop().await? == 2);
    database.execute(OLD).await?;
    let second = second.reported(1).await?;
    ensure!(second.stop().await? == 1);
    Ok(())
}

/// As a handler holds the key of its message, and `retry_dead` its message.
async fn what_a_transaction_holds_is_left_out(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute(ROWS).await?;
    let mut handler = database.connect().await?;
    let mut purge = database.session_of(Account::Consumer).await?;
    let mut tx = handler.begin().await?;
    for held in [
        "SELECT 1 FROM inbox_dead WHERE consumer = 'a' AND message_id = CAST('old 2' AS BINARY(16)) FOR UPDATE",
        "SELECT 1 FROM inbox_sequence WHERE consumer = 'a' AND topic = 't' AND message_key = 'k' FOR UPDATE",
    ] {
        raw_sql(held).execute(&mut *tx).await?;
    }
    let first = KeyPosition::default();
    let limit = 100;
    assert_eq!(purge::dead(&mut purge, HOUR, limit).await?, 4);
    assert_eq!(purge::sequences(&mut purge, HOUR, &first, limit).await?, (4, None));
    tx.rollback().await?;
    assert_eq!(purge::dead(&mut purge, HOUR, limit).await?, 1);
    assert_eq!(purge::sequences(&mut purge, HOUR, &first, limit).await?, (1, None));
    Ok(())
}

/// Otherwise the next message of the key would be processed before those.
async fn keys_of_a_consumer_that_keeps_refused_messages_stay(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute(ROWS).await?;
    database.execute("UPDATE inbox_dead SET reason = 'sequence' WHERE consumer = 'b' LIMIT 1").await?;
    let mut purge = database.session_of(Account::Consumer).await?;
    let mut at = KeyPosition::default();
    let mut deleted = 0;
    loop {
        let (rows, last) = purge::sequences(&mut purge, HOUR, &at, 2).await?;
        deleted += rows;
        match last {
            Some(last) => at = last,
            None => break,
        }
    }
    assert_eq!(deleted, 3);
    assert_eq!(database.number("SELECT COUNT(*) FROM inbox_sequence WHERE consumer = 'b'").await?, 4);
    Ok(())
}

async fn a_purged_key_begins_anew_and_no_earlier(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let inbox = Inbox::new("c")?;
    let mut consumer = database.connect_as(Account::Consumer).await?;
    let mut purge = database.session_of(Account::Consumer).await?;
    let mut follow = async |number: u64| {
        let mut tx = consumer.begin().await?;
        let seen = inbox.follow(&mut tx, "t", b"k", number).await?;
        tx.commit().await?;
        anyhow::Ok(seen)
    };
    // The first number, the next one and one behind a gap: each way to write the row notes the time.
    let age = "UPDATE inbox_sequence SET seen_at = '2020-01-01'";
    for number in [1, 2, 5] {
        follow(number).await?;
        assert_eq!(purge::sequences(&mut purge, HOUR, &KeyPosition::default(), 10).await?.0, 0, "{number}");
        database.execute(age).await?;
    }
    assert_eq!(follow(5).await?, Sequence::Repeated);
    database.execute(age).await?;
    assert_eq!(purge::sequences(&mut purge, HOUR, &KeyPosition::default(), 10).await?.0, 1);
    assert_eq!(follow(4).await?, Sequence::Next);
    Ok(())
}
