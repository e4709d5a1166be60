//! The order service: an order and the messages about it in one transaction.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::Result;
use outbox_core::{
    Message, Outbox,
    sqlx::{self, MySqlPool},
};
use serde::Serialize;
use tokio::{task::JoinSet, time::Instant};

use crate::{Options, tally::Tally};

/// Services that place orders at the same time.
const TILLS: u32 = 4;
/// Customers: the keys whose order counts.
const CUSTOMERS: u64 = 200;
/// Mail is in a lane of its own: a mail server that is down must not hold up orders.
const MAIL_LANE: u16 = 1;

#[derive(Serialize)]
struct OrderPlaced {
    order: u64,
    customer: u64,
    cents: u64,
}

pub(crate) fn orders_topic(run: &str) -> String {
    format!("demo-orders-{run}")
}

pub(crate) fn mail_topic(run: &str) -> String {
    format!("mail.demo-{run}")
}

/// Places orders at an even rate; every tenth is rolled back.
pub(crate) async fn place_orders(options: Options, run: String, pool: MySqlPool, tally: Arc<Tally>) -> Result<()> {
    let mut tills = JoinSet::new();
    for till in 0..TILLS {
        tills.spawn(till_open(till, options.clone(), run.clone(), pool.clone(), tally.clone()));
    }
    while let Some(till) = tills.join_next().await {
        till??;
    }
    Ok(())
}

async fn till_open(till: u32, options: Options, run: String, pool: MySqlPool, tally: Arc<Tally>) -> Result<()> {
    let pause = Duration::from_secs(1) * TILLS / options.rate.max(1);
    let start = Instant::now() + pause * till / TILLS;
    let orders = u32::try_from(options.seconds)? * options.rate / TILLS;
    for number in 0..orders {
        tokio::time::sleep_until(start + pause * number).await;
        let commit = rand::random_ratio(9, 10);
        place_order(&options, &run, &pool, commit).await?;
        let count = if commit { &tally.committed } else { &tally.rolled_back };
        count.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// This is what a service has to do: the messages go into the transaction of the order.
async fn place_order(options: &Options, run: &str, pool: &MySqlPool, commit: bool) -> Result<()> {
    let (customer, cents) = (rand::random_range(0..CUSTOMERS), rand::random_range(100..100_000));
    let outbox = Outbox::new();
    let mut tx = pool.begin().await?;
    let insert = sqlx::query("INSERT INTO orders (customer, cents) VALUES (?, ?)").bind(customer).bind(cents);
    let order = insert.execute(&mut *tx).await?.last_insert_id();
    let placed = OrderPlaced { order, customer, cents };
    if options.broker.kafka() {
        let message = Message::json(orders_topic(run), &placed)?.key(customer.to_string()).event_type("order.placed");
        outbox.enqueue(&mut tx, message).await?;
    }
    if options.broker.rabbitmq() {
        let message = Message::json(mail_topic(run), &placed)?.key(customer.to_string()).lane(MAIL_LANE);
        outbox.enqueue(&mut tx, message).await?;
    }
    if commit {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    Ok(())
}
