//! Hands on the rows of a lane that the binary log shows, as long as nothing ends the tail.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use outbox_core::store::claim::{
    Pending,
    read::Stored,
    tail::{self, Begun, TailClaim},
};
use tokio::sync::mpsc::{self, error::TryRecvError};

use super::{
    Claimed, Claimer,
    make::kib,
    tail::{LONG_REST, MOST, TailEnded},
};
use crate::{
    binlog::judge,
    pipeline::tail::{
        REST, Tail,
        lane::{Arrival, LaneState},
    },
    state::{
        crash,
        stream::{StreamEvent, Transaction},
    },
};

/// Without room for messages in flight for this time, a tail ends.
const BUSY: Duration = Duration::from_millis(200);
/// The log shows within this time that the tail is open, and what is settled.
const SHOWN: Duration = Duration::from_secs(2);
/// A stream that shows settlements later than this is behind the tables: a look finds rows sooner.
const BEHIND: Duration = Duration::from_millis(500);
/// A tail looks this often at what it does not wait for.
pub(super) const TICK: Duration = Duration::from_millis(200);
/// It looks this often for rows that the log did not show.
const SWEEP: Duration = Duration::from_secs(5);
const SWEPT: u32 = 1000;
/// Most rows of a part.
const PART: usize = 500;
/// Most transactions that are applied before their rows are handed on.
const DRAINED: usize = 1000;

impl Claimer {
    /// Whether the lane may be read from the log of this server.
    pub(super) async fn is_allowed(&self, server: &str) -> Result<(), TailEnded> {
        let variables = self.sessions.take().await.run("tail", tail::variables).await;
        match judge(variables.map_err(|_logged| ("error", REST))?) {
            Ok(found) if found == server => Ok(()),
            Ok(_) => Err(("other_server", LONG_REST)),
            Err(refused) => Err((refused.reason.word(), LONG_REST)),
        }
    }

    /// Whether nothing keeps the relay from publishing.
    fn is_free(&self) -> Result<(), TailEnded> {
        if self.context.controls.runs(self.lane).now_or_never().is_none() || !*self.open.borrow() {
            return Err(("paused", REST));
        }
        // A claim takes few messages of such a key.
        if self.context.queues.crowded(self.lane).is_empty() { Ok(()) } else { Err(("held", REST)) }
    }

    /// Takes waiting rows, as many as there is room for, and hands them on. Returns whether it could.
    /// May be cancelled: nothing is taken before it has waited for all that it needs.
    async fn hand(&self, tail: &Tail, waiting: &mut VecDeque<Arrival>, clock: &Clock<'_>) -> bool {
        let mut room = self.capacity.take(self.lane).await;
        // A closed channel means that the process is ending.
        let Ok(place) = self.claims.reserve().await else { return false };
        // Parts are read from the log, or from the tables.
        let is_shown = waiting.front().is_some_and(|arrival| arrival.message.is_some());
        let mut arrivals = Vec::new();
        let mut left = room.kib.places();
        while arrivals.len() < PART.min(room.messages.places())
            && let Some(arrival) = waiting.pop_front_if(|next| {
                next.message.is_some() == is_shown && (left == room.kib.places() || kib(&[next.row]) <= left)
            })
        {
            left = left.saturating_sub(kib(&[arrival.row]));
            arrivals.push(arrival);
        }
        arrivals.sort_by_key(|arrival| arrival.row.id);
        let rows: Vec<Pending> = arrivals.iter().map(|arrival| arrival.row).collect();
        let behind = arrivals.iter().filter(|it| it.is_behind).map(|it| it.row.id).collect();
        let queued = arrivals.iter().filter(|it| it.has_queue).map(|it| it.row.key_hash).collect();
        let messages = arrivals.into_iter().filter_map(|arrival| Some(clock.stored(*arrival.message?))).collect();
        let Some((tenure, pass)) = tail.take(&rows, queued) else { return false };
        let now = Instant::now();
        self.context.metrics.claimed_messages_total.inc_by(rows.len() as u64);
        crash::point("after_claim");
        let room = room.split(rows.len(), kib(&rows));
        let last_pass = Arc::clone(&self.last_pass);
        let settler = Some(tail.settler());
        let messages = is_shown.then_some(messages);
        place.send(Claimed { tenure, pass, times: (now, now), last_pass, rows, messages, room, behind, settler });
        true
    }
}

/// A lane that is read from the log.
pub(super) struct Followed<'a> {
    tail: &'a Tail,
    server: &'a str,
    lane: LaneState,
    /// Rows that are not handed on yet.
    waiting: VecDeque<Arrival>,
    clock: Clock<'a>,
    began_at: Instant,
    looked_at: Instant,
    /// When the stream has shown something last.
    heard_at: Instant,
    swept_at: Instant,
    /// How long the last sweep took.
    sweep: Duration,
    /// Whether the stream may have more that is not applied yet.
    has_more: bool,
    /// The largest id at that time, and the rows up to the one before that were not known.
    swept: u64,
    unknown: HashSet<u64>,
}

impl<'a> Followed<'a> {
    pub(super) fn new(tail: &'a Tail, begun: &'a Begun, server: &'a str) -> Self {
        let (now, TailClaim { lease, mark, .. }) = (Instant::now(), tail.claim());
        let (lane, arrivals) = LaneState::new(lease.lease_token, mark, begun);
        Self {
            tail,
            server,
            swept: lane.seen,
            lane,
            waiting: arrivals.into(),
            clock: Clock { now: begun.now, at: now, epochs: &begun.epochs },
            began_at: now,
            looked_at: now,
            heard_at: now,
            swept_at: now,
            sweep: Duration::ZERO,
            has_more: false,
            unknown: HashSet::new(),
        }
    }

    /// Hands the rows on that the stream has shown, and looks now and then at what it does not show.
    pub(super) async fn go_on(&mut self, claimer: &Claimer) -> Result<(), TailEnded> {
        self.waiting.extend(self.lane.raise(self.tail.claim().mark));
        self.tail.saw(self.lane.seen, self.lane.is_late());
        if self.lane.is_over() || !self.tail.is_open() {
            return Err((self.tail.why(), Duration::ZERO));
        }
        if self.lane.held_rows >= MOST as usize {
            return Err(("held", LONG_REST));
        }
        if self.waiting.iter().any(|arrival| arrival.row.takeovers > 0) {
            return Err(("taken_over", REST));
        }
        let handed = async {
            while !self.waiting.is_empty() && claimer.hand(self.tail, &mut self.waiting, &self.clock).await {}
        };
        if tokio::time::timeout(BUSY, handed).await.is_err() {
            return Err(("backlog", REST));
        }
        if self.waiting.is_empty() {
            self.tail.showed(self.lane.shown);
        }
        if self.looked_at.elapsed() > TICK {
            self.look(claimer).await?;
            self.looked_at = Instant::now();
        }
        Ok(())
    }

    async fn look(&mut self, claimer: &Claimer) -> Result<(), TailEnded> {
        claimer.context.alive("claim");
        if !self.lane.is_open() && self.began_at.elapsed() > SHOWN {
            return Err(("blind", LONG_REST));
        }
        let lag = self.tail.lag();
        if lag > SHOWN && !self.has_more {
            return Err(("silent", REST));
        }
        if lag > BEHIND && self.heard_at.elapsed() < BEHIND {
            return Err(("behind", REST));
        }
        claimer.is_free()?;
        // A sweep reads past deleted rows, which an old snapshot keeps.
        if self.swept_at.elapsed() > SWEEP.max(20 * self.sweep) {
            let began_at = Instant::now();
            self.sweep(claimer).await?;
            (self.swept_at, self.swept) = (Instant::now(), self.lane.seen);
            self.sweep = began_at.elapsed();
        }
        Ok(())
    }

    /// Looks for rows that the log did not show: those that are not known in two looks, because the log shows a
    /// settlement before reads see it. Also sets the clock.
    async fn sweep(&mut self, claimer: &Claimer) -> Result<(), TailEnded> {
        claimer.is_allowed(self.server).await?;
        let mut session = claimer.sessions.take().await;
        let range = (claimer.lane, self.swept);
        let found = session.run("tail", async |db| tail::up_to(db, range, SWEPT).await).await;
        let (found, now) = found.map_err(|_logged| ("error", REST))?;
        (self.clock.now, self.clock.at) = (now, Instant::now());
        let unknown = found.into_iter().filter(|id| !self.lane.knows(*id)).collect();
        let missed = std::mem::replace(&mut self.unknown, unknown).intersection(&self.unknown).count();
        if missed == 0 {
            return Ok(());
        }
        tracing::warn!(
            lane = claimer.lane,
            missed,
            "the binary log did not show rows: the tail ends, and they are claimed"
        );
        claimer.context.metrics.tail_missed_total.inc_by(missed as u64);
        Err(("missed", LONG_REST))
    }

    /// Applies an event, and those that are there already.
    pub(super) fn apply(
        &mut self,
        event: Option<StreamEvent>,
        events: &mut mpsc::Receiver<StreamEvent>,
    ) -> Result<(), TailEnded> {
        self.has_more = false;
        let mut event = event.ok_or(TryRecvError::Disconnected);
        for left in (0..DRAINED).rev() {
            match event {
                Ok(StreamEvent::Committed(Transaction { changes, .. })) => {
                    self.heard_at = Instant::now();
                    self.waiting.extend(self.lane.apply(changes));
                }
                // Its rows came with its preparation, and later messages of their keys may be in flight.
                Ok(StreamEvent::PreparedCommitted) => return Err(("prepared", REST)),
                Err(TryRecvError::Disconnected) => return Err(("stream", REST)),
                Err(TryRecvError::Empty) => break,
            }
            if left == 0 {
                self.has_more = true;
                break;
            }
            event = events.try_recv();
        }
        Ok(())
    }
}

/// The clock of the database, as it was at a moment, and the epochs.
struct Clock<'a> {
    /// Microseconds since 1970.
    now: i64,
    at: Instant,
    epochs: &'a [(u64, u64)],
}

impl Clock<'_> {
    /// Completes a message of the log.
    fn stored(&self, message: Stored) -> Stored {
        let elapsed = i64::try_from(self.at.elapsed().as_micros()).unwrap_or(i64::MAX);
        let waited_micros = self.now.saturating_add(elapsed).saturating_sub(message.created_at_micros);
        let epochs = self.epochs.iter().filter(|(first, _)| *first <= message.id);
        let epoch = epochs.map(|(_, epoch)| *epoch).max().unwrap_or(0);
        Stored { waited_micros, epoch, ..message }
    }
}
