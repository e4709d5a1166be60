//! Puts messages back among the pending ones: due messages, and the next ones of keys' queues.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::claim::{lanes, promote, queue},
};

use crate::state::{context::Context, queues::Wanted, session::Session};

/// Most messages of one look.
const CHUNK: u32 = 1000;
/// Longest pause between two looks. A look sees ahead for this long, so a message that was delayed for longer is put
/// back on time. Messages that are due one after the other are at most [`STREAM`] late.
const EVERY: Duration = Duration::from_millis(400);
/// Shortest pause between two looks: messages that are due shortly after one another are put back together.
const TOGETHER: Duration = Duration::from_millis(20);
/// The same after some messages were put back: each time, the claimers' looks become void.
const STREAM: Duration = Duration::from_millis(100);
/// Pause between two sweeps, and between two pages of one. The process that sends a key's messages reads its queue on.
/// A sweep finds the queues of dead processes, and those that an operator has freed.
const SWEEP: Duration = Duration::from_secs(5);
const PAGE: Duration = Duration::from_millis(20);
/// Most queues of a round: due messages wait for the round.
const QUEUES: usize = 100;

/// The times of the work that nothing asks for, and the progress of a sweep.
struct Agenda {
    due_at: Instant,
    sweep_at: Instant,
    lane: u16,
    above: u64,
}

/// Promotes until the relay is stopped. Several relays may promote at once: the lane's head keeps them apart.
pub(crate) async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let now = Instant::now();
    let due_at = now + EVERY.mul_f64(rand::random());
    let sweep_at = now + SWEEP.mul_f64(rand::random());
    let mut agenda = Agenda { due_at, sweep_at, lane: 0, above: 0 };
    loop {
        let wake = async {
            tokio::select! {
                () = tokio::time::sleep_until(agenda.due_at.min(agenda.sweep_at).into()) => {}
                () = context.queues.asked() => {}
            }
        };
        let Some(()) = context.stop.run_until_cancelled(wake).await else { break };
        if round(&context, &mut session, &mut agenda).await.is_err() {
            session.pause().await;
            agenda.due_at = Instant::now() + TOGETHER;
        }
        context.alive("promote");
    }
}

/// Does the work that is due now, each kind at its own time.
async fn round(context: &Context, session: &mut Session, agenda: &mut Agenda) -> Result<(), sqlx::Error> {
    let read_on = read_on(context, session).await;
    if agenda.due_at <= Instant::now() {
        agenda.due_at = Instant::now() + pass(session).await?.min(EVERY);
    }
    if agenda.sweep_at <= Instant::now() {
        let is_over = sweep(context, session, agenda).await?;
        agenda.sweep_at = Instant::now() + if is_over { SWEEP } else { PAGE };
    }
    read_on
}

/// Puts back the wanted parts of queues.
async fn read_on(context: &Context, session: &mut Session) -> Result<(), sqlx::Error> {
    let mut by_lane: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for (key, Wanted { above, rows }) in context.queues.take_wanted(QUEUES) {
        let limit = u32::try_from(rows).unwrap_or(u32::MAX);
        let next = session.run("queue", async |db| queue::next(db, key, above, limit).await).await?;
        by_lane.entry(key.0).or_default().extend(next);
    }
    let mut refused = Ok(());
    for (lane, ids) in &by_lane {
        for ids in ids.chunks(CHUNK as usize) {
            match session.run("promote", async |db| queue::promote(db, *lane, ids).await).await {
                // This concerns one lane and does not hold up the others. A sweep finds its queues.
                Err(error) if error.as_database_error().is_some() => refused = Err(error),
                other => drop(other?),
            }
            context.nudge.notify_waiters();
        }
    }
    refused
}

/// Looks at a page of the waiting keys, and asks for the queues that nothing holds back. Returns whether it was the
/// last page.
async fn sweep(context: &Context, session: &mut Session, agenda: &mut Agenda) -> Result<bool, sqlx::Error> {
    let from = agenda.lane;
    let Some(lane) = session.run("sweep", async |db| queue::lane(db, from).await).await? else {
        (agenda.lane, agenda.above) = (0, 0);
        return Ok(true);
    };
    if lane != from {
        (agenda.lane, agenda.above) = (lane, 0);
    }
    let above = agenda.above;
    let keys = session.run("sweep", async |db| queue::keys(db, lane, above).await).await?;
    for (key, _) in keys.iter().filter(|(_, free)| *free) {
        context.queues.want_first((lane, *key));
    }
    // A lane is done after its last key.
    match keys.last() {
        Some((last, _)) => agenda.above = *last,
        None => (agenda.lane, agenda.above) = (lane.checked_add(1).unwrap_or(0), 0),
    }
    Ok(keys.is_empty() && agenda.lane == 0)
}

async fn promote(session: &mut Session, lane: u16, ids: &[u64]) -> Result<(), sqlx::Error> {
    session.run("create_head", async |db| lanes::create_head(db, lane).await).await?;
    session.run("promote", async |db| promote::promote_due(db, lane, ids).await).await.map(drop)
}

/// Puts back due messages; returns the pause before the next look.
async fn pass(session: &mut Session) -> Result<Duration, sqlx::Error> {
    let coming = session.run("due", async |db| promote::due(db, EVERY, CHUNK).await).await?;
    let mut by_lane: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for due in coming.iter().filter(|due| due.wait.is_zero()) {
        by_lane.entry(due.lane).or_default().push(due.id);
    }
    let mut refused = Ok(());
    for (lane, ids) in &by_lane {
        match promote(session, *lane, ids).await {
            // This concerns one lane and does not hold up the others.
            Err(error) if error.as_database_error().is_some() => refused = Err(error),
            other => other?,
        }
    }
    refused?;
    let next = coming.iter().map(|due| due.wait).find(|wait| !wait.is_zero());
    let least = if by_lane.is_empty() { TOGETHER } else { STREAM };
    Ok(match next {
        None if coming.len() == CHUNK as usize => TOGETHER,
        next => next.unwrap_or(EVERY).max(least),
    })
}
