//! The order service: what sending looks like.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Result;
use outbox_core::{Outbox, sqlx::MySqlPool};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    events::{OrderPlaced, ReceiptDue},
    tables::{self, CUSTOMERS},
    tally::{Sales, draft},
};

/// Every tenth payment is declined.
const DECLINED: u64 = 10;
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);

/// The order service.
#[derive(Debug, Clone)]
pub(crate) struct OrderService {
    pub(crate) pool: MySqlPool,
    pub(crate) outbox: Outbox,
    pub(crate) sales: Arc<Sales>,
    /// Whether orders go to Kafka.
    pub(crate) kafka: bool,
    /// Whether receipts go to RabbitMQ.
    pub(crate) rabbitmq: bool,
}

impl OrderService {
    /// Places an order: its row and its messages are written in one transaction, so both are there or neither.
    /// Returns whether it was paid: a declined order leaves nothing. What is to arrive is in the ledger before the
    /// commit.
    async fn place(&self, customer: u64, amount_cents: u64, declined: bool) -> Result<bool> {
        let mut tx = self.pool.begin().await?;
        let order = tables::insert_order(&mut tx, customer, amount_cents, now()).await?;
        let mut drafts = Vec::new();
        if self.kafka {
            let event = OrderPlaced(order);
            let id = self.outbox.enqueue(&mut tx, &event).await?;
            drafts.push(draft(id, &event, order.number)?);
        }
        if self.rabbitmq {
            let event = ReceiptDue(order);
            let id = self.outbox.enqueue(&mut tx, &event).await?;
            drafts.push(draft(id, &event, order.number)?);
        }
        let entry = self.sales.open(order.id, &drafts);
        if declined {
            tx.rollback().await?;
            entry.rolled_back();
        } else {
            tx.commit().await?;
            entry.committed();
        }
        Ok(!declined)
    }

    /// Places orders until told to stop: the n-th is due at `start + n / rate`, however long the ones before took.
    pub(crate) async fn sell(self, rate: u32, start: Instant, stop: CancellationToken) {
        loop {
            let ticket = self.sales.next_ticket();
            let due = start + Duration::from_nanos(ticket * 1_000_000_000 / u64::from(rate.max(1)));
            if stop.run_until_cancelled(sleep_until(due)).await.is_none() {
                return;
            }
            let customer = ticket % CUSTOMERS + 1;
            let amount_cents = 100 + ticket * 37 % 20_000;
            let placed = self.place(customer, amount_cents, ticket % DECLINED == DECLINED - 1).await;
            let failed = placed.is_err();
            self.sales.ended(placed);
            if failed {
                sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

/// Microseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
