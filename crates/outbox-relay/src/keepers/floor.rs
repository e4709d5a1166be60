//! Raises the floor below which no message can still be committed.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::claim::floor::{self, OldestWriter, Sample},
};

use crate::state::{context::Context, session::Session};

const EVERY: Duration = Duration::from_secs(1);
/// The server gives the start of a transaction in whole seconds, and its list may be a tenth of a second old.
const MARGIN: Duration = Duration::from_secs(2);
/// The database's clock was put back if it falls behind that of this process by more, from one sample to the next.
const STEP: Duration = Duration::from_millis(200);

/// The samples, at the times at which this process got them. A step of the database's clock makes none of them older.
#[derive(Debug, Default)]
struct Samples {
    kept: VecDeque<(u64, Instant)>,
    /// The database's time in the last sample, and when this process got it.
    last: Option<(i64, Instant)>,
    /// The database's clock was put back. Until this time the ages of transactions may be too small, and do not count.
    unclear_until: Option<Instant>,
}

/// Samples once a second until the relay is stopped.
pub(crate) async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let mut samples = Samples::default();
    while context.sleep(EVERY).await {
        match pass(&context, &mut session, &mut samples).await {
            Ok(Some(floor)) => {
                context.floor.fetch_max(floor, Ordering::AcqRel);
            }
            Ok(None) => {}
            Err(_) => session.pause().await,
        }
    }
}

async fn pass(context: &Context, session: &mut Session, samples: &mut Samples) -> Result<Option<u64>, sqlx::Error> {
    let before = Instant::now();
    let max_age = context.config.relay.max_transaction_age;
    let sample = session.run("floor", async |db| floor::sample(db).await).await?;
    samples.note(&context.floor, sample, (before, Instant::now()), max_age);
    if context.floor.load(Ordering::Acquire) == sample.max_id {
        // Without new messages there is nothing to raise.
        samples.kept.clear();
        return Ok(None);
    }
    let writer = session.run("floor", async |db| floor::oldest_writer(db).await).await?;
    Ok(samples.raise(before, samples.age(writer, sample.at_micros, before, max_age), max_age))
}

impl Samples {
    /// Keeps a sample that was asked for and got at these times. If ids begin again lower down, after a restore or a
    /// failover to a replica that lagged, the floor comes down with them. A look from a lower floor is harmless.
    fn note(&mut self, floor: &AtomicU64, sample: Sample, (before, got): (Instant, Instant), max_age: Duration) {
        if floor.fetch_min(sample.max_id, Ordering::AcqRel) > sample.max_id {
            self.kept.clear();
        }
        self.kept.push_back((sample.max_id, got));
        let last = self.last.replace((sample.at_micros, got));
        if last.is_some_and(|(at, last)| micros(sample.at_micros - at) + STEP < before.saturating_duration_since(last))
        {
            self.unclear_until = Some(got + max_age);
        }
    }

    /// Returns how long the oldest writing transaction may have been open.
    fn age(&self, writer: OldestWriter, now: i64, before: Instant, max_age: Duration) -> Duration {
        match writer {
            OldestWriter::None => Duration::ZERO,
            OldestWriter::Since(_) if self.unclear_until.is_some_and(|until| before < until) => max_age,
            OldestWriter::Since(started) => micros(now - started),
            OldestWriter::Unknown => max_age,
        }
    }

    /// Returns the floor that the samples allow, if any, and uses those samples up. An id visible in a sample was given
    /// out before it. So no smaller id can appear once no transaction that started before the sample is open, or none
    /// can be any more by its age.
    fn raise(&mut self, now: Instant, age: Duration, max_age: Duration) -> Option<u64> {
        let horizon = now.checked_sub((age + MARGIN).min(max_age))?;
        let mut floor = None;
        while self.kept.front().is_some_and(|(_, at)| *at <= horizon) {
            floor = self.kept.pop_front().map(|(max_id, _)| max_id);
        }
        floor
    }
}

/// A time that may have passed; a negative one has not.
fn micros(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(60);

    /// Hundred samples, a second apart, and the time of the last one.
    fn samples() -> (Samples, Instant) {
        let start = Instant::now();
        let at = |i: u64| (i * 10, start + Duration::from_secs(i));
        let now = start + Duration::from_secs(100);
        (Samples { kept: (1..=100).map(at).collect(), ..Samples::default() }, now)
    }

    /// Raises the floor while the oldest transaction has been open for these seconds.
    fn raised(writer: OldestWriter) -> Option<u64> {
        let (mut samples, now) = samples();
        let age = samples.age(writer, 100_000_000, now, AGE);
        samples.raise(now, age, AGE)
    }

    #[test]
    fn without_open_writers_the_floor_follows_at_the_margin() {
        assert_eq!(raised(OldestWriter::None), Some(980));
    }

    #[test]
    fn an_open_writer_holds_the_floor_below_its_start_until_it_is_too_old() {
        assert_eq!([80_000_000, 0].map(|at| raised(OldestWriter::Since(at))), [Some(780), Some(400)]);
    }

    #[test]
    fn where_ids_begin_again_further_down_the_floor_follows_them() {
        let (floor, (mut samples, now)) = (AtomicU64::new(980), samples());
        samples.note(&floor, Sample { max_id: 1010, at_micros: 0 }, (now, now), AGE);
        assert_eq!((floor.load(Ordering::Acquire), samples.kept.len()), (980, 101));
        samples.note(&floor, Sample { max_id: 970, at_micros: 0 }, (now, now), AGE);
        assert_eq!((floor.load(Ordering::Acquire), samples.kept.len()), (970, 1));
    }

    #[test]
    fn where_the_server_does_not_say_the_age_of_transactions_decides() {
        assert_eq!(raised(OldestWriter::Unknown), Some(400));
    }

    /// A transaction began at the second sample; its start is told by the clock at that time.
    #[test]
    fn a_step_of_the_databases_clock_does_not_raise_the_floor_over_an_open_transaction() {
        for step in [3600, -3600, -5] {
            let floor = AtomicU64::new(0);
            let mut samples = Samples::default();
            let start = Instant::now();
            let mut raised = None;
            for second in 1..=30 {
                let now = start + Duration::from_secs(second);
                let clock = i64::try_from(second).unwrap() + if second > 10 { step } else { 0 };
                let at = clock * 1_000_000;
                let begun = OldestWriter::Since(2_000_000);
                // The server's list reports a start in the future as unknown.
                let writer = if second < 2 {
                    OldestWriter::None
                } else if clock < 2 {
                    OldestWriter::Unknown
                } else {
                    begun
                };
                samples.note(&floor, Sample { max_id: second * 10, at_micros: at }, (now, now), AGE);
                let age = samples.age(writer, at, now, AGE);
                raised = raised.max(samples.raise(now, age, AGE));
            }
            assert!(raised.is_none_or(|raised| raised < 20), "{step}: {raised:?}");
        }
    }
}
