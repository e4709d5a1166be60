//! Actions of operators.

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::operate::jobs::{self, AuditRow},
};
use serde::Serialize;

use super::unsent::time;

/// An action of an operator. Times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// Its number.
    pub entry: u64,
    /// The time of the action.
    pub at: String,
    /// The name that the program gave.
    pub actor: String,
    /// The database's name for the login, with its host.
    pub account: String,
    /// The program.
    pub via: String,
    /// The action.
    pub action: String,
    /// The filter of a job as JSON, or the lane, sink or destination of a pause.
    pub target: String,
    /// The reason.
    pub reason: String,
    /// The job.
    pub job: Option<u64>,
    /// The number of messages in its plan.
    pub messages: Option<u64>,
}

impl From<AuditRow> for AuditEntry {
    fn from(row: AuditRow) -> Self {
        Self {
            entry: row.audit_id,
            at: time(row.at),
            actor: row.actor,
            account: row.account,
            via: row.via,
            action: row.action,
            target: row.target,
            reason: row.reason,
            job: row.job_id,
            messages: row.messages,
        }
    }
}

/// Lists the newest actions below a number, at most `limit`.
///
/// # Errors
///
/// If the database fails.
pub async fn audit(db: &mut MySqlConnection, below: u64, limit: u32) -> Result<Vec<AuditEntry>, sqlx::Error> {
    Ok(jobs::audit(db, below, limit).await?.into_iter().map(AuditEntry::from).collect())
}
