/// Why the tables could not be migrated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Another session migrates.
    #[error("another session has been migrating this database for ten minutes: wait until it has ended, and try again")]
    Busy,
    /// A migration was recorded with another text than this release has.
    #[error(
        "migration {version} was applied with another text than this release has, so these tables were made by another \
         build: install that one, or run `relay migrate baseline`, which compares the tables themselves"
    )]
    Changed {
        /// The number of that migration.
        version: i64,
    },
    /// Tables or views of these names belong to something else.
    #[error(
        "nothing was changed, because names of the outbox are taken: {differences}. Rename what is the service's own, \
         or keep the outbox in a database of its own"
    )]
    Taken {
        /// The existing object, and its differences.
        differences: String,
    },
    /// The tables differ from those of the migrations.
    #[error("nothing was changed, because the tables are not as `relay migrate sql` prints them: {differences}")]
    Differs {
        /// The existing object, and its differences.
        differences: String,
    },
    /// The pages of the server are too small for the keys of the tables.
    #[error(
        "nothing was changed, because the server's innodb_page_size is {bytes}: the keys of the tables need 16384 or \
         more. The size is set when a server's data folder is made, so use another server"
    )]
    SmallPages {
        /// The size of a page.
        bytes: u64,
    },
    /// The account lacks privileges.
    #[error("nothing was changed, because the account needs the privileges of deploy/grants/migrator.sql: {denied}")]
    Denied {
        /// The server's error text.
        denied: String,
    },
    /// A table was in use all the time.
    #[error(
        "migration {version} waited {tries} times in vain for the table {table}: end the transaction that holds it \
         open, and run `relay migrate up` again"
    )]
    Locked {
        /// The number of the migration.
        version: i64,
        /// The table.
        table: String,
        /// The number of tries.
        tries: u32,
    },
    /// The server would have to copy a table.
    #[error(
        "migration {version} cannot be done at once ({reason}): the server has to copy the table {table}, about {rows} \
         rows and {mebibytes} MiB. Do that at a quiet time, or with a tool such as gh-ost: `relay migrate sql --after \
         {}` prints the statement, for use without ALGORITHM. Then run `relay migrate up` again", version - 1
    )]
    Copies {
        /// The number of the migration.
        version: i64,
        /// The table.
        table: String,
        /// Its approximate number of rows.
        rows: u64,
        /// Its approximate size with its keys, in MiB.
        mebibytes: u64,
        /// The server's error text.
        reason: String,
    },
    /// The server refused the statement.
    #[error("migration {version} was refused")]
    Refused {
        /// The number of the migration.
        version: i64,
        /// The server's error text.
        source: sqlx::Error,
    },
    /// A call of the database failed.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}
