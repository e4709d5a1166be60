//! What the judge found, and what a test expects.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
};

use anyhow::{Result, ensure};
use uuid::Uuid;

/// What the judge found. The lists hold one line for each finding.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Messages in the ledger.
    pub messages: usize,
    /// Of these, committed: by the ledger, or, where nobody was told, by the service's own row.
    pub committed: usize,
    /// Different messages that arrived.
    pub arrived: usize,
    /// Further deliveries that the broker made by itself.
    pub redelivered: usize,
    /// Further deliveries that the relay made.
    pub duplicates: Vec<Uuid>,
    /// Committed, but neither arrived nor in a visible state.
    pub lost: Vec<Uuid>,
    /// Committed, and lost by the server, as the test has said: its replica did not have them.
    pub lost_by_server: Vec<Uuid>,
    /// Further deliveries of messages of which the server lost that they were sent.
    pub repeated: usize,
    /// Committed, and pending or delayed.
    pub waiting: Vec<Uuid>,
    /// Committed, and given up by the relay, with the reason.
    pub dead: BTreeMap<Uuid, String>,
    /// There without a committed transaction.
    pub phantoms: Vec<String>,
    /// Arrived before an earlier message of their key.
    pub order_violations: Vec<String>,
    /// Numbers that a key's sequence lacks.
    pub gaps: Vec<String>,
    /// Arrived other than they were enqueued.
    pub mismatched: Vec<String>,
    /// Applied more or less than once.
    pub effects: Vec<String>,
    /// Business row without message, or the other way round.
    pub torn: Vec<String>,
    /// In two states at once, in none, or marked sent and never arrived.
    pub states: Vec<String>,
    /// Rows of the relay that name no message.
    pub orphans: Vec<String>,
    /// Counters of the relays that do not fit what was found.
    pub miscounts: Vec<String>,
    /// Used beyond a limit.
    pub excesses: Vec<String>,
    /// Lines of logs and pages with a payload or a secret.
    pub leaks: Vec<String>,
}

/// What a test expects beyond what is always wrong: by default at least one message, no duplicate, none dead, none waiting.
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

    /// At least so many messages were committed: fewer prove nothing.
    #[must_use]
    pub fn at_least(mut self, messages: usize) -> Self {
        self.least = messages;
        self
    }

    /// At most so many duplicates.
    #[must_use]
    pub fn duplicates(mut self, most: usize) -> Self {
        self.most_duplicates = most;
        self
    }

    /// Any number of duplicates, but only of these messages.
    #[must_use]
    pub fn duplicates_among(mut self, ids: impl IntoIterator<Item = Uuid>) -> Self {
        self.duplicates_among = Some(ids.into_iter().collect());
        self.most_duplicates = usize::MAX;
        self
    }

    /// So many duplicates more, of whatever messages: those that relays announce because an answer was late.
    #[must_use]
    pub fn late(mut self, messages: usize) -> Self {
        self.late = messages;
        self
    }

    /// These messages are dead, and no others.
    #[must_use]
    pub fn dead(mut self, ids: impl IntoIterator<Item = Uuid>) -> Self {
        self.dead = ids.into_iter().collect();
        self
    }

    /// These messages wait, and no others.
    #[must_use]
    pub fn waiting(mut self, ids: impl IntoIterator<Item = Uuid>) -> Self {
        self.waiting = ids.into_iter().collect();
        self
    }

    /// What must have happened, or the run has not shown what it was for: a message in flight when the fault struck, a take-over.
    #[must_use]
    pub fn witness(mut self, what: &str, happened: bool) -> Self {
        self.witnesses.push((what.to_owned(), happened));
        self
    }
}

/// Nothing was wrong, but what the run was for did not happen. Another run may show it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NothingShown(String);

impl Report {
    /// Takes duplicates of these messages for repeated: the server that took another's place did not know that they were sent.
    #[must_use]
    pub fn without_repeated(mut self, sent_again: &HashSet<Uuid>) -> Self {
        let before = self.duplicates.len();
        self.duplicates.retain(|id| !sent_again.contains(id));
        self.repeated = before - self.duplicates.len();
        self
    }

    /// Fails with everything that is wrong.
    ///
    /// # Errors
    /// Names each finding by its kind. Where nothing is wrong and something was not shown, it is a [`NothingShown`].
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
        let (least, committed) = (expected.least.max(1), self.committed);
        let few = (committed < least).then(|| format!("nothing shown: {committed} messages, at least {least} due"));
        let absent = expected.witnesses.iter().filter(|(_, happened)| !happened);
        few.into_iter().chain(absent.map(|(what, _)| format!("nothing shown: {what} did not happen"))).collect()
    }
}

/// One line for a kind of finding: how many, and the first ones.
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
            "committed {}, arrived {}, lost {}, lost by the server {}, phantom {}, duplicates {}, repeated {}, out of order {}, dead {}, \
             waiting {}",
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
