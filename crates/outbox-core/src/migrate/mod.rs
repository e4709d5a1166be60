//! Creates and upgrades the tables, and checks whether this program can use them.

mod change;
mod check;
mod due;
mod error;
mod plan;
mod run;

use std::{borrow::Cow, sync::LazyLock};

use sqlx::{
    AssertSqlSafe, MySqlConnection, SqlSafeStr as _, SqlStr,
    migrate::{Migration, MigrationType, Migrator},
};

use self::run::{Mode, run};
pub use self::{
    check::{SchemaError, check_schema, check_schema_to_read},
    due::Due,
    error::MigrateError,
};
use crate::store::schema::migrate::{RECORD, note_in_script};

/// The number of the newest migration that this version knows: its version of the tables.
pub const SCHEMA_VERSION: i64 = 28;

/// The migrations as text: number, name, SQL. One statement each.
pub const MIGRATIONS: [(i64, &str, &str); 28] = [
    (1, "messages", include_str!("../../migrations/0001_messages.sql")),
    (2, "pending", include_str!("../../migrations/0002_pending.sql")),
    (3, "delayed", include_str!("../../migrations/0003_delayed.sql")),
    (4, "dead", include_str!("../../migrations/0004_dead.sql")),
    (5, "attempts", include_str!("../../migrations/0005_attempts.sql")),
    (6, "claims", include_str!("../../migrations/0006_claims.sql")),
    (7, "sent", include_str!("../../migrations/0007_sent.sql")),
    (8, "head", include_str!("../../migrations/0008_head.sql")),
    (9, "lane", include_str!("../../migrations/0009_lane.sql")),
    (10, "key_sequence", include_str!("../../migrations/0010_key_sequence.sql")),
    (11, "leases", include_str!("../../migrations/0011_leases.sql")),
    (12, "instances", include_str!("../../migrations/0012_instances.sql")),
    (13, "controls", include_str!("../../migrations/0013_controls.sql")),
    (14, "jobs", include_str!("../../migrations/0014_jobs.sql")),
    (15, "replays", include_str!("../../migrations/0015_replays.sql")),
    (16, "audit", include_str!("../../migrations/0016_audit.sql")),
    (17, "epochs", include_str!("../../migrations/0017_epochs.sql")),
    (18, "inbox_processed", include_str!("../../migrations/0018_inbox_processed.sql")),
    (19, "inbox_dead", include_str!("../../migrations/0019_inbox_dead.sql")),
    (20, "inbox_sequence", include_str!("../../migrations/0020_inbox_sequence.sql")),
    (21, "inbox_started", include_str!("../../migrations/0021_inbox_started.sql")),
    (22, "inbox_retries", include_str!("../../migrations/0022_inbox_retries.sql")),
    (23, "claimed_messages", include_str!("../../migrations/0023_claimed_messages.sql")),
    (24, "sent_messages", include_str!("../../migrations/0024_sent_messages.sql")),
    (25, "listed_messages", include_str!("../../migrations/0025_listed_messages.sql")),
    (26, "audit_entries", include_str!("../../migrations/0026_audit_entries.sql")),
    (27, "schema", include_str!("../../migrations/0027_schema.sql")),
    (28, "baseline", include_str!("../../migrations/0028_baseline.sql")),
];

/// The migrations for `#[sqlx::test(migrator = "outbox_core::MIGRATOR")]`: sqlx applies them to an empty database.
///
/// Everywhere else use [`migrate`]: sqlx waits for tables in a way that stalls services, and cannot complete a
/// migration that stopped half-way. It takes its lock in a way that MariaDB does not understand. Both keep the same
/// record, `outbox_migrations`, which a service's own migrations do not share.
pub static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrator = Migrator::with_migrations(MIGRATIONS.into_iter().map(migration).collect());
    migrator.dangerous_set_table_name("outbox_migrations");
    // A newer release may have migrated.
    migrator.set_ignore_missing(true);
    migrator
});

/// A migration with the checksum of its file, and its table in the row format [`DYNAMIC`].
fn migration((version, name, sql): (i64, &'static str, &'static str)) -> Migration {
    let text = SqlStr::from_static(sql);
    let mut migration = Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, text, false);
    if let Some(table) = sql.strip_suffix(TABLE_END) {
        migration.sql = AssertSqlSafe([table, DYNAMIC, ";\n"].concat()).into_sql_str();
    }
    migration
}

/// The end of a file that creates a table.
const TABLE_END: &str = ") ENGINE = InnoDB;\n";
/// The end of the statement. Keys in the row formats COMPACT and REDUNDANT have at most 767 bytes, and a server may
/// have one of them as its default (`innodb_default_row_format`, which no session can set). The files lack it: their
/// checksums are in the records of existing tables.
const DYNAMIC: &str = ") ENGINE = InnoDB ROW_FORMAT = DYNAMIC";

/// Creates and upgrades the tables. Harmless if there is nothing to do, also if a newer release has migrated: then it
/// only reads the record. Of several processes one migrates, and the others wait for up to ten minutes.
///
/// Privileges and names are checked before anything is changed. A statement that must wait for a table gives up after
/// two seconds, so that services do not wait behind it. It is tried again for about two minutes. The next call
/// completes a migration that stopped half-way. No transaction may be open on the connection: it would be committed.
/// After an error close the connection: it may hold the lock against other migrations.
pub async fn migrate(conn: &mut MySqlConnection) -> Result<(), MigrateError> {
    run(conn, MIGRATOR.migrations.as_ref(), Mode::Apply).await
}

/// The plan of [`migrate`]: the migrations that the record lacks, in their order. Changes nothing. Another process may
/// migrate meanwhile.
pub async fn migrations_due(conn: &mut MySqlConnection) -> Result<Vec<Due>, MigrateError> {
    due::due(conn, MIGRATOR.migrations.as_ref()).await
}

/// Takes over tables that another tool has made from [`migration_script`], or that lack their record. Compares columns,
/// keys and engines with those of the migrations, and then writes the record. Changes no table.
pub async fn baseline(conn: &mut MySqlConnection) -> Result<(), MigrateError> {
    run(conn, MIGRATOR.migrations.as_ref(), Mode::Adopt).await
}

/// [`migrate`] of a later release, for tests: with these migrations (number, name, SQL) after those of this one.
#[cfg(feature = "test")]
#[doc(hidden)]
pub async fn migrate_with(
    conn: &mut MySqlConnection,
    more: &[(i64, &'static str, &'static str)],
) -> Result<(), MigrateError> {
    let migrations: Vec<_> = MIGRATIONS.iter().chain(more).copied().map(migration).collect();
    run(conn, &migrations, Mode::Apply).await
}

/// The migrations above a number (0: all) as SQL for another tool: the statements, and the record that [`check_schema`]
/// reads.
#[must_use]
pub fn migration_script(after: i64) -> String {
    let mut script = String::new();
    if after == 0 {
        script.extend([
            "-- The server needs innodb_page_size >= 16384. The record of what was applied.\n",
            RECORD,
            ";\n",
        ]);
    }
    for migration in MIGRATOR.iter().filter(|migration| migration.version > after) {
        let heading = format!("\n-- Migration {}: {}\n", migration.version, migration.description);
        let note = note_in_script(migration.version, &migration.description, &migration.checksum);
        script.extend([heading.as_str(), migration.sql.as_str(), &note]);
    }
    script
}

#[cfg(test)]
mod tests {
    use super::{change::SchemaChange, *};

    #[test]
    fn the_runner_understands_every_migration() {
        assert!(MIGRATIONS.is_sorted_by(|(a, ..), (b, ..)| a < b));
        for (_, name, sql) in MIGRATIONS {
            assert!(SchemaChange::of(sql).is_some(), "{name}: {sql}");
            // Other tools split the script there.
            assert_eq!(sql.matches(';').count(), 1, "{name}: {sql}");
        }
        assert_eq!(MIGRATIONS.last().map(|(version, ..)| *version), Some(SCHEMA_VERSION));
    }
}
