//! The shop and the billing service, without broker and relay. `#[sqlx::test]` gives each test a database with the
//! tables of the service.

use anyhow::Result;
use outbox_consumer::{Delivery, Handler as _};
use outbox_core::{
    Claim, Inbox, assert_enqueued, refute_enqueued,
    test::{Drain, Fault, Published},
};
use serde_json::json;
use sqlx::MySqlPool;
use tested_service::{Billing, place};

/// A consumer without broker: the inbox, the handler and the commit.
async fn bill(pool: &MySqlPool, message: Published) -> Result<()> {
    let mut tx = pool.begin().await?;
    if Inbox::new("billing")?.claim(&mut tx, message.message_id).await? == Claim::First(()) {
        let delivery = Delivery::new(message.message_id, message.contents);
        Billing.handle(&mut tx, &delivery).await?;
    }
    Ok(tx.commit().await?)
}

#[sqlx::test]
async fn an_order_is_enqueued_with_its_row(pool: MySqlPool) -> Result<()> {
    outbox_core::migrate(&mut *pool.acquire().await?).await?;
    let mut tx = pool.begin().await?;
    let id = place(&mut tx, 1200).await?;
    assert_enqueued!(&mut tx, topic = "orders", key = id.to_string(), json = json!({ "id": id, "cents": 1200 }));
    refute_enqueued!(&mut tx, topic = "refunds");
    Ok(tx.rollback().await?)
}

#[sqlx::test]
async fn an_order_is_billed_once_whatever_goes_wrong(pool: MySqlPool) -> Result<()> {
    outbox_core::migrate(&mut *pool.acquire().await?).await?;
    let faults = [(Fault::PublishFails, 2), (Fault::AcknowledgementLost, 3), (Fault::LeaseLost, 3), (Fault::Crash, 3)];
    for (fault, arrivals) in faults {
        let mut tx = pool.begin().await?;
        let orders = [place(&mut tx, 1200).await?, place(&mut tx, 500).await?];
        tx.commit().await?;
        let published = Drain::new().at(1, fault).run(&pool).await?;
        assert_eq!(published.len(), arrivals, "{fault:?}");
        for message in published {
            bill(&pool, message).await?;
        }
        let billed = "SELECT order_id FROM invoices WHERE order_id >= ? ORDER BY order_id";
        let billed: Vec<u64> = sqlx::query_scalar(billed).bind(orders[0]).fetch_all(&pool).await?;
        assert_eq!(billed, orders, "{fault:?}");
    }
    Ok(())
}
