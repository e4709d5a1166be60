//! Messages in the transactions of sqlx 0.8: `DATABASE_URL=mysql://… cargo run -p example-sqlx-0-8`.
//!
//! Places two orders, of which one is rolled back. Receives the message of the other twice, and bills it once.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use anyhow::{Context as _, Result, ensure};
use example_sqlx_0_8::{TABLES, place_order, receive};
use sqlx::{Connection as _, MySqlConnection};

async fn count(connection: &mut MySqlConnection, table: &str) -> Result<i64> {
    Ok(sqlx::query_scalar(&format!("SELECT COUNT(*) FROM {table}")).fetch_one(connection).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL to a database with the outbox tables")?;
    let mut connection = MySqlConnection::connect(&url).await?;
    for table in TABLES {
        sqlx::query(table).execute(&mut connection).await?;
    }

    let mut tx = connection.begin().await?;
    let id = place_order(&mut tx, 995).await?;
    tx.commit().await?;

    let mut tx = connection.begin().await?;
    place_order(&mut tx, 4_200).await?;
    tx.rollback().await?; // takes the message with it

    // In place of a relay and a broker, which may deliver a message twice.
    let sql = "SELECT payload FROM outbox_messages WHERE message_id = ?";
    let payload: Vec<u8> = sqlx::query_scalar(sql).bind(id.as_bytes().as_slice()).fetch_one(&mut connection).await?;
    for _ in 0..2 {
        receive(&mut connection, id, &payload).await?;
    }

    for table in ["orders", "outbox_pending", "invoices"] {
        let rows = count(&mut connection, table).await?;
        ensure!(rows == 1, "{table} has {rows} rows");
    }
    println!("1 order, 1 message, 1 invoice");
    Ok(connection.close().await?)
}
