//! Finds lanes with messages, and gives each a claimer. One look at all idle lanes replaces a look at each.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use outbox_core::{sqlx, store::claim::lanes};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::{
    error::RunError,
    pipeline::{
        claim::{Claimed, Claimer},
        settle::Settled,
    },
    state::{
        capacity::Capacity,
        context::Context,
        session::{Patience, Session, Sessions},
        stream::Stream,
    },
};

/// Most connections of all claimers together.
const CONNECTIONS: usize = 4;
/// Shortest pause between two looks, if something was enqueued in this process.
const PACE: Duration = Duration::from_millis(10);
/// The pause after a look is at least this many times its duration; [`LONGEST_PAUSE`] limits that. A look reads past
/// deleted rows that a snapshot keeps, and millions of them take long.
const PAUSE: u32 = 20;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After this duration without a message in any lane, the pause between two looks is [`WHEN_QUIET`] times as long.
const QUIET: Duration = Duration::from_secs(10);
const WHEN_QUIET: u32 = 3;
/// The pause while the binary log shows which lanes have a message. A look finds what it does not show.
const SHOWN: Duration = Duration::from_secs(3);
/// Before the stream is closed for lack of use.
const KEPT: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(100);
/// At this number of lanes the log warns: each has only a part of the room for messages in flight.
const MANY: usize = 256;

/// Starts a claimer for every lane with messages that this relay serves, until the relay is stopped. Then waits for all
/// claimers.
pub(crate) async fn run(
    context: Arc<Context>,
    capacity: Capacity,
    open: watch::Receiver<bool>,
    (claims, settled): (mpsc::Sender<Claimed>, mpsc::UnboundedSender<Settled>),
) -> Result<(), RunError> {
    let mut search = Search {
        session: Session::new(&context),
        sessions: Arc::new(Sessions::new(&context, CONNECTIONS)),
        patience: Patience::new(&context),
        context: Arc::clone(&context),
        capacity,
        open,
        claims,
        settled,
        has_room: false,
        served: BTreeSet::new(),
        foreign: BTreeSet::new(),
        claimers: JoinSet::new(),
        found_at: Instant::now(),
        stream: None,
    };
    let mut wait = Duration::ZERO;
    // A nudge during the look counts, too.
    let mut nudged = Box::pin(context.nudge.notified());
    while let Some(is_nudged) = context.stop.run_until_cancelled(next(wait, nudged.as_mut())).await {
        nudged.set(context.nudge.notified());
        nudged.as_mut().enable();
        wait = search.look(is_nudged).await;
    }
    while let Some(ended) = search.claimers.join_next().await {
        ended?;
    }
    Ok(())
}

/// The search for lanes with messages.
struct Search {
    context: Arc<Context>,
    capacity: Capacity,
    open: watch::Receiver<bool>,
    claims: mpsc::Sender<Claimed>,
    settled: mpsc::UnboundedSender<Settled>,
    session: Session,
    sessions: Arc<Sessions>,
    patience: Patience,
    /// Whether lanes that had messages have their room.
    has_room: bool,
    served: BTreeSet<u16>,
    /// Lanes of processes of the other kind.
    foreign: BTreeSet<u16>,
    claimers: JoinSet<()>,
    /// When a lane had messages last.
    found_at: Instant,
    /// The number of the stream that wakes lanes.
    stream: Option<u64>,
}

impl Search {
    /// Looks once. Returns the pause before the next look.
    async fn look(&mut self, is_nudged: bool) -> Duration {
        self.keep_room().await;
        self.follow_stream();
        let Ok((lanes, took)) = self.find().await else { return LONGEST_PAUSE };
        if self.context.idle.count() < self.served.len() || !lanes.is_empty() {
            self.found_at = Instant::now();
        }
        for (lane, kind) in lanes {
            self.serve(lane, &kind);
        }
        self.context.alive("claim");
        let pause = self.context.config.relay.poll_interval;
        let pause = if self.stream.is_none() {
            pause * if self.found_at.elapsed() > QUIET { WHEN_QUIET } else { 1 }
        } else if is_nudged {
            // A row may be shown before a look sees it.
            pause.min(AGAIN)
        } else {
            pause.clamp(SHOWN, KEPT)
        };
        pause.max((took * PAUSE).min(LONGEST_PAUSE))
    }

    /// A lane that had messages once may have more: room is kept for it.
    async fn keep_room(&mut self) {
        if !self.has_room {
            let kind = self.context.role.name();
            let known = self.session.run("lanes", async |db| lanes::with_head(db, kind).await).await;
            self.has_room = known.is_ok();
            let lanes = known.into_iter().flatten().filter(|lane| is_served(&self.context, *lane));
            lanes.for_each(|lane| self.capacity.serve(lane));
        }
    }

    /// Called before a look: what is committed after it is shown.
    fn follow_stream(&mut self) {
        if self.found_at.elapsed() > QUIET {
            Stream::keep(&self.context);
        }
        let stream = self.context.stream.number();
        if stream.is_some() && stream != self.stream {
            // It does not show what was pending before.
            self.context.idle.wake_all();
        }
        self.stream = stream;
    }

    /// Starts the claimer of a lane that belongs to processes of this kind.
    fn serve(&mut self, lane: u16, kind: &str) {
        let context = &self.context;
        if kind != context.role.name() {
            tracing::warn!(lane, "the lane belongs to {kind}s: this {} leaves it alone", context.role.name());
            self.foreign.insert(lane);
        } else if self.served.insert(lane) {
            self.capacity.serve(lane);
            let claimer = Claimer {
                context: Arc::clone(context),
                lane,
                capacity: self.capacity.clone(),
                open: self.open.clone(),
                claims: self.claims.clone(),
                settled: self.settled.clone(),
                last_pass: Arc::new(AtomicU64::new(0)),
                sessions: Arc::clone(&self.sessions),
            };
            self.claimers.spawn(claimer.run());
            context.metrics.lanes.inc();
            if self.served.len() == MANY {
                tracing::warn!("{MANY} lanes have messages: each has only a part of the room in flight");
            }
        }
    }

    /// Wakes the idle lanes that have a pending row. Returns the other lanes with a pending row and no claimer, each
    /// with the kind of processes that serve it, and the duration of the longest statement.
    async fn find(&mut self) -> Result<(Vec<(u16, String)>, Duration), sqlx::Error> {
        let context = &self.context;
        let session = &mut self.session;
        let busy = self.served.iter().filter(|lane| !context.idle.contains(**lane)).chain(&self.foreign);
        let mut ranges = others(&context.config.relay.lanes, &busy.copied().collect());
        let mut found = Vec::new();
        let mut longest = Duration::ZERO;
        while !ranges.is_empty() {
            let started = Instant::now();
            let find = session.run_patiently(&mut self.patience, "lanes", async |db| lanes::pending(db, &ranges).await);
            let lanes = find.await?;
            longest = longest.max(started.elapsed());
            for lane in lanes.iter().filter(|lane| self.served.contains(lane)) {
                context.idle.wake(*lane);
            }
            let above = |range: &Range<u32>| {
                let lane = lanes.iter().map(|lane| u32::from(*lane)).find(|lane| range.contains(lane))?;
                Some(lane + 1..range.end)
            };
            ranges = ranges.iter().filter_map(above).filter(|range| !range.is_empty()).collect();
            found.extend(lanes.into_iter().filter(|lane| !self.served.contains(lane)));
        }
        self.patience.took(longest);
        let mut ready = Vec::new();
        for lane in found {
            // If the head of a lane cannot be made, the next look finds the lane again.
            let settle = session.run("create_head", async |db| lanes::take_for(db, lane, context.role.name()).await);
            ready.extend(settle.await.ok().map(|kind| (lane, kind)));
        }
        Ok((ready, longest))
    }
}

fn is_served(context: &Context, lane: u16) -> bool {
    let named = &context.config.relay.lanes;
    named.is_empty() || named.contains(&lane)
}

/// Waits for this duration, or for a nudge. Returns whether there was one.
async fn next(wait: Duration, nudged: impl Future<Output = ()>) -> bool {
    let nudged = async {
        tokio::time::sleep(PACE).await;
        nudged.await;
    };
    tokio::select! {
        biased;
        () = nudged => true,
        () = tokio::time::sleep(wait) => false,
    }
}

/// Returns the lanes that the configuration names, or all, without the busy ones.
fn others(named: &[u16], busy: &BTreeSet<u16>) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = match named {
        [] => std::iter::once(0..lanes::END).collect(),
        named => named.iter().map(|lane| u32::from(*lane)..u32::from(*lane) + 1).collect(),
    };
    for lane in busy.iter().map(|lane| u32::from(*lane)) {
        let parts = ranges.into_iter().flat_map(|range| {
            let is_within = range.contains(&lane);
            if is_within { [range.start..lane, lane + 1..range.end] } else { [range, 0..0] }
        });
        ranges = parts.filter(|part| !part.is_empty()).collect();
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_looked_for_beside_the_busy_ones() {
        assert_eq!(others(&[], &[].into()).first(), Some(&(0..65_536)));
        assert_eq!(others(&[], &[0, 7, 65_535].into()), [1..7, 8..65_535]);
        assert_eq!(others(&[3, 9, 4], &[9].into()), [3..4, 4..5]);
    }
}
