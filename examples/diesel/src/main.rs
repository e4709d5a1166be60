//! Messages in the transactions of Diesel: `DATABASE_URL=mysql://… cargo run -p example-diesel`.
//!
//! Creates a table `orders`, places two orders, rolls one of them back, and counts the rows.
#![expect(clippy::print_stdout, reason = "it talks to a person")]
#![expect(missing_docs, reason = "Diesel's macros write modules and types without")]

use anyhow::{Context as _, Result, bail, ensure};
use diesel::{
    connection::SimpleConnection as _,
    prelude::*,
    sql_query,
    sql_types::{BigInt, Binary, Nullable, Text, Unsigned},
};
use outbox_core::{Bind, Event, IntoMessage, Outbox};

diesel::table! {
    orders (id) {
        id -> Unsigned<BigInt>,
        cents -> Unsigned<BigInt>,
    }
}

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order: u64,
    cents: u64,
}

/// Writes a message in the transaction of Diesel.
fn enqueue(connection: &mut MysqlConnection, message: impl IntoMessage) -> Result<()> {
    for statement in Outbox::new().prepare(message)?.statements {
        let mut query = sql_query(statement.sql).into_boxed();
        for bind in statement.binds {
            query = match bind {
                Bind::Null => query.bind::<Nullable<Binary>, _>(None::<Vec<u8>>),
                Bind::Bytes(bytes) => query.bind::<Binary, _>(bytes),
                Bind::Text(text) => query.bind::<Text, _>(text),
                Bind::Unsigned(number) => query.bind::<Unsigned<BigInt>, _>(number),
                Bind::Signed(number) => query.bind::<BigInt, _>(number),
                other => bail!("no value for {other:?}"),
            };
        }
        query.execute(connection)?;
    }
    Ok(())
}

/// Writes an order and its message in a transaction that the caller ends.
fn place_order(connection: &mut MysqlConnection, cents: u64) -> Result<()> {
    diesel::insert_into(orders::table).values(orders::cents.eq(cents)).execute(connection)?;
    let order = diesel::select(last_insert_id()).get_result(connection)?;
    enqueue(connection, &OrderPlaced { order, cents })
}

#[diesel::declare_sql_function]
extern "SQL" {
    fn last_insert_id() -> Unsigned<BigInt>;
}

fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL to a database with the outbox tables")?;
    let mut connection = MysqlConnection::establish(&url)?;
    let table = "CREATE TABLE orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, cents BIGINT UNSIGNED NOT NULL)";
    connection.batch_execute(table)?;

    connection.transaction(|connection| place_order(connection, 995))?;

    let refused: Result<()> = connection.transaction(|connection| {
        place_order(connection, 4_200)?;
        bail!("the customer has changed their mind") // takes the message with it
    });
    ensure!(refused.is_err(), "the second order was kept");

    let orders: i64 = orders::table.count().get_result(&mut connection)?;
    let messages: i64 = outbox_pending::table.count().get_result(&mut connection)?;
    ensure!((orders, messages) == (1, 1), "there are {orders} orders and {messages} messages");
    println!("1 order, 1 message");
    Ok(())
}

diesel::table! {
    outbox_pending (lane, id) {
        lane -> Unsigned<SmallInt>,
        id -> Unsigned<BigInt>,
    }
}
