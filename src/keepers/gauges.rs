//! Sets the gauges of the queue. One relay counts and writes the numbers to its heartbeat, the others show these: so they are the
//! same on all of them, and however many there are, the tables are counted once.

use std::{sync::Arc, time::Duration};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        instances::{self as rows, Counted},
        replay,
        stats::{self, Stats},
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    operate::instances::{self, Instance, STATES},
    state::{context::Context, session::Session},
};

/// The pause between two counts of one relay.
const EVERY: Duration = Duration::from_secs(10);
/// From this age on, numbers are no longer used, and another relay counts. Larger than [`EVERY`], so that one relay goes on counting,
/// and below 15 s, so that its death is noticed in this time.
const OVERDUE: Duration = Duration::from_secs(12);
/// The shortest pause between two looks.
const SHORTEST: Duration = Duration::from_secs(1);

/// `Stats` as JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Stats")]
struct Counts {
    pending: u64,
    leased: u64,
    delayed: u64,
    dead: u64,
    blocked_keys: u64,
    expired_leases: u64,
    lag_micros: u64,
}

#[derive(Serialize, Deserialize)]
struct Line(#[serde(with = "Counts")] Stats);

/// The content of the queue.
struct Seen {
    stats: Stats,
    /// When it was counted: microseconds since 1970.
    at: i64,
    instances: Vec<Instance>,
    /// The pause before the next look.
    wait: Duration,
}

/// Shows the content of the queue until the relay is stopped.
pub async fn run(context: Arc<Context>) {
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
                wait = SHORTEST;
            }
        }
    }
}

/// Reads the newest numbers, or counts if they are too old.
async fn look(db: &mut MySqlConnection, owner: &str) -> Result<Seen, sqlx::Error> {
    let instances = instances::list(db).await?;
    let counted = rows::list(db).await?.into_iter().filter_map(|row| Some((row.counted?, row.instance == owner)));
    let newest = counted.min_by_key(|(counted, _)| counted.age);
    if let Some((Counted { at, age, counts }, is_own)) = newest
        && let Some(wait) = wait(age, is_own)
        && let Ok(Line(stats)) = serde_json::from_str(&counts)
    {
        return Ok(Seen { stats, at, instances, wait });
    }
    let (stats, at) = (stats::stats(db).await?, replay::now(db).await?);
    let counts = serde_json::to_string(&Line(stats)).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let wait = if rows::count(db, owner, &counts).await? { EVERY } else { SHORTEST };
    Ok(Seen { stats, at, instances, wait })
}

/// Returns for how long numbers of this age (microseconds) are used; `None` if they are too old. A negative age is a step of the
/// database's clock.
fn wait(age: i64, is_own: bool) -> Option<Duration> {
    let age = Duration::from_micros(u64::try_from(age).ok()?);
    let left = if is_own { EVERY } else { OVERDUE }.checked_sub(age).filter(|left| !left.is_zero())?;
    Some(left.max(SHORTEST))
}

fn show(context: &Context, seen: &Seen) {
    let (queue, stats) = (&context.metrics.queue, &seen.stats);
    let set = |state: &str, count: u64| {
        queue.messages.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
    };
    set("pending", stats.pending);
    set("leased", stats.leased);
    set("delayed", stats.delayed);
    set("dead", stats.dead);
    #[expect(clippy::cast_precision_loss, reason = "seconds need no more than 53 bits")]
    let seconds = |micros: i64| micros as f64 / 1e6;
    queue.lag_seconds.set(seconds(i64::try_from(stats.lag_micros).unwrap_or(i64::MAX)));
    queue.observed_timestamp_seconds.set(seconds(seen.at));
    queue.blocked_keys.set(i64::try_from(stats.blocked_keys).unwrap_or(i64::MAX));
    queue.expired_leases.set(i64::try_from(stats.expired_leases).unwrap_or(i64::MAX));
    for state in STATES {
        let number = seen.instances.iter().filter(|it| it.state == state).count();
        queue.instances.with_label_values(&[state]).set(i64::try_from(number).unwrap_or(i64::MAX));
    }
    context.alive("stats");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_relay_goes_on_counting_until_its_numbers_are_overdue() {
        let seconds = |seconds: i64| seconds * 1_000_000;
        let waits = |is_own| [-1, 0, 9, 10, 11, 12].map(|age| wait(seconds(age), is_own).map(|wait| wait.as_secs()));
        assert_eq!(waits(true), [None, Some(10), Some(1), None, None, None]);
        assert_eq!(waits(false), [None, Some(12), Some(3), Some(2), Some(1), None]);
    }

    #[test]
    fn numbers_come_back_from_the_heartbeat() {
        let stats = Stats { pending: u64::MAX, lag_micros: 7, ..Stats::default() };
        let text = serde_json::to_string(&Line(stats)).unwrap();
        assert!(text.len() < 300, "{text}");
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap().0, stats);
    }
}
