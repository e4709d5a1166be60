//! The present pauses of operators, as this process knows them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_core::store::operate::controls::ControlRow;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::destination::Destination;

/// The bounds of the wait of a message whose sink or destination is paused.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The pauses; `None` before the first read. Until then no lane runs, so that a pause holds for a process that has just
/// started.
#[derive(Debug)]
pub struct Controls {
    /// The name under which this process holds claims.
    owner: String,
    known: watch::Sender<Option<Arc<BTreeMap<PauseTarget, Pause>>>>,
    newest_job: AtomicU64,
    read_at: Mutex<Option<Instant>>,
}

/// A lane, a sink, a destination or a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PauseTarget {
    /// A lane.
    Lane(u16),
    /// A sink.
    Sink(String),
    /// A sink, and a topic or exchange there.
    Destination(String, String),
    /// A relay or worker, by the name under which it holds claims: it finishes what is in flight, and claims no more.
    Instance(String),
}

impl PauseTarget {
    /// Reads the kind and the name in `outbox_controls`.
    #[must_use]
    pub fn of(kind: &str, name: &str) -> Option<Self> {
        match kind {
            "lane" => name.parse().ok().map(Self::Lane),
            "sink" => Some(Self::Sink(name.to_owned())),
            "instance" => Some(Self::Instance(name.to_owned())),
            "destination" => {
                name.split_once('/').map(|(sink, target)| Self::Destination(sink.to_owned(), target.to_owned()))
            }
            _ => None,
        }
    }

    /// Returns the kind and the name in `outbox_controls`.
    #[must_use]
    pub fn names(&self) -> (&'static str, String) {
        match self {
            Self::Lane(lane) => ("lane", lane.to_string()),
            Self::Sink(sink) => ("sink", sink.clone()),
            Self::Instance(instance) => ("instance", instance.clone()),
            Self::Destination(sink, target) => ("destination", format!("{sink}/{target}")),
        }
    }
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// The operator and the reason, in one text.
    pub why: Arc<str>,
    /// The time at which this process learned of it.
    pub since: Instant,
}

impl Pause {
    /// Returns the wait of a message: half of the pause so far, so that a long one writes a message only a few times.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        ((now - self.since) / 2).clamp(WAIT.0, WAIT.1)
    }
}

impl Controls {
    /// Knows no pause yet.
    #[must_use]
    pub fn new(owner: &str) -> Self {
        Self {
            owner: owner.to_owned(),
            known: watch::Sender::new(None),
            newest_job: AtomicU64::new(0),
            read_at: Mutex::default(),
        }
    }

    /// Takes the present pauses; those of other processes do not matter. Returns those that are new, and those that
    /// have ended.
    #[must_use]
    pub fn set(&self, rows: &[ControlRow], now: Instant) -> (Vec<PauseTarget>, Vec<PauseTarget>) {
        let before = self.known.borrow().clone().unwrap_or_default();
        let pause = |row: &ControlRow| {
            let target = PauseTarget::of(&row.kind, &row.name).filter(|target| self.concerns(target))?;
            let since = before.get(&target).map_or(now, |pause| pause.since);
            Some((target, Pause { why: format!("paused by {}: {}", row.actor, row.reason).into(), since }))
        };
        let paused: BTreeMap<_, _> = rows.iter().filter_map(pause).collect();
        let without = |these: &BTreeMap<PauseTarget, Pause>, others: &BTreeMap<PauseTarget, Pause>| {
            these.keys().filter(|target| !others.contains_key(target)).cloned().collect()
        };
        let changes = (without(&paused, &before), without(&before, &paused));
        *self.read_at.lock() = Some(now);
        self.known.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&paused);
            *known = Some(Arc::new(paused));
            is_new
        });
        changes
    }

    fn concerns(&self, target: &PauseTarget) -> bool {
        !matches!(target, PauseTarget::Instance(instance) if *instance != self.owner)
    }

    /// Returns the number of the newest job of an operator, 0 without one.
    #[must_use]
    pub fn newest_job(&self) -> u64 {
        self.newest_job.load(Ordering::Relaxed)
    }

    /// Takes the number of the newest job.
    pub fn set_newest_job(&self, job: u64) {
        self.newest_job.store(job, Ordering::Relaxed);
    }

    /// Returns whether the pauses were read.
    #[must_use]
    pub fn are_known(&self) -> bool {
        self.known.borrow().is_some()
    }

    /// Returns whether the pauses were read within the last second: a process follows a pause within that time.
    #[must_use]
    pub fn are_fresh(&self, now: Instant) -> bool {
        self.read_at.lock().is_some_and(|at| now.saturating_duration_since(at) < Duration::from_secs(1))
    }

    /// Waits until this process and a lane are known to be not paused.
    pub async fn runs(&self, lane: u16) {
        let targets = [PauseTarget::Lane(lane), PauseTarget::Instance(self.owner.clone())];
        let runs = |paused: &Option<Arc<BTreeMap<PauseTarget, Pause>>>| {
            paused.as_ref().is_some_and(|paused| targets.iter().all(|target| !paused.contains_key(target)))
        };
        // The sender lives as long as this.
        self.known.subscribe().wait_for(runs).await.ok();
    }

    /// Returns the pause of a destination or of its sink.
    #[must_use]
    pub fn of(&self, destination: &Destination) -> Option<Pause> {
        let known = self.known.borrow();
        let paused = known.as_ref().filter(|paused| !paused.is_empty())?;
        let Destination { sink, target, .. } = destination;
        let pause = paused.get(&PauseTarget::Sink(sink.clone()));
        pause.or_else(|| paused.get(&PauseTarget::Destination(sink.clone(), target.clone()))).cloned()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn row(kind: &str, name: &str) -> ControlRow {
        let kind = kind.to_owned();
        let name = name.to_owned();
        ControlRow { kind, name, paused_at: 0, ends_at: None, actor: "alice".to_owned(), reason: "a test".to_owned() }
    }

    fn to(sink: &str, target: &str) -> Destination {
        Destination { sink: sink.to_owned(), target: target.to_owned(), routing_key: String::new() }
    }

    #[test]
    fn a_lane_a_sink_and_a_destination_are_paused_alone() {
        let controls = Controls::new("relay/1");
        let now = Instant::now();
        assert!(controls.runs(4).now_or_never().is_none(), "nothing is known yet");
        let rows = [row("lane", "3"), row("sink", "kafka"), row("destination", "rabbitmq/a/b"), row("planet", "x")];
        let [lane, sink, destination] = [
            PauseTarget::Lane(3),
            PauseTarget::Sink("kafka".to_owned()),
            PauseTarget::of("destination", "rabbitmq/a/b").unwrap(),
        ];
        assert_eq!(destination.names(), ("destination", "rabbitmq/a/b".to_owned()));
        assert_eq!(controls.set(&rows, now), (vec![lane.clone(), sink, destination], vec![]));
        assert_eq!([3, 4].map(|lane| controls.runs(lane).now_or_never()), [None, Some(())]);
        assert_eq!(controls.of(&to("kafka", "orders")).unwrap().why.as_ref(), "paused by alice: a test");
        assert_eq!(
            [controls.of(&to("rabbitmq", "a/b")).is_some(), controls.of(&to("rabbitmq", "a")).is_some()],
            [true, false]
        );
        assert_eq!(controls.set(&rows[1..], now), (vec![], vec![lane]));
        assert_eq!(controls.runs(3).now_or_never(), Some(()));
    }

    #[test]
    fn a_process_that_is_paused_runs_no_lane_and_others_go_on() {
        let controls = Controls::new("relay/1");
        let now = Instant::now();
        assert_eq!(controls.set(&[row("instance", "relay/2")], now), (vec![], vec![]));
        assert_eq!(controls.runs(4).now_or_never(), Some(()));
        let own = vec![PauseTarget::Instance("relay/1".to_owned())];
        assert_eq!(controls.set(&[row("instance", "relay/1")], now), (own.clone(), vec![]));
        assert!(controls.runs(4).now_or_never().is_none());
        assert_eq!(controls.set(&[], now), (vec![], own));
        assert_eq!(controls.runs(4).now_or_never(), Some(()));
    }

    #[test]
    fn the_longer_a_pause_the_longer_a_message_waits_up_to_a_minute() {
        let controls = Controls::new("relay/1");
        let now = Instant::now();
        let rows = [row("sink", "kafka")];
        let seconds = |seconds| now + Duration::from_secs(seconds);
        for at in [now, seconds(10)] {
            let _changes = controls.set(&rows, at);
        }
        let pause = controls.of(&to("kafka", "orders")).unwrap();
        assert_eq!([0, 20, 999].map(|at| pause.wait(seconds(at)).as_secs()), [1, 10, 60]);
    }
}
