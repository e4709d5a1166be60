//! The rows that the purge would delete now. Nothing is deleted.

use std::{collections::HashSet, time::Duration};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        named,
        operate::{
            instances,
            purge::{self, OldRows},
        },
    },
};
use serde::Serialize;

use super::unsent::time;
use crate::settings::Retention;

/// Most rows of a kind that are looked at: receipts and the messages in them, dead messages, rows of the inbox.
const BUDGET: u32 = 100_000;
/// Receipts of one read.
const PAGE: u32 = 200;
/// The retention of heartbeats and pauses, in seconds.
const DAY: u64 = 86_400;

/// The effect of the purge, if it ran now. Its names are stable; times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forecast {
    /// The relay or worker that holds the lease on the purging; `None`: none purges.
    pub purger: Option<String>,
    /// The rows.
    pub kinds: Vec<PurgeKind>,
}

/// Rows of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PurgeKind {
    /// `sent`, `dead`, `inbox`, `jobs`, `audit`, `instances` or `pauses`.
    pub kind: &'static str,
    /// Their retention in seconds; `None`: for ever.
    pub retention_seconds: Option<u64>,
    /// Rows that would be deleted; of `sent`, messages without their receipts.
    pub rows: u64,
    /// Whether all were counted; otherwise 100,000 rows were looked at, and there may be more.
    pub is_complete: bool,
    /// The time of the oldest.
    pub oldest: Option<String>,
    /// Why rows stay that are older, or all.
    pub stays: Option<String>,
}

/// Returns the effect of the purge with this retention. Looks at 100,000 rows of a kind at most.
///
/// # Errors
///
/// If the database fails.
pub async fn forecast(db: &mut MySqlConnection, keep: &Retention) -> Result<Forecast, sqlx::Error> {
    let lease = named::look(db, purge::LEASE_NAME).await?;
    let mut kinds = Vec::new();
    let kinds_by_age = [
        ("sent", "sent", keep.sent),
        ("dead", "dead", keep.dead),
        ("inbox", "inbox", keep.inbox),
        ("jobs", "audit", keep.audit),
        ("audit", "audit", keep.audit),
    ];
    for (kind, key, age) in kinds_by_age {
        let forever = || format!("retention.{key} is 0: all are kept for ever");
        kinds.push(match kind {
            _ if age.is_zero() => PurgeKind { kind, is_complete: true, stays: Some(forever()), ..PurgeKind::default() },
            "sent" => sent(db, age).await?,
            "dead" => PurgeKind::of(kind, age, purge::old_dead(db, age, BUDGET).await?),
            "inbox" => PurgeKind::of(kind, age, purge::old_inbox(db, age, BUDGET).await?),
            "jobs" => PurgeKind::of(kind, age, purge::old_jobs(db, age, BUDGET).await?),
            _ => PurgeKind::of(kind, age, purge::old_audit(db, age, BUDGET).await?),
        });
    }
    let counts = instances::forgotten(db).await?;
    kinds.extend(["instances", "pauses"].into_iter().zip(counts).map(|(kind, rows)| PurgeKind {
        kind,
        retention_seconds: Some(DAY),
        rows,
        is_complete: true,
        ..PurgeKind::default()
    }));
    Ok(Forecast { purger: lease.filter(|lease| lease.left > 0).map(|lease| lease.owner), kinds })
}

impl PurgeKind {
    fn of(kind: &'static str, age: Duration, old: OldRows) -> Self {
        let OldRows { rows, oldest, is_complete } = old;
        let retention_seconds = Some(age.as_secs());
        Self { kind, retention_seconds, rows, is_complete, oldest: oldest.map(time), stays: None }
    }
}

/// Counts the messages of old receipts, each once. One that a purge of an earlier receipt has deleted is counted again.
async fn sent(db: &mut MySqlConnection, age: Duration) -> Result<PurgeKind, sqlx::Error> {
    let mut ids = HashSet::new();
    let mut kept = HashSet::new();
    let mut oldest = None;
    let mut above = 0;
    let mut looked_at = 0;
    let mut is_complete = true;
    loop {
        let page = purge::old_receipts(db, age, above, PAGE).await?;
        let receipts = page.old;
        above = page.last;
        oldest = receipts.iter().map(|receipt| receipt.sent_at).chain(oldest).min();
        looked_at += PAGE as usize;
        let named = receipts.iter().flat_map(|it| it.ids.iter().map(|id| (it.lane, *id)));
        let mut named: Vec<_> = named.collect();
        looked_at += named.len();
        named.sort_unstable();
        for named in named.chunks(1_000) {
            kept.extend(purge::unsent(db, named).await?);
        }
        ids.extend(named.into_iter().map(|(_, id)| id).filter(|id| !kept.contains(id)));
        if page.is_end {
            break;
        }
        if looked_at >= BUDGET as usize {
            is_complete = false;
            break;
        }
    }
    let old = OldRows { rows: ids.len() as u64, oldest, is_complete };
    let stays = format!("{} more are to be sent again", kept.len());
    Ok(PurgeKind { stays: Some(stays).filter(|_| !kept.is_empty()), ..PurgeKind::of("sent", age, old) })
}
