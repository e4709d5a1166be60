//! Sends sent messages again: the plan first, then a job that relays carry out. The messages keep their ids and have
//! the header `outbox-replay`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        claim::lanes,
        operate::{
            jobs::{self, Actor, DueJob, NewJob},
            replay::{self, Again, SentMessage, SentRow},
        },
    },
};
use serde::{Deserialize, Serialize};

use super::{
    instances::{self, Instance, InstanceState},
    jobs::BATCH,
    unsent::time,
};
use crate::state::role::ProcessKind;

/// The action in `outbox_jobs`.
pub(super) const ACTION: &str = "replay";
/// Receipts of one read.
const PAGE: u32 = 200;
/// Most messages that a plan looks at.
const BUDGET: u64 = 100_000;
/// Messages in a plan that are shown.
const SAMPLES: usize = 5;
/// In microseconds: no claim is held for longer, and no step of the database's clock is larger.
const HELD: i64 = 3_600_000_000;
/// A message is left out if its retention ends within this time: the purge may delete it meanwhile.
const MARGIN: Duration = Duration::from_hours(1);

/// Why messages of workers are left out.
const WORKERS: &str = "its lane belongs to workers, which have no inbox: name it with --lane";

/// The messages of interest; `None` means all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentFilter {
    /// Only those of this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Only those of this lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<u16>,
    /// Only those that were sent at this time or later, in microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
    /// Only those that were sent before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// The message with this number in the tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Where they go, as `sink/name`; `None`: to the destination of their route. Relays that do not know this leave the
    /// job to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Not those of these lanes, which belong to workers. Relays that do not know this leave the job to others.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub without_lanes: BTreeSet<u16>,
    /// Only claims above this number.
    #[serde(default)]
    pub above: u64,
    /// Only claims up to this number, so that a replay never takes its own.
    #[serde(default)]
    pub up_to: u64,
}

impl SentFilter {
    /// Sets the claims whose messages are looked at, and leaves the lanes of workers out if no lane is named: workers
    /// have no inbox, so each effect would happen again. Returns false if the one message was not sent.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn find_claims(&mut self, db: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        if self.lane.is_none() {
            self.without_lanes = lanes::of_kind(db, ProcessKind::WORKER).await?.into_iter().collect();
        }
        if let Some(id) = self.id {
            let claim = replay::claim_of(db, id).await?;
            (self.above, self.up_to) = claim.map_or((0, 0), |claim| (claim.saturating_sub(1), claim));
            return Ok(claim.is_some());
        }
        let since = self.since.map_or(i64::MIN / 2, |since| since - HELD);
        (self.above, self.up_to) = replay::bounds(db, since).await?;
        Ok(true)
    }

    fn takes_receipt(&self, receipt: &SentRow) -> bool {
        self.matches(receipt) && !self.without_lanes.contains(&receipt.lane)
    }

    fn matches(&self, receipt: &SentRow) -> bool {
        self.lane.is_none_or(|lane| lane == receipt.lane)
            && self.since.is_none_or(|since| receipt.sent_at >= since)
            && self.until.is_none_or(|until| receipt.sent_at < until)
    }

    fn takes(&self, message: &SentMessage) -> bool {
        self.topic.as_ref().is_none_or(|topic| *topic == message.topic) && self.id.is_none_or(|id| id == message.id)
    }

    /// Whether a receipt is of the message's first way, and not of an earlier replay. That one would come behind later
    /// messages of its key. A message that is asked for by its number is taken in any case.
    fn takes_way(&self, receipt: &SentRow, replayed_at: Option<i64>) -> bool {
        self.id.is_some() || replayed_at.is_none_or(|at| receipt.claimed_at < at)
    }

    fn ends_before(&self, receipt: &SentRow) -> bool {
        receipt.claim_id > self.up_to || self.until.is_some_and(|until| receipt.claimed_at > until + HELD)
    }
}

/// The effect of a replay, before it is ordered. Times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReplayPlan {
    /// The number of messages. All of them arrive again: consumers with an inbox that has not forgotten them do
    /// nothing.
    pub messages: u64,
    /// Whether all receipts were looked at; otherwise those of 100,000 messages were, and all numbers may be higher.
    pub is_complete: bool,
    /// Where they go, as `sink/name`; `None`: to the destination of their route.
    pub to: Option<String>,
    /// Whether the broker was asked for that destination: the command's configuration has the sink.
    pub is_looked_up: bool,
    /// The lanes.
    pub lanes: BTreeSet<u16>,
    /// Of these lanes, those of workers, which have no inbox: each effect happens again.
    pub worker_lanes: BTreeSet<u16>,
    /// The number of messages by topic.
    pub topics: BTreeMap<String, u64>,
    /// When the first was sent.
    pub oldest: Option<String>,
    /// When the last was.
    pub newest: Option<String>,
    /// The least duration, in seconds.
    pub seconds: u64,
    /// Messages that are left out, by the reason.
    pub left_out: BTreeMap<&'static str, u64>,
    /// Some of the messages.
    pub samples: Vec<ReplayMessage>,
}

/// A sent message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayMessage {
    /// Its number in the tables.
    pub id: u64,
    /// The id that consumers see.
    pub message_id: String,
    /// The lane.
    pub lane: u16,
    /// The topic.
    pub topic: String,
    /// The kind of event.
    pub event_type: Option<String>,
    /// When it was sent.
    pub sent_at: String,
}

/// Returns the effect of a replay, and changes nothing. Looks at the receipts of 100,000 messages at most.
///
/// # Errors
///
/// If the database fails.
pub async fn plan(
    db: &mut MySqlConnection,
    filter: &SentFilter,
    kept: Duration,
    per_second: u32,
) -> Result<ReplayPlan, sqlx::Error> {
    let mut plan = ReplayPlan { is_complete: true, to: filter.to.clone(), ..ReplayPlan::default() };
    let mut oldest = oldest(db, kept).await?;
    // The purge deletes a message with its first receipt, and a message that is asked for by its number may be taken by
    // a later one. A job does not look at all receipts again: the hour of the plan is enough for it.
    if let Some(id) = filter.id
        && replay::first_sent(db, id).await?.is_some_and(|at| at < oldest)
    {
        oldest = i64::MAX;
    }
    let mut above = filter.above;
    let mut looked_at = 0;
    let mut seen = BTreeSet::new();
    let mut only_again = BTreeSet::new();
    'receipts: loop {
        let receipts = replay::receipts(db, above, PAGE).await?;
        let is_last = receipts.len() < PAGE as usize;
        for receipt in &receipts {
            if filter.ends_before(receipt) {
                break 'receipts;
            }
            above = receipt.claim_id;
            if !filter.matches(receipt) {
                continue;
            }
            if looked_at >= BUDGET {
                plan.is_complete = false;
                break 'receipts;
            }
            let ids: Vec<u64> = receipt.ids.iter().copied().filter(|id| filter.id.is_none_or(|it| it == *id)).collect();
            looked_at += ids.len() as u64;
            if receipt.sent_at < oldest {
                plan.leave_out("its retention ends", ids.len());
                continue;
            }
            let found = replay::sent(db, receipt.lane, &ids, 0).await?;
            plan.leave_out("it is unsent again, or was deleted", ids.len() - found.len());
            let (found, again): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|message| filter.takes_way(receipt, message.replayed_at));
            only_again.extend(again.iter().filter(|it| filter.takes(it)).map(|it| (receipt.lane, it.id)));
            // Several receipts may name one message.
            let is_new = |message: &SentMessage| filter.takes(message) && seen.insert((receipt.lane, message.id));
            let found = found.into_iter().filter(is_new);
            if filter.takes_receipt(receipt) {
                plan.add(receipt, found);
            } else {
                plan.leave_out(WORKERS, found.count());
            }
        }
        if is_last {
            break;
        }
    }
    plan.leave_out("only a replay sent it then", only_again.difference(&seen).count());
    plan.worker_lanes = lanes::of_kind(db, ProcessKind::WORKER).await?.into_iter().collect();
    plan.worker_lanes.retain(|lane| plan.lanes.contains(lane));
    plan.seconds = plan.messages / u64::from(per_second.max(1));
    Ok(plan)
}

impl ReplayPlan {
    fn leave_out(&mut self, why: &'static str, messages: usize) {
        if messages > 0 {
            *self.left_out.entry(why).or_default() += messages as u64;
        }
    }

    fn add(&mut self, receipt: &SentRow, messages: impl Iterator<Item = SentMessage>) {
        let sent_at = time(receipt.sent_at);
        for message in messages {
            self.messages += 1;
            self.lanes.insert(receipt.lane);
            *self.topics.entry(message.topic.clone()).or_default() += 1;
            self.oldest.get_or_insert_with(|| sent_at.clone());
            self.newest = Some(sent_at.clone());
            if self.samples.len() < SAMPLES {
                self.samples.push(ReplayMessage {
                    id: message.id,
                    message_id: message.message_id.to_string(),
                    lane: receipt.lane,
                    topic: message.topic,
                    event_type: message.event_type,
                    sent_at: sent_at.clone(),
                });
            }
        }
    }
}

/// Returns a live process that serves a lane of the plan and lacks the sink: the messages that it claims would wait for
/// the sink.
///
/// # Errors
///
/// If the database fails.
pub async fn lacks_sink(
    db: &mut MySqlConnection,
    plan: &ReplayPlan,
    sink: &str,
) -> Result<Option<Instance>, sqlx::Error> {
    let serves = |it: &Instance| it.lanes.is_empty() || it.lanes.iter().any(|lane| plan.lanes.contains(lane));
    let lacks = |it: &Instance| it.state != InstanceState::Gone && serves(it) && !it.sinks.contains_key(sink);
    Ok(instances::list(db).await?.into_iter().find(lacks))
}

/// Messages that were sent before this time may be purged soon. `kept` is their retention; zero: for ever.
async fn oldest(db: &mut MySqlConnection, kept: Duration) -> Result<i64, sqlx::Error> {
    if kept.is_zero() {
        return Ok(i64::MIN);
    }
    let kept = i64::try_from(kept.saturating_sub(MARGIN).as_micros()).unwrap_or(i64::MAX);
    Ok(replay::now(db).await?.saturating_sub(kept))
}

/// Orders a replay; returns the number of its job. Relays begin within seconds, and carry out one replay after the
/// other.
///
/// # Errors
///
/// If the database fails.
pub async fn order(
    db: &mut MySqlConnection,
    plan: &ReplayPlan,
    filter: &SentFilter,
    per_second: u32,
    actor: &Actor<'_>,
) -> Result<u64, sqlx::Error> {
    let filter = serde_json::to_string(filter).map_err(|error| sqlx::Error::Encode(error.into()))?;
    jobs::order(db, &NewJob { action: ACTION, filter: &filter, per_second, messages: plan.messages }, actor).await
}

/// The next messages of a replay.
#[derive(Debug, Default)]
pub(super) struct ReplayPart {
    pub(super) messages: Vec<Again>,
    /// The last claim whose messages are among them, or that has none of interest.
    pub(super) last: u64,
    pub(super) is_last: bool,
}

/// Finds the next messages of a replay: those of some claims. A message that several receipts name is taken once in a
/// part, and in no other one, because the replay's mark is looked at.
pub(super) async fn next(
    db: &mut MySqlConnection,
    job: &DueJob,
    filter: &SentFilter,
    kept: Duration,
) -> Result<ReplayPart, sqlx::Error> {
    let oldest = oldest(db, kept).await?;
    let start = filter.above.max(job.last.1);
    let receipts = replay::receipts(db, start, PAGE).await?;
    let mut part = ReplayPart { last: start, is_last: receipts.len() < PAGE as usize, ..ReplayPart::default() };
    let mut looked_at = Vec::new();
    let mut count = 0;
    let mut ids = BTreeMap::<u16, BTreeSet<u64>>::new();
    for receipt in receipts {
        // Receipts of one claim stay together.
        let is_next = looked_at.last().is_some_and(|last: &SentRow| last.claim_id < receipt.claim_id);
        if filter.ends_before(&receipt) || is_next && count + receipt.ids.len() > BATCH as usize {
            part.is_last = filter.ends_before(&receipt);
            break;
        }
        count += receipt.ids.len();
        if filter.takes_receipt(&receipt) && receipt.sent_at >= oldest {
            ids.entry(receipt.lane).or_default().extend(&receipt.ids);
        }
        looked_at.push(receipt);
    }
    let mut found = BTreeMap::new();
    for (lane, ids) in ids {
        let sent = replay::sent(db, lane, &Vec::from_iter(ids), job.job_id).await?;
        let taken = sent.iter().filter(|message| filter.takes(message));
        found.extend(taken.map(|message| ((lane, message.id), message.replayed_at)));
    }
    let (mut taken, mut total) = (BTreeMap::<u16, Vec<u64>>::new(), 0);
    for receipt in looked_at {
        let place = |id: &u64| (receipt.lane, *id);
        let is_taken = filter.takes_receipt(&receipt) && receipt.sent_at >= oldest;
        let is_own = |id: &u64| is_taken && found.get(&place(id)).is_some_and(|at| filter.takes_way(&receipt, *at));
        let own: Vec<u64> = receipt.ids.iter().copied().filter(is_own).collect();
        let is_next = part.last < receipt.claim_id;
        if is_next && total > 0 && total + own.len() > job.per_second.clamp(1, BATCH) as usize {
            part.is_last = false;
            break;
        }
        own.iter().map(place).for_each(|place| _ = found.remove(&place));
        total += own.len();
        taken.entry(receipt.lane).or_default().extend(own);
        part.last = receipt.claim_id;
    }
    for (lane, ids) in taken {
        part.messages.extend(replay::again(db, lane, &ids, job.job_id).await?);
    }
    Ok(part)
}
