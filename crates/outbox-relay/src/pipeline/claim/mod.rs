//! The claimer of a lane: looks for pending rows and claims them, pass after pass.

mod follow;
mod foreign;
mod held;
mod make;
mod pace;
mod past;
mod tail;
pub mod window;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::claim::{
        self, Look, Pending, Seen, lanes,
        read::Stored,
        tail::{self as store_tail, SEALED},
    },
};
use tokio::sync::{mpsc, watch};

pub use self::foreign::{Foreign, claimed_ids};
use self::{
    make::kib,
    pace::ClaimPause,
    past::Past,
    tail::Tails,
    window::{Limits, Selection, Start},
};
use crate::{
    pipeline::settle::{Finished, Settled},
    state::{
        backoff::Backoff,
        capacity::{Capacity, ClaimRoom},
        context::Context,
        crash,
        leases::Tenure,
        session::{self, Loan, Patience, Session, Sessions},
    },
};

/// New claims of a pass, and their messages if the claims' round trip returned them.
type Made = (Vec<Arc<Tenure>>, Option<Vec<Stored>>);

/// A new claim of this process, before its messages are read.
pub struct Claimed {
    /// The claim.
    pub tenure: Arc<Tenure>,
    /// The pass of its lane's claimer that made it.
    pub pass: u64,
    /// When that pass began, and when the claim was committed.
    pub times: (Instant, Instant),
    /// The number of the pass that began last.
    pub last_pass: Arc<AtomicU64>,
    /// The rows, by id.
    pub rows: Vec<Pending>,
    /// Their messages, if the claim's round trip returned them.
    pub messages: Option<Vec<Stored>>,
    /// Its room among the messages in flight.
    pub room: ClaimRoom,
    /// Messages that go into the queues of their keys, sorted: under a tail, earlier ones hold these.
    pub behind: Vec<u64>,
    /// The queue of its settler, if it is a part of a tail.
    pub settler: Option<mpsc::UnboundedSender<Finished>>,
}

/// The outcome of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Claimed this many messages.
    Claimed(usize),
    /// Found nothing to claim.
    Empty,
    /// Moved rows into the queues of their keys, or looked past such rows, and found nothing to claim.
    Deferred,
    /// Another relay changed the lane first.
    Conflict,
    /// The lane has a tail.
    Tailed,
}

/// The claimer of one lane.
pub struct Claimer {
    /// The shared state.
    pub context: Arc<Context>,
    /// The lane.
    pub lane: u16,
    /// The room for messages in flight.
    pub capacity: Capacity,
    /// Whether there is a sink to publish to.
    pub open: watch::Receiver<bool>,
    /// Receives the claims.
    pub claims: mpsc::Sender<Claimed>,
    /// Reports settled claims to the publisher.
    pub settled: mpsc::UnboundedSender<Settled>,
    /// The number of the pass that began last.
    pub last_pass: Arc<AtomicU64>,
    /// Connections, shared with the claimers of other lanes.
    pub sessions: Arc<Sessions>,
}

/// The claimer's state between passes.
struct Memory {
    foreign: Foreign,
    start: Start,
    full_look_at: Instant,
    /// Whether the last look was a full one, and saw neither a row nor a claim.
    is_bare: bool,
    /// Until then there are too many held keys to read them one after the other.
    many_held_until: Instant,
    past: Past,
    tails: Tails,
    /// For looks that start at the first row.
    patience: Patience,
    last_message_at: Instant,
    /// The pauses after failed passes.
    pauses: Backoff,
}

/// A full look finds rows that were committed later than the floor allows. It also reads the deleted rows that a
/// snapshot keeps, and millions of them take long. So the pause after it is at least [`FULL_LOOK_PAUSE`] times as long
/// as the look.
const FULL_LOOK_EVERY: Duration = Duration::from_secs(1);
const FULL_LOOK_PAUSE: u32 = 20;

impl Claimer {
    /// Claims until the relay is stopped.
    pub async fn run(mut self) {
        let now = Instant::now();
        let mut memory = Memory {
            foreign: Foreign::default(),
            start: Start::default(),
            full_look_at: now,
            is_bare: false,
            many_held_until: now,
            past: Past::new(),
            tails: Tails::new(),
            patience: Patience::new(&self.context),
            last_message_at: now,
            pauses: session::pauses(),
        };
        let stop = self.context.stop.clone();
        while let Some(true) = stop.run_until_cancelled(self.ready()).await {
            let Some(room) = stop.run_until_cancelled(self.capacity.take(self.lane)).await else { break };
            let session = self.sessions.take().await;
            let started = Instant::now();
            let outcome = self.pass(&mut memory, session, room).await;
            let pause = self.judge(&mut memory, &outcome, started);
            let is_idle = matches!(pause, ClaimPause::Idle);
            let Some(()) = stop.run_until_cancelled(self.rest(pause)).await else { break };
            if is_idle && self.context.stream.number().is_some() {
                // The log may show a message before a look sees it.
                memory.last_message_at = Instant::now();
            }
            if self.tail(&mut memory.tails).await {
                memory.foreign.forget_ids();
                (memory.full_look_at, memory.last_message_at) = (Instant::now(), Instant::now());
            }
        }
        memory.tails.finish().await;
    }

    /// Waits until there is a sink to publish to, and the lane is not paused.
    async fn ready(&mut self) -> bool {
        self.context.controls.runs(self.lane).await;
        self.open.wait_for(|open| *open).await.is_ok()
    }

    /// Runs one pass: look, select, claim. Gives back the room that the claim does not need.
    async fn pass(&self, memory: &mut Memory, mut session: Loan<'_>, room: ClaimRoom) -> Result<Pass, sqlx::Error> {
        let started = Instant::now();
        let pass = self.last_pass.fetch_add(1, Ordering::AcqRel) + 1;
        // A late row of such a key is below the start: a full look finds it.
        let without = if memory.full_look_at <= started { Vec::new() } else { memory.past.take() };
        let still = (!without.is_empty()).then(|| self.context.queues.hold_still(self.lane));
        let looked = self.look(memory, &mut session, &room, &without).await;
        if !without.is_empty() {
            memory.past.took(started.elapsed());
        }
        let (seen, selection, start) = looked?;
        let Some(version) = seen.version else {
            // The head was deleted by hand.
            session.run("create_head", async |db| lanes::create_head(db, self.lane).await).await?;
            return Ok(Pass::Empty);
        };
        memory.tails.saw(&seen);
        if seen.has_tail {
            return Ok(Pass::Tailed);
        }
        if version == SEALED {
            session.run("tail", async |db| store_tail::unseal(db, self.lane).await).await?;
            return Ok(Pass::Conflict);
        }
        match (selection.claims.is_empty(), selection.behind.is_empty()) {
            (true, true) if without.is_empty() => return Ok(Pass::Empty),
            (true, true) => return Ok(Pass::Deferred),
            (true, false) => return self.defer(&mut session, version, &selection.behind).await,
            _ => {}
        }
        let shown = self.context.stream.claims();
        let Some(made) = self.claim(memory, session, version, &selection).await? else {
            return Ok(Pass::Conflict);
        };
        self.context.stream.awaits(shown);
        // The claim is made: queues may be read on while the readers have no room for it.
        drop(still);
        self.count_late(&selection, start.id());
        made.0.iter().for_each(|tenure| self.context.leases.insert(tenure));
        crash::point("after_claim");
        let rows = selection.claims.concat();
        let taken = rows.len();
        self.hand_over((pass, started), made, rows, room).await;
        Ok(Pass::Claimed(taken))
    }

    /// Sends the claims on, each with its rows, their messages, and its part of the room.
    async fn hand_over(
        &self,
        (pass, started): (u64, Instant),
        (tenures, mut messages): Made,
        mut rows: Vec<Pending>,
        mut room: ClaimRoom,
    ) {
        let times = (started, Instant::now());
        let claims = tenures.into_iter().map(|tenure| {
            let is_mine = |id: u64| tenure.ids.binary_search(&id).is_ok();
            let rows: Vec<Pending> = rows.extract_if(.., |row| is_mine(row.id)).collect();
            let messages = messages.as_mut().map(|all| all.extract_if(.., |it| is_mine(it.id)).collect());
            let room = room.split(self.context.role.of_claim(rows.len()), kib(&rows));
            let last_pass = Arc::clone(&self.last_pass);
            let behind = Vec::new();
            let settler = None;
            Claimed { tenure, pass, times, last_pass, rows, messages, room, behind, settler }
        });
        let claims: Vec<Claimed> = claims.collect();
        // The room that they do not need is free.
        drop(room);
        for claimed in claims {
            // A closed channel means that the process is ending. The lease then expires or is released.
            self.claims.send(claimed).await.ok();
        }
    }

    /// Looks at the lane and selects rows. Also returns the start of the look. Looks again if a row was put back below
    /// the start, or if claim numbers began again.
    async fn look(
        &self,
        memory: &mut Memory,
        session: &mut Session,
        room: &ClaimRoom,
        without: &[u64],
    ) -> Result<(Seen, Selection, Start), sqlx::Error> {
        loop {
            let start = memory.start;
            match self.look_once(memory, session, room, without).await? {
                Some((seen, selection)) if !start.is_passed(seen.low) => return Ok((seen, selection, start)),
                _ => {}
            }
        }
    }

    async fn look_once(
        &self,
        memory: &mut Memory,
        session: &mut Session,
        room: &ClaimRoom,
        without: &[u64],
    ) -> Result<Option<(Seen, Selection)>, sqlx::Error> {
        let own = self.context.leases.of_lane(self.lane);
        let floor = self.context.floor.load(Ordering::Acquire);
        let messages = room.messages.places();
        let rows = messages.max(self.context.role.look_rows());
        let (seen, below) = self.see(memory, session, &own, (rows, without)).await?;
        if memory.foreign.misses(&seen) {
            memory.foreign.forget_ids();
            return Ok(None);
        }
        let mut barred = memory.foreign.bar(&seen, &own);
        // The list that a tail has become has ever higher numbers, and a replay sends a key in the order of its claims.
        let apart = own.iter().filter(|tenure| tenure.is_part || !self.context.role.shares_keys());
        barred.keys.extend(apart.flat_map(|tenure| &tenure.keys));
        self.context.leases.sweep(self.lane, &seen.leases);
        barred.held = self.held(memory, session, &seen).await?;
        barred.crowded = self.context.queues.crowded(self.lane);
        let bytes = 1024 * room.kib.places() as u64;
        let of_key = self.context.queues.most_of_key();
        let of_claim = self.context.role.of_claim(messages);
        let limits = Limits { messages, of_claim, bytes, below, of_key };
        let mut selection = window::select(&seen, &barred, &limits);
        memory.start = selection.end(&seen, &barred, floor, (!without.is_empty()).then_some(memory.start));
        if without.is_empty() {
            let is_cut = seen.fresh.len() >= rows || seen.below.len() >= below;
            memory.past.choose(&selection, if is_cut { seen.fresh.len() + seen.below.len() } else { usize::MAX });
        }
        Ok(Some((seen, selection)))
    }

    /// Reads at most this many rows, and as many in the gaps as it returns beside them.
    async fn see(
        &self,
        memory: &mut Memory,
        session: &mut Session,
        own: &[Arc<Tenure>],
        (rows, without): (usize, &[u64]),
    ) -> Result<(Seen, usize), sqlx::Error> {
        let started = Instant::now();
        let full = memory.full_look_at <= started && without.is_empty();
        if full {
            memory.foreign.forget_ids();
        }
        let start = memory.start.id();
        let gaps = window::gaps(if full { 0 } else { start }, &claimed_ids(own, &memory.foreign.claims));
        let limit = u32::try_from(rows).unwrap_or(u32::MAX);
        let below_limit = 2 * rows + gaps.claimed_within;
        let look = Look {
            lane: self.lane,
            owner: &self.context.owner,
            known_claim: memory.foreign.known,
            gone_claim: memory.foreign.gone,
            above: gaps.above,
            limit,
            below: &gaps.below,
            below_limit: u32::try_from(below_limit).unwrap_or(u32::MAX),
            without: past::without(without, memory.start),
        };
        let looked = if full || start == 0 {
            let patience = &mut memory.patience;
            let looked = session.run_patiently(patience, "look", async |db| claim::look(db, &look).await).await;
            if looked.is_ok() {
                patience.took(started.elapsed());
            }
            looked
        } else {
            session.run("look", async |db| claim::look(db, &look).await).await
        };
        if full {
            memory.full_look_at = Instant::now() + FULL_LOOK_EVERY.max(started.elapsed() * FULL_LOOK_PAUSE);
        }
        let seen = looked?;
        memory.is_bare = full && seen.fresh.is_empty() && seen.below.is_empty() && seen.leases.is_empty();
        Ok((seen, below_limit))
    }

    /// Counts claimed rows below the start: they were committed later than the floor allows.
    fn count_late(&self, selection: &Selection, start: u64) {
        let late = selection.claims.iter().flatten().filter(|row| row.id < start).count();
        self.context.metrics.late_commits_total.inc_by(late as u64);
    }
}
