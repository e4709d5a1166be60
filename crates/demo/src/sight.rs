//! A snapshot for the screen: the shop, the tables of the outbox, the relays, the consumers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Result;
use outbox_core::{
    sqlx::{self, MySqlPool},
    store::operate::stats::{Stats, stats},
};
use testkit::judge::Consumed;

use crate::{
    consumers::Role,
    relays,
    tally::{Board, Intake, Sales, SalesCount},
};

/// One moment since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sight {
    pub(crate) at: Duration,
    pub(crate) sales: SalesCount,
    pub(crate) queue: Stats,
    pub(crate) relays: Vec<RelaySight>,
    pub(crate) consumers: Vec<ConsumerSight>,
}

/// A relay at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RelaySight {
    pub(crate) name: &'static str,
    /// Messages published since its start; `None` if it does not answer.
    pub(crate) published: Option<u64>,
    pub(crate) claims: Claims,
}

/// The claims of one relay, as the database has them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Claims {
    pub(crate) claims: u64,
    pub(crate) messages: u64,
    /// How long the lease that ends first is still valid.
    pub(crate) lease_left: Duration,
}

/// A consumer at one moment.
#[derive(Debug, Clone)]
pub(crate) struct ConsumerSight {
    pub(crate) role: Role,
    pub(crate) count: Consumed,
    /// Order to consumer, of the last two seconds: half of the messages, 99 % of them.
    pub(crate) latency: Option<(Duration, Duration)>,
}

impl ConsumerSight {
    /// Messages that came, duplicates among them.
    pub(crate) fn delivered(&self) -> u64 {
        self.count.first + self.count.duplicate
    }
}

/// Messages that a relay has published since its start; `None` if it does not answer.
pub(crate) fn published(sight: &Sight, index: usize) -> Option<u64> {
    sight.relays.get(index)?.published
}

/// Looks.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    pub(crate) pool: MySqlPool,
    pub(crate) board: Arc<Board>,
    pub(crate) sales: Arc<Sales>,
    pub(crate) intakes: Vec<Arc<Intake>>,
    pub(crate) relays: Vec<(&'static str, u16)>,
}

impl Viewer {
    pub(crate) async fn look(&self) -> Result<Sight> {
        let queue = stats(&mut *self.pool.acquire().await?).await?;
        let claims = claims(&self.pool).await?;
        let mut relays = Vec::new();
        for (name, port) in &self.relays {
            let metrics = relays::metrics(*port).await;
            let published = metrics.map(|it| relays::count(&it, "outbox_relay_published_messages_total"));
            relays.push(RelaySight { name, published, claims: claims.get(*name).copied().unwrap_or_default() });
        }
        let consumer = |it: &Arc<Intake>| ConsumerSight { role: it.role, count: it.count(), latency: it.latency() };
        let consumers = self.intakes.iter().map(consumer).collect();
        Ok(Sight { at: self.board.elapsed(), sales: self.sales.count(), queue, relays, consumers })
    }
}

/// The claims by the name of their owner. The relay adds a random suffix to the name that it was given.
pub(crate) async fn claims(pool: &MySqlPool) -> Result<HashMap<String, Claims>> {
    let sql = "SELECT SUBSTRING_INDEX(owner, '/', 1), COUNT(*), CAST(SUM(JSON_LENGTH(message_ids)) AS UNSIGNED), \
        MIN(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until)) FROM outbox_claims GROUP BY 1";
    let rows: Vec<(String, i64, u64, i64)> = sqlx::query_as(sql).fetch_all(pool).await?;
    let claims = |(owner, claims, messages, left): (String, i64, u64, i64)| {
        let lease_left = Duration::from_micros(u64::try_from(left).unwrap_or(0));
        (owner, Claims { claims: claims.unsigned_abs(), messages, lease_left })
    };
    Ok(rows.into_iter().map(claims).collect())
}

/// How many messages in a relay's claims have been processed by a consumer.
pub(crate) async fn delivered(pool: &MySqlPool, relay: &str) -> Result<u64> {
    let sql = "SELECT COUNT(*) FROM outbox_claimed_messages c JOIN outbox_messages m ON m.id = c.id \
        JOIN inbox_processed p ON p.message_id = m.message_id WHERE SUBSTRING_INDEX(c.owner, '/', 1) = ?";
    let count: i64 = sqlx::query_scalar(sql).bind(relay).fetch_one(pool).await?;
    Ok(count.unsigned_abs())
}
