//! The decision over the rows of a message.

use outbox_core::store::{
    claim::{read::Mark, tail::ClaimKind},
    operate::find::{ClaimRow, FoundMessage, MAX_BEFORE, StateRow, StateTable},
    reason::DelayReason,
};

use super::{
    super::{
        instances::Live,
        shown::{counted, span},
    },
    remedies::remedy,
};
use crate::{moment::rfc3339, state::role::ProcessKind};

/// In microseconds: after this time without progress a relay is missing or stuck. Relays promote, take over and claim
/// within seconds.
pub(in crate::operate) const PATIENCE: i64 = 60_000_000;

/// The state of a message, and a sentence about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) state: &'static str,
    pub(super) cause: String,
    pub(super) why: String,
    pub(super) remedy: Option<String>,
    /// Whether a relay or worker should have acted, and none has.
    pub(super) misses_relay: bool,
}

impl Verdict {
    pub(super) fn new(state: &'static str, cause: &str, why: impl Into<String>) -> Self {
        Self { state, cause: cause.to_owned(), why: why.into(), remedy: None, misses_relay: false }
    }

    pub(super) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// Adds that nobody serves the lane, and who would if no operator drained it.
    fn unserved(mut self, live: &Live, lane: u16) -> Self {
        let role = live.role(lane);
        let (drained, remedy) = match live.drained(lane).first() {
            Some(it) => {
                let name = &it.instance;
                (format!(": {name} is {}", it.state.word()), format!("relay resume --instance {name} --because …"))
            }
            None => (String::new(), format!("start a {role} that serves lane {lane}")),
        };
        self.why.extend([format!(" No live {role} serves the lane{drained}.")]);
        self.remedy.get_or_insert(remedy);
        Self { misses_relay: true, ..self }
    }
}

/// The decision. A live claim comes first: its relay decides what happens next. Then the tables of the states; a
/// receipt decides only if there is no state, because a message can be put back after it was sent.
pub(super) fn judge(found: &FoundMessage, live: &Live) -> Verdict {
    let mut verdict = match (found.states.first(), found.claims.first()) {
        (Some(row), Some(claim)) if row.table == StateTable::Pending => claimed(found, claim, live.role(row.lane)),
        (Some(row), _) => match row.table {
            StateTable::Pending => pending(found, row, live),
            StateTable::Delayed => delayed(found, row, live),
            StateTable::Dead => dead(found, row, live.role(row.lane)),
        },
        (None, _) => without_state(found),
    };
    if let (Some(receipt), true) = (found.receipts.last(), verdict.state != "sent") {
        verdict.why.extend([" It was sent before, at ", &at(receipt.sent_at), ", and put back."]);
    }
    if let (Some(Mark { job_id, to: Some(to) }), true) = (&found.mark, verdict.state != "sent") {
        verdict.why.extend([format!(" Job {job_id} sends it to {to}, and not to the destination of its route.")]);
        if let ("delayed", Some(remedy)) = (verdict.state, &mut verdict.remedy) {
            remedy.extend([format!("; to take it back: relay delayed discard {}", found.id)]);
        }
    }
    verdict
}

/// A message that was sent or lost, or is unknown.
fn without_state(found: &FoundMessage) -> Verdict {
    match (found.receipts.as_slice(), &found.message) {
        ([.., last], _) => {
            let times = match found.receipts.len() {
                1 => String::new(),
                times => format!(" It was sent {times} times."),
            };
            if last.place.as_deref() == Some("worker") {
                let why = format!("Worker {} has done its work at {}.{times}", last.owner, at(last.sent_at));
                return Verdict::new("sent", "done", why);
            }
            let place = last.place.as_ref().map_or_else(String::new, |place| format!(", as {place}"));
            let why = format!("The broker confirmed it at {}{place}, to {}.{times}", at(last.sent_at), last.owner);
            Verdict::new("sent", "sent", why)
                .with_remedy("look at the consumer: relay inbox show with its UUID, if its inbox is in this database")
        }
        ([], Some(_)) => Verdict::new(
            "lost",
            "no_state",
            "It has no row of a state and no receipt: its pending row was never written, or was deleted by hand. It is \
             never sent.",
        )
        .with_remedy("insert its row into outbox_pending, as docs/table-contract.md describes"),
        ([], None) => Verdict::new(
            "unknown",
            "not_found",
            "No message of this outbox has this id: it was never committed, its transaction is still open, or it was \
             purged after its retention.",
        )
        .with_remedy("relay inbox show with its UUID, if a consumer of this database got it"),
    }
}

fn claimed(found: &FoundMessage, claim: &ClaimRow, role: &str) -> Verdict {
    let owner = &claim.owner;
    let ago = found.now - claim.lease_until;
    if ago < 0 && claim.kind == ClaimKind::Closed {
        let why = format!(
            "Relay {owner} had the tail of its lane, which was closed {} ago, and may have published it. The tail \
             becomes a list within seconds. Another relay takes that over after {}.",
            span(found.now - claim.claimed_at),
            at(claim.lease_until)
        );
        return Verdict::new("claimed", "closed", why);
    }
    if ago < 0 && claim.kind == ClaimKind::Open {
        let why = format!(
            "Relay {owner} tails its lane, and publishes it or takes it next. The tail was written {} ago, its lease \
             lasts until {}.",
            span(found.now - claim.claimed_at),
            at(claim.lease_until)
        );
        return Verdict::new("claimed", "tailed", why);
    }
    if ago < 0 {
        let since = span(found.now - claim.claimed_at);
        let [who, does] =
            if role == ProcessKind::WORKER { ["Worker", "works on it"] } else { ["Relay", "publishes it"] };
        let lease = at(claim.lease_until);
        let why = format!("{who} {owner} has claimed it, {since} ago, and {does}. Its lease lasts until {lease}.");
        return Verdict::new("claimed", "claimed", why);
    }
    let why = format!(
        "{owner} had claimed it, and its lease ended {} ago. Another {role} takes it over within seconds.",
        span(ago)
    );
    without_relay(Verdict::new("claimed", "lease_ended", why), ago)
}

fn pending(found: &FoundMessage, row: &StateRow, live: &Live) -> Verdict {
    if let Some(pause) = &found.paused {
        let lane = row.lane;
        let actor = &pause.actor;
        let reason = &pause.reason;
        let end = pause.ends_at.map_or_else(String::new, |end| format!(" The pause ends at {}.", at(end)));
        let why = format!("{actor} has paused lane {lane} at {}: {reason}.{end}", at(pause.paused_at));
        return Verdict::new("pending", "paused", why).with_remedy(format!("relay resume --lane {lane} --because …"));
    }
    let Some(message) = &found.message else {
        let why = "Its row in outbox_messages was deleted by hand: the relay that claims it gives it up.";
        return without_relay(Verdict::new("pending", "message_missing", why), idle(found));
    };
    if let Some(behind) = behind(found, "pending") {
        return behind;
    }
    let lane = row.lane;
    if let Some(expired) = message.expires_at.filter(|expires_at| *expires_at <= found.now) {
        let why = format!("It expired at {}: the relay that claims it gives it up.", at(expired));
        return without_relay(Verdict::new("pending", "expired", why), idle(found).min(found.now - expired));
    }
    let place = match found.before {
        0 => format!("It is the first of lane {lane}."),
        MAX_BEFORE.. => format!("{MAX_BEFORE} or more messages of lane {lane} go before it."),
        before => {
            let messages = counted(before, "message", "messages");
            format!("{messages} of lane {lane} {} before it.", if before == 1 { "goes" } else { "go" })
        }
    };
    let refused: String = live.refused(lane).iter().flat_map(|sentence| [" ", sentence]).collect();
    let waits = found.now - message.due_at.unwrap_or_default().max(message.created_at);
    let sent = |sent| format!(" The last of the lane was sent {} ago.", span(found.now - sent));
    let progress = found.last_sent.map_or_else(String::new, sent);
    let serving = live.serve(lane);
    let is_idle = idle(found) >= PATIENCE && waits >= PATIENCE / 10;
    if !is_idle && (serving > 0 || idle(found) < QUIET) {
        return Verdict::new("pending", "in_line", place + &progress + &refused);
    }
    let role = live.role(lane);
    let none = if is_idle {
        format!("{place} No {role} has sent a message of this lane in the last minute, and none has a claim in it.")
    } else {
        place + &progress
    };
    if serving == 0 {
        return Verdict::new("pending", "no_relay", none).unserved(live, lane);
    }
    let relays = if serving == 1 { format!("1 live {role} serves") } else { format!("{serving} live {role}s serve") };
    let why = format!("{none} {relays} the lane.{refused}");
    if live.has_no_sink(lane) {
        let remedy = remedy(DelayReason::Parked.word(), "").map(str::to_owned);
        return Verdict { remedy, ..Verdict::new("pending", "sink", why) };
    }
    let stuck = Verdict { misses_relay: true, ..Verdict::new("pending", "stuck", why) };
    stuck.with_remedy("relay instances, relay doctor; the relay's log and its /readyz")
}

/// In microseconds: a process that works in the lane shows so within this time, also one whose heartbeat is late.
const QUIET: i64 = 10_000_000;

/// For how long no relay has worked in the lane, in microseconds: none has a claim there, and none has sent a message.
fn idle(found: &FoundMessage) -> i64 {
    if found.owners > 0 { 0 } else { found.last_sent.map_or(i64::MAX, |sent| found.now - sent) }
}

fn behind(found: &FoundMessage, state: &'static str) -> Option<Verdict> {
    let ahead = found.ahead?;
    let why = format!("It waits behind message {ahead} of its key.");
    Some(Verdict::new(state, "behind", why).with_remedy(format!("relay why {ahead}")))
}

fn delayed(found: &FoundMessage, row: &StateRow, live: &Live) -> Verdict {
    let Some(due) = row.at else {
        return behind(found, "delayed").unwrap_or_else(|| {
            let why = "It is the next in the queue of its key: a relay or worker makes it pending within seconds.";
            let verdict = Verdict::new("delayed", "next_of_key", why);
            let is_served = live.serve(row.lane) > 0 || idle(found) < PATIENCE;
            if is_served { verdict } else { verdict.unserved(live, row.lane) }
        });
    };
    let overdue = found.now - due;
    if overdue >= 0 {
        let why = format!("It has been due for {}: a relay or worker makes it pending within seconds.", span(overdue));
        return without_relay(Verdict::new("delayed", "due", why), overdue);
    }
    let next = format!("at {} (in {})", at(due), span(overdue));
    let again = format!("It is tried again {next}");
    let free = "without a spent attempt";
    let error = error(row);
    let topic = found.message.as_ref().map_or("", |message| &message.topic);
    let StateRow { reason, attempts, .. } = row;
    let why = match DelayReason::of(reason) {
        Some(DelayReason::Scheduled) => format!("It is scheduled {next}."),
        Some(DelayReason::Unconfirmed | DelayReason::Rejected) => {
            let attempts = counted(*attempts, "attempt", "attempts");
            format!("{attempts} failed, the last one {reason}{error}. {again}.")
        }
        // The error says so again.
        Some(DelayReason::TurnedAway) => {
            format!("Its sink turned it away{}. {again}.", error.replacen("turned away: ", "", 1))
        }
        Some(DelayReason::Parked) => {
            let refused: String = live.refused(row.lane).iter().flat_map(|sentence| [" ", sentence]).collect();
            format!("Its sink, destination or handler takes nothing{error}.{refused} {again}, {free}.")
        }
        Some(DelayReason::Snoozed) => format!("Its handler has put it off. {again}, {free}."),
        Some(DelayReason::Paused) => {
            let by = error.strip_prefix(": paused").unwrap_or(&error);
            format!("Its sink or destination is paused{by}. {again}, {free}.")
        }
        Some(DelayReason::Unroutable) => format!("Its destination takes nothing{error}. {again}, {free}."),
        Some(DelayReason::NoRoute) => format!("No route of the relay matches its topic {topic}. {again}."),
        Some(DelayReason::NoSink) => format!("A replay sends it to a sink that the relay lacks{error}. {again}."),
        Some(DelayReason::Unread) => format!("The relay could not read it{error}. {again}."),
        // A message in the queue of its key has no date. A later release may have other reasons.
        Some(DelayReason::Behind) | None => format!("It waits ({reason}){error}. {again}."),
    };
    let remedy = remedy(reason, &error).map(str::to_owned);
    later(found, row, live, Verdict { remedy, ..Verdict::new("delayed", reason, why) })
}

/// Adds what hinders a message once it is due.
fn later(found: &FoundMessage, row: &StateRow, live: &Live, mut verdict: Verdict) -> Verdict {
    if found.message.is_none() {
        verdict.why.push_str(" Its row in outbox_messages was deleted by hand: once it is due, it is given up.");
    }
    let expires_at = found.message.as_ref().and_then(|message| message.expires_at);
    if let (Some(due), Some(expires_at)) = (row.at, expires_at)
        && expires_at <= due
    {
        verdict.why.extend([format!(" It expires before, at {}, and is given up once it is due.", at(expires_at))]);
    }
    if let (Some(ahead), Some(DelayReason::Scheduled)) = (found.ahead, DelayReason::of(&row.reason)) {
        verdict.why.extend([format!(" It waits behind message {ahead} of its key, too.")]);
        verdict.remedy.get_or_insert(format!("relay why {ahead}"));
    }
    if let Some(pause) = &found.paused {
        verdict.why.extend([format!(" {} has paused lane {}: {}.", pause.actor, row.lane, pause.reason)]);
        verdict.remedy.get_or_insert(format!("relay resume --lane {} --because …", row.lane));
    } else if live.serve(row.lane) == 0 && idle(found) >= QUIET {
        return verdict.unserved(live, row.lane);
    }
    verdict
}

fn dead(found: &FoundMessage, row: &StateRow, role: &str) -> Verdict {
    let id = found.id;
    let error = error(row);
    let holds = if row.holds_key { " The later messages of its key wait for it." } else { "" };
    let when = row.at.map(at).unwrap_or_default();
    let reason = row.reason.clone();
    let attempts = counted(row.attempts, "attempt", "attempts");
    let why = format!("A {role} gave it up at {when}, after {attempts}: {reason}{error}.{holds}");
    // One that holds no key, or no longer, has nothing to release.
    let without = if row.holds_key {
        format!("`relay dead release {id}` or `discard`")
    } else {
        format!("`relay dead discard {id}`")
    };
    let again = if found.message.is_none() || row.reason == "expired" {
        "it cannot be retried".to_owned()
    } else {
        format!("remove the cause, then `relay dead retry {id}`")
    };
    let remedy = format!("{again}; to do without it, {without}: docs/runbook.md#outboxdeadmessages");
    Verdict::new("dead", &reason, why).with_remedy(remedy)
}

/// The last error behind a colon, if there is one.
fn error(row: &StateRow) -> String {
    let error = row.error.as_deref().filter(|error| !error.is_empty());
    error.map_or_else(String::new, |error| format!(": {error}"))
}

/// Adds that no relay did its work, if it is late.
fn without_relay(verdict: Verdict, late: i64) -> Verdict {
    if late < PATIENCE {
        return verdict;
    }
    let why = format!("{} None has.", verdict.why);
    Verdict { why, misses_relay: true, ..verdict }.with_remedy(
        "start a relay, or the worker of its lane; if one runs, its /readyz and `relay check --connect` \
                      say what it lacks",
    )
}

/// A time without its fraction.
fn at(micros: i64) -> String {
    rfc3339(micros - micros.rem_euclid(1_000_000)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
