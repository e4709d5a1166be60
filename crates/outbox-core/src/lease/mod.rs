//! Named leases: of all processes that share a database, one at a time does a piece of work.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use outbox_core::{lease::{LeaseError, Leases}, sqlx::MySqlPool};
//! # async fn send_report() {}
//! # async fn nightly(pool: MySqlPool) -> Result<(), LeaseError> {
//! let leases = Leases::new(pool.connect_options());
//! let Some(lease) = leases.try_acquire("nightly-report").await? else {
//!     return Ok(()); // another process is at it
//! };
//! tokio::select! {
//!     () = send_report() => {}
//!     () = lease.lost() => {} // stop: another may have begun
//! }
//! lease.release().await
//! # }
//! ```
//!
//! # The rules
//!
//! - A lease ends by the **database's** clock. It is renewed in the background three times within its length. So it
//!   ends when its holder dies, is paused, or cannot reach the database for that long.
//! - The holder is notified: [`Lease::lost`] resolves and [`Lease::is_held`] turns false a tenth of the length *before*
//!   the lease ends. The monotonic clock counts, from before the last renewal was sent; the time of day is not used.
//! - A lease belongs to an **owner**, which is one [`Leases`]. The owner can acquire its lease again, and holds it
//!   until the last [`Lease`] of that name is released or dropped. Between the tasks of one process use a mutex.
//! - Each new tenure has a larger [`Lease::fence`].
//!
//! # Why the fence
//!
//! No process can know that it still holds a lease *when its write arrives*: it may be paused between the check and the
//! write. So the write itself must be refused. In the same database [`Lease::check`] refuses it. Elsewhere send the
//! fence along, and refuse a fence smaller than the largest seen:
//!
//! ```sql
//! UPDATE report SET body = ?, fence = ? WHERE id = ? AND fence <= ?
//! ```
//!
//! # What is not promised
//!
//! A database may lose commits: after a restored backup, or a failover to a replica that lagged. It then gives fences
//! out twice, unless `relay recover` is run before processes take leases again. That starts a new epoch, and fences
//! compare epoch first. Waiting processes are not served in order.

mod keeper;

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::{Arc, OnceLock},
    time::Duration,
};

use sqlx::{Connection as _, MySqlConnection, mysql::MySqlConnectOptions};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use self::keeper::{Answer, Keeper, LeaseReply, LeaseRequest};
use crate::store;

/// The pause between two attempts of a waiting owner.
const POLL: Duration = Duration::from_millis(250);
/// Leases are from a second to a day long: the server waits for locks in whole seconds.
const LENGTHS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// The beginning of the names of the outbox's own leases.
const RESERVED: &str = "outbox/";

/// Why a lease was not acquired, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// A name, owner or length that cannot be stored.
    #[error("{0}")]
    Invalid(&'static str),
    /// Another owner held it all the time.
    #[error("the lease `{name}` did not become free within {limit:?}: `{holder}` holds it")]
    TimedOut {
        /// The lease.
        name: String,
        /// Its holder at the last look.
        holder: String,
        /// The limit of the wait.
        limit: Duration,
    },
    /// It has ended, and another owner may hold it: stop, and roll back.
    #[error("the lease `{name}` with the fence {fence} was lost: stop the work, and roll back what is open")]
    Lost {
        /// The lease.
        name: String,
        /// The number of the tenure that has ended.
        fence: u64,
    },
    /// The connection has no open transaction, so the check would end with the statement.
    #[error("the connection is not in a transaction: call `begin()` and pass `&mut tx`")]
    NotInTransaction,
    /// The tokio runtime that the leases were first used on has ended, and with it their renewal.
    #[error("the runtime that renews the leases has ended")]
    Stopped,
    /// The database refused the call, or the connection was lost.
    #[error("the database did not give the lease")]
    Database(#[from] sqlx::Error),
}

/// The leases of one owner. They are acquired and renewed on one connection of their own, which is opened when it is
/// first needed: a pool that is exhausted costs no lease. Share it in an [`Arc`].
#[derive(Debug)]
pub struct Leases {
    options: Arc<MySqlConnectOptions>,
    owner: Arc<str>,
    length: Duration,
    reserved: bool,
    keeper: OnceLock<mpsc::UnboundedSender<LeaseRequest>>,
}

impl Leases {
    /// Leases of 30 seconds in this database, for an owner with a random name. `options` are `pool.connect_options()`,
    /// or your own. Connects to nothing yet.
    #[must_use]
    pub fn new(options: impl Into<Arc<MySqlConnectOptions>>) -> Self {
        Self {
            options: options.into(),
            owner: random_owner(),
            length: Duration::from_secs(30),
            reserved: false,
            keeper: OnceLock::new(),
        }
    }

    /// The owner's name: 1 to 100 printable ASCII characters, for people to read in `outbox_leases`. It must be unique
    /// among the processes that run: another process of the same name takes a lease over at once.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = owner.into();
        self
    }

    /// How long a lease lasts without renewal, 1 s to 24 h. Other owners wait this long for a holder that died.
    #[must_use]
    pub fn length(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// For the outbox's own leases, whose names begin with `outbox/`.
    #[doc(hidden)]
    #[must_use]
    pub fn reserved(mut self) -> Self {
        self.reserved = true;
        self
    }

    /// Acquires a lease if it is free, or held by this owner; `None` if another holds it. Names have 1 to 64 printable
    /// ASCII characters; those that begin with `outbox/` are reserved. Three round trips.
    ///
    /// [`LeaseError::Invalid`]: the name, the owner or the length is out of its limits. Without an answer within a
    /// quarter of the length the error is [`LeaseError::Database`]. After it acquire again: until the lease ends, other
    /// owners may find it held by this one.
    pub async fn try_acquire(&self, name: &str) -> Result<Option<Lease>, LeaseError> {
        match self.ask(name).await? {
            Answer::Held(lease) => Ok(Some(lease)),
            Answer::Busy { .. } => Ok(None),
        }
    }

    /// Acquires a lease, and waits for it at most `limit`; tries four times a second. [`LeaseError::TimedOut`] names
    /// the holder.
    pub async fn acquire(&self, name: &str, limit: Duration) -> Result<Lease, LeaseError> {
        let start = Instant::now();
        loop {
            let (holder, left) = match self.ask(name).await? {
                Answer::Held(lease) => return Ok(lease),
                Answer::Busy { holder, left } => (holder, left),
            };
            let rest = limit.saturating_sub(start.elapsed());
            if rest.is_zero() {
                return Err(LeaseError::TimedOut { name: name.to_owned(), holder, limit });
            }
            tokio::time::sleep(left.clamp(Duration::from_millis(10), POLL).min(rest)).await;
        }
    }

    async fn ask(&self, name: &str) -> Result<Answer, LeaseError> {
        self.validate(name)?;
        let keeper = self.keeper.get_or_init(|| Keeper::start(&self.options, &self.owner, self.length));
        let (reply, answer) = oneshot::channel();
        let command = LeaseRequest::Acquire { name: name.into(), keeper: keeper.clone(), reply };
        keeper.send(command).map_err(|_gone| LeaseError::Stopped)?;
        Ok(answer.await.map_err(|_gone| LeaseError::Stopped)??)
    }

    fn validate(&self, name: &str) -> Result<(), LeaseError> {
        if !is_printable(name, 64) {
            return Err(LeaseError::Invalid("the lease's name must have 1 to 64 printable ASCII characters"));
        }
        if name.starts_with(RESERVED) != self.reserved {
            return Err(LeaseError::Invalid(
                "names of leases that begin with `outbox/` are the outbox's own: take another name",
            ));
        }
        if !is_printable(&self.owner, 100) {
            return Err(LeaseError::Invalid("the lease's owner must have 1 to 100 printable ASCII characters"));
        }
        if !LENGTHS.contains(&self.length) {
            return Err(LeaseError::Invalid("the lease's length must be from 1 second to 24 hours"));
        }
        Ok(())
    }
}

fn is_printable(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A lease that is held, or was held. Dropping the owner's last [`Lease`] of a name releases it soon after, if the
/// runtime still runs and the database answers. [`Lease::release`] reports whether it was released.
#[derive(Debug)]
pub struct Lease {
    name: Arc<str>,
    owner: Arc<str>,
    fence: u64,
    /// Until when it is surely held; `None` if it is lost.
    until: watch::Receiver<Option<Instant>>,
    keeper: mpsc::UnboundedSender<LeaseRequest>,
    given_back: bool,
}

impl Lease {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of this tenure, larger than that of every earlier tenure of this name. The first is 1; after a
    /// recovery it is a million times its epoch, plus 1.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Whether it is surely still held, by the monotonic clock. Asks no server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Resolves when the lease is lost, or may be.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut until = self.until.clone();
        async move {
            loop {
                let Some(end) = *until.borrow_and_update() else { return };
                match tokio::time::timeout_at(end, until.changed()).await {
                    Ok(Ok(())) => {}
                    // The time has passed, or the keeper has ended.
                    Err(_) => return,
                    Ok(Err(_)) => return tokio::time::sleep_until(end).await,
                }
            }
        }
    }

    /// Makes sure that this is still the holder when the transaction of `conn` commits. No owner can take the lease
    /// over before the transaction ends. The lease cannot be renewed meanwhile either, so check last, just before the
    /// commit.
    ///
    /// After [`LeaseError::Lost`] roll back. One round trip. MariaDB from 11.6.2 on (`innodb_snapshot_isolation`)
    /// refuses the check with error 1020, and rolls back, if the lease was renewed after a REPEATABLE READ transaction
    /// first read. Begin such transactions with READ COMMITTED.
    pub async fn check(&self, conn: &mut MySqlConnection) -> Result<(), LeaseError> {
        if !conn.is_in_transaction() {
            return Err(LeaseError::NotInTransaction);
        }
        let stands = store::named::check(conn, &self.name, &self.owner, self.fence).await?;
        if stands { Ok(()) } else { Err(self.lost_error()) }
    }

    /// Releases the lease, and waits until that is done. If the owner acquired it several times, it stays held until
    /// the last [`Lease`] is released. [`LeaseError::Lost`]: it had ended before, so another owner may have worked at
    /// the same time.
    pub async fn release(mut self) -> Result<(), LeaseError> {
        let (reply, answer) = oneshot::channel();
        self.give_back(Some(reply)).map_err(|_gone| LeaseError::Stopped)?;
        let released = answer.await.map_err(|_gone| LeaseError::Stopped)??;
        if released { Ok(()) } else { Err(self.lost_error()) }
    }

    /// Asks the keeper for the release, once.
    fn give_back(&mut self, reply: Option<LeaseReply>) -> Result<(), mpsc::error::SendError<LeaseRequest>> {
        if std::mem::replace(&mut self.given_back, true) {
            return Ok(());
        }
        self.keeper.send(LeaseRequest::Release { name: Arc::clone(&self.name), fence: self.fence, reply })
    }

    fn lost_error(&self) -> LeaseError {
        LeaseError::Lost { name: self.name.to_string(), fence: self.fence }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If the keeper has ended, the lease ends by itself.
        self.give_back(None).ok();
    }
}

/// A name that no other process has: the process id for people, and a random number.
fn random_owner() -> Arc<str> {
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id()).into()
}
