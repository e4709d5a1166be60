//! Which transactions may still commit a message with a small id.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use outbox_core::{
    Inbox, Message, Outbox, Uuid,
    sqlx::{self, Connection as _},
    store::claim::floor::{OldestWriter, oldest_writer, sample},
};
use testkit::{
    accounts::Account,
    clock::Clock,
    database::Database,
    on_both_databases,
    servers::{Flavor, MySqlOptions, PATIENCE, until},
};

on_both_databases!(
    an_open_transaction_that_has_enqueued_is_seen,
    the_question_is_answered_while_somebody_runs_a_statement_with_bytes,
    a_start_is_told_in_utc_in_whatever_zone_the_server_runs,
    a_start_in_the_hour_that_autumn_repeats_is_the_first_that_it_may_be,
);

async fn an_open_transaction_that_has_enqueued_is_seen(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut service = database.connect().await?;
    let mut relay = database.plain().await?;
    let before = sample(&mut relay).await?;
    let mut tx = service.begin().await?;
    Outbox::new().enqueue(&mut tx, Message::new("t", "")).await?;
    // Other tests write on the same server, so that the oldest writer may be older, but not younger; its time is in
    // seconds. The server may show a list that is a tenth of a second old.
    until(PATIENCE, "the writer to show", || async {
        let writer = oldest_writer(&mut database.session_of(Account::RelayWithProcess).await?).await?;
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
    let mut first = database.connect().await?;
    let mut second = database.plain().await?;
    let inbox = Inbox::new("c")?;
    let id = Uuid::now_v7();
    let mut first = first.begin().await?;
    assert_eq!(inbox.claim(&mut first, id).await?, outbox_core::Claim::First(()));
    let waits = tokio::spawn(async move {
        let mut second = second.begin().await?;
        anyhow::Ok(Inbox::new("c")?.claim(&mut second, id).await?)
    });
    // It waits for a lock in the middle of `INSERT … VALUES ('c', <16 bytes>)`.
    database.wait_for_lock_waits(flavor, 1).await?;
    let mut relay = database.session_of(Account::RelayWithProcess).await?;
    let mut answers = Vec::new();
    for _ in 0..5 {
        sqlx::raw_sql("DO SLEEP(0.15)").execute(&mut relay).await?;
        answers.push(oldest_writer(&mut relay).await?);
    }
    assert!(answers.iter().all(|answer| *answer != OldestWriter::None), "{answers:?}");
    first.rollback().await?;
    assert_eq!(waits.await??, outbox_core::Claim::First(()));
    Ok(())
}

/// Microseconds in which the start of a transaction may be told too early: whole seconds of a coarse clock, which is
/// behind by up to a tick of the kernel (10 ms).
const EARLY: i64 = 1_010_000;

/// Opens a transaction that enqueues, lets something happen, and waits until its start is told, at most [`EARLY`] too
/// early. A server that has just started has transactions of its own, which may be older.
async fn tell_a_start(url: &str, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    let database = Database::create_on(url).await?;
    let mut service = database.connect().await?;
    let mut relay = database.connect().await?;
    let before = sample(&mut relay).await?.at_micros;
    let mut tx = service.begin().await?;
    Outbox::new().enqueue(&mut tx, Message::new("t", "")).await?;
    let after = sample(&mut relay).await?.at_micros;
    meanwhile()?;
    let told = until(PATIENCE, "the writer to show", || async {
        match oldest_writer(&mut database.session_of(Account::RelayWithProcess).await?).await? {
            OldestWriter::Since(at) if before - at <= EARLY => Ok(at),
            OldestWriter::Since(at) => anyhow::bail!("told {} s early", (before - at) / 1_000_000),
            other => anyhow::bail!("{other:?}"),
        }
    })
    .await?;
    tx.rollback().await?;
    anyhow::ensure!(told <= after, "the start is told {} s late", (told - after) / 1_000_000);
    Ok(())
}

async fn a_start_is_told_in_utc_in_whatever_zone_the_server_runs(flavor: Flavor) -> Result<()> {
    for zone in ["Asia/Tokyo", "America/St_Johns", "Europe/Berlin"] {
        let server = MySqlOptions::new(flavor).buffer_pool_mib(64).zone(zone).start().await?;
        tell_a_start(&server.url(), || Ok(())).await.context(zone)?;
    }
    Ok(())
}

/// The transaction begins at a quarter past two; an hour later it is a quarter past two again.
async fn a_start_in_the_hour_that_autumn_repeats_is_the_first_that_it_may_be(flavor: Flavor) -> Result<()> {
    let clock = Clock::new()?;
    let first = SystemTime::UNIX_EPOCH + Duration::from_secs(1_792_887_300);
    clock.set(first)?;
    let options = MySqlOptions::new(flavor).buffer_pool_mib(64).zone("Europe/Berlin").clock(&clock);
    let server = options.start().await?;
    for later in [3_600, 3_900] {
        clock.set(first)?;
        // The server's own transactions begin after this one, by the clock on the wall, too.
        let set = Instant::now();
        let later = Duration::from_secs(later);
        tell_a_start(&server.url(), || clock.set(first + set.elapsed() + later))
            .await
            .with_context(|| format!("{later:?}"))?;
    }
    Ok(())
}
