//! The plan of a migration, for the operator who starts it.

use sqlx::{MySqlConnection, migrate::Migration};

use super::{
    MigrateError,
    change::SchemaChange,
    plan::PlannedState,
    run::{MigrationStep, Mode, steps},
};
use crate::store::schema::catalogue;

/// A migration that the record lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Due {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: String,
    /// Its work in words: the table or view, and how the server changes it.
    pub work: String,
}

pub(super) async fn due(conn: &mut MySqlConnection, migrations: &[Migration]) -> Result<Vec<Due>, MigrateError> {
    let mut due = Vec::new();
    for step in steps(conn, migrations, Mode::Apply).await? {
        let work = work(conn, &step).await?;
        due.push(Due { version: step.migration.version, name: step.migration.description.to_string(), work });
    }
    Ok(due)
}

async fn work(conn: &mut MySqlConnection, step: &MigrationStep<'_>) -> Result<String, sqlx::Error> {
    Ok(match (&step.state, &step.change) {
        (PlannedState::Differs(how), _) => format!("cannot be applied: {how}"),
        (PlannedState::Done, _) => "is applied already, and is recorded".to_owned(),
        (PlannedState::Missing, SchemaChange::Create(shape)) => {
            format!("creates the {} {}", shape.kind.word(), shape.name)
        }
        (PlannedState::Missing, SchemaChange::Replace(shape)) => format!("replaces the view {}", shape.name),
        (PlannedState::Missing, SchemaChange::Rows) => "writes rows".to_owned(),
        (PlannedState::Missing, SchemaChange::Add(shape)) => {
            let (rows, bytes) = catalogue::size(conn, &shape.name).await?;
            format!(
                "adds to the table {}: at once, without a copy of its rows (ALGORITHM = INSTANT), or not at all; it \
                 has about {rows} rows and {} MiB",
                shape.name,
                bytes.div_ceil(1 << 20)
            )
        }
    })
}
