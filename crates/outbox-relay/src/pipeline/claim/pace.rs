//! Judges the outcome of a pass in one place: counts it, and chooses the pause before the next one.

use std::time::{Duration, Instant};

use outbox_core::{sqlx, store::claim::tail};

use super::{Claimer, Memory, Pass};

/// A lane without a message for this duration is idle.
const IDLE: Duration = Duration::from_secs(1);

/// The pause between two looks whether another relay still has a tail.
const TAILED: Duration = Duration::from_millis(100);

/// The pause before the next pass.
pub(super) enum ClaimPause {
    None,
    Until(Instant),
    /// Until then, or until the next nudge.
    UntilNudged(Instant),
    /// Until the shared search of idle lanes finds a row, or the binary log shows one.
    Idle,
    /// Until the lane has no tail.
    Tailed,
}

impl Claimer {
    /// Counts a pass and returns the pause before the next one. A large claim has none after it, and the pause grows
    /// while the lane stays empty. Relays that share a lane share the interval.
    pub(super) fn judge(
        &self,
        memory: &mut Memory,
        outcome: &Result<Pass, sqlx::Error>,
        started: Instant,
    ) -> ClaimPause {
        let metrics = &self.context.metrics;
        let relay = &self.context.config.relay;
        let now = Instant::now();
        let interval = relay.claim_interval * memory.foreign.relays();
        let (result, pause) = match outcome {
            Ok(Pass::Claimed(messages)) => {
                metrics.claimed_messages_total.inc_by(*messages as u64);
                metrics.claim_duration_seconds.observe(started.elapsed().as_secs_f64());
                memory.last_message_at = now;
                let is_small = *messages <= relay.claim_messages / 8;
                memory.tails.claimed(is_small);
                // Other relays have their turn even if a pass takes longer than the interval.
                let until = (started + interval).max(now + interval / 4);
                ("claimed", if is_small { ClaimPause::Until(until) } else { ClaimPause::None })
            }
            Ok(Pass::Deferred) => ("empty", ClaimPause::None),
            Ok(Pass::Tailed) => ("empty", ClaimPause::Tailed),
            // Claimers that race without a pause lose half of their compare-and-sets.
            Ok(Pass::Conflict) => ("conflict", ClaimPause::Until(now + interval.mul_f64(rand::random()))),
            Ok(Pass::Empty) => {
                let quiet = now - memory.last_message_at;
                let until = started + (quiet / 16).max(interval).min(relay.poll_interval);
                // The log shows what becomes pending, and not which claims end without an outcome.
                let is_idle = quiet > IDLE && (memory.is_bare || self.context.stream.number().is_none());
                ("empty", if is_idle { ClaimPause::Idle } else { ClaimPause::UntilNudged(until) })
            }
            Err(_) => {
                memory.foreign.forget_ids();
                ("error", ClaimPause::Until(now + memory.pauses.next()))
            }
        };
        metrics.claims_total.with_label_values(&[result]).inc();
        if outcome.is_ok() {
            memory.pauses.reset();
            self.context.alive("claim");
        }
        pause
    }

    pub(super) async fn rest(&self, pause: ClaimPause) {
        match pause {
            ClaimPause::None => {}
            ClaimPause::Until(until) => tokio::time::sleep_until(until.into()).await,
            ClaimPause::UntilNudged(until) => {
                // After a nudge or the whole pause, the next look is due.
                tokio::time::timeout_at(until.into(), self.context.nudge.notified()).await.ok();
            }
            ClaimPause::Idle => self.context.idle.wait(self.lane).await,
            ClaimPause::Tailed => self.stand_by().await,
        }
    }

    /// Waits until the lane has no tail.
    async fn stand_by(&self) {
        let mut wait = TAILED;
        loop {
            tokio::time::sleep(wait).await;
            let mut session = self.sessions.take().await;
            let asked_at = Instant::now();
            let is_tailed = session.run("tail", async |db| tail::is_tailed(db, self.lane).await).await;
            // The question reads past deleted rows, which an old snapshot keeps.
            wait = TAILED.max(20 * asked_at.elapsed());
            self.context.alive("claim");
            match is_tailed {
                Ok(true) => {}
                Ok(false) => return,
                Err(_logged) => session.pause().await,
            }
        }
    }
}
