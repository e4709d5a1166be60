//! The findings of the judge, and the expectations of a test.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
};

use anyhow::{Result, ensure};
use uuid::Uuid;

/// The findings of the judge. The lists hold one line for each finding.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Messages in the ledger.
    pub messages: usize,
    /// Committed messages among them: by the ledger, or, if the outcome is unknown, by the service's own row.
    pub committed: usize,
    /// Different messages that arrived.
    pub arrived: usize,
    /// Further deliveries that the broker made by itself.
    pub redelivered: usize,
    /// Further deliveries that the relay made.
    pub duplicates: Vec<Uuid>,
    /// Messages that each replay delivered again, by the number of its job.
    pub replayed: BTreeMap<String, u64>,
    /// Committed, but neither arrived nor in a visible state.
    pub lost: Vec<Uuid>,
    /// Committed, and lost by the server as the test has declared: its replica did not have them.
    pub lost_by_server: Vec<Uuid>,
    /// Further deliveries of messages whose sent marks the server lost.
    pub repeated: usize,
    /// Committed, and pending or delayed.
    pub waiting: Vec<Uuid>,
    /// Committed, and dead, with the reason.
    pub dead: BTreeMap<Uuid, String>,
    /// Existing without a committed transaction.
    pub phantoms: Vec<String>,
    /// Arrived before an earlier message of their key.
    pub order_violations: Vec<String>,
    /// Numbers missing in a key's sequence.
    pub gaps: Vec<String>,
    /// Arrived different from the enqueued message.
    pub mismatched: Vec<String>,
    /// Applied more or less than once.
    pub effects: Vec<String>,
    /// Business row without message, or the other way round.
    pub torn: Vec<String>,
    /// In two states at once, in none, or marked sent without an arrival.
    pub states: Vec<String>,
    /// Rows of the relay that name no message.
    pub orphans: Vec<String>,
    /// Counters of the relays that do not match the findings.
    pub miscounts: Vec<String>,
    /// Resource use beyond a limit.
    pub excesses: Vec<String>,
    /// Lines of logs and pages with a payload or a secret.
    pub leaks: Vec<String>,
}

/// The expectations of a test beyond what is always wrong. By default: at least one message, no duplicate, none dead,
/// none waiting.
#[derive(Debug, Clone)]
pub struct Expectations {
    least: usize,
    most_duplicates: usize,
    duplicates_among: Option<HashSet<Uuid>>,
    late: usize,
    dead: HashSet<Uuid>,
    waiting: HashSet<Uuid>,
    witnesses: Vec<(String, bool)>,
}

impl Default for Expectations {
    fn default() -> Self {
        Self {
            least: 1,
            most_duplicates: 0,
            duplicates_among: None,
            late: 0,
            dead: HashSet::new(),
            waiting: HashSet::new(),
            witnesses: Vec::new(),
        }
    }
}

impl Expectations {
    /// The default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Expects at least this number of committed messages: fewer prove nothing.
    #[must_use]
    pub fn at_least(mut self, messages: usize) -> Self {
        self.least = messages;
        self
    }

    /// Allows at most this number of duplicates.
    #[must_use]
    pub fn duplicates(mut self, most: usize) -> Self {
        self.most_duplicates = most;
        self
    }

    /// Allows any number of duplicates, but only of these messages.
    #[must_use]
    pub fn duplicates_among(mut self, ids: impl IntoIterator<Item = Uuid>) -> Self {
        self.duplicates_among = Some(ids.into_iter().collect());
        self.most_duplicates = usize::MAX;
        self
    }

    /// Allows this number of further duplicates, of any messages: relays announce these because an answer was late.
    #[must_use]
    pub fn late(mut self, messages: usize) -> Self {
        self.late = messages;
        self
    }

    /// Expects these messages to be dead, and no others.
    #[must_use]
    pub fn dead(mut self, ids: impl IntoIterator<Item = Uuid>) -> Self {
        self.dead = ids.into_iter().collect();
        self
    }

    /// Expects these messages to wait, and no others.
    #[must_use]
    pub fn waiting(mut self, ids: impl IntoIterator<Item = Uuid>) -> Self {
        self.waiting = ids.into_iter().collect();
        self
    }

    /// An event that must have happened, or the run proves nothing: a message in flight when the fault struck, a
    /// take-over.
    #[must_use]
    pub fn witness(mut self, what: &str, happened: bool) -> Self {
        self.witnesses.push((what.to_owned(), happened));
        self
    }
}

/// Nothing was wrong, but the run's intended event did not happen. Another run may show it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NothingShown(String);

impl Report {
    /// Counts duplicates of these messages as repeated: the server that took another's place had lost their sent marks.
    #[must_use]
    pub fn without_repeated(mut self, sent_again: &HashSet<Uuid>) -> Self {
        let before = self.duplicates.len();
        self.duplicates.retain(|id| !sent_again.contains(id));
        self.repeated = before - self.duplicates.len();
        self
    }

    /// Fails with a list of everything that is wrong.
    ///
    /// # Errors
    /// Names each finding by its kind. It is a [`NothingShown`] if nothing is wrong but something was not shown.
    pub fn assert_ok(&self, expected: &Expectations) -> Result<()> {
        let (wrong, unshown) =
            ([self.always_wrong(), self.unexpected(expected)].concat(), self.nothing_shown(expected));
        let problems = format!("{}\n{self}", [&*wrong, &*unshown].concat().join("\n"));
        ensure!(wrong.is_empty(), problems);
        ensure!(unshown.is_empty(), NothingShown(problems));
        Ok(())
    }

    fn always_wrong(&self) -> Vec<String> {
        let lost: Vec<String> = self.lost.iter().map(Uuid::to_string).collect();
        let kinds = [
            ("lost", &lost),
            ("phantom", &self.phantoms),
            ("out of order", &self.order_violations),
            ("gap in a sequence", &self.gaps),
            ("changed on the way", &self.mismatched),
            ("wrong number of effects", &self.effects),
            ("torn transaction", &self.torn),
            ("wrong state", &self.states),
            ("row without message", &self.orphans),
            ("metrics and ledger differ", &self.miscounts),
            ("beyond a limit", &self.excesses),
            ("secret or payload printed", &self.leaks),
        ];
        kinds.into_iter().filter_map(|(kind, found)| problem(kind, found)).collect()
    }

    fn unexpected(&self, expected: &Expectations) -> Vec<String> {
        let dead: Vec<String> = self
            .dead
            .iter()
            .filter(|(id, _)| !expected.dead.contains(*id))
            .map(|(id, reason)| format!("{id}: {reason}"))
            .collect();
        let not_dead = missing(&expected.dead, |id| self.dead.contains_key(id));
        let waiting = others(&self.waiting, &expected.waiting);
        let not_waiting = missing(&expected.waiting, |id| self.waiting.contains(id));
        let most = expected.most_duplicates.saturating_add(expected.late);
        let excess = if self.duplicates.len() > most { self.duplicates.as_slice() } else { &[] };
        let excess = others(excess, &HashSet::new());
        let misplaced = expected.duplicates_among.as_ref().map(|among| others(&self.duplicates, among));
        let misplaced = misplaced.filter(|misplaced| misplaced.len() > expected.late);
        let kinds = [
            ("dead", dead),
            ("not dead", not_dead),
            ("still waiting", waiting),
            ("not waiting", not_waiting),
            ("too many duplicates", excess),
            ("a duplicate where none was due", misplaced.unwrap_or_default()),
        ];
        kinds.iter().filter_map(|(kind, found)| problem(kind, found)).collect()
    }

    fn nothing_shown(&self, expected: &Expectations) -> Vec<String> {
        let least = expected.least.max(1);
        let committed = self.committed;
        let few = (committed < least).then(|| format!("nothing shown: {committed} messages, at least {least} due"));
        let absent = expected.witnesses.iter().filter(|(_, happened)| !happened);
        few.into_iter().chain(absent.map(|(what, _)| format!("nothing shown: {what} did not happen"))).collect()
    }
}

/// One line for a kind of finding: the number, and the first ones.
fn problem(kind: &str, found: &[String]) -> Option<String> {
    const SHOWN: usize = 10;
    let shown: Vec<&str> = found.iter().take(SHOWN).map(String::as_str).collect();
    (!found.is_empty()).then(|| format!("{kind} ({}): {}", found.len(), shown.join("; ")))
}

fn others(found: &[Uuid], expected: &HashSet<Uuid>) -> Vec<String> {
    found.iter().filter(|id| !expected.contains(*id)).map(Uuid::to_string).collect()
}

fn missing(expected: &HashSet<Uuid>, is_there: impl Fn(&Uuid) -> bool) -> Vec<String> {
    expected.iter().filter(|id| !is_there(id)).map(Uuid::to_string).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "committed {}, arrived {}, lost {}, lost by the server {}, phantom {}, duplicates {}, repeated {}, out of \
             order {}, dead {}, waiting {}",
            self.committed,
            self.arrived,
            self.lost.len(),
            self.lost_by_server.len(),
            self.phantoms.len(),
            self.duplicates.len(),
            self.repeated,
            self.order_violations.len(),
            self.dead.len(),
            self.waiting.len(),
        )
    }
}
