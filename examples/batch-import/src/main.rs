//! Imports a file of orders: `DATABASE_URL=mysql://… cargo run -p batch-import -- orders.csv`.
//!
//! All rows and their messages are written in one transaction. If a line cannot be read, or the database refuses it,
//! nothing of the file is written.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
};

use anyhow::{Context as _, Error, Result, bail, ensure};
use outbox_core::{
    Event, Outbox,
    sqlx::{self, Connection as _, MySql, MySqlConnection, QueryBuilder},
};
use serde::Serialize;

/// The table of the example shop-axum.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
    customer BIGINT UNSIGNED NOT NULL, cents BIGINT UNSIGNED NOT NULL)";
const HEADER: &str = "id,customer,cents";
/// The lines that are written together: the file may be larger than the memory.
const CHUNK: usize = 1000;

#[derive(Debug, Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct Order {
    id: u64,
    #[event(key)]
    customer: u64,
    cents: u64,
}

/// Writes all orders of a file, each with its message. The caller commits or rolls back.
async fn import(tx: &mut MySqlConnection, file: impl BufRead) -> Result<usize> {
    let mut lines = (1..).zip(file.lines());
    let header = lines.next().map(|(_, line)| line).transpose()?.unwrap_or_default();
    ensure!(header == HEADER, "line 1 must be {HEADER}, not {header:?}");
    let mut written = 0;
    loop {
        let orders = lines.by_ref().take(CHUNK).map(order).collect::<Result<Vec<_>>>()?;
        if orders.is_empty() {
            return Ok(written);
        }
        let all = written + orders.len();
        write(tx, &orders).await.with_context(|| format!("lines {} to {}", written + 2, all + 1))?;
        written = all;
    }
}

/// Writes the rows, then their messages.
async fn write(tx: &mut MySqlConnection, orders: &[Order]) -> Result<()> {
    let mut rows = QueryBuilder::<MySql>::new("INSERT INTO orders (id, customer, cents) ");
    rows.push_values(orders, |mut row, order| {
        row.push_bind(order.id).push_bind(order.customer).push_bind(order.cents);
    });
    rows.build().execute(&mut *tx).await?;
    Outbox::new().enqueue_all(tx, orders).await?;
    Ok(())
}

/// A line with its number.
fn order((number, line): (usize, io::Result<String>)) -> Result<Order> {
    line.map_err(Error::from).and_then(|line| columns(&line)).with_context(|| format!("line {number}"))
}

fn columns(line: &str) -> Result<Order> {
    let columns: Vec<&str> = line.split(',').collect();
    let [id, customer, cents] = columns.as_slice() else {
        bail!("{HEADER} are 3 columns, and here are {}", columns.len());
    };
    Ok(Order {
        id: number(1, "id", id)?,
        customer: number(2, "customer", customer)?,
        cents: number(3, "cents", cents)?,
    })
}

fn number(column: usize, name: &str, text: &str) -> Result<u64> {
    text.parse::<u64>().with_context(|| format!("column {column} ({name}): {text:?} is not a whole number"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("name a file: batch-import orders.csv")?;
    let file = BufReader::new(File::open(&path).with_context(|| format!("{path} cannot be opened"))?);
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL")?;
    let mut connection = MySqlConnection::connect(&url).await?;
    outbox_core::migrate(&mut connection).await?;
    sqlx::query(TABLE).execute(&mut connection).await?;

    let mut tx = connection.begin().await?;
    match import(&mut tx, file).await {
        Ok(orders) => {
            tx.commit().await?;
            println!("{orders} orders, {orders} messages");
            Ok(())
        }
        Err(error) => {
            // If this fails too, the connection is lost, and the transaction with it.
            tx.rollback().await.ok();
            Err(error.context(format!("nothing of {path} was imported")))
        }
    }
}
