//! The state of each lane in one sentence.

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        operate::{
            controls::{self, ControlRow},
            stats::{self, LaneStats, Stats, Waiting},
        },
        reason::WaitsFor,
    },
};
use serde::Serialize;

use super::{
    instances::{Instance, InstanceState, Live, sinks_down},
    shown::{counted, span},
    why::PATIENCE,
};
use crate::state::role::ProcessKind;

/// Most lanes of one state that a verdict names.
const SHOWN: usize = 5;

/// A lane. Its names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaneStatus {
    /// Its number.
    pub lane: u16,
    /// `idle`, `busy`, `waiting`, `paused`, `stuck` or `unserved`.
    pub state: &'static str,
    /// One or more sentences, for people.
    pub verdict: String,
    /// Messages that are due, claimed ones included.
    pub pending: u64,
    /// Messages that wait for a time or for their key.
    pub delayed: u64,
    /// Messages that the relays gave up on.
    pub dead: u64,
}

/// The queue at a moment.
#[derive(Debug)]
pub struct Judged {
    pub stats: Stats,
    pub lanes: Vec<(LaneStats, LaneStatus)>,
    pub instances: Vec<Instance>,
}

/// Judges each lane that has messages, is paused, or was served lately.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn lanes(db: &mut MySqlConnection) -> Result<Vec<LaneStatus>, sqlx::Error> {
    Ok(judged(db).await?.lanes.into_iter().map(|(_, status)| status).collect())
}

/// Does the same, and returns the counts, too.
pub async fn judged(db: &mut MySqlConnection) -> Result<Judged, sqlx::Error> {
    let mut lanes = stats::lanes(db).await?;
    let controls = controls::paused(db).await?;
    let live = Live::read(db).await?;
    let stats = Stats::of(&lanes, &controls);
    let paused = |lane: u16| controls.iter().find(|it| it.kind == "lane" && it.name == lane.to_string());
    let named = controls.iter().filter(|it| it.kind == "lane").filter_map(|it| it.name.parse().ok());
    for lane in named {
        if lanes.iter().all(|known| known.lane != lane) {
            lanes.push(LaneStats { lane, ..LaneStats::default() });
        }
    }
    lanes.sort_unstable_by_key(|lane| lane.lane);
    let judge = |lane: LaneStats| {
        let judged = status(&lane, paused(lane.lane), &live);
        (lane, judged)
    };
    let lanes = lanes.into_iter().map(judge).collect();
    Ok(Judged { stats, lanes, instances: live.instances })
}

/// Tells the state of the whole outbox, for people.
#[must_use]
pub fn verdict(Judged { stats, lanes, instances }: &Judged) -> String {
    let due = i64::try_from(stats.lags.due.max(stats.lags.paused)).unwrap_or(i64::MAX);
    let sent: u64 = lanes.iter().map(|(lane, _)| lane.sent).sum();
    let running = |role: &str| instances.iter().filter(|it| it.state != InstanceState::Gone && it.role == role).count();
    let processes = match (running("relay"), running(ProcessKind::WORKER)) {
        (0, 0) => "no relay runs".to_owned(),
        (relays, 0) => counted(relays, "relay runs", "relays run"),
        (0, workers) => counted(workers, "worker runs", "workers run"),
        (relays, workers) => {
            format!("{} and {} run", counted(relays, "relay", "relays"), counted(workers, "worker", "workers"))
        }
    };
    let waiting = lanes.iter().filter(|(_, it)| it.state == "waiting").flat_map(|(lane, _)| &lane.delayed);
    let waits = waiting.filter(|it| !is_wanted(it)).map(|it| it.messages).sum();
    let mut sentences = vec![match (stats.pending, waits) {
        (0, 0) => format!("Nothing is due; {processes}."),
        (0, 1) => format!("Nothing can be sent now: 1 message waits; {processes}."),
        (0, _) => format!("Nothing can be sent now: {waits} messages wait; {processes}."),
        _ => format!("{}, and {sent} were sent in the last 10 s; {processes}.", are_due(stats.pending, due)),
    }];
    for state in ["unserved", "stuck", "paused", "waiting"] {
        let numbers: Vec<_> =
            lanes.iter().filter(|(_, it)| it.state == state).map(|(lane, _)| lane.lane.to_string()).collect();
        let rest = numbers.len().saturating_sub(SHOWN);
        let more = if rest == 0 { String::new() } else { format!(" and {rest} more") };
        let shown = numbers.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        match numbers.len() {
            0 => {}
            1 => sentences.push(format!("Lane {shown} is {state}.")),
            _ => sentences.push(format!("Lanes {shown}{more} are {state}.")),
        }
    }
    if stats.dead > 0 {
        sentences.push(counted(stats.dead, "message is dead.", "messages are dead."));
    }
    sentences.extend(sinks_down(instances).into_iter().map(|(sink, refusal)| format!("Sink {sink} {refusal}.")));
    sentences.join(" ")
}

fn are_due(messages: u64, lag: i64) -> String {
    match messages {
        1 => format!("1 message has been due for {}", span(lag)),
        _ => format!("{messages} messages are due, the first for {}", span(lag)),
    }
}

fn status(lane: &LaneStats, pause: Option<&ControlRow>, live: &Live) -> LaneStatus {
    let (state, mut verdict) = judge(lane, pause, live);
    if let Some(owner) = &lane.tailed_by {
        verdict = format!("{verdict} {owner} tails it.");
    }
    // Where nothing is due, or a pause is, nothing is tried, and the reason may be an old one.
    let refused = if lane.pending > 0 && pause.is_none() { live.refused(lane.lane) } else { Vec::new() };
    for sentence in refused.into_iter().chain(waiting(lane)).chain(dead(lane)) {
        verdict = format!("{verdict} {sentence}");
    }
    let delayed = lane.delayed.iter().map(|waiting| waiting.messages).sum();
    LaneStatus { lane: lane.lane, state, verdict, pending: lane.pending, delayed, dead: lane.dead }
}

/// Judges a lane. A live process may claim although its heartbeat is late.
fn judge(lane: &LaneStats, pause: Option<&ControlRow>, live: &Live) -> (&'static str, String) {
    let serving = live.serve(lane.lane);
    let due = match lane.pending {
        0 => "nothing is due".to_owned(),
        messages => are_due(messages, lane.lag),
    };
    if let Some(ControlRow { actor, reason, .. }) = pause {
        return ("paused", format!("Paused by {actor} ({reason}); {due}."));
    }
    if lane.expired_leases > 0 && lane.owners == 0 && serving == 0 && !lane.sends {
        return (
            "unserved",
            format!("The processes that had claims here are gone, and no other takes them over; {due}."),
        );
    }
    if lane.pending == 0 {
        let is_idle = lane.delayed.iter().all(is_wanted);
        let (state, verdict) =
            if is_idle { ("idle", "Nothing is due.") } else { ("waiting", "Nothing can be sent now.") };
        return (state, verdict.to_owned());
    }
    let serving = serving.max(usize::try_from(lane.owners).unwrap_or(usize::MAX));
    let role = live.role(lane.lane);
    let relays = match (serving, live.drained(lane.lane).len()) {
        (0, 0) => format!("no live {role} serves it"),
        (0, drained) => format!("no live {role} serves it ({drained} drained)"),
        (1, _) => format!("1 {role} serves it"),
        (relays, _) => format!("{relays} {role}s serve it"),
    };
    if !lane.sends && lane.lag >= PATIENCE {
        let refused: u64 =
            lane.delayed.iter().filter(|it| it.waits_for() == WaitsFor::Destination).map(|it| it.messages).sum();
        if serving > 0 && lane.pending <= refused.min(TRIES) {
            // A message in a try is due for as long as it has waited.
            return ("waiting", format!("None was sent in the last minute: single messages are tried; {relays}."));
        }
        let state = if serving == 0 { "unserved" } else { "stuck" };
        return (state, format!("None was sent in the last minute: {due}; {relays}."));
    }
    ("busy", format!("{} were sent in the last 10 s: {due}; {relays}.", lane.sent))
}

/// Most due messages of a lane that may all be single tries: one for each destination that refuses.
const TRIES: u64 = 4;

/// Whether messages wait because a service or a handler wants it.
fn is_wanted(waiting: &Waiting) -> bool {
    waiting.waits_for() == WaitsFor::Time
}

/// Returns the cause of most of these messages, with their share, behind a colon.
#[must_use]
pub fn cause(Waiting { messages, error, share, .. }: &Waiting) -> String {
    match error.as_str() {
        "" => String::new(),
        error if share == messages => format!(": {error}"),
        error => format!(", {share} of them: {error}"),
    }
}

/// Returns a sentence for each reason for which messages wait, apart from a schedule.
fn waiting(lane: &LaneStats) -> impl Iterator<Item = String> {
    lane.delayed.iter().filter_map(|waiting| {
        let Waiting { reason, messages, .. } = waiting;
        let wait = if *messages == 1 { "message waits" } else { "messages wait" };
        match waiting.waits_for() {
            WaitsFor::Time => None,
            WaitsFor::Key => Some(format!("{messages} {wait} for an earlier one of the key.")),
            WaitsFor::Resume | WaitsFor::Retry | WaitsFor::Destination => {
                Some(format!("{messages} {wait} ({reason}){}.", cause(waiting)))
            }
        }
    })
}

fn dead(lane: &LaneStats) -> Option<String> {
    match lane.dead {
        0 => None,
        1 => Some("1 is dead.".to_owned()),
        dead => Some(format!("{dead} are dead.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn check(lane: &LaneStats, pause: Option<&ControlRow>, state: &str, verdict: &str) {
        let found = status(lane, pause, &Live::default());
        assert_eq!((found.state, found.verdict.as_str()), (state, verdict));
    }

    #[test]
    fn what_live_relays_lack_is_told_where_messages_are_due() {
        let lane = LaneStats { lane: 3, sends: true, ..LaneStats::default() };
        let unserved = LaneStats { pending: 1, lag: 90 * SECOND, sends: false, ..lane.clone() };
        let sinks = [("kafka".to_owned(), Some("no broker\nanswers".to_owned()))].into();
        let process = Instance { role: "relay".to_owned(), ..Instance::default() };
        let live = |instances| Live { instances, ..Live::default() };
        let down = live(vec![Instance { sinks, ..process.clone() }, process.clone()]);
        let found = status(&unserved, None, &down);
        let sentence = "2 relays serve it. Sink kafka takes nothing from 1 relay: no broker\nanswers.";
        assert!(found.state == "stuck" && found.verdict.ends_with(sentence), "{}", found.verdict);
        assert_eq!(status(&lane, None, &down).verdict, "Nothing is due.");
        let drained = live(vec![Instance { state: InstanceState::Drained, ..process }]);
        let found = status(&unserved, None, &drained);
        assert!(found.state == "unserved" && found.verdict.ends_with("(1 drained)."), "{}", found.verdict);
    }

    #[test]
    fn each_state_has_its_sentence() {
        let lane = LaneStats { lane: 3, sends: true, ..LaneStats::default() };
        check(&lane, None, "idle", "Nothing is due.");
        let busy = LaneStats { pending: 300, lag: 4 * SECOND, owners: 2, sent: 12_000, ..lane.clone() };
        check(
            &busy,
            None,
            "busy",
            "12000 were sent in the last 10 s: 300 messages are due, the first for 4 s; 2 relays serve it.",
        );
        let unserved = LaneStats { pending: 1, lag: 90 * SECOND, sends: false, ..lane.clone() };
        check(
            &unserved,
            None,
            "unserved",
            "None was sent in the last minute: 1 message has been due for 1 min 30 s; no live relay serves it.",
        );
        let tailed = LaneStats { tailed_by: Some("a/1".to_owned()), ..lane.clone() };
        check(&tailed, None, "idle", "Nothing is due. a/1 tails it.");
        let new = LaneStats { lag: 3 * SECOND, ..unserved.clone() };
        check(
            &new,
            None,
            "busy",
            "0 were sent in the last 10 s: 1 message has been due for 3 s; no live relay serves it.",
        );
        let stuck = LaneStats { owners: 1, ..unserved.clone() };
        check(
            &stuck,
            None,
            "stuck",
            "None was sent in the last minute: 1 message has been due for 1 min 30 s; 1 relay serves it.",
        );
        let gone = LaneStats { expired_leases: 1, ..unserved.clone() };
        check(
            &gone,
            None,
            "unserved",
            "The processes that had claims here are gone, and no other takes them over; 1 message has been due for 1 \
             min 30 s.",
        );
        let pause = ControlRow {
            kind: "lane".to_owned(),
            name: "3".to_owned(),
            paused_at: 0,
            ends_at: None,
            actor: "alice".to_owned(),
            reason: "a\nrepair".to_owned(),
        };
        check(&lane, Some(&pause), "paused", "Paused by alice (a\nrepair); nothing is due.");
    }

    #[test]
    fn what_waits_has_a_sentence_for_each_reason() {
        let lane = LaneStats { lane: 3, sends: true, ..LaneStats::default() };
        let waits = |reason: &str, messages, share| Waiting {
            reason: reason.to_owned(),
            messages,
            error: if share > 0 { "no\nqueue".to_owned() } else { String::new() },
            share,
            lag: 0,
        };
        let wanted = vec![waits("scheduled", 8, 0), waits("snoozed", 1, 0)];
        check(&LaneStats { delayed: wanted.clone(), ..lane.clone() }, None, "idle", "Nothing is due.");
        let rest = [waits("behind", 9, 0), waits("unroutable", 7, 5), waits("parked", 1, 1), waits("no_route", 2, 0)];
        let delayed = wanted.into_iter().chain(rest).collect();
        check(
            &LaneStats { delayed, dead: 5, ..lane },
            None,
            "waiting",
            "Nothing can be sent now. 9 messages wait for an earlier one of the key. \
            7 messages wait (unroutable), 5 of them: no\nqueue. 1 message waits (parked): no\nqueue. \
            2 messages wait (no_route). 5 are dead.",
        );
    }

    #[test]
    fn the_whole_outbox_has_its_sentences() {
        let lane = |lane, state| {
            let status = LaneStatus { lane, state, verdict: String::new(), pending: 0, delayed: 0, dead: 0 };
            (LaneStats { lane, sent: 600, ..LaneStats::default() }, status)
        };
        let process = |role: &str, state| Instance { role: role.to_owned(), state, ..Instance::default() };
        let stats = |pending, due| {
            let mut stats = Stats { pending, ..Stats::default() };
            stats.lags.due = due;
            stats
        };
        let instances = vec![process("relay", InstanceState::Gone)];
        let quiet = Judged { stats: stats(0, 0), lanes: vec![lane(3, "idle")], instances };
        assert_eq!(verdict(&quiet), "Nothing is due; no relay runs.");
        let mut waiting = lane(3, "waiting");
        let waits = |reason: &str, messages| Waiting { reason: reason.to_owned(), messages, ..Waiting::default() };
        waiting.0.delayed = vec![waits("scheduled", 1_000), waits("behind", 20), waits("parked", 2)];
        assert_eq!(
            verdict(&Judged { lanes: vec![waiting], instances: vec![process("worker", InstanceState::Live)], ..quiet }),
            "Nothing can be sent now: 22 messages wait; 1 worker runs. Lane 3 is waiting."
        );
        let lanes = (0..7).map(|n| lane(n, "stuck")).chain([lane(9, "busy"), lane(8, "paused")]).collect();
        let down = Instance {
            sinks: [("kafka".to_owned(), Some("no broker".to_owned()))].into(),
            ..process("relay", InstanceState::Live)
        };
        let instances = vec![down, process("worker", InstanceState::Live), process("relay", InstanceState::Drained)];
        assert_eq!(
            verdict(&Judged { stats: Stats { dead: 2, ..stats(300, 4_000_000) }, lanes, instances }),
            "300 messages are due, the first for 4 s, and 5400 were sent in the last 10 s; 2 relays and 1 worker run. \
             Lanes 0, 1, 2, 3, 4 and 2 more are stuck. Lane 8 is paused. 2 messages are dead. Sink kafka takes nothing \
             from 1 relay: no broker."
        );
    }
}
