//! What is not a message's fault.

use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox_consumer::Failure;
use outbox_core::sqlx::{self, Connection as _, MySqlConnection};
use testkit::{
    accounts::Account,
    consume::{Broker, Sending, Topic},
    database::Database,
    on_both_databases,
    servers::{Flavor, MySql},
};

use crate::stage::{Does, Stage, messages};

on_both_databases!(
    a_connection_that_the_server_has_closed_for_its_silence_is_not_a_messages_fault,
    a_full_table_is_not_a_messages_fault,
    a_killed_statement_is_not_a_messages_fault_and_a_connection_that_ends_again_and_again_is,
);

async fn a_killed_statement_is_not_a_messages_fault_and_a_connection_that_ends_again_and_again_is(
    flavor: Flavor,
) -> Result<()> {
    let topic = Topic::create(Broker::RabbitMq).await?;
    let stage = Stage::on(Database::create(flavor).await?, topic).await?;
    let does = Does::work();
    let consumer = stage.consume(&does)?;
    let killed = messages(4, 4, "killed");
    stage.topic.send(&killed).await?;
    stage.wait_for(killed.len()).await?;
    let lost = Sending::new("key 0", "hangs up");
    let fine = messages(2, 1, "ok");
    stage.topic.send(&[std::slice::from_ref(&lost), fine.as_slice()].concat()).await?;
    stage.wait_for(7).await?;
    stage.assert_once_and_in_order(&[killed, fine].concat()).await?;
    // Five losses are free, and each further one spends one of three attempts.
    assert_eq!(does.tries(lost.id.context("no id")?), 8);
    let told = "SELECT COUNT(*) FROM inbox_dead WHERE attempts = 3 AND reason = 'attempts' \
                AND error LIKE '%ended 8 times in a row at this message%'";
    assert_eq!(stage.database.number(told).await?, 1);
    consumer.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_offline_is_not_a_messages_fault() -> Result<()> {
    let server = MySql::start(Flavor::MySql).await?;
    let database = Database::create_on(&server.url()).await?;
    let url = database.url_as(Account::Service)?;
    database.execute("SET GLOBAL offline_mode = ON").await?;
    let error = MySqlConnection::connect(&url).await.err().context("it lets the account in")?;
    let text = format!("{error:?}");
    assert!(Failure::from(error).is_passing(), "{text}");
    Ok(())
}

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
