//! The state of each lane in one sentence.

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        controls::{self, ControlRow},
        stats::{self, LaneStats, Stats, Waiting},
    },
};
use serde::Serialize;

use super::{instances::Live, shown::span, why::PATIENCE};

/// A lane. Its names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaneStatus {
    /// Its number.
    pub lane: u16,
    /// `idle`, `busy`, `paused`, `stuck` or `unserved`.
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
pub(crate) struct Judged {
    pub(crate) stats: Stats,
    pub(crate) lanes: Vec<(LaneStats, LaneStatus)>,
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
pub(crate) async fn judged(db: &mut MySqlConnection) -> Result<Judged, sqlx::Error> {
    let (mut lanes, controls, live) = (stats::lanes(db).await?, controls::paused(db).await?, Live::read(db).await?);
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
    Ok(Judged { stats, lanes: lanes.into_iter().map(judge).collect() })
}

fn status(lane: &LaneStats, pause: Option<&ControlRow>, live: &Live) -> LaneStatus {
    let (state, mut verdict) = judge(lane, pause, live);
    // Where nothing is due, nothing is tried, and the reason may be an old one.
    let refused = if lane.pending > 0 { live.refused(lane.lane) } else { Vec::new() };
    for sentence in refused.into_iter().chain(waiting(lane)).chain(dead(lane)) {
        verdict = format!("{verdict} {sentence}");
    }
    let delayed = lane.delayed.iter().map(|waiting| waiting.messages).sum();
    LaneStatus { lane: lane.lane, state, verdict, pending: lane.pending, delayed, dead: lane.dead }
}

/// Judges a lane. A live process of an earlier release has no heartbeat, but claims.
fn judge(lane: &LaneStats, pause: Option<&ControlRow>, live: &Live) -> (&'static str, String) {
    let serving = live.serve(lane.lane);
    let due = match lane.pending {
        0 => "nothing is due".to_owned(),
        1 => format!("1 message has been due for {}", span(lane.lag)),
        messages => format!("{messages} messages are due, the first for {}", span(lane.lag)),
    };
    if let Some(ControlRow { actor, reason, .. }) = pause {
        return ("paused", format!("Paused by {actor} ({reason}); {due}."));
    }
    if lane.expired_leases > 0 && lane.owners == 0 && serving == 0 && !lane.sends {
        return ("unserved", format!("The relays that had claims here are gone, and no other takes them over; {due}."));
    }
    if lane.pending == 0 {
        return ("idle", "Nothing is due.".to_owned());
    }
    let serving = serving.max(usize::try_from(lane.owners).unwrap_or(usize::MAX));
    let relays = match (serving, live.drained(lane.lane).len()) {
        (0, 0) => "no live relay serves it".to_owned(),
        (0, drained) => format!("no live relay serves it ({drained} drained)"),
        (1, _) => "1 relay serves it".to_owned(),
        (relays, _) => format!("{relays} relays serve it"),
    };
    if !lane.sends && lane.lag >= PATIENCE {
        let state = if serving == 0 { "unserved" } else { "stuck" };
        return (state, format!("None was sent in the last minute: {due}; {relays}."));
    }
    ("busy", format!("{} were sent in the last 10 s: {due}; {relays}.", lane.sent))
}

/// What waits for something that does not work.
fn waiting(lane: &LaneStats) -> Option<String> {
    let troubled = |it: &&Waiting| !matches!(it.reason.as_str(), "scheduled" | "behind");
    let Waiting { reason, messages, error, .. } = lane.delayed.iter().find(troubled)?;
    let error = if error.is_empty() { String::new() } else { format!(": {error}") };
    let wait = if *messages == 1 { "message waits" } else { "messages wait" };
    Some(format!("{messages} {wait} ({reason}){error}."))
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
    use super::{super::instances::Instance, *};

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
        let process = Instance { state: "live", ..Instance::default() };
        let live = Live(vec![Instance { sinks, ..process.clone() }, process.clone()]);
        let found = status(&unserved, None, &live);
        let sentence = "2 relays serve it. Sink kafka takes nothing from 1 relay: no broker\nanswers.";
        assert!(found.state == "stuck" && found.verdict.ends_with(sentence), "{}", found.verdict);
        assert_eq!(status(&lane, None, &live).verdict, "Nothing is due.");
        let drained = Live(vec![Instance { state: "drained", ..process }]);
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
            "The relays that had claims here are gone, and no other takes them over; 1 message has been due for 1 min 30 s.",
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
        let waits = |reason: &str, messages| Waiting {
            reason: reason.to_owned(),
            messages,
            error: "no\nqueue".to_owned(),
            lag: 0,
        };
        let delayed = vec![waits("behind", 9), waits("scheduled", 8), waits("unroutable", 7), waits("parked", 6)];
        let troubled = LaneStats { delayed, dead: 5, ..lane };
        check(&troubled, None, "idle", "Nothing is due. 7 messages wait (unroutable): no\nqueue. 5 are dead.");
    }
}
