//! Pauses of lanes, sinks and destinations.

use std::time::Duration;

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::operate::{
        controls::{self, ControlRow},
        jobs::Actor,
    },
};
use serde::Serialize;

use super::unsent::time;
use crate::state::controls::PauseTarget;

/// A pause. Times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControlEntry {
    /// `lane`, `sink` or `destination`.
    pub kind: String,
    /// The number of the lane, the name of the sink, or sink and destination with a slash between them.
    pub name: String,
    /// The start of the pause.
    pub paused_at: String,
    /// The end of the pause; `None` if only an operator ends it.
    pub ends_at: Option<String>,
    /// The name of the operator.
    pub actor: String,
    /// The reason.
    pub reason: String,
}

impl From<ControlRow> for ControlEntry {
    fn from(row: ControlRow) -> Self {
        Self {
            kind: row.kind,
            name: row.name,
            paused_at: time(row.paused_at),
            ends_at: row.ends_at.map(time),
            actor: row.actor,
            reason: row.reason,
        }
    }
}

/// Lists the present pauses.
///
/// # Errors
///
/// If the database fails.
pub async fn list(db: &mut MySqlConnection) -> Result<Vec<ControlEntry>, sqlx::Error> {
    Ok(controls::paused(db).await?.into_iter().map(ControlEntry::from).collect())
}

/// Pauses a lane, sink or destination, for a time or until an operator ends the pause. Relays follow within a second,
/// and finish what is in flight. Returns the pause that this one replaces.
///
/// # Errors
///
/// If the database fails.
pub async fn pause(
    db: &mut MySqlConnection,
    target: &PauseTarget,
    time: Option<Duration>,
    actor: &Actor<'_>,
) -> Result<Option<ControlEntry>, sqlx::Error> {
    let (kind, name) = target.names();
    let before = list(db).await?.into_iter().find(|it| it.kind == kind && it.name == name);
    controls::pause(db, (kind, &name), time, actor).await?;
    Ok(before)
}

/// Ends a pause. Returns false if there is none.
///
/// # Errors
///
/// If the database fails. End the connection then: it may have an open transaction.
pub async fn resume(db: &mut MySqlConnection, target: &PauseTarget, actor: &Actor<'_>) -> Result<bool, sqlx::Error> {
    let (kind, name) = target.names();
    controls::resume(db, (kind, &name), actor).await
}
