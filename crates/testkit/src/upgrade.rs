//! The next release's migrations, made for tests: additions to every table that programs write.

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

/// The number, name and text of each migration.
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

/// Whether a packet makes the server change something for a migration: its statement, or its row in the record.
#[must_use]
pub fn changes(packet: &[u8]) -> bool {
    let text = String::from_utf8_lossy(packet);
    // A CREATE statement with a duplicate column only asks for privileges.
    let creates = text.contains("CREATE ") && !text.contains("a INT, a INT") && !text.contains("1 AS a, 1 AS a");
    // COM_QUERY with a statement of a migration, or COM_STMT_EXECUTE with the name of one.
    match packet.get(4) {
        Some(3) => creates || writes_rows(packet) || text.contains("ADD COLUMN"),
        Some(0x17) => packet.len() > 80,
        _ => false,
    }
}

/// Whether a packet is a migration's statement that writes rows: without its record it is repeated.
#[must_use]
pub fn writes_rows(packet: &[u8]) -> bool {
    String::from_utf8_lossy(packet).contains("INSERT IGNORE INTO")
}
