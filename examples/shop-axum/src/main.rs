//! Takes orders over HTTP. An order and its message are written in one transaction.

use anyhow::{Context as _, Result};
use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use outbox_core::{
    Event, Outbox,
    sqlx::{self, MySqlPool, mysql::MySqlPoolOptions},
};
use serde::{Deserialize, Serialize};

const TABLES: &str = "CREATE TABLE IF NOT EXISTS customers (id BIGINT UNSIGNED PRIMARY KEY, \
                      orders BIGINT UNSIGNED NOT NULL); \
    CREATE TABLE IF NOT EXISTS orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, \
    customer BIGINT UNSIGNED NOT NULL, cents BIGINT UNSIGNED NOT NULL)";
/// The most that a customer may owe.
const LIMIT_CENTS: u64 = 100_000;

#[derive(Debug, Deserialize)]
struct Order {
    customer: u64,
    cents: u64,
}

#[derive(Debug, Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    id: u64,
    /// The events of one customer keep their order.
    #[event(key)]
    customer: u64,
    cents: u64,
}

/// `POST /orders`.
async fn place(
    State(pool): State<MySqlPool>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<OrderPlaced>), StatusCode> {
    let placed = write(&pool, &order).await.map_err(|error| {
        eprintln!("an order failed: {error:#}");
        StatusCode::INTERNAL_SERVER_ERROR
    })?;
    placed.map(|placed| (StatusCode::CREATED, Json(placed))).ok_or(StatusCode::UNPROCESSABLE_ENTITY)
}

/// Places an order and its message. `None`: the customer would owe too much, and nothing was written.
async fn write(pool: &MySqlPool, order: &Order) -> Result<Option<OrderPlaced>> {
    let mut tx = pool.begin().await?;
    // The customer's lock comes first, so that the messages of a customer are in the order of the commits.
    let lock = "INSERT INTO customers (id, orders) VALUES (?, 1) ON DUPLICATE KEY UPDATE orders = orders + 1";
    sqlx::query(lock).bind(order.customer).execute(&mut *tx).await?;
    let insert = "INSERT INTO orders (customer, cents) VALUES (?, ?)";
    let insert = sqlx::query(insert).bind(order.customer).bind(order.cents);
    let id = insert.execute(&mut *tx).await?.last_insert_id();
    let placed = OrderPlaced { id, customer: order.customer, cents: order.cents };
    Outbox::new().enqueue(&mut tx, &placed).await?;
    let owed = "SELECT CAST(SUM(cents) AS UNSIGNED) FROM orders WHERE customer = ?";
    let owed: u64 = sqlx::query_scalar(owed).bind(order.customer).fetch_one(&mut *tx).await?;
    if owed > LIMIT_CENTS {
        tx.rollback().await?;
        return Ok(None);
    }
    tx.commit().await?;
    Ok(Some(placed))
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    // The handler ends early if its client hangs up.
    let options = outbox_core::cancel_safe(MySqlPoolOptions::new());
    let pool = options.connect(&std::env::var("DATABASE_URL").context("set DATABASE_URL")?).await?;
    outbox_core::migrate(&mut *pool.acquire().await?).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let listen = std::env::var("LISTEN").unwrap_or_else(|_unset| "127.0.0.1:8080".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    let shop = Router::new().route("/orders", post(place)).with_state(pool);
    let interrupted = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    Ok(axum::serve(listener, shop).with_graceful_shutdown(interrupted).await?)
}
