//! Jobs of operators: for delayed and dead messages, and replays of sent ones. The plan comes first. Relays carry the
//! job out in batches.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        operate::{
            audit,
            find::StateTable,
            jobs::{self, Actor, DueJob, JobBatch, JobChange, JobRow, NewJob},
            unsent::{self, UnsentRow},
        },
        reason::DelayReason,
    },
    words,
};
use serde::{Deserialize, Serialize};

use super::{
    replay,
    unsent::{COUNT_BUDGET, Cursor, Filter, PAGE, UnsentMessage, begin, message, scan, time},
};

/// Most messages of a batch. It locks the lane's head for a few milliseconds.
pub(super) const BATCH: u32 = 500;
/// Messages in a plan that are shown.
const SAMPLES: usize = 5;
/// Most waiting messages that a plan counts.
const WAITING: u32 = 100_000;
/// Keys of one count of waiting messages.
const KEYS: usize = 1_000;

words! {
    /// The action of a job. `outbox_jobs` holds the names, so they are stable.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Action {
        /// Publish delayed messages now.
        Hurry = "hurry",
        /// Publish dead messages again.
        Retry = "retry",
        /// Let the later messages of dead ones' keys go on without them.
        Release = "release",
        /// Delete dead messages.
        Discard = "discard",
        /// Take delayed messages of a replay back.
        DiscardDelayed = "discard_delayed",
    }
}

impl Action {
    fn change(self) -> JobChange<'static> {
        match self {
            Self::Hurry => JobChange::Hurry,
            Self::Retry => JobChange::Retry,
            Self::Release => JobChange::Release,
            Self::Discard => JobChange::Discard,
            Self::DiscardDelayed => JobChange::DiscardDelayed,
        }
    }

    /// Returns the state of its messages.
    #[must_use]
    pub fn table(self) -> StateTable {
        match self {
            Self::Hurry | Self::DiscardDelayed => StateTable::Delayed,
            Self::Retry | Self::Release | Self::Discard => StateTable::Dead,
        }
    }

    /// Why the action leaves a message out, if it does.
    fn leaves_out(self, row: &UnsentRow, filter: &Filter) -> Option<&'static str> {
        let is_named = filter.id.is_some() || filter.reason.is_some();
        match self {
            Self::Hurry if row.state.at.is_none() => Some("it is in the queue of its key"),
            Self::Hurry if row.state.reason == DelayReason::Scheduled.word() && !is_named => Some("it is scheduled"),
            Self::Retry if row.message_id.is_none() => Some("its row in outbox_messages was deleted"),
            Self::Retry if row.state.reason == "expired" => Some("it has expired"),
            Self::Release if !row.state.holds_key => Some("no message waits for it"),
            Self::DiscardDelayed if !row.is_replayed => Some("no replay has put it there"),
            _ => None,
        }
    }

    /// Whether an earlier attempt may have delivered a message. A rejection spends the one attempt of a dead message.
    fn may_repeat(self, row: &UnsentRow) -> bool {
        let rejections = u16::from(self.table() == StateTable::Dead);
        matches!(self, Self::Hurry | Self::Retry)
            && (row.state.attempts > rejections || row.state.reason == "attempts_exhausted")
    }

    /// Whether later messages of its key did not wait for it, so that a message may arrive behind them.
    fn may_break_order(self, row: &UnsentRow) -> bool {
        self == Self::Retry && row.state.key_hash > 0 && !row.state.holds_key
    }
}

/// The effect of a job, before it is ordered. Times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The action.
    pub action: Action,
    /// The number of messages.
    pub messages: u64,
    /// Whether all messages of the state were looked at; otherwise the first 100,000 were, and all numbers may be
    /// higher.
    pub is_complete: bool,
    /// Their keys.
    pub keys: u64,
    /// Of the messages, those that an earlier attempt may have delivered: consumers with an inbox see them once, as long
    /// as it remembers them (`retention.inbox`).
    pub may_arrive_twice: u64,
    /// Of the messages, those that may arrive behind later ones of their keys, which did not wait for them
    /// (`after_dead = "skip"`).
    pub may_break_order: u64,
    /// Later messages of their keys that wait for them now, counted up to 100,000.
    pub waiting: u64,
    /// When the first was given up, or a delayed one enqueued.
    pub oldest: Option<String>,
    /// When the last was.
    pub newest: Option<String>,
    /// The least duration, in seconds.
    pub seconds: u64,
    /// The number of messages that are left out, by the reason.
    pub left_out: BTreeMap<&'static str, u64>,
    /// Some of the messages.
    pub samples: Vec<UnsentMessage>,
}

/// Returns the effect of a job, and changes nothing. Looks at 100,000 messages at most.
///
/// # Errors
///
/// If the database fails.
pub async fn plan(
    db: &mut MySqlConnection,
    action: Action,
    filter: &Filter,
    per_second: u32,
) -> Result<Plan, sqlx::Error> {
    let mut keys = BTreeSet::new();
    let mut holding = BTreeMap::<u16, BTreeSet<u64>>::new();
    let mut times = None;
    let mut delayed_heads = 0;
    let mut plan = Plan {
        action,
        messages: 0,
        is_complete: true,
        keys: 0,
        may_arrive_twice: 0,
        may_break_order: 0,
        waiting: 0,
        oldest: None,
        newest: None,
        seconds: 0,
        left_out: BTreeMap::new(),
        samples: Vec::new(),
    };
    let visit = |row: UnsentRow| {
        if let Some(why) = action.leaves_out(&row, filter) {
            *plan.left_out.entry(why).or_default() += 1;
            return true;
        }
        plan.messages += 1;
        plan.may_arrive_twice += u64::from(action.may_repeat(&row));
        plan.may_break_order += u64::from(action.may_break_order(&row));
        let state = &row.state;
        let at = begin(&row);
        if state.key_hash > 0 {
            keys.insert((state.lane, state.key_hash));
        }
        if state.holds_key {
            holding.entry(state.lane).or_default().insert(state.key_hash);
            delayed_heads += u64::from(action.table() == StateTable::Delayed);
        }
        let (first, last) = times.unwrap_or((at, at));
        times = Some((first.min(at), last.max(at)));
        if plan.samples.len() < SAMPLES {
            plan.samples.push(message(&row));
        }
        true
    };
    let (_, rest) = scan(db, action.table(), filter, (Cursor::default(), COUNT_BUDGET), visit).await?;
    for (lane, holding) in &holding {
        let holding: Vec<u64> = holding.iter().copied().collect();
        for holding in holding.chunks(KEYS) {
            let rest = u64::from(WAITING).saturating_sub(plan.waiting);
            plan.waiting += unsent::waiting(db, *lane, holding, u32::try_from(rest).unwrap_or(WAITING)).await?;
        }
    }
    // Those of the plan itself were counted, too.
    plan.waiting = plan.waiting.saturating_sub(delayed_heads);
    plan.is_complete = rest.is_none();
    plan.keys = keys.len() as u64;
    plan.seconds = plan.messages / u64::from(per_second.max(1));
    (plan.oldest, plan.newest) = (times.map(|(first, _)| time(first)), times.map(|(_, last)| time(last)));
    Ok(plan)
}

/// Orders a job for the messages that are delayed or dead now; returns its number. Relays begin within seconds.
///
/// # Errors
///
/// If the database fails.
pub async fn order(
    db: &mut MySqlConnection,
    plan: &Plan,
    filter: &Filter,
    per_second: u32,
    actor: &Actor<'_>,
) -> Result<u64, sqlx::Error> {
    let filter = serde_json::to_string(filter).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let job = NewJob { action: plan.action.word(), filter: &filter, per_second, messages: plan.messages };
    jobs::order(db, &job, actor).await
}

/// A batch that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobProgress {
    /// The job.
    pub job_id: u64,
    /// The messages of the batch.
    pub messages: usize,
    /// The time until the next batch of this job.
    pub pause: Duration,
    /// Whether it was the last one.
    pub is_last: bool,
}

/// Carries out one batch of a job that is due; returns `None` if none is. Any number of relays may do so at once. A job
/// that this program cannot read is left to a newer one, and one whose batch fails lets the others go first. A job
/// whose order is not in the audit is ended before its first batch. `kept` is the retention of sent messages.
///
/// # Errors
///
/// If the database fails. Then the batch was carried out as a whole or not at all, and the next call knows which.
pub async fn step(db: &mut MySqlConnection, kept: Duration) -> Result<Option<JobProgress>, sqlx::Error> {
    for job in jobs::due(db).await? {
        if let (Some(action), Ok(filter)) = (Action::of(&job.action), serde_json::from_str::<Filter>(&job.filter)) {
            if !is_ordered(db, &job).await? {
                continue;
            }
            let JobPart { lane, ref ids, last, is_last } = next(db, &job, action, &filter).await?;
            return carry_out(db, &job, action.change(), (lane, ids), (last, is_last)).await;
        }
        let Some(filter) = Some(&job.filter).filter(|_| job.action == replay::ACTION) else { continue };
        let Ok(filter) = serde_json::from_str(filter) else { continue };
        if !is_ordered(db, &job).await? {
            continue;
        }
        let part = replay::next(db, &job, &filter, kept).await?;
        let ids: Vec<u64> = part.messages.iter().map(|message| message.id).collect();
        let change = JobChange::Replay(&part.messages, filter.to.as_deref());
        return carry_out(db, &job, change, (0, &ids), ((0, part.last), part.is_last)).await;
    }
    Ok(None)
}

/// Begins a batch, or ends a job that was written by hand, without its row in the audit.
async fn is_ordered(db: &mut MySqlConnection, job: &DueJob) -> Result<bool, sqlx::Error> {
    if job.token == 0 && !audit::is_recorded(db, job).await? {
        tracing::warn!(job_id = job.job_id, action = %job.action, "a job without its row in the audit is not carried \
                                                                   out");
        return audit::refuse(db, job).await.map(|()| false);
    }
    jobs::put_off(db, job).await.map(|()| true)
}

/// Finds the next messages of a job for delayed or dead ones.
async fn next(db: &mut MySqlConnection, job: &DueJob, action: Action, filter: &Filter) -> Result<JobPart, sqlx::Error> {
    let start = filter.start(Cursor { lane: job.last.0, id: job.last.1 });
    let rows = unsent::above(db, action.table(), (start.lane, start.id), PAGE).await?;
    Ok(JobPart::of(&rows, (start.lane, start.id), job.per_second.clamp(1, BATCH) as usize, |row| {
        // Those that have died since were in no plan; among them are those whose retry has failed.
        let is_late = row.state.table == StateTable::Dead && row.state.at > Some(job.created_at);
        let is_wanted = filter.takes(row) && !is_late && action.leaves_out(row, filter).is_none();
        if filter.ends_before(row) { None } else { Some(is_wanted) }
    }))
}

async fn carry_out(
    db: &mut MySqlConnection,
    job: &DueJob,
    change: JobChange<'_>,
    (lane, ids): (u16, &[u64]),
    (last, is_last): ((u16, u64), bool),
) -> Result<Option<JobProgress>, sqlx::Error> {
    let pause = Duration::from_secs(ids.len() as u64) / job.per_second.max(1);
    let batch = JobBatch { job, change, lane, ids, last, is_last, pause, token: rand::random() };
    let is_done = jobs::carry_out(db, &batch).await?;
    Ok(is_done.then_some(JobProgress { job_id: job.job_id, messages: ids.len(), pause, is_last }))
}

/// The next messages of a job, of one lane.
#[derive(Debug, PartialEq, Eq)]
struct JobPart {
    lane: u16,
    ids: Vec<u64>,
    /// The last message that was looked at.
    last: (u16, u64),
    is_last: bool,
}

impl JobPart {
    /// Takes up to `most` of a page's rows. `wants` returns `None` at the first row behind the job's messages.
    fn of(rows: &[UnsentRow], start: (u16, u64), most: usize, wants: impl Fn(&UnsentRow) -> Option<bool>) -> Self {
        let mut part = Self { lane: start.0, ids: Vec::new(), last: start, is_last: false };
        for row in rows {
            let Some(is_wanted) = wants(row) else { return Self { is_last: true, ..part } };
            if part.ids.len() >= most || !part.ids.is_empty() && row.state.lane != part.lane {
                return part;
            }
            if is_wanted {
                part.lane = row.state.lane;
                part.ids.push(row.id);
            }
            part.last = (row.state.lane, row.id);
        }
        Self { is_last: rows.len() < PAGE as usize, ..part }
    }
}

/// A job. Times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Job {
    /// Its number.
    pub job: u64,
    /// The action.
    pub action: String,
    /// `open`, `done`, `stopped`, or `refused`: the audit lacks its order.
    pub state: &'static str,
    /// Messages changed so far.
    pub done: u64,
    /// The number of messages in its plan.
    pub planned: Option<u64>,
    /// The time of the order.
    pub ordered_at: String,
    /// The time of its end.
    pub ended_at: Option<String>,
    /// The name of the operator.
    pub actor: String,
    /// The reason.
    pub reason: String,
    /// The messages, as JSON.
    pub filter: String,
}

impl From<JobRow> for Job {
    fn from(row: JobRow) -> Self {
        Self {
            job: row.job_id,
            action: row.action,
            state: match row.ended_at {
                None => "open",
                Some(_) if row.is_stopped => "stopped",
                Some(_) if row.is_refused => "refused",
                Some(_) => "done",
            },
            done: row.done,
            planned: row.planned,
            ordered_at: time(row.created_at),
            ended_at: row.ended_at.map(time),
            actor: row.actor,
            reason: row.reason,
            filter: row.filter,
        }
    }
}

/// Lists the newest jobs, at most `limit`.
///
/// # Errors
///
/// If the database fails.
pub async fn list(db: &mut MySqlConnection, limit: u32) -> Result<Vec<Job>, sqlx::Error> {
    Ok(jobs::list(db, limit).await?.into_iter().map(Job::from).collect())
}

/// Stops a job after its present batch. Returns false if it has ended, or there is none.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn stop(db: &mut MySqlConnection, job_id: u64, actor: &Actor<'_>) -> Result<bool, sqlx::Error> {
    jobs::stop(db, job_id, actor).await
}

#[cfg(test)]
mod tests;
