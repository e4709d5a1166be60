use std::{fmt, pin::pin, sync::Arc, time::Duration};

use futures_util::future::select;
use sqlx::{ConnectOptions as _, MySqlConnection, MySqlPool};
use tokio::time::{Instant, sleep, timeout};

use super::RETENTION;
use crate::{
    lease::{Lease, LeaseError, Leases},
    store::{inbox::purge as inbox_purge, named, operate::purge, session},
};

/// The length of the lease on the purging.
const LEASE: Duration = Duration::from_secs(60);
/// Pause between two looks for rows to delete.
const EVERY: Duration = Duration::from_secs(10);
/// Pause between two reads of all sequenced keys.
const KEYS_EVERY: Duration = Duration::from_secs(3600);
/// The pause before the first look.
const FIRST: Duration = Duration::from_millis(500);
/// How long a pass may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long a stop waits for the end of the lease.
const RELEASE: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_secs(86_400);

/// The purge of an inbox whose database no relay purges: deletes old rows of `inbox_processed`, `inbox_dead` and
/// `inbox_sequence`, of all consumers of the database.
///
/// Each process may run it: the lease `outbox/inbox-purge` lets one at a time purge, on two connections of its own.
/// Give all the same settings. Where a relay or a worker has ever purged, its `retention.inbox` decides over
/// `inbox_processed`, and this purge leaves that table alone. (Delete the row `outbox/purge` of `outbox_leases` once
/// they are gone for good.) Rows of the other two tables that a transaction has locked are left out. The account needs
/// `deploy/grants/consumer.sql`.
///
/// ```no_run
/// # use std::time::Duration;
/// # use outbox_core::{InboxPurge, sqlx::MySqlPool};
/// # async fn serve(pool: MySqlPool, stop: impl Future<Output = ()>) {
/// let week = Duration::from_secs(7 * 86_400);
/// InboxPurge::new().processed(week).dead(8 * week).run(&pool, stop).await;
/// # }
/// ```
///
/// # What a purged row no longer prevents
///
/// - `inbox_processed`: a message that comes again after this time takes effect again.
/// - `inbox_dead`: the message is lost for `retry_dead`. From then on its mark in `inbox_processed` grows old like the
///   others.
/// - `inbox_sequence`: the key begins anew with the next number that comes. An old number that comes again is then
///   processed, out of its order, and a gap is not seen. Until then it is [`Sequence::Repeated`](crate::Sequence), also
///   if `inbox_processed` has forgotten its message. A key stays for this time after its last number, and never less
///   than the time of `inbox_processed`. Keys of a consumer stay while it keeps messages in `inbox_dead` that were
///   refused by their number.
#[derive(Clone)]
pub struct InboxPurge {
    processed: Duration,
    dead: Duration,
    sequences: Duration,
    batch: u32,
    observer: Option<Arc<dyn Fn(Purged) + Send + Sync>>,
}

/// The rows that one pass of [`InboxPurge`] has deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Rows of `inbox_processed`.
    pub processed: u64,
    /// Rows of `inbox_dead`.
    pub dead: u64,
    /// Rows of `inbox_sequence`.
    pub sequences: u64,
}

impl Default for InboxPurge {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for InboxPurge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processed, dead, sequences, batch, .. } = self;
        write!(f, "InboxPurge {{ processed: {processed:?}, dead: {dead:?}, sequences: {sequences:?}, batch: {batch} }}")
    }
}

impl InboxPurge {
    /// Keeps processed messages for 7 days, dead ones for 30, and sequenced keys for a year after their last number.
    #[must_use]
    pub fn new() -> Self {
        Self { processed: RETENTION, dead: 30 * DAY, sequences: 365 * DAY, batch: 1000, observer: None }
    }

    /// How long processed messages are kept, 7 days by default; zero is for ever. Longer than a message can be
    /// delivered again: see [`check_window`](crate::check_window).
    #[must_use]
    pub fn processed(mut self, time: Duration) -> Self {
        self.processed = time;
        self
    }

    /// How long dead messages are kept, 30 days by default; zero is for ever.
    #[must_use]
    pub fn dead(mut self, time: Duration) -> Self {
        self.dead = time;
        self
    }

    /// How long a sequenced key is kept after its last number, a year by default; zero is for ever. At least the time
    /// of processed messages counts. All keys are read once an hour.
    #[must_use]
    pub fn sequences(mut self, time: Duration) -> Self {
        self.sequences = time;
        self
    }

    /// Most rows of a table in one pass, 1,000 by default. After a pass that has deleted rows the purge rests nine
    /// times as long as that took, from 50 to 250 ms; otherwise 10 s.
    #[must_use]
    pub fn batch(mut self, rows: u32) -> Self {
        self.batch = rows.max(1);
        self
    }

    /// Calls this after each pass that has deleted rows, for metrics. It must not block.
    #[must_use]
    pub fn observe(mut self, observer: impl Fn(Purged) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// How long processed messages are kept; zero is for ever.
    #[must_use]
    pub fn processed_kept(&self) -> Duration {
        self.processed
    }

    /// Purges until `stop` ends, which cuts a pass off. A failure is logged as a warning, and the next pass tries
    /// again. Rows that were deleted are logged when no more are old.
    pub async fn run(self, pool: &MySqlPool, stop: impl Future<Output = ()>) {
        let mut purger = Purger::new(self, pool.clone());
        {
            let purging = async {
                let mut wait = FIRST;
                loop {
                    sleep(wait).await;
                    wait = purger.turn().await;
                }
            };
            select(pin!(purging), pin!(stop)).await;
        }
        purger.end().await;
    }

    /// How long sequenced keys are kept.
    fn sequences_kept(&self) -> Duration {
        if self.sequences.is_zero() || self.processed.is_zero() {
            Duration::ZERO
        } else {
            self.sequences.max(self.processed)
        }
    }
}

#[derive(Clone, Copy)]
enum PurgedTable {
    Processed,
    Dead,
    Sequences,
}

/// A process that purges, or waits for its turn.
struct Purger {
    settings: InboxPurge,
    pool: MySqlPool,
    connection: Option<MySqlConnection>,
    lease: Option<Lease>,
    /// The last sequenced key that was read.
    key: inbox_purge::KeyPosition,
    keys_at: Instant,
    /// The rows since the last line of the log.
    total: Purged,
}

impl Purger {
    fn new(settings: InboxPurge, pool: MySqlPool) -> Self {
        let key = inbox_purge::KeyPosition::default();
        let keys_at = Instant::now();
        Self { settings, pool, connection: None, lease: None, key, keys_at, total: Purged::default() }
    }

    /// Makes a pass, if it is this process's turn. Returns the pause after it.
    async fn turn(&mut self) -> Duration {
        let start = Instant::now();
        let mut purged = Purged::default();
        let late = |late| Err(sqlx::Error::Io(std::io::Error::from(late)).into());
        let passed = timeout(DEADLINE, self.pass(&mut purged)).await.unwrap_or_else(late);
        if let Err(error) = &passed {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(%error, cause, "the inbox was not purged");
        }
        self.note(purged);
        let is_under_way = passed.is_ok() && self.lease.is_some() && self.key != inbox_purge::KeyPosition::default();
        if purged != Purged::default() || is_under_way { purge::rest(start.elapsed()) } else { EVERY }
    }

    /// A call that is cut off or fails ends its connection.
    async fn pass(&mut self, purged: &mut Purged) -> Result<(), LeaseError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let mut connection = self.pool.connect_options().connect().await?;
                session::prepare(&mut connection).await?;
                connection
            }
        };
        if self.is_mine(&mut connection).await? {
            let mut deleted = Ok(());
            for table in [PurgedTable::Processed, PurgedTable::Dead, PurgedTable::Sequences] {
                // A table that the account may not change does not hold up the others.
                deleted = self.delete(table, &mut connection, purged).await.and(deleted);
            }
            deleted?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Whether this is the process that purges; tries to become it.
    async fn is_mine(&mut self, connection: &mut MySqlConnection) -> Result<bool, LeaseError> {
        if self.lease.as_ref().is_some_and(Lease::is_held) {
            return Ok(true);
        }
        self.lease = None;
        // A lease has a connection of its own, which the processes that wait do not need.
        if is_held(connection, inbox_purge::LEASE_NAME).await? {
            return Ok(false);
        }
        let leases = Leases::new(self.pool.connect_options()).reserved().length(LEASE);
        self.lease = leases.try_acquire(inbox_purge::LEASE_NAME).await?;
        Ok(self.lease.is_some())
    }

    async fn delete(
        &mut self,
        table: PurgedTable,
        connection: &mut MySqlConnection,
        purged: &mut Purged,
    ) -> Result<(), sqlx::Error> {
        let batch = self.settings.batch;
        let processed = self.settings.processed;
        let dead = self.settings.dead;
        let deleted = match table {
            PurgedTable::Processed
                if !processed.is_zero() && named::look(connection, purge::LEASE_NAME).await?.is_none() =>
            {
                purge::inbox(connection, processed, batch).await.map(|rows| purged.processed = rows)
            }
            PurgedTable::Dead if !dead.is_zero() => {
                inbox_purge::dead(connection, dead, batch).await.map(|rows| purged.dead = rows)
            }
            PurgedTable::Sequences => self.delete_keys(connection).await.map(|rows| purged.sequences = rows),
            PurgedTable::Processed | PurgedTable::Dead => Ok(()),
        };
        if deleted.as_ref().is_err_and(|error| error.as_database_error().is_some()) {
            session::rollback(connection).await?;
        }
        deleted
    }

    async fn delete_keys(&mut self, connection: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
        let age = self.settings.sequences_kept();
        if age.is_zero() || Instant::now() < self.keys_at {
            return Ok(0);
        }
        let (rows, last) = inbox_purge::sequences(connection, age, &self.key, self.settings.batch).await?;
        if last.is_none() {
            self.keys_at = Instant::now() + KEYS_EVERY;
        }
        self.key = last.unwrap_or_default();
        Ok(rows)
    }

    fn note(&mut self, purged: Purged) {
        if purged != Purged::default() {
            self.total.processed += purged.processed;
            self.total.dead += purged.dead;
            self.total.sequences += purged.sequences;
            if let Some(observer) = &self.settings.observer {
                observer(purged);
            }
        } else if self.total != Purged::default() {
            let Purged { processed, dead, sequences } = std::mem::take(&mut self.total);
            tracing::info!(processed, dead, sequences, "old rows of the inbox were deleted");
        }
    }

    async fn end(mut self) {
        self.note(Purged::default());
        let Some(lease) = self.lease.take() else { return };
        if !matches!(timeout(RELEASE, lease.release()).await, Ok(Ok(()))) {
            tracing::debug!("the lease on the purging of the inbox ends by itself");
        }
    }
}

async fn is_held(connection: &mut MySqlConnection, lease: &str) -> Result<bool, sqlx::Error> {
    Ok(named::look(connection, lease).await?.is_some_and(|row| row.left > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_for_at_least_as_long_as_processed_messages() {
        let day = |days| days * DAY;
        let kept = |processed, sequences| {
            InboxPurge::new().processed(day(processed)).sequences(day(sequences)).sequences_kept()
        };
        assert_eq!([kept(7, 90), kept(30, 7), kept(0, 7), kept(7, 0)], [day(90), day(30), day(0), day(0)]);
    }
}
