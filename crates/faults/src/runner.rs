//! Runs cases, and adds up their counts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::StreamExt as _;
use testkit::judge::NothingShown;

use crate::{
    arena::{Arena, Setup},
    counts::Counts,
    row::{Case, Row},
};

/// How often a case that has shown nothing is tried again.
const AGAIN: usize = 5;

/// How to run the cases.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The settings that all runs share.
    pub setup: Setup,
    /// The first seed; each run gets another.
    pub seed: u64,
    /// The number of cases that run concurrently.
    pub parallel: usize,
    /// The rows repeat until this time has passed, and each case runs at least once. `None`: once.
    pub time: Option<Duration>,
}

/// The result of a case.
#[derive(Debug)]
pub struct Ran {
    /// The row.
    pub row: &'static str,
    /// The case, with its servers.
    pub case: String,
    /// Its seed.
    pub seed: u64,
    /// Its counts.
    pub counts: Counts,
    /// The evidence that earlier tries lacked; nothing else was wrong with them.
    pub unshown: Vec<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// Chooses rows by their names, without names all, and from these the cases whose title contains a text.
pub fn choose(rows: Vec<Row>, names: &[String], text: &str) -> Result<Vec<Row>> {
    for name in names {
        let known = rows.iter().any(|row| row.id.eq_ignore_ascii_case(name));
        ensure!(known, "there is no row {name}: {}", rows.iter().map(|row| row.id).collect::<Vec<_>>().join(" "));
    }
    let chosen = |row: &Row| names.is_empty() || names.iter().any(|name| row.id.eq_ignore_ascii_case(name));
    let mut rows: Vec<Row> = rows.into_iter().filter(chosen).collect();
    for row in &mut rows {
        row.cases.retain(|case| case.title().contains(text));
    }
    rows.retain(|row| !row.cases.is_empty());
    ensure!(!rows.is_empty(), "no case's name contains {text:?}: see --list");
    Ok(rows)
}

/// Runs the cases of these rows, and shows each when it has ended.
pub async fn run(rows: &[Row], plan: &Plan, show: impl Fn(&Ran)) -> Vec<Ran> {
    let start = Instant::now();
    let mut done = Vec::new();
    let mut seed = plan.seed;
    let cases: Vec<(&Row, &Case)> = rows.iter().flat_map(|row| row.cases.iter().map(move |case| (row, case))).collect();
    loop {
        let seeds = seed..;
        let runs = cases.iter().zip(seeds).map(|((row, case), seed)| one(row, case, plan, seed));
        let mut runs = futures_util::stream::iter(runs).buffer_unordered(plan.parallel.max(1));
        while let Some(ran) = runs.next().await {
            show(&ran);
            done.push(ran);
            // A row that never ran shows nothing: the first pass is complete.
            if done.len() > cases.len() && plan.time.is_some_and(|time| start.elapsed() >= time) {
                break;
            }
        }
        seed += cases.len() as u64;
        if plan.time.is_none_or(|time| start.elapsed() >= time) {
            return done;
        }
    }
}

async fn one(row: &Row, case: &Case, plan: &Plan, seed: u64) -> Ran {
    let start = Instant::now();
    let mut unshown = Vec::new();
    let (counts, error) = loop {
        match Box::pin(attempt(case, &plan.setup, seed.wrapping_add(1000 * unshown.len() as u64))).await {
            Ok(counts) => break (counts, None),
            Err(error) if error.is::<NothingShown>() && unshown.len() < AGAIN => unshown.push(format!("{error:#}")),
            Err(error) => break (Counts { runs: 1, failed: 1, ..Counts::default() }, Some(format!("{error:#}"))),
        }
    };
    Ran { row: row.id, case: case.title(), seed, counts, error, unshown, took: start.elapsed() }
}

async fn attempt(case: &Case, setup: &Setup, seed: u64) -> Result<Counts> {
    let mut arena = Arena::new(case, setup, seed).await.context("cannot make the arena")?;
    let struck = (case.strike)(&mut arena).await;
    let tails = if arena.has_tails() { "with tails" } else { "without tails" };
    struck.with_context(|| format!("{tails}, overdue until then: {:?}", arena.overdue))?;
    if let Some(watch) = arena.watch.clone() {
        watch.ends(&mut arena, &case.alerts).await?;
    }
    arena.finish().await.context(tails)
}
