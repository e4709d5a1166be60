//! Tests of the service with a database of their own, without broker and relay.

use std::env;

use anyhow::{Context as _, Result, ensure};
use example_sqlx_0_8::{TABLES, place_order, receive};
use outbox_core::{
    Uuid,
    test::{Drain, Fault},
};
use sqlx::{ConnectOptions as _, MySqlPool, mysql::MySqlConnectOptions};

/// A new database with the tables of service and outbox: a pool of sqlx 0.8, and one of sqlx 0.9 for `Drain`.
async fn database() -> Result<(MySqlPool, outbox_core::sqlx::MySqlPool)> {
    let url = env::var("DATABASE_URL").context("set DATABASE_URL to a server on which databases may be created")?;
    let options: MySqlConnectOptions = url.parse()?;
    let name = format!("test_{}", Uuid::now_v7().simple());
    sqlx::query(&format!("CREATE DATABASE {name}")).execute(&mut options.connect().await?).await?;
    let options = options.database(&name);
    let second = outbox_core::sqlx::MySqlPool::connect(options.to_url_lossy().as_str()).await?;
    outbox_core::migrate(&mut *second.acquire().await?).await?;
    let pool = MySqlPool::connect_with(options).await?;
    for table in TABLES {
        sqlx::query(table).execute(&pool).await?;
    }
    Ok((pool, second))
}

#[tokio::test]
async fn an_order_is_enqueued_with_its_row_and_billed_once() -> Result<()> {
    let (pool, second) = database().await?;
    let mut tx = pool.begin().await?;
    let id = place_order(&mut tx, 995).await?;
    // Texts of this table are bytes to sqlx.
    let topics: Vec<Vec<u8>> = sqlx::query_scalar("SELECT topic FROM outbox_messages").fetch_all(&mut *tx).await?;
    ensure!(topics == [b"orders"], "{topics:?}");
    tx.commit().await?;

    let mut tx = pool.begin().await?;
    place_order(&mut tx, 4_200).await?;
    tx.rollback().await?;

    let published = Drain::new().at(1, Fault::AcknowledgementLost).run(&second).await?;
    ensure!(published.iter().map(|message| message.message_id).eq([id, id]), "{published:?}");
    for message in published {
        let payload = message.contents.payload.unwrap_or_default();
        receive(&mut *pool.acquire().await?, id, &payload).await?;
    }
    let invoices: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM invoices").fetch_one(&pool).await?;
    let name: String = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&pool).await?;
    sqlx::query(&format!("DROP DATABASE {name}")).execute(&pool).await?;
    ensure!(invoices == 1, "{invoices} invoices");
    Ok(())
}
