//! The claimer under a tail: when one is made, what it takes, and what ends it.

use std::{
    panic::resume_unwind,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::store::claim::{
    Seen,
    tail::{self, Begun, ClaimKind, TailClaim},
};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use super::{
    Claimer,
    follow::{Followed, TICK},
    make::token,
};
use crate::{
    binlog::Reason,
    pipeline::{
        settle::Settler,
        tail::{REST, Tail},
    },
    state::stream::{Joined, Stream},
};

/// After this number of small claims in a row, a relay makes a tail. That costs some commits, so that it is not worth
/// it for claims with longer pauses.
const SMALL_CLAIMS: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The time in which the other claims of the lane are settled. A try after one that was too short gets twice as much,
/// and a further one four times.
const FORMING: Duration = Duration::from_millis(300);
/// The pause after claims that were not settled in that time.
const CROWDED: Duration = Duration::from_secs(2);
/// The pause after an end that would come again.
pub(super) const LONG_REST: Duration = Duration::from_secs(30);
/// Most pending rows, and most messages that hold their key, of a lane that gets a tail.
const MOST_PENDING: usize = 1000;
pub(super) const MOST: u32 = 10_000;
/// Ends after which the stream is not trusted any more.
const GIVES_UP: [&str; 3] = ["blind", "other_server", "silent"];
/// Each of these ends in a row doubles the rest, up to this one: a try stalls the lane.
const STALLS: [&str; 5] = ["blind", "other_server", "crowded", "behind", "backlog"];
const MOST_STALLS: u32 = 3;
/// A tail of this age was worth its try.
const WORTH: Duration = Duration::from_mins(1);

/// The tails of a claimer: whether the next claim may be one.
pub(super) struct Tails {
    settling: JoinSet<()>,
    small_claims: u32,
    /// The ends of [`STALLS`] in a row.
    stalls: u32,
    claimed_at: Instant,
    rests_until: Instant,
    /// The largest id that a look has seen.
    pub(super) seen: u64,
}

impl Tails {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { settling: JoinSet::new(), small_claims: 0, stalls: 0, claimed_at: now, rests_until: now, seen: 0 }
    }

    /// Notes the ids that a look has seen.
    pub(super) fn saw(&mut self, seen: &Seen) {
        let last = seen.fresh.last().or(seen.below.last());
        self.seen = self.seen.max(last.map_or(0, |row| row.id));
    }

    /// Notes the size of a claim.
    pub(super) fn claimed(&mut self, is_small: bool) {
        let follows = is_small && self.claimed_at.elapsed() < LONGEST_PAUSE;
        (self.small_claims, self.claimed_at) = (if follows { self.small_claims + 1 } else { 0 }, Instant::now());
    }

    /// Whether it is time for a tail.
    fn are_due(&self) -> bool {
        self.small_claims >= SMALL_CLAIMS
            && self.claimed_at.elapsed() < LONGEST_PAUSE
            && self.rests_until <= Instant::now()
    }

    /// Waits until a tail has ended, and what is in flight is a list. Returns how long none follows.
    async fn ended(&mut self, tail: &Tail) -> Duration {
        loop {
            tokio::select! {
                rest = tail.ended() => return rest,
                Some(ended) = self.settling.join_next() => raise(ended),
            }
        }
    }

    /// Waits until all tails are settled.
    pub(super) async fn finish(&mut self) {
        while let Some(ended) = self.settling.join_next().await {
            raise(ended);
        }
    }
}

/// Goes on with the panic of a settler.
fn raise(ended: Result<(), tokio::task::JoinError>) {
    if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
        resume_unwind(panic);
    }
}

/// Why a tail has ended, in one word, and how long none follows.
pub(super) type TailEnded = (&'static str, Duration);

/// The sentence of a word.
fn sentence(word: &str) -> &'static str {
    match word {
        "backlog" => "more messages come than are published at once, and claims of many messages cost less",
        "behind" => "the binary log shows messages later than a look finds them",
        "blind" => "the binary log does not show what this relay writes: a proxy or a filter is in between",
        "closed" => "another relay has closed it, because it was silent",
        "crowded" => "claims of other relays were not settled in time",
        "elsewhere" => "messages wait that another relay may have the sink or the route of",
        "error" => "the database has refused a statement",
        "held" => "too many messages wait for their keys",
        "idle" => "few messages come: the binary log wakes the relay, which claims them",
        "locked" => "another session has locked a row of a message",
        "lost" => "its claim was lost",
        "missed" => "the binary log did not show a message, as with sql_log_bin = 0",
        "other_server" => "the stream of the binary log is of another server than the connections",
        "paused" => "the lane is paused, or no sink takes messages",
        "prepared" => {
            "a prepared transaction (XA) was committed, and the binary log does not say which messages it has"
        }
        "released" => "messages were not published, and are claimed anew",
        "silent" => {
            "the stream of the binary log shows nothing any more: the logs were reset, or a proxy is in between"
        }
        "stop" => "the relay stops",
        "stream" => "the stream of the binary log has ended",
        "taken" => "another relay has the lane",
        "taken_over" => "a message was taken over from a dead relay, and is claimed with few others",
        "many" => "this relay has as many tails as it may have",
        _ => "a setting of the server has changed: see docs/deployment.md",
    }
}

impl Claimer {
    /// Serves the lane by a tail, if it is time for one, until something ends that. Returns whether it did.
    pub(super) async fn tail(&self, tails: &mut Tails) -> bool {
        if !self.context.config.relay.tail || !self.context.role.shares_keys() || !tails.are_due() {
            return false;
        }
        let (is_tailed, (why, rest)) = match Stream::join(&self.context, self.lane) {
            // It is being opened.
            Ok(None) => return false,
            Ok(Some(joined)) => {
                let ended = self.serve_by_tail(tails, joined).await.unwrap_or_else(|ended| ended);
                self.context.stream.ends(self.lane, ended.0, sentence(ended.0));
                (true, ended)
            }
            Err(refused) => {
                self.context.stream.ends(self.lane, refused.reason.word(), &refused.to_string());
                let rest = if refused.reason == Reason::Unavailable { REST } else { LONG_REST };
                (false, (refused.reason.word(), rest))
            }
        };
        self.context.metrics.tail_ends_total.with_label_values(&[why]).inc();
        let rest = if STALLS.contains(&why) {
            tails.stalls = (tails.stalls + 1).min(MOST_STALLS);
            rest * (1 << (tails.stalls - 1))
        } else {
            rest
        };
        // Lanes that have lost the stream together do not begin together.
        let rest = rest.mul_f64(1.0 + rand::random::<f64>() / 4.0);
        (tails.small_claims, tails.rests_until) = (0, Instant::now() + rest);
        is_tailed
    }

    async fn serve_by_tail(&self, tails: &mut Tails, mut joined: Joined) -> Result<TailEnded, TailEnded> {
        let _place = self.context.stream.place().ok_or(("many", REST))?;
        let tail = self.form(tails).await?;
        let (why, rest) = match self.open(&tail, tails.seen).await {
            Ok(begun) => {
                self.context.metrics.tailed_lanes.inc();
                self.context.stream.begins(self.lane);
                let began_at = Instant::now();
                let ended = self.follow(&tail, &begun, &mut joined).await;
                self.context.metrics.tailed_lanes.dec();
                if !STALLS.contains(&ended.0) || began_at.elapsed() > WORTH {
                    tails.stalls = 0;
                }
                ended
            }
            Err(ended) => ended,
        };
        if GIVES_UP.contains(&why) {
            self.context.stream.give_up(joined.number);
        }
        drop(joined);
        tail.end(why);
        let own = tails.ended(&tail).await;
        Ok((why, rest.max(own)))
    }

    /// Seals the lane, and waits until the claims that were there are settled.
    async fn form(&self, tails: &mut Tails) -> Result<Arc<Tail>, TailEnded> {
        let started = Instant::now();
        let lease = self.context.config.relay.lease;
        let form = async |db: &mut _| tail::form(db, self.lane, &self.context.owner, (token(), lease)).await;
        let formed = self.sessions.take().await.run("tail", form).await.map_err(|_logged| ("error", REST))?;
        let claim = TailClaim { lease: formed.ok_or(("taken", REST))?, kind: ClaimKind::Forming, mark: 0 };
        let (finished, queue) = mpsc::unbounded_channel();
        let ends = (finished, self.settled.clone());
        let tail = Arc::new(Tail::new(&self.context, (self.lane, claim), started + lease, ends, &self.last_pass));
        let settler = Settler {
            context: Arc::clone(&self.context),
            queue: Arc::new(Mutex::new(queue)),
            settled: self.settled.clone(),
            tail: Some(Arc::clone(&tail)),
        };
        tails.settling.spawn(settler.run());
        loop {
            let mut session = self.sessions.take().await;
            let is_alone = session.run("tail", async |db| tail::is_alone(db, self.lane).await).await;
            drop(session);
            match is_alone {
                Ok(true) => return Ok(tail),
                Ok(false) if started.elapsed() < FORMING * (1 << tails.stalls.min(2)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                _ => {
                    tail.end("crowded");
                    tails.ended(&tail).await;
                    return Err(("crowded", CROWDED));
                }
            }
        }
    }

    /// Opens a tail, and reads what was there before.
    async fn open(&self, tail: &Tail, seen: u64) -> Result<Begun, TailEnded> {
        if self.context.stop.run_until_cancelled(tail.open(seen)).await != Some(true) {
            return Err(("lost", REST));
        }
        let mut session = self.sessions.take().await;
        let claim = tail.claim().lease;
        let begun = session.run("tail", async |db| tail::begin(db, (self.lane, claim), MOST).await).await;
        begun.map_err(|_logged| ("error", REST))
    }

    /// Takes what the stream shows, until something ends the tail.
    async fn follow(&self, tail: &Arc<Tail>, begun: &Begun, joined: &mut Joined) -> TailEnded {
        if !begun.is_open {
            return ("closed", REST);
        }
        if begun.pending.len() > MOST_PENDING {
            return ("backlog", REST);
        }
        if let Err(ended) = self.is_allowed(&joined.server).await {
            return ended;
        }
        let mut followed = Followed::new(tail, begun, &joined.server);
        loop {
            let written = tail.written();
            if let Err(ended) = followed.go_on(self).await {
                return ended;
            }
            let applied = tokio::select! {
                biased;
                () = self.context.stop.cancelled() => Err(("stop", REST)),
                event = joined.events.recv() => followed.apply(event, &mut joined.events),
                () = written => Ok(()),
                () = tokio::time::sleep(TICK) => Ok(()),
            };
            if let Err(ended) = applied {
                return ended;
            }
        }
    }
}
