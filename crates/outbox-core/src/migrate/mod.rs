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
pub const SCHEMA_VERSION: i64 = 41;

/// The migrations as text: number, name, SQL. One statement each.
pub const MIGRATIONS: [(i64, &str, &str); 39] = [
    (1, "messages", include_str!("../../migrations/0001_messages.sql")),
    (2, "pending", include_str!("../../migrations/0002_pending.sql")),
    (3, "delayed", include_str!("../../migrations/0003_delayed.sql")),
    (4, "claims", include_str!("../../migrations/0004_claims.sql")),
    (5, "head", include_str!("../../migrations/0005_head.sql")),
    (6, "lane", include_str!("../../migrations/0006_lane.sql")),
    (7, "sent", include_str!("../../migrations/0007_sent.sql")),
    (8, "dead", include_str!("../../migrations/0008_dead.sql")),
    (9, "inbox_processed", include_str!("../../migrations/0009_inbox_processed.sql")),
    (10, "leases", include_str!("../../migrations/0010_leases.sql")),
    (11, "key_sequence", include_str!("../../migrations/0011_key_sequence.sql")),
    (12, "inbox_dead", include_str!("../../migrations/0012_inbox_dead.sql")),
    (13, "inbox_sequence", include_str!("../../migrations/0013_inbox_sequence.sql")),
    (14, "claimed_messages", include_str!("../../migrations/0014_claimed_messages.sql")),
    (15, "sent_messages", include_str!("../../migrations/0015_sent_messages.sql")),
    (16, "schema", include_str!("../../migrations/0016_schema.sql")),
    (17, "baseline", include_str!("../../migrations/0017_baseline.sql")),
    (18, "epochs", include_str!("../../migrations/0018_epochs.sql")),
    (19, "sequence_epoch", include_str!("../../migrations/0019_sequence_epoch.sql")),
    (20, "due_at", include_str!("../../migrations/0020_due_at.sql")),
    (21, "jobs", include_str!("../../migrations/0021_jobs.sql")),
    (22, "audit", include_str!("../../migrations/0022_audit.sql")),
    (23, "controls", include_str!("../../migrations/0023_controls.sql")),
    (24, "instances", include_str!("../../migrations/0024_instances.sql")),
    (25, "replays", include_str!("../../migrations/0025_replays.sql")),
    (26, "listed_messages", include_str!("../../migrations/0026_listed_messages.sql")),
    (27, "attempts", include_str!("../../migrations/0027_attempts.sql")),
    (28, "instance_counts", include_str!("../../migrations/0028_instance_counts.sql")),
    (29, "first_replay", include_str!("../../migrations/0029_first_replay.sql")),
    (30, "sequence_seen", include_str!("../../migrations/0030_sequence_seen.sql")),
    (31, "inbox_started", include_str!("../../migrations/0031_inbox_started.sql")),
    (32, "lane_kind", include_str!("../../migrations/0032_lane_kind.sql")),
    (33, "listed_traces", include_str!("../../migrations/0033_listed_traces.sql")),
    (36, "audit_entries", include_str!("../../migrations/0036_audit_entries.sql")),
    (37, "inbox_retries", include_str!("../../migrations/0037_inbox_retries.sql")),
    (38, "tails", include_str!("../../migrations/0038_tails.sql")),
    (39, "claimed_rows", include_str!("../../migrations/0039_claimed_rows.sql")),
    (40, "sealed_lanes", include_str!("../../migrations/0040_sealed_lanes.sql")),
    (41, "instance_tails", include_str!("../../migrations/0041_instance_tails.sql")),
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
        }
        assert_eq!(MIGRATIONS.last().map(|(version, ..)| *version), Some(SCHEMA_VERSION));
    }
}
