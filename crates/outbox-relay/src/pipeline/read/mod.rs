//! Reads claimed messages and resolves their destinations.

pub mod envelope;
pub mod route;

use std::{
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{
    Contents, EPOCH_HEADER, REPLAY_HEADER, SEQUENCE_HEADER,
    sqlx::{self, Connection as _},
    store::{
        claim::{
            Pending,
            read::{self, Stored},
        },
        refusal::{Refusal, refusal},
    },
};

use parking_lot::Mutex;

use self::route::{Resolved, Routes};
use crate::{
    observe::traces::Link,
    pipeline::{
        claim::Claimed,
        retry::{DelayReason, Disposition, Policy, dead},
    },
    settings::{AfterDead, OnRejected},
    sink::Outgoing,
    state::{
        context::Context,
        session::{Sessions, describe},
    },
};

/// A claim with its messages.
pub struct ReadClaim {
    /// The claim.
    pub claimed: Claimed,
    /// Its messages by id, each with its next step.
    pub messages: Vec<(Pending, Step)>,
}

/// The next step of a message.
pub enum Step {
    /// To be published.
    Publish(Box<Ready>),
    /// Decided without publishing, for this reason.
    Decided(Disposition, String),
}

/// A message that can be published.
pub struct Ready {
    /// The message.
    pub outgoing: Outgoing,
    /// Its route's policy for failures.
    pub policy: Policy,
    /// Whether its route allows several unconfirmed messages of a key.
    pub pipelined: bool,
    /// The time at which it was due, by this process's clock.
    pub due_at: Instant,
    /// The span in which it was enqueued, if its trace is sampled.
    pub(crate) link: Option<Link>,
}

/// The wait of a message without a route or a sink, before the relay looks for one again.
const NO_ROUTE_WAIT: Duration = Duration::from_secs(60);
/// The wait of a message that the database does not return. While the relay finds such a message, it reads nothing else
/// for about a minute.
const UNREAD_WAIT: Duration = Duration::from_secs(600);
/// The time for which a message that the log has shown, and that reads do not see, is waited for.
const UNSEEN: Duration = Duration::from_secs(2);
/// After this number of leases a message is set aside, even if only its transfer breaks.
const STUCK: u32 = 20;

/// How long one message has been the only one that the database does not return.
struct Blame {
    lease: Duration,
    stuck_since: Instant,
    blamed_since: Option<Instant>,
}

impl Blame {
    const fn new(lease: Duration, now: Instant) -> Self {
        Self { lease, stuck_since: now, blamed_since: None }
    }

    /// Begins with the next message.
    const fn begin(&mut self, now: Instant) {
        *self = Self::new(self.lease, now);
    }

    /// Notes that a message was not returned, beside a database that answers or does not. Returns whether it is set
    /// aside: it is blamed only if it fails for a whole lease, each time beside a database that answers. One that
    /// stalls returns nothing.
    fn is_set_aside(&mut self, answers: bool, blameless: bool, now: Instant) -> bool {
        self.blamed_since = (answers && !blameless).then(|| self.blamed_since.unwrap_or(now));
        let lasts = |since: Instant, limit| now.saturating_duration_since(since) > limit;
        let is_blamed = self.blamed_since.is_some_and(|since| lasts(since, self.lease));
        answers && (is_blamed || lasts(self.stuck_since, self.lease * STUCK))
    }
}

/// Reads claims, several at a time.
pub struct Reader {
    context: Arc<Context>,
    routes: Routes,
    pub(crate) sessions: Sessions,
    /// The time of the last warning of a topic without a route.
    warned_at: Mutex<Option<Instant>>,
}

impl Reader {
    /// Creates a reader.
    #[must_use]
    pub fn new(context: &Arc<Context>, routes: Routes) -> Self {
        let sessions = Sessions::new(context, tokio::sync::Semaphore::MAX_PERMITS);
        Self { context: Arc::clone(context), routes, sessions, warned_at: Mutex::default() }
    }

    /// Reads a claim. Retries until the database answers or the lease is lost; then releases the messages not read.
    pub async fn read(&self, mut claimed: Claimed) -> ReadClaim {
        if let Some(stored) = claimed.messages.take() {
            let messages = self.prepare(&claimed, &claimed.rows, stored);
            return ReadClaim { claimed, messages };
        }
        // Pings go through another connection: their success must not shorten the pauses.
        let mut session = self.sessions.take().await;
        let mut witness = self.sessions.take().await;
        let started = Instant::now();
        let mut blame = Blame::new(self.context.config.relay.lease, started);
        let mut rest = &*claimed.rows;
        let mut most = claimed.rows.len();
        let mut messages = Vec::new();
        while !rest.is_empty() && claimed.tenure.lasts(Duration::ZERO) {
            let (rows, behind) = rest.split_at(most.min(rest.len()));
            let ids: Vec<u64> = rows.iter().map(|row| row.id).collect();
            let is_shown = claimed.settler.is_some();
            let read = async |db: &mut _| {
                if is_shown { read::shown(db, claimed.tenure.lane, &ids).await } else { read::messages(db, &ids).await }
            };
            let error = match session.run("read", read).await {
                // The log shows rows before reads see their messages.
                Ok(stored) if is_shown && stored.len() < rows.len() && started.elapsed() < UNSEEN => {
                    // Most are seen within 5 ms.
                    tokio::time::sleep((started.elapsed() / 2).clamp(UNSEEN / 2000, UNSEEN / 20)).await;
                    continue;
                }
                Ok(stored) => {
                    messages.extend(self.prepare(&claimed, rows, stored));
                    (rest, most) = (behind, most * 2);
                    blame.begin(Instant::now());
                    continue;
                }
                Err(error) => error,
            };
            session.pause().await;
            // The rows may have more bytes than the network carries within the deadline.
            most = (rows.len() / 2).max(1);
            // The message is not the cause of a path that breaks transfers, or of a server that takes no calls.
            let blameless = match refusal(&error) {
                Some(refusal) => refusal != Refusal::Call,
                None => matches!(&error, sqlx::Error::Io(error) if error.kind() != ErrorKind::TimedOut),
            };
            // Rows that failed together may have been too many.
            let answers = rows.len() == 1 && witness.run("ping", async |db| db.ping().await).await.is_ok();
            let is_aside = blame.is_set_aside(answers, blameless, Instant::now());
            if let [row] = rows
                && is_aside
            {
                tracing::error!(
                    id = row.id,
                    error = describe(&error),
                    "the database answers, but does not return a message"
                );
                let wait = Disposition::Delay { wait: UNREAD_WAIT, spent: false, reason: DelayReason::Unread };
                messages.push((*row, Step::Decided(wait, describe(&error))));
                rest = behind;
                blame.begin(Instant::now());
            }
        }
        // These messages were not read, which does not mean that they are missing.
        messages.extend(rest.iter().map(|row| (*row, Step::Decided(Disposition::Release, String::new()))));
        ReadClaim { claimed, messages }
    }

    fn prepare(&self, claimed: &Claimed, rows: &[Pending], stored: Vec<Stored>) -> Vec<(Pending, Step)> {
        let mut stored = stored.into_iter().peekable();
        let step = |row: &Pending| {
            let Some(message) = stored.next_if(|message| message.id == row.id) else {
                // A usual claim decides on a message that the log has shown: its look has seen the row.
                let is_shown = claimed.settler.is_some();
                return (*row, if is_shown { Step::Decided(Disposition::Release, String::new()) } else { missing() });
            };
            if claimed.behind.binary_search(&row.id).is_ok() {
                return (*row, Step::Decided(Disposition::Behind, String::new()));
            }
            (*row, self.step(claimed.tenure.lane, *row, message))
        };
        rows.iter().map(step).collect()
    }

    fn step(&self, lane: u16, row: Pending, message: Stored) -> Step {
        let Contents { topic, key, event_type, .. } = &message.contents;
        let route = self.routes.resolve(topic, event_type.as_deref(), key.as_deref(), lane).ok();
        let all =
            Policy { on_rejected: OnRejected::Dead, after_dead: AfterDead::Skip, retry: self.context.config.retry };
        let policy = route.as_ref().map_or(all, |route| Policy {
            on_rejected: route.on_rejected,
            after_dead: route.after_dead,
            retry: route.retry.unwrap_or(all.retry),
        });
        if message.expired {
            return Step::Decided(dead("expired", false, policy), "it was not published before its expiry".into());
        }
        let Some(route) = route else {
            self.warn_of_missing_route(topic);
            let wait = Disposition::Delay { wait: NO_ROUTE_WAIT, spent: false, reason: DelayReason::NoRoute };
            return Step::Decided(wait, format!("no route matches the topic {topic}"));
        };
        let route = match &message.to {
            None => route,
            Some(to) => match self.routes.elsewhere(route, to) {
                Some(route) => route,
                // Not to the destination of its route: another relay may have the sink.
                None => {
                    let wait = Disposition::Delay { wait: NO_ROUTE_WAIT, spent: false, reason: DelayReason::NoSink };
                    return Step::Decided(wait, format!("this relay has no sink for {to}"));
                }
            },
        };
        if usize::from(row.attempts) >= policy.retry.max_attempts {
            let error = "a relay lost its lease with this message too often";
            return Step::Decided(dead("attempts_exhausted", false, policy), error.into());
        }
        let link = self.context.traces.as_ref().and_then(|traces| traces.link(&message.contents.headers));
        match ready(row, message, route, policy) {
            Ok(ready) => Step::Publish(Box::new(Ready { link, ..ready })),
            Err(error) => Step::Decided(dead("invalid", false, policy), error),
        }
    }

    /// Warns at most once a minute, however many messages have no route.
    fn warn_of_missing_route(&self, topic: &str) {
        let mut warned_at = self.warned_at.lock();
        if warned_at.is_none_or(|at| at.elapsed() > NO_ROUTE_WAIT) {
            *warned_at = Some(Instant::now());
            tracing::warn!(topic, "no route matches the topic: its messages wait until a relay has one");
        }
    }
}

fn missing() -> Step {
    let end = Disposition::Dead { reason: "message_missing", spent: false, holds_key: false };
    Step::Decided(end, "the pending row has no message in outbox_messages".into())
}

/// Builds the message to publish. The error says why it can never be published.
fn ready(row: Pending, message: Stored, route: Resolved, policy: Policy) -> Result<Ready, String> {
    if !message.is_readable {
        return Err("the headers are not a JSON object of strings".to_owned());
    }
    // A replayed message is not late.
    let is_again = message.contents.headers.iter().any(|(name, _)| name == REPLAY_HEADER);
    let waited = if is_again { 0 } else { message.waited_micros.max(0).unsigned_abs() };
    let waited = Duration::from_micros(waited);
    let now = Instant::now();
    let mut outgoing = Outgoing {
        message_id: message.message_id,
        key_hash: row.key_hash,
        contents: message.contents,
        created_at_micros: message.created_at_micros,
        destination: route.destination,
        progress: None,
    };
    add_epoch(&mut outgoing.contents.headers, message.epoch);
    envelope::wrap(&mut outgoing, route.envelope, &route.source)?;
    Ok(Ready {
        outgoing,
        policy,
        pipelined: route.pipelined,
        due_at: now.checked_sub(waited).unwrap_or(now),
        link: None,
    })
}

/// Adds the epoch, which distinguishes a sequence number given again after a restore from the first one.
fn add_epoch(headers: &mut Vec<(String, String)>, epoch: u64) {
    if epoch > 0 && headers.iter().any(|(name, _)| name == SEQUENCE_HEADER) {
        headers.retain(|(name, _)| name != EPOCH_HEADER);
        headers.push((EPOCH_HEADER.to_owned(), epoch.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::store::claim::lease::ClaimLease;

    use super::*;
    use crate::state::{capacity::Capacity, leases::Tenure};

    #[test]
    fn a_message_is_set_aside_only_if_it_fails_for_a_lease_beside_a_database_that_answers() {
        let lease = Duration::from_secs(10);
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let answers = true;
        let blameless = true;
        let mut blame = Blame::new(lease, start);
        assert!(!blame.is_set_aside(!answers, !blameless, start));
        assert!(!blame.is_set_aside(answers, !blameless, start + lease + second), "the database stood still");
        assert!(!blame.is_set_aside(answers, blameless, start + lease * 2), "the path broke");
        assert!(!blame.is_set_aside(answers, !blameless, start + lease * 3));
        assert!(!blame.is_set_aside(answers, !blameless, start + lease * 4));
        assert!(blame.is_set_aside(answers, !blameless, start + lease * 4 + second));
        blame.begin(start + lease * 5);
        assert!(!blame.is_set_aside(answers, !blameless, start + lease * 6 + second), "that was another message");
        assert!(blame.is_set_aside(answers, blameless, start + lease * 26), "it holds up the others for too long");
    }

    #[tokio::test]
    async fn a_claim_whose_lease_has_passed_before_it_was_read_goes_back_as_it_was() {
        let context = Context::without_database();
        let reader = Reader::new(&context, Routes::new(&[]));
        let tenure = Tenure::new(ClaimLease { claim_id: 1, lease_token: 1 }, 0, vec![7], Vec::new(), Instant::now());
        let claimed = Claimed {
            tenure: Arc::new(tenure),
            pass: 1,
            times: (Instant::now(), Instant::now()),
            last_pass: Arc::default(),
            rows: vec![Pending { id: 7, key_hash: 0, bytes: 1, attempts: 0, takeovers: 0 }],
            messages: None,
            behind: Vec::new(),
            room: Capacity::new(&context.config.relay).take(0).await,
            settler: None,
        };
        let read = reader.read(claimed).await;
        assert!(matches!(*read.messages, [(_, Step::Decided(Disposition::Release, _))]));
    }
}
