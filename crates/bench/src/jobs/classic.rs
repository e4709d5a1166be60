//! Common queues in a table, as their authors write them. Each worker has a connection, the isolation level is the
//! default, and statements without an explicit transaction have none.

use std::time::Instant;

use anyhow::Result;
use outbox_core::{
    sqlx::{self, Connection as _, MySqlConnection},
    store::error_number,
};
use testkit::database::Database;

use super::EFFECT;

/// A queue in a table `jobs`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Classic {
    /// The columns besides id and payload.
    columns: &'static str,
    take: Take,
    /// Marks a job as done.
    done: &'static str,
}

/// How a worker takes jobs.
#[derive(Debug, Clone, Copy)]
enum Take {
    /// Locks the row until the end of a transaction that also does the work.
    Lock(&'static str),
    /// Looks for a candidate, and takes it unless another worker was faster.
    Try { candidate: &'static str, take: &'static str },
    /// Marks rows as its own, then reads them. A variable of the session identifies them.
    Mark { mark: [&'static str; 2], read: &'static str },
}

const BY_DONE: &str = "done TINYINT NOT NULL DEFAULT 0, KEY (done)";
const BY_STATUS: &str = "status VARCHAR(10) NOT NULL DEFAULT 'new', owner BIGINT UNSIGNED, KEY (status)";
const SET_DONE: &str = "UPDATE jobs SET done = 1 WHERE id = ?";
const SET_STATUS: &str = "UPDATE jobs SET status = 'done' WHERE id = ?";

/// All ways, with their names in the report.
pub(super) const ALL: [(&str, Classic); 5] = [
    (
        "row_lock",
        Classic {
            columns: BY_DONE,
            take: Take::Lock("SELECT id, payload FROM jobs WHERE done = 0 ORDER BY id LIMIT 1 FOR UPDATE"),
            done: SET_DONE,
        },
    ),
    (
        "skip_locked",
        Classic {
            columns: BY_DONE,
            take: Take::Lock("SELECT id, payload FROM jobs WHERE done = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"),
            done: SET_DONE,
        },
    ),
    (
        "affected_rows",
        Classic {
            columns: BY_STATUS,
            take: Take::Try {
                candidate: "SELECT id, payload FROM jobs WHERE status = 'new' ORDER BY id LIMIT 1",
                take: "UPDATE jobs SET status = 'taken', owner = CONNECTION_ID() WHERE id = ? AND status = 'new'",
            },
            done: SET_STATUS,
        },
    ),
    (
        "user_variable",
        Classic {
            columns: BY_STATUS,
            take: Take::Mark {
                mark: [
                    "SET @taken := NULL",
                    "UPDATE jobs SET status = 'taken', id = (SELECT @taken := id) \
                     WHERE status = 'new' ORDER BY id LIMIT 1",
                ],
                read: "SELECT id, payload FROM jobs WHERE id = @taken",
            },
            done: SET_STATUS,
        },
    ),
    (
        "batch_id",
        Classic {
            columns: "batch BIGINT UNSIGNED, done TINYINT NOT NULL DEFAULT 0, KEY (batch)",
            take: Take::Mark {
                mark: [
                    "SET @batch := UUID_SHORT()",
                    "UPDATE jobs SET batch = @batch WHERE batch IS NULL ORDER BY id LIMIT 100",
                ],
                read: "SELECT id, payload FROM jobs WHERE batch = @batch",
            },
            done: SET_DONE,
        },
    ),
];

/// Id and payload.
type Job = (i64, String);

impl Classic {
    /// Makes the table, with jobs in it. Payloads are those of `setup::payload`.
    pub(super) async fn fill(self, database: &Database, jobs: u64, bytes: usize) -> Result<()> {
        let columns = self.columns;
        let bytes = bytes.max(20);
        // The plans of the statements depend on statistics, which a server updates some time after such an INSERT.
        let sql = format!(
            "CREATE TABLE jobs (id BIGINT AUTO_INCREMENT PRIMARY KEY, payload LONGTEXT NOT NULL, {columns}); \
             SET SESSION cte_max_recursion_depth = 4294967295; \
             INSERT INTO jobs (payload) \
             WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < {jobs}) \
             SELECT RPAD(LPAD(n, 20, '0'), {bytes}, 'x') FROM r; \
             ANALYZE TABLE jobs"
        );
        database.execute(&sql).await
    }

    /// Seconds from the start of these workers to the end of the last.
    pub(super) async fn run(self, database: &Database, workers: usize) -> Result<f64> {
        let start = Instant::now();
        let workers = (0..workers).map(|_| tokio::spawn(self.work(database.clone())));
        for worker in workers.collect::<Vec<_>>() {
            worker.await??;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Works until it finds no job.
    async fn work(self, database: Database) -> Result<()> {
        let mut db = database.connect().await?;
        while self.turn(&mut db).await.or_else(again)? {}
        Ok(db.close().await?)
    }

    /// Takes jobs, and does them. `false` if there was none.
    async fn turn(self, db: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        match self.take {
            Take::Lock(select) => {
                let mut tx = db.begin().await?;
                let job: Option<Job> = sqlx::query_as(select).fetch_optional(&mut *tx).await?;
                if let Some(job) = &job {
                    run(&mut tx, EFFECT, job).await?;
                    run(&mut tx, self.done, job).await?;
                }
                tx.commit().await?;
                Ok(job.is_some())
            }
            Take::Try { candidate, take } => {
                let job: Option<Job> = sqlx::query_as(candidate).fetch_optional(&mut *db).await?;
                let Some(job) = job else { return Ok(false) };
                if run(db, take, &job).await? == 1 {
                    self.finish(db, &job).await?;
                }
                Ok(true)
            }
            Take::Mark { mark, read } => {
                for sql in mark {
                    sqlx::query(sql).execute(&mut *db).await?;
                }
                let jobs: Vec<Job> = sqlx::query_as(read).fetch_all(&mut *db).await?;
                for job in &jobs {
                    self.finish(db, job).await?;
                }
                Ok(!jobs.is_empty())
            }
        }
    }

    /// The work and the mark, each by itself. A mark that loses a deadlock is tried again, or the job would stay taken.
    async fn finish(self, db: &mut MySqlConnection, job: &Job) -> Result<(), sqlx::Error> {
        run(db, EFFECT, job).await?;
        while run(db, self.done, job).await.map(|_| false).or_else(again)? {}
        Ok(())
    }
}

/// Runs a statement for a job. Returns the number of affected rows.
async fn run(db: &mut MySqlConnection, sql: &'static str, job: &Job) -> Result<u64, sqlx::Error> {
    Ok(sqlx::query(sql).bind(job.0).execute(db).await?.rows_affected())
}

/// True for a lock wait time-out and for a deadlock: the server has rolled back, so the worker tries again.
fn again(error: sqlx::Error) -> Result<bool, sqlx::Error> {
    if matches!(error_number(&error), Some(1205 | 1213)) { Ok(true) } else { Err(error) }
}
