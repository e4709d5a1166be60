//! A relay for tests: in process, without a broker, one message after the other.

use std::{collections::BTreeMap, time::Duration};

use sqlx::{Connection as _, MySqlConnection, MySqlPool};
use uuid::Uuid;

use crate::{
    Contents,
    store::{
        claim::{
            self, Look, NewClaim, NewClaims, Pending, held, lanes,
            lease::{self, ClaimLease},
            promote, read,
        },
        reason::DelayReason,
        session,
        settle::{self, Dead, Delayed, Settlement, Way},
    },
};

/// The owner of the claims, also named in the receipts.
const NAME: &str = "drain";
/// Most candidates of a look. A relay takes fewer; here every waiting message is a candidate.
const CANDIDATES: u32 = 100_000;

/// Publishes the enqueued messages into a list, by the relay's own statements. Afterwards the tables are as a relay
/// leaves them.
///
/// ```no_run
/// # use outbox_core::{sqlx::MySqlPool, test::{Drain, Fault}};
/// # async fn test(pool: MySqlPool) -> Result<(), Box<dyn std::error::Error>> {
/// // Everything that is due, each key in its order.
/// let published = Drain::new().run(&pool).await?;
/// assert_eq!(published[0].contents.topic, "orders");
/// // The second publish arrives, and nobody hears of it: what consumers see twice.
/// let published = Drain::new().at(2, Fault::AcknowledgementLost).run(&pool).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Drain {
    faults: BTreeMap<usize, Fault>,
}

/// A fault of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The broker refuses it for now: it is retried, before later messages of its key.
    PublishFails,
    /// It arrives, but the confirm is lost: it is published again.
    AcknowledgementLost,
    /// It arrives, but another relay has taken the claim over by then. That relay publishes it again, and this one
    /// settles nothing.
    LeaseLost,
    /// It arrives, and the relay dies before it settles. The next relay takes the claim over, and publishes it again.
    Crash,
}

/// A message as the broker would receive it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The id by which consumers recognize it.
    pub message_id: Uuid,
    /// Its contents, with the headers of the trace context.
    pub contents: Contents,
}

impl Drain {
    /// A drain without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault to the `n`th publish of the run, counted from 1.
    pub fn at(mut self, n: usize, fault: Fault) -> Self {
        self.faults.insert(n, fault);
        self
    }

    /// Publishes until no message is due, and returns the messages in the order of their arrival. A message with a
    /// fault can be there more than once. Messages that are not due yet stay; expired ones become dead.
    ///
    /// Runs on its own connection, so it sees committed messages only. No relay may work on the database meanwhile. A
    /// fault beyond the last publish is an error, too.
    pub async fn run(self, pool: &MySqlPool) -> Result<Vec<Published>, sqlx::Error> {
        // Detached: the pool must not get the session's settings.
        let mut conn = pool.acquire().await?.detach();
        session::prepare(&mut conn).await?;
        let mut published = Vec::new();
        let mut count = 0;
        while let Some((lease, row)) = next(&mut conn).await? {
            let stored = read::messages(&mut conn, &[row.id]).await?.pop().ok_or(sqlx::Error::RowNotFound)?;
            let expired = stored.expired;
            let fault = if expired {
                None
            } else {
                count += 1;
                self.faults.get(&count).copied()
            };
            if !expired && fault != Some(Fault::PublishFails) {
                published.push(Published { message_id: stored.message_id, contents: stored.contents });
            }
            if matches!(fault, Some(Fault::LeaseLost | Fault::Crash)) {
                take_over(&mut conn).await?;
            }
            if fault != Some(Fault::Crash) {
                let settlement = settlement(row.id, fault, expired);
                settle::settle(&mut conn, &[(lease, &settlement)], Way::OneByOne).await?;
            }
        }
        conn.close().await?;
        // A test that waits for a fault in vain tests nothing.
        match self.faults.keys().find(|n| !(1..=count).contains(*n)) {
            Some(n) => {
                Err(sqlx::Error::Protocol(format!("there was no publish {n} that could go wrong, only {count}")))
            }
            None => Ok(published),
        }
    }
}

/// Claims the first message that may be published. The lease passes at once, so that the next relay may take it over.
async fn next(conn: &mut MySqlConnection) -> Result<Option<(ClaimLease, Pending)>, sqlx::Error> {
    for due in promote::due(conn, Duration::ZERO, CANDIDATES).await? {
        promote::promote(conn, due.lane, &[due.id]).await?;
    }
    let mut from = 0;
    while let Some(lane) = lanes::next_pending(conn, from..lanes::END).await? {
        from = u32::from(lane) + 1;
        lanes::create_head(conn, lane).await?;
        let limit = CANDIDATES;
        let look = Look { lane, owner: NAME, limit, ..Look::default() };
        let seen = claim::look(conn, &look).await?;
        let keys: Vec<u64> = seen.fresh.iter().map(|row| row.key_hash).filter(|key| *key != 0).collect();
        let held = if seen.holds.is_some() { held::among(conn, lane, &keys).await? } else { Vec::new() };
        let waits = |row: &Pending| held.iter().any(|&(key, from)| key == row.key_hash && from < row.id);
        let Some(row) = seen.fresh.iter().find(|row| !waits(row)).copied() else { continue };
        let lease_token = Uuid::now_v7().as_u64_pair().1;
        let new = NewClaims {
            lane,
            version: seen.version.unwrap_or(0),
            low: 0,
            owner: NAME,
            lease: Duration::ZERO,
            claims: &[NewClaim {
                lease_token,
                message_ids: &[row.id],
                key_hashes: if row.key_hash == 0 { &[] } else { &[row.key_hash] },
            }],
            behind: &[],
        };
        let claimed = claim::claim(conn, &new).await?.first().map(|lease| (*lease, row));
        return claimed.map(Some).ok_or_else(|| sqlx::Error::Protocol("a relay works on this database".to_owned()));
    }
    Ok(None)
}

/// Another relay takes the claim over.
async fn take_over(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    for expired in lease::expired(conn, 0).await? {
        lease::take_over(conn, &expired).await?;
    }
    Ok(())
}

fn settlement(id: u64, fault: Option<Fault>, expired: bool) -> Settlement {
    let mut settlement = Settlement::default();
    let delayed = |reason| Delayed {
        id,
        wait: Some(Duration::ZERO),
        spent: true,
        reason,
        error: "a fault of the test".to_owned(),
    };
    match fault {
        _ if expired => {
            let error = String::new();
            settlement.dead.push(Dead { id, spent: false, holds_key: false, reason: "expired", error });
        }
        Some(Fault::PublishFails) => settlement.delayed.push(delayed(DelayReason::Rejected)),
        Some(Fault::AcknowledgementLost) => settlement.delayed.push(delayed(DelayReason::Unconfirmed)),
        _ => settlement.sent.push((id, NAME.to_owned())),
    }
    settlement
}
