//! The one judge of all delivery tests. It compares the producers' ledger, the arrivals and the tables.
//!
//! | invariant | found by |
//! |---|---|
//! | I1 no loss | [`Report::lost`] |
//! | I2 no phantom | [`Report::phantoms`] |
//! | I3 business row and message | [`Report::torn`] |
//! | I4 duplicates within the budget | [`Expectations::duplicates`], [`Expectations::duplicates_among`], [`Expectations::late`], [`Report::with_totals`] |
//! | I5 order per key | [`Report::order_violations`] |
//! | I6 no gap | [`Report::gaps`]; the numbers that arrive with sequenced keys: [`Report::mismatched`] |
//! | I7 fence | [`Report::states`] |
//! | I8 effect once | [`Report::effects`] |
//! | I9 byte-equal | [`Report::mismatched`] |
//! | replays and discards as ordered | [`Report::with_orders`] |
//! | I10 drains | [`Report::waiting`], where nothing is expected to wait |
//! | I11 bounded | [`Report::with_usage`] |
//! | I12 metrics | [`Report::with_totals`] |
//! | I13 no secret | [`Report::with_pages`] |
//!
//! A run that shows nothing fails too: [`Expectations::at_least`], [`Expectations::witness`].

mod arrivals;
mod orders;
mod report;
#[cfg(test)]
mod tests;
mod totals;

use std::collections::{BTreeMap, HashSet};

pub use orders::Orders;
use outbox_core::REPLAY_HEADER;
pub use report::{Expectations, NothingShown, Report};
pub use totals::{Consumed, Totals, Usage};
use uuid::Uuid;

use self::arrivals::Arrivals;
use crate::{
    consume::Arrival,
    database::Tables,
    ledger::{Entry, Outcome},
};

/// Judges a run. `arrivals` holds the arrivals of each partition or queue in their order.
#[must_use]
pub fn judge(ledger: &[Entry], arrivals: &[Arrival], tables: &Tables) -> Report {
    judge_after_failover(ledger, arrivals, tables, [])
}

/// [`judge`] after a failover to a server that did not have these messages. Each may have arrived before, and nothing
/// else is left of it.
#[must_use]
pub fn judge_after_failover(
    ledger: &[Entry],
    arrivals: &[Arrival],
    tables: &Tables,
    lost: impl IntoIterator<Item = Uuid>,
) -> Report {
    let lost = &lost.into_iter().collect::<HashSet<_>>();
    let arrivals = Arrivals::new(arrivals);
    let case = Case { arrivals: &arrivals, tables, lost };
    let mut report = Report {
        messages: ledger.len(),
        arrived: arrivals.first.len(),
        redelivered: arrivals.redelivered,
        duplicates: arrivals.duplicates.clone(),
        replayed: arrivals.replays.iter().map(|(job, places)| ((*job).to_owned(), places.len() as u64)).collect(),
        orphans: tables.orphans.clone(),
        ..Report::default()
    };
    for entry in ledger {
        if lost.contains(&entry.id) {
            case.lost(entry, &mut report);
        } else if case.is_committed(entry) {
            report.committed += 1;
            case.obligation(entry, &mut report);
        } else {
            case.prohibition(entry, &mut report);
        }
    }
    case.strangers(ledger, &mut report);
    case.order(ledger, &mut report);
    report
}

/// A message of a key, with its sequence.
type Sequenced = (u64, Uuid);

/// A message of a key: its sequence, and its place among the arrivals.
type Numbered = (u64, Option<usize>);

/// The evidence beside the ledger.
struct Case<'a> {
    arrivals: &'a Arrivals<'a>,
    tables: &'a Tables,
    lost: &'a HashSet<Uuid>,
}

impl Case<'_> {
    /// If the outcome is unknown, the service's own row shows whether the transaction committed: both are in it.
    fn is_committed(&self, entry: &Entry) -> bool {
        match entry.outcome {
            Outcome::Committed => true,
            Outcome::RolledBack => false,
            Outcome::Unknown => self.tables.business.contains(&entry.id),
        }
    }

    /// A committed message has arrived unchanged, or is in a visible state (I1, I9); it has had at most one effect
    /// (I8).
    fn obligation(&self, entry: &Entry, report: &mut Report) {
        let id = &entry.id;
        let arrived = self.arrivals.first.get(id);
        let waits = self.tables.pending.contains(id) || self.tables.delayed.contains(id);
        let dead = self.tables.dead.get(id);
        if waits {
            report.waiting.push(*id);
        }
        if let Some(reason) = dead {
            report.dead.insert(*id, reason.clone());
        }
        if arrived.is_none() && !waits && dead.is_none() {
            report.lost.push(*id);
        }
        self.contents(entry, report);
        if !self.tables.business.is_empty() && !self.tables.business.contains(id) {
            report.torn.push(format!("{id}: enqueued without its business row"));
        }
        self.state(id, waits || dead.is_some(), report);
        self.effects(id, u64::from(arrived.is_some()), report);
    }

    /// An arrived message is unchanged (I9), but for the mark of a replay.
    fn contents(&self, entry: &Entry, report: &mut Report) {
        let first = self.arrivals.first.get(&entry.id).map(|(_, arrival)| *arrival);
        for arrival in first.into_iter().chain(self.arrivals.again(&entry.id)) {
            let mut contents = arrival.contents();
            contents.headers.retain(|(name, _)| name != REPLAY_HEADER);
            let differences = entry.contents.differences(&contents);
            if !differences.is_empty() {
                report.mismatched.push(format!("{}: {}", entry.id, differences.join(", ")));
            }
        }
    }

    /// A message that its server lost is in no table. It has one effect if it had arrived before.
    fn lost(&self, entry: &Entry, report: &mut Report) {
        let id = &entry.id;
        if entry.outcome == Outcome::Committed {
            report.lost_by_server.push(*id);
        }
        if self.tables.messages.contains(id) || self.tables.business.contains(id) {
            report.phantoms.push(format!("{id}: has a row, though its server lost it"));
        }
        self.contents(entry, report);
        self.effects(id, u64::from(self.arrivals.first.contains_key(id)), report);
    }

    /// A message is sent, with one receipt and one of each replay, or in one other state (I7: no claim is settled
    /// twice).
    fn state(&self, id: &Uuid, elsewhere: bool, report: &mut Report) {
        let receipts = self.tables.receipts.get(id).map_or(0, Vec::len);
        let due = 1 + self.arrivals.again(id).count();
        let states = usize::from(self.tables.pending.contains(id))
            + usize::from(self.tables.delayed.contains(id))
            + usize::from(self.tables.dead.contains_key(id))
            + receipts;
        let kept = self.tables.messages.contains(id);
        if states > due || (kept && !elsewhere && receipts != due) {
            report.states.push(format!("{id}: is in {states} states, {receipts} of them sent"));
        }
        if receipts > 0 && !self.arrivals.first.contains_key(id) {
            report.states.push(format!("{id}: marked sent, but it never arrived"));
        }
    }

    /// The number of effects is the expected one, each with its row in the inbox.
    fn effects(&self, id: &Uuid, due: u64, report: &mut Report) {
        let times = self.tables.effects.get(id);
        let marks = self.tables.processed.get(id);
        let times = times.copied().unwrap_or(0);
        let marks = marks.copied().unwrap_or(0);
        let consumed = !self.tables.effects.is_empty() || !self.tables.processed.is_empty();
        if consumed && (times != due || marks != due) {
            report.effects.push(format!("{id}: {times} effects and {marks} rows in the inbox, {due} due"));
        }
    }

    /// A message of a transaction that did not commit is in no table and no topic (I2, I3).
    fn prohibition(&self, entry: &Entry, report: &mut Report) {
        let id = &entry.id;
        if self.arrivals.first.contains_key(id) {
            report.phantoms.push(format!("{id}: arrived, though its transaction did not commit"));
        } else if self.tables.messages.contains(id) {
            report.phantoms.push(format!("{id}: has a row, though its transaction did not commit"));
        }
        if self.tables.business.contains(id) {
            report.torn.push(format!("{id}: has a business row, though its transaction did not commit"));
        }
        self.effects(id, 0, report);
    }

    /// No message arrives that was not enqueued, or again before it has arrived (I2).
    fn strangers(&self, ledger: &[Entry], report: &mut Report) {
        let known: HashSet<Uuid> = ledger.iter().map(|entry| entry.id).collect();
        let strangers = self.arrivals.first.keys().chain(&self.tables.messages).filter(|id| !known.contains(id));
        let mut strangers: Vec<_> = strangers.map(|id| format!("{id}: nobody has enqueued it")).collect();
        strangers.sort();
        strangers.dedup();
        report.phantoms.extend(strangers);
        for (job, places) in &self.arrivals.replays {
            let early = places.keys().filter(|id| !self.arrivals.first.contains_key(id));
            report.phantoms.extend(early.map(|id| format!("{id}: has not arrived, and job {job} sent it again")));
        }
    }

    /// First deliveries of a key, and those of one replay, come in the order of its sequence (I5). The sequence has no
    /// gaps (I6).
    fn order(&self, ledger: &[Entry], report: &mut Report) {
        let mut keys: BTreeMap<(&str, &[u8]), Vec<Sequenced>> = BTreeMap::new();
        let kept = |entry: &&Entry| self.is_committed(entry) && !self.lost.contains(&entry.id);
        for entry in ledger.iter().filter(kept) {
            let (Some(key), Some(sequence)) = (&entry.contents.key, entry.sequence) else { continue };
            keys.entry((&entry.contents.topic, key)).or_default().push((sequence, entry.id));
        }
        for ((_, key), mut messages) in keys {
            let key = String::from_utf8_lossy(key);
            messages.sort_unstable();
            report.gaps.extend(gaps(messages.iter().map(|(sequence, _)| *sequence)).map(|gap| format!("{key}: {gap}")));
            let replays = self.arrivals.replays.iter().map(|(job, places)| (format!(" in replay {job}"), places));
            for (which, places) in std::iter::once((String::new(), &self.arrivals.first)).chain(replays) {
                let numbered =
                    messages.iter().map(|(sequence, id)| (*sequence, places.get(id).map(|(place, _)| *place)));
                let details = overtaken(numbered).map(|detail| format!("{key}: {detail}{which}"));
                report.order_violations.extend(details);
            }
        }
    }
}

/// Sequences that do not follow their predecessor directly.
fn gaps(sequences: impl Iterator<Item = u64>) -> impl Iterator<Item = String> {
    let mut last = 0;
    sequences.filter_map(move |sequence| {
        let expected = std::mem::replace(&mut last, sequence) + 1;
        (sequence != expected).then(|| format!("{sequence} follows {}", expected - 1))
    })
}

/// Messages, in the order of their sequence, that arrived before an earlier one.
fn overtaken(messages: impl Iterator<Item = Numbered>) -> impl Iterator<Item = String> {
    let mut latest: Option<(u64, usize)> = None;
    messages.filter_map(|(sequence, place)| Some((sequence, place?))).filter_map(move |(sequence, place)| {
        let before = latest.filter(|(_, latest)| *latest > place);
        if before.is_none() {
            latest = Some((sequence, place));
        }
        before.map(|(earlier, _)| format!("{sequence} arrived before {earlier}"))
    })
}
