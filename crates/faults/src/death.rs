//! The deaths of relays, and what they held.

use std::{
    collections::HashSet,
    os::unix::process::ExitStatusExt as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Uuid,
    sqlx::{self, Row as _},
    store::claim::tail,
};
use testkit::relay::{Relay, Settings};

use crate::arena::{Arena, PATIENCE};

/// The signal of a process that ends itself at a named point, and of a panic.
pub(crate) const ABORT: i32 = rustix::process::Signal::ABORT.as_raw();

/// After this time another relay's tail is closed, so that a relay with a crash point gets messages.
const TURN: Duration = Duration::from_secs(3);

/// A relay that has died.
#[derive(Debug)]
pub struct Death {
    /// Its process id.
    pub pid: u32,
    /// When it died, or was found dead.
    pub at: Instant,
    /// The messages that it held.
    pub held: HashSet<Uuid>,
}

impl Arena {
    /// The claimed messages, or only those that one relay holds.
    pub async fn claimed_by(&self, relay: Option<u32>) -> Result<HashSet<Uuid>> {
        let sql = "SELECT message_id FROM outbox_claimed_messages JOIN outbox_messages USING (id) WHERE owner LIKE ?";
        let owner = relay.map_or_else(|| "%".to_owned(), |pid| format!("%-{pid}/%"));
        let rows = sqlx::query(sql).bind(owner).fetch_all(&mut self.database.connect_as_admin().await?).await?;
        rows.iter().map(|row| Uuid::from_slice(row.try_get(0)?).context("no UUID")).collect()
    }

    /// Keeps the counts of a relay that is about to end. Later counts are lost, so that the totals are not exact.
    pub async fn retire(&mut self, relay: &Relay) -> Result<()> {
        self.retired.extend(relay.metrics().await.ok());
        self.complete = false;
        self.unwatch(relay)
    }

    /// Kills a relay.
    pub async fn kill(&mut self, relay: Relay) -> Result<Death> {
        self.retire(&relay).await?;
        relay.kill()?;
        self.dead(&relay).await
    }

    /// Starts one more relay with settings that make it die, and waits for its death.
    pub async fn doomed(&mut self, settings: &Settings) -> Result<Death> {
        let mut relay = self.relay(settings)?;
        // Another relay's tail has all messages.
        let turns = async {
            loop {
                tokio::time::sleep(TURN).await;
                self.close_tails().await?;
            }
        };
        let status = tokio::select! {
            status = relay.wait_for_end(PATIENCE) => status?,
            error = turns => return error,
        };
        let log = relay.log()?;
        ensure!(status.signal() == Some(ABORT), "a relay that was to die ended with {status}\n{log}");
        self.complete = false;
        self.unwatch(&relay)?;
        self.dead(&relay).await
    }

    /// Closes all tails, as relays do whose owner is silent.
    pub async fn close_tails(&self) -> Result<()> {
        let mut connection = self.database.connect_as_admin().await?;
        for stale in tail::all(&mut connection).await? {
            tail::close(&mut connection, stale.tail.lease, Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Reads the relay no longer: another may get its port.
    fn unwatch(&self, relay: &Relay) -> Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch.no_relay(relay.port()))
    }

    async fn dead(&mut self, relay: &Relay) -> Result<Death> {
        let at = Instant::now();
        let held = self.claimed_by(Some(relay.pid())).await?;
        self.struck(!held.is_empty());
        self.pages.push(relay.log()?);
        Ok(Death { pid: relay.pid(), at, held })
    }

    /// Waits until a dead relay has no claim left.
    pub async fn taken_over(&mut self, pid: u32, died: Instant, bound: Duration) -> Result<()> {
        let left = format!("SELECT COUNT(*) = 0 FROM outbox_claims WHERE owner LIKE '%-{pid}/%'");
        self.database.wait_for(PATIENCE, &left).await?;
        let took = died.elapsed();
        self.counts.recovered(took);
        self.within("the take-over", took, bound);
        Ok(())
    }
}
