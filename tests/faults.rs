//! The table of faults in its short form: one or two cases of each row but two, a third of the load, a fixed seed.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use faults::{
    arena::{Pace, Setup},
    consumer::{self, Program},
    report,
    row::Row,
    rows,
    runner::{self, Plan},
};
use outbox_relay::observe::metrics::METRICS;

const SEED: u64 = 20;
/// Rows without a short form. N1 is the others at random, and has its own servers to kill. V1 builds the baseline from
/// git, which takes minutes, and a shallow checkout lacks that commit.
const LONG: [&str; 2] = ["N1", "V1"];
/// Metrics that no row moves for certain, each with a test of its own.
const RESTING: [&str; 9] = [
    "outbox_queue_expired_leases",
    "outbox_queue_stalled_lanes",
    "outbox_relay_canary_last_duration_seconds",
    "outbox_relay_canary_last_return_timestamp_seconds",
    "outbox_relay_inbox_window_too_short",
    "outbox_relay_late_commits_total",
    "outbox_relay_purged_messages_total",
    "outbox_relay_tail_missed_total",
    "outbox_relay_tailed_lanes",
];
/// The time in which everything must end: three times that of the slowest machine so far.
const LONGEST: Duration = Duration::from_secs(3200);

/// The consumers of the other test are this program again; their environment starts them as consumers.
#[tokio::test]
async fn a_consumer() -> Result<()> {
    consumer::become_one_if_asked().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_whatever_breaks() -> Result<()> {
    let short = |mut row: Row| {
        row.cases.retain(|case| case.short);
        row
    };
    let rows: Vec<Row> = rows::all().into_iter().map(short).filter(|row| !row.cases.is_empty()).collect();
    let due = rows::all().iter().filter(|row| !LONG.contains(&row.id)).count();
    ensure!(rows.len() == due, "a row has no case in the short form");
    let arguments = ["--exact", "a_consumer"].map(str::to_owned).to_vec();
    let setup = Setup {
        relay: PathBuf::from(env!("CARGO_BIN_EXE_relay")),
        consumer: Program { path: std::env::current_exe()?, arguments, clock: None },
        pace: Pace::Short,
        outage: Duration::from_secs(5),
        mix: Duration::from_secs(20),
        alerts: false,
        faster: 10,
    };
    let plan = Plan { setup, seed: SEED, parallel: 4, time: None };
    eprintln!("seed {SEED}");
    let ran = runner::run(&rows, &plan, |ran| {
        eprintln!("{} {}: {:.0?}, {} times again", ran.row, ran.case, ran.took, ran.unshown.len());
    });
    let ran = tokio::time::timeout(LONGEST, ran).await;
    let ran = ran.with_context(|| format!("not all cases have ended within {LONGEST:?}; those above have"))?;
    let table = report::markdown(&rows, &ran, SEED);
    ensure!(ran.iter().all(|ran| ran.error.is_none()), "{table}");
    let moved: BTreeSet<_> = ran.iter().flat_map(|ran| &ran.counts.moved).map(String::as_str).collect();
    let known: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    let unknown = moved.iter().filter(|name| name.starts_with("outbox_") && !known.contains(*name));
    let resting = known.iter().filter(|name| !moved.contains(*name) && !RESTING.contains(name));
    let wrong: Vec<_> = unknown.chain(resting).collect();
    ensure!(wrong.is_empty(), "these metrics are not in the table, or never moved: {wrong:?}");
    Ok(())
}
