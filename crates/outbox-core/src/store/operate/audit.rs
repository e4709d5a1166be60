//! Whether the audit has the order of a job.

use sqlx::MySqlConnection;

use crate::store::operate::jobs::DueJob;

/// Whether the audit has the order of a job, with its action and its messages. The primary key, from the newest row
/// back to that of the order; all rows if there is none. No lock.
pub async fn is_recorded(conn: &mut MySqlConnection, job: &DueJob) -> Result<bool, sqlx::Error> {
    let sql = "SELECT 1 FROM outbox_audit FORCE INDEX (PRIMARY) WHERE job_id = ? AND action = ? AND target = ? \
               ORDER BY audit_id DESC LIMIT 1";
    let query = sqlx::query(sql).bind(job.job_id).bind(&job.action).bind(&job.filter);
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Ends a job of which no batch was carried out. Primary key, one row.
pub async fn refuse(conn: &mut MySqlConnection, job: &DueJob) -> Result<(), sqlx::Error> {
    let sql = "UPDATE outbox_jobs SET ended_at = UTC_TIMESTAMP(6), is_stopped = 2 WHERE job_id = ? AND token = 0 \
               AND ended_at IS NULL";
    sqlx::query(sql).bind(job.job_id).execute(conn).await.map(drop)
}
