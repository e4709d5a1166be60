//! Raises the floor below which no message can still be committed.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use outbox_core::{
    sqlx,
    store::floor::{self, OldestWriter, Sample},
};

use crate::state::{context::Context, session::Session};

const EVERY: Duration = Duration::from_secs(1);
/// The server gives the start of a transaction in whole seconds, and its list may be a tenth of a second old.
const MARGIN_MICROS: i64 = 2_000_000;

/// Samples once a second until the relay is stopped.
pub async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let mut samples = VecDeque::new();
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

async fn pass(
    context: &Context,
    session: &mut Session,
    samples: &mut VecDeque<Sample>,
) -> Result<Option<u64>, sqlx::Error> {
    let sample = session.run("floor", async |db| floor::sample(db).await).await?;
    note(&context.floor, samples, sample);
    if context.floor.load(Ordering::Acquire) == sample.max_id {
        // Without new messages there is nothing to raise.
        samples.clear();
        return Ok(None);
    }
    let writer = session.run("floor", async |db| floor::oldest_writer(db).await).await?;
    let age = i64::try_from(context.config.relay.max_transaction_age.as_micros()).unwrap_or(i64::MAX);
    Ok(raise(samples, sample.at_micros, writer, age))
}

/// Keeps a sample. If ids begin again lower down, after a restore or a failover to a replica that lagged, the floor
/// comes down with them. A look from a lower floor is harmless.
fn note(floor: &AtomicU64, samples: &mut VecDeque<Sample>, sample: Sample) {
    if floor.fetch_min(sample.max_id, Ordering::AcqRel) > sample.max_id {
        samples.clear();
    }
    samples.push_back(sample);
}

/// Returns the floor that the samples allow, if any, and uses those samples up. An id visible in a sample was given out
/// before it. So no smaller id can appear once no transaction that started before the sample is open, or none can be
/// any more by its age.
fn raise(samples: &mut VecDeque<Sample>, now: i64, writer: OldestWriter, max_age: i64) -> Option<u64> {
    let started = match writer {
        OldestWriter::Since(micros) => micros,
        OldestWriter::None => now,
        OldestWriter::Unknown => now.saturating_sub(max_age),
    };
    let horizon = started.saturating_sub(MARGIN_MICROS).max(now.saturating_sub(max_age));
    let mut floor = None;
    while samples.front().is_some_and(|sample| sample.at_micros <= horizon) {
        floor = samples.pop_front().map(|sample| sample.max_id);
    }
    floor
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn samples() -> VecDeque<Sample> {
        (1..=100).map(|i| Sample { max_id: i * 10, at_micros: i64::try_from(i).unwrap() * SECOND }).collect()
    }

    #[test]
    fn without_open_writers_the_floor_follows_at_the_margin() {
        let floor = raise(&mut samples(), 100 * SECOND, OldestWriter::None, 60 * SECOND);
        assert_eq!(floor, Some(980));
    }

    #[test]
    fn an_open_writer_holds_the_floor_below_its_start_until_it_is_too_old() {
        let writer = OldestWriter::Since(80 * SECOND);
        assert_eq!(raise(&mut samples(), 100 * SECOND, writer, 60 * SECOND), Some(780));
        assert_eq!(raise(&mut samples(), 100 * SECOND, OldestWriter::Since(0), 60 * SECOND), Some(400));
    }

    #[test]
    fn where_ids_begin_again_further_down_the_floor_follows_them() {
        let (floor, mut samples) = (AtomicU64::new(980), samples());
        note(&floor, &mut samples, Sample { max_id: 1010, at_micros: 0 });
        assert_eq!((floor.load(Ordering::Acquire), samples.len()), (980, 101));
        note(&floor, &mut samples, Sample { max_id: 970, at_micros: 0 });
        assert_eq!((floor.load(Ordering::Acquire), samples.len()), (970, 1));
    }

    #[test]
    fn where_the_server_does_not_say_the_age_of_transactions_decides() {
        let floor = raise(&mut samples(), 100 * SECOND, OldestWriter::Unknown, 60 * SECOND);
        assert_eq!(floor, Some(400));
    }
}
