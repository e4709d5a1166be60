use std::{borrow::Cow, io, sync::LazyLock};

use sqlx::{
    MySqlConnection, SqlStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
};

use crate::store::schema;

/// The number of the newest migration that this version knows.
pub const SCHEMA_VERSION: i64 = 5;

/// The migrations as text: number, name, SQL.
pub const MIGRATIONS: [(i64, &str, &str); 5] = [
    (1, "outbox", include_str!("../migrations/0001_outbox.sql")),
    (2, "sequence", include_str!("../migrations/0002_sequence.sql")),
    (3, "leases", include_str!("../migrations/0003_leases.sql")),
    (4, "inbox", include_str!("../migrations/0004_inbox.sql")),
    (5, "takeovers", include_str!("../migrations/0005_takeovers.sql")),
];

/// Creates and upgrades the tables: `MIGRATOR.run(&pool).await?`. Applying it twice is harmless.
///
/// It keeps its own record, `outbox_migrations`, so that it can share a database with the service's own migrations.
/// Where several processes may do so at once use [`migrate`]: sqlx asks for its lock in a way that MariaDB does not understand.
pub static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    let migrations = MIGRATIONS.into_iter().map(|(version, name, sql)| {
        let description = Cow::Borrowed(name);
        Migration::new(version, description, MigrationType::Simple, SqlStr::from_static(sql), false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.dangerous_set_table_name("outbox_migrations");
    migrator
});

/// For how many seconds another process may migrate, while this one waits.
const MIGRATED_WITHIN: u16 = 600;

/// Applies [`MIGRATOR`]; of several processes that do so at once, one after the other: where one takes ten minutes, the others end
/// with an error.
///
/// [`MigrateError::Dirty`]: a migration stopped half-way, repair it by hand (see migrations/README.md).
/// [`MigrateError::VersionMissing`]: a newer release has migrated. After an error close the connection: it may hold sqlx's lock.
pub async fn migrate(conn: &mut MySqlConnection) -> Result<(), MigrateError> {
    if !schema::lock(conn, MIGRATED_WITHIN).await? {
        let text =
            "another session has been migrating this database for ten minutes: wait until it has ended, and try again";
        return Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text)).into());
    }
    let outcome = MIGRATOR.run_direct(None, conn, false).await;
    // Where this fails the connection is lost, and the lock with it.
    schema::unlock(conn).await.ok();
    outcome
}

/// Why the tables cannot be used by this version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// No migration was ever applied to this database.
    #[error("the outbox tables do not exist in this database: run `relay migrate up`")]
    Missing,
    /// The database is behind.
    #[error("the outbox tables have version {found}, this program needs {SCHEMA_VERSION}: run `relay migrate up`")]
    Older {
        /// The version in the database.
        found: i64,
    },
    /// The database is ahead.
    #[error(
        "the outbox tables have version {found}, this program knows only {SCHEMA_VERSION}: install a newer release"
    )]
    Newer {
        /// The version in the database.
        found: i64,
    },
    /// A migration stopped half-way.
    #[error("migration {version} of the outbox tables stopped half-way: repair it by hand (see migrations/README.md)")]
    Dirty {
        /// The number of that migration.
        version: i64,
    },
    /// A table has an engine without transactions, or with others.
    #[error("the table {table} has the engine {engine}: run `ALTER TABLE {table} ENGINE = InnoDB`")]
    Engine {
        /// The table.
        table: String,
        /// Its engine.
        engine: String,
    },
    /// A column takes different texts for the same.
    #[error(
        "the column {table}.{column} has the collation {collation}, which takes different texts for the same: give it the one of \
         migrations/0001_outbox.sql"
    )]
    Collation {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Its collation.
        collation: String,
    },
    /// The database could not be asked.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Checks that the tables have just the version that this program was written for, on InnoDB and with binary collations.
pub async fn check_schema(conn: &mut MySqlConnection) -> Result<(), SchemaError> {
    let (found, dirty) = schema::version(conn).await?.ok_or(SchemaError::Missing)?;
    if let Some(version) = dirty {
        return Err(SchemaError::Dirty { version });
    }
    match found {
        SCHEMA_VERSION => check_tables(conn).await,
        found if found < SCHEMA_VERSION => Err(SchemaError::Older { found }),
        found => Err(SchemaError::Newer { found }),
    }
}

async fn check_tables(conn: &mut MySqlConnection) -> Result<(), SchemaError> {
    if let Some((table, engine)) = schema::foreign_engine(conn).await? {
        return Err(SchemaError::Engine { table, engine });
    }
    if let Some((table, column, collation)) = schema::foreign_collation(conn).await? {
        return Err(SchemaError::Collation { table, column, collation });
    }
    Ok(())
}
