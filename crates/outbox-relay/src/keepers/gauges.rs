//! Sets the gauges of the queue. One relay counts and writes the numbers to its heartbeat, the others show these: so
//! they are the same on all of them, and however many there are, the tables are counted once.

use std::{sync::Arc, time::Duration};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::operate::{
        instances::{self as rows, Counted, InstanceRow},
        replay,
        stats::{Lags, Stats},
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    operate::{
        instances::{self, Instance, InstanceState, ROLES},
        status::{Judged, judged},
    },
    state::{context::Context, session::Session},
};

/// The pause between two counts of one relay.
const EVERY: Duration = Duration::from_secs(8);
/// After this time since the last count began, another relay counts. Larger than [`EVERY`], so that one relay goes on
/// counting, and below 15 s, so that its death is noticed in this time.
const OVERDUE: Duration = Duration::from_secs(14);
/// The states of lanes in which nothing is sent.
const STALLED: [&str; 2] = ["stuck", "unserved"];
/// The shortest pause between two looks.
const SHORTEST: Duration = Duration::from_secs(1);

/// `Stats` as JSON. A relay of another release, which reads other fields, counts for itself.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Stats")]
struct StatsFields {
    pending: u64,
    leased: u64,
    delayed: u64,
    dead: u64,
    expired: u64,
    dead_since: Option<i64>,
    blocked_keys: u64,
    expired_leases: u64,
    #[serde(with = "Late")]
    lags: Lags,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Lags")]
struct Late {
    due: u64,
    retry: u64,
    parked: u64,
    blocked: u64,
    paused: u64,
    scheduled: u64,
}

/// The content of the queue.
#[derive(Serialize, Deserialize)]
struct QueueLine {
    #[serde(with = "StatsFields")]
    stats: Stats,
    /// Lanes that are stuck, and lanes that are unserved.
    stalled: [u64; 2],
}

/// The content of the queue, and the running processes.
struct SeenQueue {
    line: QueueLine,
    /// When it was counted: microseconds since 1970.
    at: i64,
    instances: Vec<Instance>,
    /// The pause before the next look.
    wait: Duration,
}

/// Shows the content of the queue until the relay is stopped.
pub(crate) async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let mut wait = Duration::ZERO;
    while context.sleep(wait).await {
        match session.run("stats", async |db| look(db, &context.owner).await).await {
            Ok(seen) => {
                show(&context, &seen);
                wait = seen.wait;
            }
            Err(_) => {
                session.pause().await;
                wait = EVERY;
            }
        }
    }
}

/// Reads the newest numbers, or counts if it is this relay's turn.
async fn look(db: &mut MySqlConnection, owner: &str) -> Result<SeenQueue, sqlx::Error> {
    let rows = rows::list(db).await?;
    let instances = instances::shown(db, &rows).await?;
    if let Some(wait) = wait(&rows, owner)
        && let Some(Counted { at, counts }) = newest(&rows)
        && let Ok(line) = serde_json::from_str(counts)
    {
        return Ok(SeenQueue { line, at: *at, instances, wait });
    }
    // Before the count, which may be long: meanwhile no other relay counts, and if it fails, none follows at once.
    let wait = if rows::begin_count(db, owner).await? { EVERY } else { SHORTEST };
    let (Judged { stats, lanes, .. }, at) = (judged(db).await?, replay::now(db).await?);
    let stalled = STALLED.map(|state| lanes.iter().filter(|(_, lane)| lane.state == state).count() as u64);
    let line = QueueLine { stats, stalled };
    let counts = serde_json::to_string(&line).map_err(|error| sqlx::Error::Encode(error.into()))?;
    rows::count(db, owner, &Counted { at, counts }).await?;
    Ok(SeenQueue { line, at, instances, wait })
}

/// Returns the pause before the next look; `None` if this relay is to count. A count that began in the future is from
/// before a step of the database's clock.
fn wait(rows: &[InstanceRow], owner: &str) -> Option<Duration> {
    let begun = rows.iter().filter_map(|row| Some((u64::try_from(row.counting?).ok()?, row.instance == owner)));
    let (micros, is_own) = begun.min()?;
    let due = if is_own { EVERY } else { OVERDUE };
    let left = due.checked_sub(Duration::from_micros(micros)).filter(|left| !left.is_zero())?;
    Some(left.max(SHORTEST))
}

/// Returns the newest numbers. Like [`wait`] it takes none of the future.
fn newest(rows: &[InstanceRow]) -> Option<&Counted> {
    let past = rows.iter().filter_map(|row| row.counted.as_ref().filter(|it| it.at <= row.seen_at + row.quiet));
    past.max_by_key(|counted| counted.at)
}

fn show(context: &Context, seen: &SeenQueue) {
    let queue = &context.metrics.queue;
    let stats = &seen.line.stats;
    let set = |state: &str, count: u64| {
        queue.messages.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
    };
    set("pending", stats.pending);
    set("leased", stats.leased);
    set("delayed", stats.delayed);
    set("dead", stats.dead);
    set("expired", stats.expired);
    #[expect(clippy::cast_precision_loss, reason = "seconds need no more than 53 bits")]
    let seconds = |micros: i64| micros as f64 / 1e6;
    for (cause, micros) in stats.lags.all() {
        let lag = seconds(i64::try_from(micros).unwrap_or(i64::MAX));
        queue.lag_seconds.with_label_values(&[cause]).set(lag);
    }
    let kept = context.config.retention.dead;
    let purge = stats.dead_since.filter(|_| !kept.is_zero()).map_or(0.0, |at| seconds(at) + kept.as_secs_f64());
    queue.next_dead_purge_timestamp_seconds.set(purge);
    queue.observed_timestamp_seconds.set(seconds(seen.at));
    for (state, lanes) in STALLED.into_iter().zip(seen.line.stalled) {
        queue.stalled_lanes.with_label_values(&[state]).set(i64::try_from(lanes).unwrap_or(i64::MAX));
    }
    queue.blocked_keys.set(i64::try_from(stats.blocked_keys).unwrap_or(i64::MAX));
    queue.expired_leases.set(i64::try_from(stats.expired_leases).unwrap_or(i64::MAX));
    for (role, state) in ROLES.into_iter().flat_map(|role| InstanceState::ALL.iter().map(move |state| (role, *state))) {
        let number = seen.instances.iter().filter(|it| it.state == state && it.role == role).count();
        queue.instances.with_label_values(&[role, state.word()]).set(i64::try_from(number).unwrap_or(i64::MAX));
    }
    context.alive("stats");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(instance: &str, counting: Option<i64>) -> InstanceRow {
        InstanceRow {
            instance: instance.to_owned(),
            role: String::new(),
            version: String::new(),
            lanes: String::new(),
            sinks: String::new(),
            in_flight: 0,
            started_at: 0,
            seen_at: 0,
            quiet: 0,
            counted: None,
            counting: counting.map(|seconds| seconds * 1_000_000),
            tail: None,
        }
    }

    #[test]
    fn one_relay_goes_on_counting_until_its_numbers_are_overdue() {
        let waits = |name: &str| {
            [-1, 0, 7, 8, 13, 14].map(|age| {
                let rows = [row("first", Some(age)), row("second", Some(20)), row("third", None)];
                wait(&rows, name).map(|wait| wait.as_secs())
            })
        };
        assert_eq!(waits("first"), [None, Some(8), Some(1), None, None, None]);
        assert_eq!(waits("second"), [None, Some(14), Some(7), Some(6), Some(1), None]);
        assert_eq!(wait(&[row("first", None)], "first"), None);
    }

    #[test]
    fn the_numbers_of_the_last_count_are_shown_after_a_step_of_the_clock() {
        let counted = |at: i64| InstanceRow {
            counted: Some(Counted { at, counts: String::new() }),
            seen_at: 250 - at % 7,
            quiet: at % 7,
            ..row("relay", Some(0))
        };
        let rows = [counted(300), counted(200), counted(240), row("relay", Some(1))];
        assert_eq!(newest(&rows).map(|counted| counted.at), Some(240));
    }

    #[test]
    fn numbers_come_back_from_the_heartbeat() {
        let lags = Lags { due: u64::MAX, retry: u64::MAX, parked: 7, ..Lags::default() };
        let stats = Stats { pending: u64::MAX, dead_since: Some(i64::MAX), lags, ..Stats::default() };
        let text = serde_json::to_string(&QueueLine { stats, stalled: [u64::MAX, 3] }).unwrap();
        assert!(text.len() < 500, "{text}");
        let line: QueueLine = serde_json::from_str(&text).unwrap();
        assert_eq!((line.stats, line.stalled), (stats, [u64::MAX, 3]));
    }
}
