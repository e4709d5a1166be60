//! The order service: what sending looks like.

use std::time::Duration;

use anyhow::Result;
use outbox_core::{Outbox, sqlx::MySqlPool};

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    events::{Order, OrderPlaced, ReceiptDue},
    tables::{self, CUSTOMERS},
    tally::Sales,
};

/// Every tenth payment is declined.
const DECLINED: u64 = 10;
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);

/// The order service.
#[derive(Debug, Clone)]
pub(crate) struct OrderService {
    pub(crate) pool: MySqlPool,
    pub(crate) outbox: Outbox,
    pub(crate) to_kafka: bool,
    pub(crate) to_rabbitmq: bool,
}

impl OrderService {
    /// Places an order: its row and its messages are written in one transaction, so both are there or neither.
    /// None: the payment was declined, and nothing is left.
    async fn place(&self, customer: u64, amount_cents: u64, declined: bool) -> Result<Option<Order>> {
        let mut tx = self.pool.begin().await?;
        let order = tables::insert_order(&mut tx, customer, amount_cents).await?;
        if self.to_kafka {
            self.outbox.enqueue(&mut tx, &OrderPlaced(order)).await?;
        }
        if self.to_rabbitmq {
            self.outbox.enqueue(&mut tx, &ReceiptDue(order)).await?;
        }
        if declined {
            tx.rollback().await?;
            return Ok(None);
        }
        tx.commit().await?;
        Ok(Some(order))
    }

    /// Places orders until told to stop: the n-th is due at `start + n / rate`, however long the ones before took.
    pub(crate) async fn sell(self, sales: &Sales, rate: u32, start: Instant, stop: CancellationToken) {
        while let Some(ticket) = wait_for_ticket(sales, rate, start, &stop).await {
            let (customer, amount_cents) = (ticket % CUSTOMERS + 1, 100 + ticket * 37 % 20_000);
            match self.place(customer, amount_cents, ticket % DECLINED == DECLINED - 1).await {
                Ok(Some(order)) => sales.committed(order.id),
                Ok(None) => sales.rolled_back(),
                Err(error) => {
                    sales.failed(&error);
                    sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }
}

/// The number of the next order, when it is due; none when it is time to stop.
async fn wait_for_ticket(sales: &Sales, rate: u32, start: Instant, stop: &CancellationToken) -> Option<u64> {
    let ticket = sales.next_ticket();
    let due = start + Duration::from_nanos(ticket * 1_000_000_000 / u64::from(rate.max(1)));
    stop.run_until_cancelled(sleep_until(due)).await.map(|()| ticket)
}
