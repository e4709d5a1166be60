//! The next release's migrations: additions to every table that programs write, made for tests.

use anyhow::Result;
use outbox_core::SCHEMA_VERSION;

use crate::database::Database;

macro_rules! add {
    ($table:literal) => {
        concat!(
            "ALTER TABLE ",
            $table,
            " ADD COLUMN next_note TINYINT UNSIGNED NOT NULL DEFAULT 0, ALGORITHM = INSTANT;\n"
        )
    };
}

/// Number, name and text of each.
pub const NEXT: [(i64, &str, &str); 7] = [
    (SCHEMA_VERSION + 1, "next_messages", add!("outbox_messages")),
    (SCHEMA_VERSION + 2, "next_pending", add!("outbox_pending")),
    (SCHEMA_VERSION + 3, "next_delayed", add!("outbox_delayed")),
    (SCHEMA_VERSION + 4, "next_claims", add!("outbox_claims")),
    (SCHEMA_VERSION + 5, "next_sent", add!("outbox_sent")),
    (SCHEMA_VERSION + 6, "next_inbox", add!("inbox_processed")),
    (
        SCHEMA_VERSION + 7,
        "next_table",
        "CREATE TABLE outbox_next (\n  id INT NOT NULL,\n  PRIMARY KEY (id)\n) ENGINE = InnoDB;\n",
    ),
];

/// Migrates a database as the next release does.
///
/// # Errors
/// When a migration cannot be applied.
pub async fn to_next(database: &Database) -> Result<()> {
    let mut connection = database.connect().await?;
    Ok(outbox_core::migrate_with(&mut connection, &NEXT).await?)
}
