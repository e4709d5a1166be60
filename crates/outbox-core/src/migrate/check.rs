use sqlx::MySqlConnection;

use super::{MIGRATOR, SCHEMA_VERSION};
use crate::store::schema::{
    self,
    migrate::{Applied, applied},
};

/// Why this version cannot use the tables.
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
    /// The database is ahead, and no longer serves this version.
    #[error(
        "the outbox tables serve programs that know version {smallest} or a later one, this program knows \
         {SCHEMA_VERSION}: install a newer release"
    )]
    Newer {
        /// The smallest version that the tables serve.
        smallest: u64,
    },
    /// A migration was recorded with another text than this release has.
    #[error(
        "migration {version} was applied with another text than this release has: these tables were made by another \
         build, see `relay migrate baseline`"
    )]
    Changed {
        /// The number of that migration.
        version: i64,
    },
    /// The row with the versions that the tables serve is missing.
    #[error("the table outbox_schema has no row: write the one again that `relay migrate sql` prints")]
    Unstated,
    /// A table has another engine than InnoDB: without transactions, or with separate ones.
    #[error("the table {table} has the engine {engine}: run `ALTER TABLE {table} ENGINE = InnoDB`")]
    Engine {
        /// The table.
        table: String,
        /// Its engine.
        engine: String,
    },
    /// A column treats different texts as equal.
    #[error(
        "the column {table}.{column} has the collation {collation}, which takes different texts for the same: give it \
         the one that `relay migrate sql` prints"
    )]
    Collation {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Its collation.
        collation: String,
    },
    /// A call of the database failed.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Checks that a program that enqueues, claims or settles can use the tables. They must have at least the version of
/// this release, still serve this release, and be on InnoDB with binary collations. A newer release may have added to
/// them.
pub async fn check_schema(conn: &mut MySqlConnection) -> Result<(), SchemaError> {
    check(conn, |(_, writer)| writer).await
}

/// [`check_schema`] for a program that only reads the tables, or consumes.
pub async fn check_schema_to_read(conn: &mut MySqlConnection) -> Result<(), SchemaError> {
    check(conn, |(reader, _)| reader).await
}

async fn check(conn: &mut MySqlConnection, smallest: fn((u64, u64)) -> u64) -> Result<(), SchemaError> {
    let record = applied(conn).await?.filter(|record| !record.is_empty()).ok_or(SchemaError::Missing)?;
    if let Some(version) = changed(&record) {
        return Err(SchemaError::Changed { version });
    }
    let found = version(&record);
    if found < SCHEMA_VERSION {
        return Err(SchemaError::Older { found });
    }
    let smallest = schema::smallest(conn).await?.map(smallest).ok_or(SchemaError::Unstated)?;
    if smallest > SCHEMA_VERSION.unsigned_abs() {
        return Err(SchemaError::Newer { smallest });
    }
    check_tables(conn).await
}

/// The first migration whose recorded text is not the one of this release.
fn changed(record: &[Applied]) -> Option<i64> {
    let other = |row: &&Applied| {
        let own = MIGRATOR.iter().find(|migration| migration.version == row.version);
        row.success && own.is_some_and(|own| *own.checksum != *row.checksum)
    };
    record.iter().find(other).map(|row| row.version)
}

/// The number up to which all migrations of this release are applied. Some numbers are not used.
fn version(record: &[Applied]) -> i64 {
    let is_applied = |version: &i64| record.iter().any(|row| row.success && row.version == *version);
    MIGRATOR.iter().map(|migration| migration.version).take_while(is_applied).last().unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rows: &[(i64, bool)]) -> Vec<Applied> {
        let row = |(version, success): &(i64, bool)| Applied {
            version: *version,
            description: String::new(),
            success: *success,
            checksum: MIGRATOR
                .iter()
                .find(|own| own.version == *version)
                .map(|own| own.checksum.to_vec())
                .unwrap_or_default(),
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn the_version_is_the_number_without_a_missing_migration_before_it() {
        for (rows, expected) in [
            (&[][..], 0),
            (&[(1, true), (2, true)], 2),
            (&[(1, true), (2, false)], 1),
            (&[(1, true), (2, false), (3, true)], 1),
            (&[(1, true), (3, true)], 1),
            (&[(2, true)], 0),
        ] {
            assert_eq!(version(&record(rows)), expected, "{rows:?}");
        }
    }

    #[test]
    fn another_text_is_found_and_a_later_migration_has_none() {
        let mut rows = record(&[(1, true), (2, true), (SCHEMA_VERSION + 1, true)]);
        assert_eq!(changed(&rows), None);
        for row in &mut rows {
            row.checksum = vec![1];
        }
        assert_eq!(changed(&rows), Some(1));
    }
}
