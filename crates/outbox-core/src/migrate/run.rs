//! The runner: reads the record and the catalogue, checks that all migrations can run, and runs them.

use std::{collections::BTreeSet, time::Duration};

use sqlx::{MySqlConnection, SqlStr, migrate::Migration};

use super::{
    MigrateError,
    change::{SchemaChange, rows},
    plan::{PlannedState, state},
};
use crate::store::schema::{
    self,
    catalogue::{self, ObjectKind, ObjectShape},
    migrate::{self as statements, RECORD, RECORD_COLUMNS},
};

/// The table of the applied migrations.
const RECORD_TABLE: &str = "outbox_migrations";
/// Most seconds that this process waits while another one migrates.
const MIGRATED_WITHIN: u16 = 600;
/// The number of tries of a statement that waits for a table, two seconds each.
const TRIES: u32 = 8;
/// The pause after the first try; it doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The treatment of migrations that the record does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// They are applied.
    Apply,
    /// They must have been applied, and are recorded.
    Adopt,
}

/// A migration that the record does not know.
pub(super) struct MigrationStep<'a> {
    pub(super) migration: &'a Migration,
    pub(super) change: SchemaChange,
    pub(super) state: PlannedState,
    /// The table or view as it is.
    found: Option<ObjectShape>,
}

pub(super) async fn run(conn: &mut MySqlConnection, migrations: &[Migration], mode: Mode) -> Result<(), MigrateError> {
    if unrecorded(conn, migrations, mode).await?.is_empty() {
        return Ok(());
    }
    if !schema::lock(conn, MIGRATED_WITHIN).await? {
        return Err(MigrateError::Busy);
    }
    let outcome = in_session(conn, migrations, mode).await;
    // If this fails, the connection is lost, and the lock with it.
    schema::unlock(conn).await.ok();
    outcome
}

async fn in_session(conn: &mut MySqlConnection, migrations: &[Migration], mode: Mode) -> Result<(), MigrateError> {
    statements::set_session(conn).await?;
    let outcome = locked(conn, migrations, mode).await;
    let restored = statements::restore(conn).await;
    outcome.and(restored.map_err(MigrateError::from))
}

async fn locked(conn: &mut MySqlConnection, migrations: &[Migration], mode: Mode) -> Result<(), MigrateError> {
    let record = catalogue::shape(conn, RECORD_TABLE).await?;
    let steps = steps(conn, migrations, mode).await?;
    refuse_differences(record.as_ref(), &steps, mode)?;
    if mode == Mode::Apply {
        refuse_small_pages(conn, &steps).await?;
        refuse_without_privileges(conn, record.as_ref(), &steps).await?;
    }
    if record.is_none() {
        statements::run(conn, SqlStr::from_static(RECORD)).await?;
    }
    for step in &steps {
        if step.state == PlannedState::Missing {
            apply(conn, step).await?;
        }
        let Migration { version, description, checksum, .. } = step.migration;
        statements::note(conn, *version, description, checksum).await?;
    }
    Ok(())
}

/// The migrations that the record lacks, or has as not done. sqlx may have written it, too.
async fn unrecorded<'a>(
    conn: &mut MySqlConnection,
    migrations: &'a [Migration],
    mode: Mode,
) -> Result<Vec<&'a Migration>, MigrateError> {
    let record = match statements::applied(conn).await {
        Ok(record) => record.unwrap_or_default(),
        // Without a privilege on it the server does not say whether the table exists.
        Err(error) if statements::is_denial(&error) => return Err(MigrateError::Denied { denied: error.to_string() }),
        Err(error) => return Err(error.into()),
    };
    let mut unrecorded = Vec::new();
    for migration in migrations {
        match record.iter().find(|row| row.success && row.version == migration.version) {
            Some(row) if *row.checksum == *migration.checksum => {}
            Some(_) if mode == Mode::Apply => return Err(MigrateError::Changed { version: migration.version }),
            Some(_) | None => unrecorded.push(migration),
        }
    }
    Ok(unrecorded)
}

/// The remaining work of each migration that the record lacks.
pub(super) async fn steps<'a>(
    conn: &mut MySqlConnection,
    migrations: &'a [Migration],
    mode: Mode,
) -> Result<Vec<MigrationStep<'a>>, MigrateError> {
    let mut steps = Vec::new();
    for migration in unrecorded(conn, migrations, mode).await? {
        let change = SchemaChange::of(migration.sql.as_str()).unwrap_or(SchemaChange::Rows);
        let found = match change.shape() {
            Some(shape) => catalogue::shape(conn, &shape.name).await?,
            None => None,
        };
        let state = state(&change, found.as_ref(), &added_later(migrations, &change));
        steps.push(MigrationStep { migration, change, state, found });
    }
    Ok(steps)
}

/// The columns and keys that other migrations add to the table or view of this one.
fn added_later(migrations: &[Migration], change: &SchemaChange) -> BTreeSet<String> {
    let changes = migrations.iter().filter_map(|migration| SchemaChange::of(migration.sql.as_str()));
    let added = changes.filter_map(|other| match (other, change.shape()) {
        (SchemaChange::Add(added) | SchemaChange::Replace(added), Some(shape)) if added.name == shape.name => {
            Some(added.parts)
        }
        _ => None,
    });
    added.flatten().collect()
}

/// Refuses if another object has the name of a table or a view, and if work is left although there should be none.
fn refuse_differences(
    record: Option<&ObjectShape>,
    steps: &[MigrationStep<'_>],
    mode: Mode,
) -> Result<(), MigrateError> {
    let record = record.filter(|found| !is_record(found));
    let record = record.map(|found| format!("the {} {RECORD_TABLE} is no record of migrations", found.kind.word()));
    let differences = steps.iter().filter_map(|step| match (&step.state, step.change.shape()) {
        (PlannedState::Differs(how), _) => Some(how.clone()),
        (PlannedState::Missing, Some(shape)) if mode == Mode::Adopt => Some(missing(step, shape)),
        (PlannedState::Missing | PlannedState::Done, _) => None,
    });
    let differences: BTreeSet<_> = record.into_iter().chain(differences).collect();
    let differences = differences.into_iter().collect::<Vec<_>>().join("; ");
    match mode {
        _ if differences.is_empty() => Ok(()),
        Mode::Apply => Err(MigrateError::Taken { differences }),
        Mode::Adopt => Err(MigrateError::Differs { differences }),
    }
}

fn missing(step: &MigrationStep<'_>, wanted: &ObjectShape) -> String {
    let what = format!("the {} {}", wanted.kind.word(), wanted.name);
    let Some(found) = &step.found else { return format!("{what} does not exist") };
    let parts: Vec<_> = wanted.parts.difference(&found.parts).map(String::as_str).collect();
    format!("{what} lacks {}", parts.join(", "))
}

fn is_record(found: &ObjectShape) -> bool {
    let has = |column: &&str| found.parts.iter().any(|part| part.split(' ').next() == Some(*column));
    found.kind == ObjectKind::Table && RECORD_COLUMNS.iter().all(has)
}

/// Refuses if a table is to be made, and its keys may be too long for a page.
async fn refuse_small_pages(conn: &mut MySqlConnection, steps: &[MigrationStep<'_>]) -> Result<(), MigrateError> {
    let is_table =
        |change: &SchemaChange| matches!(change, SchemaChange::Create(shape) if shape.kind == ObjectKind::Table);
    if steps.iter().any(|step| step.state == PlannedState::Missing && is_table(&step.change)) {
        let bytes = statements::page_size(conn).await?;
        if bytes < statements::SMALLEST_PAGE {
            return Err(MigrateError::SmallPages { bytes });
        }
    }
    Ok(())
}

/// Refuses if the account lacks a privilege that a statement needs.
async fn refuse_without_privileges(
    conn: &mut MySqlConnection,
    record: Option<&ObjectShape>,
    steps: &[MigrationStep<'_>],
) -> Result<(), MigrateError> {
    let mut denied = BTreeSet::new();
    if record.is_none() {
        denied.extend(statements::denied_creation(conn, ObjectKind::Table, RECORD_TABLE).await?);
    }
    denied.extend(statements::denied_note(conn).await?);
    for step in steps.iter().filter(|step| step.state == PlannedState::Missing) {
        denied.extend(match &step.change {
            SchemaChange::Create(shape) | SchemaChange::Replace(shape) => {
                statements::denied_creation(conn, shape.kind, &shape.name).await?
            }
            SchemaChange::Add(shape) => statements::denied_alteration(conn, &shape.name).await?,
            SchemaChange::Rows => None,
        });
        if let Some(rows) = rows(step.migration.sql.as_str()) {
            denied.extend(statements::denied_rows(conn, rows).await?);
        }
    }
    if denied.is_empty() {
        return Ok(());
    }
    Err(MigrateError::Denied { denied: denied.into_iter().collect::<Vec<_>>().join("; ") })
}

/// Runs the statement of a migration; tries again while a transaction holds its table open.
async fn apply(conn: &mut MySqlConnection, step: &MigrationStep<'_>) -> Result<(), MigrateError> {
    let version = step.migration.version;
    let table = step.change.shape().map(|shape| shape.name.clone()).unwrap_or_default();
    let mut pause = PAUSE;
    for attempt in 1..=TRIES {
        if attempt > 1 {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        match statements::run(conn, step.migration.sql.clone()).await {
            Ok(()) => return Ok(()),
            Err(error) if statements::is_wait(&error) => {
                tracing::info!(version, table, attempt, "a migration waits for a table that transactions hold open");
            }
            Err(error) if statements::is_not_instant(&error) => return Err(copies(conn, version, table, &error).await),
            Err(source) => return Err(MigrateError::Refused { version, source }),
        }
    }
    Err(MigrateError::Locked { version, table, tries: TRIES })
}

async fn copies(conn: &mut MySqlConnection, version: i64, table: String, error: &sqlx::Error) -> MigrateError {
    let reason = error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
    match catalogue::size(conn, &table).await {
        Ok((rows, bytes)) => MigrateError::Copies { version, table, rows, mebibytes: bytes.div_ceil(1 << 20), reason },
        Err(error) => error.into(),
    }
}
