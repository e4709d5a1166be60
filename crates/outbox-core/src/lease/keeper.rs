//! The task that acquires, renews and releases the leases of one owner, on a connection of its own.
//!
//! Only this task talks to the database, so a caller that stops waiting cancels no call half-way. Only this task counts
//! the holders of each lease.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sqlx::{ConnectOptions as _, Connection as _, MySqlConnection, mysql::MySqlConnectOptions};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout, timeout_at},
};

use super::Lease;
use crate::store::named;

/// The channel for the outcome of a release. False: the lease had ended before.
pub(super) type LeaseReply = oneshot::Sender<Result<bool, sqlx::Error>>;

/// A request to the keeper.
#[derive(Debug)]
pub(super) enum LeaseRequest {
    Acquire {
        name: Arc<str>,
        keeper: mpsc::UnboundedSender<LeaseRequest>,
        reply: oneshot::Sender<Result<Answer, sqlx::Error>>,
    },
    Release {
        name: Arc<str>,
        fence: u64,
        reply: Option<LeaseReply>,
    },
}

/// The outcome of an attempt to acquire.
#[derive(Debug)]
pub(super) enum Answer {
    Held(Lease),
    Busy { holder: String, left: Duration },
}

/// The database's answer to an attempt to acquire.
enum Renewal {
    Won(u64),
    Busy { holder: String, left: Duration },
}

/// A lease that is held.
struct HeldLease {
    fence: u64,
    /// The number of its [`Lease`]s.
    held: usize,
    until: watch::Sender<Option<Instant>>,
    renew_at: Instant,
}

pub(super) struct Keeper {
    options: Arc<MySqlConnectOptions>,
    owner: Arc<str>,
    length: Duration,
    connection: Option<MySqlConnection>,
    tenures: HashMap<Arc<str>, HeldLease>,
}

impl Keeper {
    /// Starts the task, which ends when all handles are dropped.
    pub(super) fn start(
        options: &Arc<MySqlConnectOptions>,
        owner: &Arc<str>,
        length: Duration,
    ) -> mpsc::UnboundedSender<LeaseRequest> {
        let (sender, commands) = mpsc::unbounded_channel();
        let options = Arc::clone(options);
        let owner = Arc::clone(owner);
        let keeper = Self { options, owner, length, connection: None, tenures: HashMap::new() };
        tokio::spawn(keeper.run(commands));
        sender
    }

    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<LeaseRequest>) {
        loop {
            let next = self.tenures.values().map(|tenure| tenure.renew_at).min();
            let command = match next {
                Some(at) => timeout_at(at, commands.recv()).await,
                None => Ok(commands.recv().await),
            };
            match command {
                Ok(Some(command)) => self.obey(command).await,
                Ok(None) => return,
                Err(_due) => {}
            }
            // After a command too: a busy owner must not forget its leases.
            self.renew_due().await;
        }
    }

    async fn obey(&mut self, command: LeaseRequest) {
        match command {
            LeaseRequest::Acquire { name, keeper, reply } => {
                let answer = self.acquire(name, keeper).await;
                // If the caller has stopped waiting, the lease in the answer is dropped, and so released.
                drop(reply.send(answer));
            }
            LeaseRequest::Release { name, fence, reply } => {
                let released = self.release(&name, fence).await;
                if let Some(reply) = reply {
                    drop(reply.send(released));
                }
            }
        }
    }

    async fn acquire(
        &mut self,
        name: Arc<str>,
        keeper: mpsc::UnboundedSender<LeaseRequest>,
    ) -> Result<Answer, sqlx::Error> {
        // A held lease is renewed all the same: only the database may know that it has ended.
        if !self.renew(&name).await? {
            let start = Instant::now();
            let length = self.length;
            let owner = Arc::clone(&self.owner);
            match self.call(async |conn| win(conn, &name, &owner, length).await).await? {
                Renewal::Busy { holder, left } => return Ok(Answer::Busy { holder, left }),
                Renewal::Won(fence) => self.begin(Arc::clone(&name), fence, start),
            }
        }
        let Some(tenure) = self.tenures.get_mut(&name) else { return Err(sqlx::Error::WorkerCrashed) };
        tenure.held += 1;
        let owner = Arc::clone(&self.owner);
        let fence = tenure.fence;
        let until = tenure.until.subscribe();
        Ok(Answer::Held(Lease { name, owner, fence, until, keeper, given_back: false }))
    }

    /// Notes a lease that was won by a call which began at `start`.
    fn begin(&mut self, name: Arc<str>, fence: u64, start: Instant) {
        let (until, _) = watch::channel(Some(self.surely_until(start)));
        self.tenures.insert(name, HeldLease { fence, held: 0, until, renew_at: start + self.length / 3 });
    }

    /// A tenth early: the clocks of two machines do not run at the same speed.
    fn surely_until(&self, start: Instant) -> Instant {
        start + self.length / 10 * 9
    }

    fn is_held(&self, name: &str) -> bool {
        self.tenures.get(name).is_some_and(|tenure| tenure.until.borrow().is_some_and(|until| Instant::now() < until))
    }

    /// Notifies the holder that its lease is lost.
    fn lose(&mut self, name: &str) {
        if let Some(tenure) = self.tenures.remove(name) {
            tenure.until.send_replace(None);
        }
    }

    async fn release(&mut self, name: &str, fence: u64) -> Result<bool, sqlx::Error> {
        let Some(tenure) = self.tenures.get_mut(name).filter(|tenure| tenure.fence == fence) else { return Ok(false) };
        tenure.held -= 1;
        if tenure.held > 0 {
            return Ok(self.is_held(name));
        }
        self.lose(name);
        let owner = Arc::clone(&self.owner);
        self.call(async |conn| named::release(conn, name, &owner, fence).await).await
    }

    /// Renews the leases that are due. If the database does not answer, it tries again soon, until the lease is lost.
    async fn renew_due(&mut self) {
        let due = |tenure: &HeldLease| tenure.renew_at <= Instant::now();
        let names: Vec<_> =
            self.tenures.iter().filter(|(_, tenure)| due(tenure)).map(|(name, _)| Arc::clone(name)).collect();
        for name in names {
            if self.renew(&name).await.is_err()
                && let Some(tenure) = self.tenures.get_mut(&name)
            {
                tenure.renew_at = Instant::now() + self.length / 20;
            }
        }
    }

    /// Renews a lease. False: it is not held, and its holder was notified.
    async fn renew(&mut self, name: &str) -> Result<bool, sqlx::Error> {
        let fence = self.tenures.get(name).map(|tenure| tenure.fence).filter(|_| self.is_held(name));
        let Some(fence) = fence else {
            self.lose(name);
            return Ok(false);
        };
        let start = Instant::now();
        let length = self.length;
        let owner = Arc::clone(&self.owner);
        let renewed = self.call(async |conn| named::renew(conn, name, &owner, fence, length).await).await?;
        let until = self.surely_until(start);
        match self.tenures.get_mut(name) {
            Some(tenure) if renewed => {
                tenure.renew_at = start + length / 3;
                tenure.until.send_replace(Some(until));
            }
            _ => self.lose(name),
        }
        Ok(renewed)
    }

    /// Runs a call within a quarter of a lease. A call that times out drops its connection.
    async fn call<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let deadline = self.length / 4;
        let work = async {
            let mut connection = self.connection().await?;
            let outcome = work(&mut connection).await;
            if outcome.as_ref().map_or_else(|error| error.as_database_error().is_some(), |_| true) {
                self.connection = Some(connection);
            }
            outcome
        };
        let late = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
        timeout(deadline, work).await.map_err(late)?
    }

    /// Takes the connection; opens a new one if the server has closed it.
    async fn connection(&mut self) -> Result<MySqlConnection, sqlx::Error> {
        if let Some(mut connection) = self.connection.take()
            && connection.ping().await.is_ok()
        {
            return Ok(connection);
        }
        let mut connection = self.options.connect().await?;
        named::prepare(&mut connection).await?;
        Ok(connection)
    }
}

/// Looks first, without locks, so that waiting owners disturb no other. Then takes the lease if it is free, or was this
/// owner's.
async fn win(conn: &mut MySqlConnection, name: &str, owner: &str, length: Duration) -> Result<Renewal, sqlx::Error> {
    let Some(row) = named::look(conn, name).await? else {
        let won = named::create(conn, name, owner, length).await?;
        let lost = Renewal::Busy { holder: "another".to_owned(), left: Duration::ZERO };
        return Ok(won.map_or(lost, Renewal::Won));
    };
    let left = Duration::from_micros(u64::try_from(row.left).unwrap_or(0));
    let free = left.is_zero() || row.owner == owner;
    if free && named::take(conn, name, owner, row.fence, length).await? {
        return Ok(Renewal::Won(row.fence + 1));
    }
    Ok(Renewal::Busy { holder: row.owner, left })
}
