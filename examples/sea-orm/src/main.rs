//! Messages in the transactions of SeaORM: `DATABASE_URL=mysql://… cargo run -p example-sea-orm`.
//!
//! Creates a table `orders`, places two orders, rolls one of them back, and counts the rows.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use anyhow::{Context as _, Result, ensure};
use outbox_core::{Bind, Event, IntoMessage, Outbox};
use sea_orm::{
    ActiveModelTrait as _, ActiveValue::Set, ConnectionTrait, Database, DatabaseTransaction, DbBackend,
    EntityTrait as _, PaginatorTrait as _, Statement, TransactionTrait as _, Value, entity::prelude::*,
};

mod order {
    use super::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub(super) struct Model {
        #[sea_orm(primary_key)]
        pub(super) id: u64,
        pub(super) cents: u64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order: u64,
    cents: u64,
}

/// Writes a message in the transaction of SeaORM.
async fn enqueue(tx: &DatabaseTransaction, message: impl IntoMessage) -> Result<()> {
    for statement in Outbox::new().prepare(message)?.statements {
        let values = statement.binds.into_iter().map(value).collect::<Result<Vec<_>>>()?;
        tx.execute_raw(Statement::from_sql_and_values(DbBackend::MySql, statement.sql, values)).await?;
    }
    Ok(())
}

fn value(bind: Bind) -> Result<Value> {
    Ok(match bind {
        Bind::Null => Value::Bytes(None),
        Bind::Bytes(bytes) => bytes.into(),
        Bind::Text(text) => text.into(),
        Bind::Unsigned(number) => number.into(),
        Bind::Signed(number) => number.into(),
        other => anyhow::bail!("no value for {other:?}"),
    })
}

/// Writes an order and its message in a transaction that the caller ends.
async fn place_order(tx: &DatabaseTransaction, cents: u64) -> Result<()> {
    let order = order::ActiveModel { cents: Set(cents), ..Default::default() }.insert(tx).await?;
    enqueue(tx, &OrderPlaced { order: order.id, cents }).await
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL to a database with the outbox tables")?;
    let database = Database::connect(url).await?;
    let table = "CREATE TABLE orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, cents BIGINT UNSIGNED NOT NULL)";
    database.execute_unprepared(table).await?;

    let tx = database.begin().await?;
    place_order(&tx, 995).await?;
    tx.commit().await?;

    let tx = database.begin().await?;
    place_order(&tx, 4_200).await?;
    tx.rollback().await?; // takes the message with it

    let orders = order::Entity::find().count(&database).await?;
    let count = Statement::from_string(DbBackend::MySql, "SELECT COUNT(*) AS n FROM outbox_pending");
    let row = database.query_one_raw(count).await?.context("a count has a row")?;
    let messages: i64 = row.try_get("", "n")?;
    ensure!((orders, messages) == (1, 1), "there are {orders} orders and {messages} messages");
    println!("1 order, 1 message");
    Ok(())
}
