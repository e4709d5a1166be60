//! What is not a message's fault.

use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox_consumer::Failure;
use outbox_core::sqlx;
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    a_connection_that_the_server_has_closed_for_its_silence_is_not_a_messages_fault,
    a_full_table_is_not_a_messages_fault,
);

async fn a_connection_that_the_server_has_closed_for_its_silence_is_not_a_messages_fault(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut silent = database.connect().await?;
    let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut silent).await?;
    sqlx::raw_sql("SET SESSION wait_timeout = 1").execute(&mut silent).await?;
    let closed = format!("SELECT COUNT(*) = 0 FROM information_schema.processlist WHERE id = {id}");
    database.wait_for(Duration::from_secs(60), &closed).await?;
    let error = sqlx::raw_sql("DO 1").execute(&mut silent).await.err().context("the connection lives")?;
    let text = format!("{error:?}");
    assert!(Failure::from(error).is_passing(), "{text}");
    Ok(())
}

/// As where the disk is full.
async fn a_full_table_is_not_a_messages_fault(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let small = "SET SESSION max_heap_table_size = 16384; CREATE TABLE small (text CHAR(200)) ENGINE = MEMORY";
    sqlx::raw_sql(small).execute(&mut connection).await?;
    let full = loop {
        if let Err(error) = sqlx::raw_sql("INSERT INTO small VALUES ('x')").execute(&mut connection).await {
            break error;
        }
    };
    assert_eq!(outbox_core::store::error_number(&full), Some(1114), "{full}");
    assert!(Failure::from(full).is_passing());
    Ok(())
}
