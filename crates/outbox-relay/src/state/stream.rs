//! The stream of the binary log, which the lanes of this process share.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::{
    binlog::{End, Log, Reason, Refused, RowChange, StreamEnded, What},
    state::context::Context,
};

/// Most transactions of a lane that wait for it.
const MOST: usize = 10_000;
/// Most KiB of contents that wait. The contents of further messages are read from the tables.
const CONTENTS: usize = 8 << 10;
/// The log shows an own claim within this time, also behind large transactions of others.
const UNSHOWN: Duration = Duration::from_secs(10);
/// The time without a stream after one that has not.
const BLIND: Duration = Duration::from_mins(5);
/// Most bytes of other tables in a second, over a minute, and the time without a stream after more.
const FOREIGN: u64 = 10 << 20;
const BUSY: Duration = Duration::from_mins(10);
/// A stream that no lane needs for this time ends.
const UNUSED: Duration = Duration::from_secs(60);
/// The time before a stream that was refused is asked for again; if only the server could not be reached; and between
/// two streams.
const REFUSED: Duration = Duration::from_secs(60);
const UNAVAILABLE: Duration = Duration::from_secs(3);
const APART: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
/// Most tails of a process: each has a connection, and a commit in each second.
const TAILS: usize = 8;

/// The changes of a lane in one transaction.
pub struct Transaction {
    /// In their order.
    pub changes: Vec<RowChange>,
    /// The room that the contents take.
    room: Vec<OwnedSemaphorePermit>,
}

/// What the stream shows a lane.
pub enum StreamEvent {
    /// A transaction was committed.
    Committed(Transaction),
    /// A prepared transaction was committed. It may be about the lane.
    PreparedCommitted,
}

/// A lane's part of the stream.
pub struct Joined {
    /// The number of the stream.
    pub number: u64,
    /// The identity of the server.
    pub server: String,
    /// What is committed from now on. It ends with the stream, or if the lane is too slow.
    pub events: mpsc::Receiver<StreamEvent>,
}

/// The stream of a process, if it has one.
pub struct Stream {
    state: Mutex<StreamState>,
    tails: Arc<Semaphore>,
}

#[derive(Default)]
struct StreamState {
    phase: StreamPhase,
    /// Distinguishes a stream from the ones before.
    number: u64,
    lanes: HashMap<u16, mpsc::Sender<StreamEvent>>,
    /// When a lane or the search needed the stream last.
    used: Option<Instant>,
    /// Bytes of other tables, also in streams before.
    foreign: Rate,
    /// When the last stream was opened.
    opened: Option<Instant>,
    /// The number of claims that the streams have shown, and the time of a claim that was not shown.
    claims: u64,
    awaited: Option<Instant>,
    /// The lanes that have a tail of this process.
    tailed: BTreeSet<u16>,
    /// Why the last tail has ended, or was not made.
    why_not: Option<String>,
}

/// A number of bytes a second.
#[derive(Default)]
struct Rate {
    bytes: u64,
    since: Option<Instant>,
}

impl Rate {
    /// Adds bytes. Returns the rate, once a minute.
    fn add(&mut self, bytes: u64) -> Option<u64> {
        self.bytes += bytes;
        let elapsed = self.since.get_or_insert_with(Instant::now).elapsed();
        (elapsed > MINUTE).then(|| {
            self.since = None;
            std::mem::take(&mut self.bytes) / elapsed.as_secs()
        })
    }
}

#[derive(Default)]
enum StreamPhase {
    #[default]
    Closed,
    Opening,
    /// With the identity of the server.
    Open(String),
    /// No stream is asked for until this time.
    Refused(Instant, Refused),
}

impl Default for Stream {
    fn default() -> Self {
        Self { state: Mutex::default(), tails: Arc::new(Semaphore::new(TAILS)) }
    }
}

impl Stream {
    /// Notes that a lane has a tail of this process.
    pub fn begins(&self, lane: u16) {
        self.state.lock().tailed.insert(lane);
    }

    /// Notes why a lane has no tail of this process (any more): a word, and a sentence.
    pub fn ends(&self, lane: u16, word: &str, sentence: &str) {
        let mut state = self.state.lock();
        state.tailed.remove(&lane);
        let why_not = format!("{word}: {sentence}");
        if state.why_not.as_ref() != Some(&why_not) {
            tracing::info!(lane, why = why_not, "the lane is not read from the binary log now");
            state.why_not = Some(why_not);
        }
    }

    /// Says which lanes have a tail of this process, or why none has: a word, and a sentence. `None`: there was no
    /// reason for one yet.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        let state = self.state.lock();
        match state.tailed.len() {
            0 => state.why_not.clone(),
            1 => Some(format!("tailing: lane {} is read from the binary log", state.tailed.first()?)),
            lanes => Some(format!("tailing: {lanes} lanes are read from the binary log")),
        }
    }

    /// Takes the place of a tail, if there is one.
    #[must_use]
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.tails).try_acquire_owned().ok()
    }

    /// Shows a lane the commits from now on. `None`: the stream is not open yet, and a task opens it.
    pub fn join(context: &Arc<Context>, lane: u16) -> Result<Option<Joined>, Refused> {
        let mut state = context.stream.state.lock();
        match &state.phase {
            StreamPhase::Open(server) => {
                let (sender, events) = mpsc::channel(MOST);
                let server = server.clone();
                state.lanes.insert(lane, sender);
                Ok(Some(Joined { number: state.number, server, events }))
            }
            StreamPhase::Refused(until, refused) if Instant::now() < *until => Err(refused.clone()),
            _ => {
                state.open(context);
                Ok(None)
            }
        }
    }

    /// Opens the stream, or keeps it, although no lane has a tail: it wakes idle lanes.
    pub fn keep(context: &Arc<Context>) {
        if context.config.relay.tail && context.role.shares_keys() {
            let mut state = context.stream.state.lock();
            state.used = Some(Instant::now());
            state.open(context);
        }
    }

    /// The number of the open stream. Messages that are committed meanwhile wake their lanes.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        let state = self.state.lock();
        matches!(state.phase, StreamPhase::Open(_)).then_some(state.number)
    }

    /// The number of claims that the streams have shown.
    #[must_use]
    pub fn claims(&self) -> u64 {
        self.state.lock().claims
    }

    /// Notes that this process has made a claim. `claims` is the number of [`Self::claims`] before: if it is still the
    /// same, the stream has not shown the claim yet.
    pub fn awaits(&self, claims: u64) {
        let mut state = self.state.lock();
        if state.claims == claims {
            state.awaited.get_or_insert_with(Instant::now);
        }
    }

    /// Gives up the stream of this number: it does not show what this process writes.
    pub fn give_up(&self, number: u64) {
        let mut state = self.state.lock();
        if state.number == number {
            state.close(StreamPhase::Closed);
        }
    }
}

impl StreamState {
    /// Has a task open the stream, if there is none, and none was refused or opened just now.
    fn open(&mut self, context: &Arc<Context>) {
        let is_time = match &self.phase {
            StreamPhase::Open(_) | StreamPhase::Opening => false,
            StreamPhase::Refused(until, _) => *until <= Instant::now(),
            StreamPhase::Closed => self.opened.is_none_or(|at| at.elapsed() > APART),
        };
        if is_time {
            (self.phase, self.used, self.opened) = (StreamPhase::Opening, Some(Instant::now()), Some(Instant::now()));
            self.number += 1;
            tokio::spawn(run(Closing {
                number: self.number,
                context: Arc::clone(context),
                phase: StreamPhase::Closed,
            }));
        }
    }

    fn opened(&mut self, server: &str) {
        self.phase = StreamPhase::Open(server.to_owned());
        self.shows_claim();
    }

    /// Notes that the stream shows a claim. It is not awaited any more.
    fn shows_claim(&mut self) {
        (self.claims, self.awaited) = (self.claims + 1, None);
    }

    fn close(&mut self, phase: StreamPhase) {
        self.phase = phase;
        self.number += 1;
        self.lanes.clear();
    }
}

/// Opens the stream, and hands its events to their lanes, until it ends or no lane needs it.
async fn run(mut closing: Closing) {
    let number = closing.number;
    let context = Arc::clone(&closing.context);
    let opened = context.stop.run_until_cancelled(Log::open(&context.config.database, &context.owner)).await;
    closing.phase = match opened {
        Some(Ok(log)) => {
            context.stream.state.lock().opened(log.server());
            // The search looks for what was committed before.
            context.nudge.notify_waiters();
            pump(log, number, &context).await
        }
        Some(Err(refused)) if refused.reason == Reason::Unavailable => refusal(UNAVAILABLE, refused),
        Some(Err(refused)) => refusal(REFUSED, refused),
        None => StreamPhase::Closed,
    };
}

fn refusal(time: Duration, refused: Refused) -> StreamPhase {
    StreamPhase::Refused(Instant::now() + time, refused)
}

/// A stream that is closed at the end of its task, also by a panic.
struct Closing {
    number: u64,
    context: Arc<Context>,
    /// The phase of the stream after its end.
    phase: StreamPhase,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let mut state = self.context.stream.state.lock();
        if state.number == self.number {
            state.close(std::mem::take(&mut self.phase));
        }
        drop(state);
        // From now on it wakes no lane.
        self.context.nudge.notify_waiters();
    }
}

async fn pump(mut log: Log, number: u64, context: &Context) -> StreamPhase {
    let room = Arc::new(Semaphore::new(CONTENTS));
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut counted = 0;
    loop {
        let end = tokio::select! {
            end = log.next() => Some(end),
            _ = tick.tick() => None,
        };
        let mut state = context.stream.state.lock();
        if state.number != number {
            return StreamPhase::Closed;
        }
        let foreign = log.foreign - std::mem::replace(&mut counted, log.foreign);
        if let Some(rate) = state.foreign.add(foreign).filter(|rate| *rate > FOREIGN) {
            let why = format!("other tables write {} MiB to the binary log in a second", rate >> 20);
            return refusal(BUSY, Refused::new(Reason::Busy, why));
        }
        match end {
            Some(Ok(End::Committed(changes))) => state.committed(&room, changes, context),
            Some(Ok(End::Prepared(_))) => {}
            Some(Ok(End::PreparedCommitted)) => {
                state.lanes.retain(|_, events| events.try_send(StreamEvent::PreparedCommitted).is_ok());
                // Its rows came with its preparation.
                context.nudge.notify_waiters();
            }
            // The next one would show the same.
            Some(Err(ended @ StreamEnded::Unreadable(_))) => {
                return refusal(REFUSED, Refused::new(Reason::Unreadable, ended.to_string()));
            }
            Some(Err(ended)) => {
                tracing::debug!(%ended);
                return StreamPhase::Closed;
            }
            // As after RESET MASTER: the server's thread reads a file that is gone, and sends heartbeats.
            None if state.awaited.is_some_and(|at| at.elapsed() > UNSHOWN) => {
                return refusal(
                    BLIND,
                    Refused::new(Reason::Blind, "the binary log does not show what this relay writes"),
                );
            }
            None => {
                state.lanes.retain(|_, events| !events.is_closed());
                if !state.lanes.is_empty() {
                    state.used = Some(Instant::now());
                } else if state.used.is_none_or(|used| used.elapsed() > UNUSED) || context.stop.is_cancelled() {
                    return StreamPhase::Closed;
                }
            }
        }
    }
}

impl StreamState {
    fn committed(&mut self, room: &Arc<Semaphore>, changes: Vec<RowChange>, context: &Context) {
        let mut by_lane: HashMap<u16, Transaction> = HashMap::new();
        for mut change in changes {
            if matches!(change.what, What::Claimed(..)) {
                self.shows_claim();
            }
            if !self.lanes.contains_key(&change.lane) {
                if matches!(change.what, What::Pending(..)) && !context.idle.wake(change.lane) {
                    context.nudge.notify_waiters();
                }
                continue;
            }
            let new = || Transaction { changes: Vec::new(), room: Vec::new() };
            let transaction = by_lane.entry(change.lane).or_insert_with(new);
            if let What::Pending(row, message @ Some(_)) = &mut change.what {
                match Arc::clone(room).try_acquire_many_owned(row.bytes / 1024 + 1) {
                    Ok(taken) => transaction.room.push(taken),
                    Err(_none) => *message = None,
                }
            }
            transaction.changes.push(change);
        }
        for (lane, transaction) in by_lane {
            let events = self.lanes.get(&lane);
            if events.is_none_or(|events| events.try_send(StreamEvent::Committed(transaction)).is_err()) {
                // It is too slow, or has ended.
                self.lanes.remove(&lane);
                context.idle.wake(lane);
            }
        }
    }
}
