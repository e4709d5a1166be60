//! What there is to see at one moment: the shop, the tables of the outbox, the relays.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Result;
use outbox_core::{
    sqlx::{self, MySqlPool},
    store::stats::{Stats, stats},
};

use crate::{
    consumers::Role,
    metrics::Metrics,
    tally::{Board, Intake, IntakeCount, Sales, SalesCount},
};

/// A relay to look at: its name, which is the `relay.owner` of its configuration, and where its listener is.
pub(crate) type RelayAddress = (String, SocketAddr);

/// One moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sight {
    /// Since the start.
    pub(crate) at: Duration,
    /// Orders so far.
    pub(crate) sales: SalesCount,
    /// The queue.
    pub(crate) queue: Stats,
    /// The relays, in a fixed order.
    pub(crate) relays: Vec<RelaySight>,
    /// The consumers, in a fixed order.
    pub(crate) consumers: Vec<ConsumerSight>,
}

/// A relay at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RelaySight {
    /// Its name.
    pub(crate) name: String,
    /// What it says of itself; none: it does not answer.
    pub(crate) metrics: Option<RelayMetrics>,
    /// What the database says of it.
    pub(crate) claims: Claims,
}

/// What a relay says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RelayMetrics {
    /// Messages that it has claimed and of which nothing is known yet.
    pub(crate) in_flight: u64,
    /// Messages published since its start.
    pub(crate) published: u64,
}

/// The claims of one relay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// How many.
    pub(crate) claims: u64,
    /// Of how many messages.
    pub(crate) messages: u64,
    /// How long the lease that ends first is still valid.
    pub(crate) lease_left: Duration,
}

/// A consumer at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumerSight {
    /// Who.
    pub(crate) role: Role,
    /// Its counts so far.
    pub(crate) count: IntakeCount,
    /// Commit to consumer, of the last two seconds: half of the messages, 99 % of them.
    pub(crate) latency: Option<(Duration, Duration)>,
}

/// Looks.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    pub(crate) pool: MySqlPool,
    pub(crate) board: Arc<Board>,
    pub(crate) sales: Arc<Sales>,
    pub(crate) intakes: Vec<(Role, Arc<Intake>)>,
    pub(crate) relays: Vec<RelayAddress>,
}

impl Viewer {
    pub(crate) async fn look(&self) -> Result<Sight> {
        let queue = stats(&mut *self.pool.acquire().await?).await?;
        let claims = claims(&self.pool).await?;
        let mut relays = Vec::new();
        for (name, address) in &self.relays {
            let claims = claims.get(name).copied().unwrap_or_default();
            relays.push(RelaySight { name: name.clone(), metrics: ask(*address).await, claims });
        }
        let consumers = self.intakes.iter().map(|(role, intake)| ConsumerSight {
            role: *role,
            count: intake.count(),
            latency: intake.latency(),
        });
        let consumers = consumers.collect();
        Ok(Sight { at: self.board.elapsed(), sales: self.sales.count(), queue, relays, consumers })
    }
}

async fn ask(relay: SocketAddr) -> Option<RelayMetrics> {
    let metrics = Metrics::fetch(relay).await.ok()?;
    Some(RelayMetrics {
        in_flight: metrics.count("outbox_relay_in_flight_messages"),
        published: metrics.count("outbox_relay_published_messages_total"),
    })
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
