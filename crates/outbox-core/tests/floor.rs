//! Which transactions may still commit a message with a small id.

use std::time::Duration;

use anyhow::Result;
use outbox_core::{
    Inbox, Message, Outbox, Uuid,
    sqlx::{self, Connection as _},
    store::floor::{OldestWriter, oldest_writer, sample},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    an_open_transaction_that_has_enqueued_is_seen,
    the_question_is_answered_while_somebody_runs_a_statement_with_bytes,
);

async fn an_open_transaction_that_has_enqueued_is_seen(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let (mut service, mut relay) = (database.connect().await?, database.connect().await?);
    let before = sample(&mut relay).await?;
    let mut tx = service.begin().await?;
    Outbox::new().enqueue(&mut tx, Message::new("t", "")).await?;
    // Other tests write on the same server, so that the oldest writer may be older, but not younger; its time is in seconds.
    // The server may show a list that is a tenth of a second old.
    testkit::servers::until(Duration::from_secs(10), "the writer to show", || async {
        let writer = oldest_writer(&mut database.connect().await?).await?;
        let latest = before.at_micros + 60_000_000;
        anyhow::ensure!(
            matches!(writer, OldestWriter::Since(at) if at < latest) || writer == OldestWriter::Unknown,
            "{writer:?}"
        );
        Ok(())
    })
    .await?;
    tx.commit().await?;
    assert!(sample(&mut relay).await?.max_id > before.max_id);
    Ok(())
}

async fn the_question_is_answered_while_somebody_runs_a_statement_with_bytes(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let (mut first, mut second) = (database.connect().await?, database.connect().await?);
    let (inbox, id) = (Inbox::new("c")?, Uuid::now_v7());
    let mut first = first.begin().await?;
    assert_eq!(inbox.claim(&mut first, id).await?, outbox_core::Claim::First);
    let waits = tokio::spawn(async move {
        let mut second = second.begin().await?;
        anyhow::Ok(Inbox::new("c")?.claim(&mut second, id).await?)
    });
    // It waits for a lock in the middle of `INSERT … VALUES ('c', <16 bytes>)`.
    database.wait_for_lock_waits(flavor, 1).await?;
    let mut relay = database.connect().await?;
    let mut answers = Vec::new();
    for _ in 0..5 {
        sqlx::raw_sql("DO SLEEP(0.15)").execute(&mut relay).await?;
        answers.push(oldest_writer(&mut relay).await?);
    }
    assert!(answers.iter().all(|answer| *answer != OldestWriter::None), "{answers:?}");
    first.rollback().await?;
    assert_eq!(waits.await??, outbox_core::Claim::First);
    Ok(())
}
