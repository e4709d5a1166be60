//! Workers beside the classic queues of jobs in MySQL: the same number of jobs, with the same work, on the same server.

mod classic;
mod worker;

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::{Map, Value};

use self::classic::Classic;
use crate::{Common, drain::precise, setup::Stage};

/// The numbers of concurrent workers.
const WORKERS: [usize; 2] = [1, 4];
/// The effect of a job. Without a unique key: a job done twice must show.
const EFFECTS: &str = "CREATE TABLE effects (id BIGINT AUTO_INCREMENT PRIMARY KEY, job_id BIGINT NOT NULL)";
/// The work of a job.
const EFFECT: &str = "INSERT INTO effects (job_id) VALUES (?)";

// The server counts both for all databases: nothing else may use it meanwhile.
const LOCK_WAITS: &str = "SELECT CAST(variable_value AS SIGNED) FROM performance_schema.global_status \
                          WHERE variable_name = 'Innodb_row_lock_waits'";
const DEADLOCKS: &str =
    "SELECT CAST(`COUNT` AS SIGNED) FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'";

/// The figures of all ways; docs/benchmarks.md explains each.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    jobs: u64,
    bytes: usize,
    keys: u64,
    #[serde(flatten)]
    figures: Map<String, Value>,
    #[serde(skip)]
    good: bool,
}

impl Report {
    /// Workers promise that each job is done once. Jobs that the other queues lose or double are figures, not failures.
    pub(crate) fn is_good(&self) -> bool {
        self.good
    }
}

/// The results of one way.
#[derive(Debug, Serialize)]
struct Figures {
    jobs_per_second: f64,
    statements_per_job: f64,
    lock_waits: i64,
    deadlocks: i64,
    duplicates: i64,
    lost: i64,
    others_cpu_percent: f64,
}

/// A way to work on jobs.
#[derive(Debug, Clone, Copy)]
enum Way {
    Classic(Classic),
    /// A `Worker`, with this number of messages in a transaction.
    Worker(usize),
}

/// Measures the named ways, or all.
pub(crate) async fn measure(common: &Common, jobs: u64, named: &[String]) -> Result<Report> {
    let classic = classic::ALL.map(|(name, way)| (name, Way::Classic(way)));
    let workers = [("worker", Way::Worker(1)), ("worker_batch", Way::Worker(100))];
    let ways: Vec<_> = classic.into_iter().chain(workers).collect();
    let unknown = named.iter().find(|name| ways.iter().all(|(way, _)| way != name));
    ensure!(unknown.is_none(), "there is no way {unknown:?}; the ways are in docs/benchmarks.md");
    let mut report = Report { jobs, bytes: common.bytes, keys: common.keys, figures: Map::new(), good: true };
    for (name, way) in ways.into_iter().filter(|(way, _)| named.is_empty() || named.iter().any(|name| name == way)) {
        for workers in WORKERS {
            let figures = way.measure(common, jobs, workers).await?;
            let once = figures.duplicates == 0 && figures.lost == 0;
            report.good &= once || matches!(way, Way::Classic(_));
            let figures: Map<String, Value> = serde_json::from_value(serde_json::to_value(&figures)?)?;
            let named = figures.into_iter().map(|(figure, value)| (format!("{name}_x{workers}_{figure}"), value));
            report.figures.extend(named);
        }
    }
    Ok(report)
}

impl Way {
    /// Fills a new queue, and runs this number of workers until it is empty.
    async fn measure(self, common: &Common, jobs: u64, workers: usize) -> Result<Figures> {
        let stage = Stage::new(common).await?;
        let database = &stage.database;
        database.execute(EFFECTS).await?;
        match self {
            Self::Classic(classic) => classic.fill(database, jobs, common.bytes).await?,
            Self::Worker(_) => stage.fill(common, jobs).await?,
        }
        let lock_waits = database.number(LOCK_WAITS).await?;
        let deadlocks = database.number(DEADLOCKS).await?;
        let before = stage.costs(&[]).await?;
        let seconds = match self {
            Self::Classic(classic) => classic.run(database, workers).await?,
            Self::Worker(batch) => worker::run(database, jobs, workers, batch).await?,
        };
        let spent = stage.costs(&[]).await?.since(&before);
        let figures = Figures {
            jobs_per_second: precise(jobs) / seconds,
            statements_per_job: spent.statements / precise(jobs),
            lock_waits: database.number(LOCK_WAITS).await? - lock_waits,
            deadlocks: database.number(DEADLOCKS).await? - deadlocks,
            duplicates: database.number("SELECT COUNT(*) - COUNT(DISTINCT job_id) FROM effects").await?,
            lost: i64::try_from(jobs)? - database.number("SELECT COUNT(DISTINCT job_id) FROM effects").await?,
            others_cpu_percent: spent.others_percent(),
        };
        stage.remove().await?;
        Ok(figures)
    }
}
