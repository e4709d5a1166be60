//! Calls that are cancelled half-way harm nobody who gets their connection afterwards.

use std::{
    future::poll_fn,
    pin::pin,
    sync::atomic::{AtomicU32, Ordering},
    task::Poll,
    time::Duration,
};

use anyhow::{Result, ensure};
use outbox_core::{
    Message, Outbox, cancel_safe, check_returned,
    sqlx::{self, MySqlPool, mysql::MySqlPoolOptions},
};
use testkit::{accounts::Account, database::Database, on_both_databases, servers::Flavor};

use crate::admit::committing;

on_both_databases!(
    a_transaction_that_comes_back_open_is_rolled_back,
    a_pool_with_hooks_of_its_own_can_check_what_comes_back,
    calls_that_are_cancelled_cost_no_connection,
);

async fn pool(database: &Database) -> Result<MySqlPool> {
    let options = MySqlPoolOptions::new().max_connections(2).acquire_timeout(Duration::from_secs(30));
    Ok(committing(cancel_safe(options)).connect(&database.url_as(Account::Owner)?).await?)
}

/// As a cancelled `begin` leaves one.
async fn a_transaction_that_comes_back_open_is_rolled_back(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let pool = pool(&database).await?;
    let mut borrowed = pool.acquire().await?;
    sqlx::raw_sql("BEGIN").execute(&mut *borrowed).await?;
    drop(borrowed);
    let insert = "INSERT INTO test_effects (message_id) VALUES (REPEAT('x', 16))";
    let mut both = [pool.acquire().await?, pool.acquire().await?];
    for connection in &mut both {
        sqlx::query(insert).execute(&mut **connection).await?;
    }
    ensure!(
        database.number("SELECT COUNT(*) FROM test_effects").await? == 2,
        "a write is in a transaction of somebody else"
    );
    Ok(())
}

async fn a_pool_with_hooks_of_its_own_can_check_what_comes_back(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let options = MySqlPoolOptions::new().max_connections(1).after_release(|connection, _| {
        Box::pin(async move {
            check_returned(connection).await?;
            sqlx::raw_sql("SET @came_back = 1").execute(connection).await?;
            Ok(true)
        })
    });
    let pool = options.connect(&database.url_as(Account::Owner)?).await?;
    let mut borrowed = pool.acquire().await?;
    let insert = "INSERT INTO test_effects (message_id) VALUES (REPEAT('x', 16))";
    sqlx::raw_sql("BEGIN").execute(&mut *borrowed).await?;
    sqlx::query(insert).execute(&mut *borrowed).await?;
    drop(borrowed);
    let came_back: Option<i64> = sqlx::query_scalar("SELECT @came_back").fetch_one(&pool).await?;
    ensure!(came_back == Some(1), "another connection was made");
    ensure!(database.number("SELECT COUNT(*) FROM test_effects").await? == 0, "the transaction went on");
    Ok(())
}

/// Polls a future so many times, and drops it.
async fn cancelled_after(polls: u32, future: impl Future) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        left = left.saturating_sub(1);
        if future.as_mut().poll(context).is_ready() || left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn calls_that_are_cancelled_cost_no_connection(flavor: Flavor) -> Result<()> {
    // Connections come back on tasks of sqlx, whose panics nobody else would see.
    static PANICS: AtomicU32 = AtomicU32::new(0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // Other tests of this program panic on purpose, or because they fail.
        let is_of_a_test = panic.location().is_some_and(|place| place.file().contains("tests"));
        PANICS.fetch_add(u32::from(!is_of_a_test), Ordering::Relaxed);
        hook(panic);
    }));
    let database = Database::create(flavor).await?;
    let pool = pool(&database).await?;
    for polls in 1..200 {
        let handler = async {
            let mut tx = pool.begin().await?;
            Outbox::new().enqueue(&mut tx, Message::new("orders", "x")).await?;
            // Prepared each time: the reply has several parts, between which the call can be cancelled.
            let sql = sqlx::query_scalar::<_, i64>("SELECT ? + 1").bind(polls).persistent(false);
            ensure!(sql.fetch_one(&mut *tx).await? == i64::from(polls) + 1);
            Ok(tx.commit().await?)
        };
        cancelled_after(1 + polls % 20, handler).await;
    }
    for polls in 1..200 {
        // Without a transaction, and prepared on each connection anew: what is left unread looks like a result set.
        let cold = sqlx::query_scalar::<_, i64>("SELECT ? + ?").bind(polls).bind(1).persistent(false);
        cancelled_after(1 + polls % 6, cold.fetch_one(&pool)).await;
    }
    for number in 0..20 {
        let mut both = [pool.acquire().await?, pool.acquire().await?];
        for connection in &mut both {
            let read: i64 = sqlx::query_scalar("SELECT ? + 0").bind(number).fetch_one(&mut **connection).await?;
            ensure!(read == number, "it reads the reply to another question");
        }
    }
    let panics = PANICS.load(Ordering::Relaxed);
    ensure!(panics == 0, "{panics} connections panicked when they came back");
    Ok(())
}
