//! The guard: a message and its effect are one transaction that nobody has to manage.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use outbox_core::{
    Claim, Inbox, InboxError, InboxTransaction, Message, Outbox, Uuid,
    sqlx::{self, MySqlPool, mysql::MySqlPoolOptions},
};
use testkit::{accounts::Account, database::Database, on_both_databases, servers::Flavor};
use tokio::{sync::Barrier, task::JoinSet};

on_both_databases!(
    concurrent_duplicates_that_are_admitted_have_one_effect,
    work_that_fails_leaves_nothing_and_may_come_again,
    a_guard_that_is_dropped_leaves_nothing_and_gives_no_open_transaction_to_the_pool,
    admitting_that_is_cancelled_leaves_nothing,
    a_transaction_that_the_server_has_ended_is_not_committed,
    messages_are_enqueued_in_the_transaction_of_the_one_that_causes_them,
    no_wait_for_a_locked_table_outlasts_a_consumers_deadline,
);

async fn pool(database: &Database, connections: u32) -> Result<MySqlPool> {
    let options = MySqlPoolOptions::new().max_connections(connections);
    Ok(committing(options).connect(&database.url_as(Account::Owner)?).await?)
}

/// Connections whose statements are transactions, whatever the server's default is.
pub(crate) fn committing(options: MySqlPoolOptions) -> MySqlPoolOptions {
    options.after_connect(|connection, _| {
        Box::pin(async { sqlx::raw_sql("SET SESSION autocommit = 1").execute(connection).await.map(drop) })
    })
}

async fn apply(tx: &mut InboxTransaction, id: Uuid) -> Result<()> {
    let sql = "INSERT INTO test_effects (message_id) VALUES (?)";
    sqlx::query(sql).bind(id.as_bytes().as_slice()).execute(&mut **tx).await?;
    Ok(())
}

async fn first(inbox: &Inbox, pool: &MySqlPool, id: Uuid) -> Result<InboxTransaction> {
    match inbox.admit(pool, id).await? {
        Claim::First(tx) => Ok(tx),
        Claim::Duplicate => bail!("it was taken for a duplicate"),
    }
}

async fn process(inbox: &Inbox, pool: &MySqlPool, id: Uuid) -> Result<bool> {
    let Claim::First(mut tx) = inbox.admit(pool, id).await? else { return Ok(false) };
    apply(&mut tx, id).await?;
    tx.commit().await?;
    Ok(true)
}

async fn concurrent_duplicates_that_are_admitted_have_one_effect(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let pool = pool(&database, 8).await?;
    let inbox = Inbox::new("c")?;
    let ids: Arc<[Uuid]> = (0..20).map(|_| Uuid::now_v7()).collect();
    let barrier = Arc::new(Barrier::new(8));
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let ids = Arc::clone(&ids);
        let barrier = Arc::clone(&barrier);
        let pool = pool.clone();
        let inbox = inbox.clone();
        workers.spawn(async move {
            let mut firsts = 0;
            for id in ids.iter() {
                barrier.wait().await;
                firsts += usize::from(process(&inbox, &pool, *id).await?);
            }
            anyhow::Ok(firsts)
        });
    }
    let mut firsts = 0;
    // The first error ends the others: they would wait at the barrier for ever.
    while let Some(counted) = workers.join_next().await {
        firsts += counted??;
    }
    assert_eq!(firsts, ids.len());
    assert_eq!(database.tables().await?.effects, ids.iter().map(|id| (*id, 1)).collect());
    Ok(())
}

async fn work_that_fails_leaves_nothing_and_may_come_again(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let pool = pool(&database, 1).await?;
    let inbox = Inbox::new("c")?;
    let id = Uuid::now_v7();
    let mut tx = first(&inbox, &pool, id).await?;
    apply(&mut tx, id).await?;
    tx.rollback().await?;
    assert!(database.tables().await?.effects.is_empty());
    assert!(process(&inbox, &pool, id).await?);
    assert!(!process(&inbox, &pool, id).await?);
    assert_eq!(database.tables().await?.effects, [(id, 1)].into());
    Ok(())
}

/// The pool has one connection: what the dropped guard leaves on it would be what the next user meets.
async fn a_guard_that_is_dropped_leaves_nothing_and_gives_no_open_transaction_to_the_pool(
    flavor: Flavor,
) -> Result<()> {
    let database = Database::create(flavor).await?;
    let pool = pool(&database, 1).await?;
    let inbox = Inbox::new("c")?;
    let id = Uuid::now_v7();
    let mut tx = first(&inbox, &pool, id).await?;
    apply(&mut tx, id).await?;
    drop(tx);
    sqlx::query("INSERT INTO test_keys (id, sequence) VALUES (7, 1)").execute(&pool).await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM test_keys").await?, 1, "the next user's write is committed");
    assert!(process(&inbox, &pool, id).await?);
    assert_eq!(database.tables().await?.effects, [(id, 1)].into());
    Ok(())
}

async fn admitting_that_is_cancelled_leaves_nothing(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let holders = pool(&database, 1).await?;
    let pool = pool(&database, 1).await?;
    let inbox = Inbox::new("c")?;
    let id = Uuid::now_v7();
    let holder = first(&inbox, &holders, id).await?;
    tokio::select! {
        admission = inbox.admit(&pool, id) => bail!("it did not wait for the first: {admission:?}"),
        waits = database.wait_for_lock_waits(flavor, 1) => waits?,
    }
    sqlx::query("INSERT INTO test_keys (id, sequence) VALUES (7, 1)").execute(&pool).await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM test_keys").await?, 1, "the next user's write is committed");
    holder.rollback().await?;
    assert!(process(&inbox, &pool, id).await.context("after the cancelled one")?);
    Ok(())
}

/// As after a deadlock whose error the work swallowed.
async fn a_transaction_that_the_server_has_ended_is_not_committed(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let pool = pool(&database, 1).await?;
    let inbox = Inbox::new("c")?;
    let id = Uuid::now_v7();
    let mut tx = first(&inbox, &pool, id).await?;
    sqlx::raw_sql("ROLLBACK").execute(&mut *tx).await?;
    let refused = tx.commit().await;
    assert!(matches!(refused, Err(InboxError::TransactionEnded)), "{refused:?}");
    assert!(process(&inbox, &pool, id).await?);
    Ok(())
}

async fn messages_are_enqueued_in_the_transaction_of_the_one_that_causes_them(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let pool = pool(&database, 1).await?;
    let inbox = Inbox::new("c")?;
    let id = Uuid::now_v7();
    let mut tx = first(&inbox, &pool, id).await?;
    Outbox::new().enqueue(&mut tx, Message::new("t", "rolled back")).await?;
    tx.rollback().await?;
    let mut tx = first(&inbox, &pool, id).await?;
    let caused = Outbox::new().enqueue(&mut tx, Message::new("t", "committed")).await?;
    tx.commit().await?;
    assert_eq!(database.tables().await?.messages, [caused].into());
    Ok(())
}

/// The server goes on waiting when the consumer has given up and left: each try would cost a connection.
async fn no_wait_for_a_locked_table_outlasts_a_consumers_deadline(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let pool = pool(&database, 1).await?;
    let inbox = Inbox::new("c")?;
    for (own, seconds) in [(1000, 50), (7, 7)] {
        sqlx::query("SET SESSION lock_wait_timeout = ?").bind(own).execute(&pool).await?;
        let mut tx = first(&inbox, &pool, Uuid::now_v7()).await?;
        let found: u64 = sqlx::query_scalar("SELECT @@SESSION.lock_wait_timeout").fetch_one(&mut *tx).await?;
        assert_eq!(found, seconds);
        tx.commit().await?;
    }
    Ok(())
}
