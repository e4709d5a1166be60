//! The example runs as its README says, and finds its rows.

use std::process::Command;

use anyhow::{Result, ensure};
use testkit::{accounts::Account, database::Database, on_both_databases, servers::Flavor};

on_both_databases!(the_example_writes_both_or_neither_and_has_one_effect);

async fn the_example_writes_both_or_neither_and_has_one_effect(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let url = database.url_as(Account::Owner)?;
    let address = url.split('?').next().unwrap_or_default();
    let output = Command::new(env!("CARGO_BIN_EXE_example-sqlx-0-8")).env("DATABASE_URL", address).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 order, 1 message, 1 invoice\n");
    // Another connection sees that the message of the committed order is due, and billed.
    let sql = "SELECT COUNT(*) FROM orders o JOIN outbox_messages m ON m.message_key = CAST(o.id AS CHAR) \
               JOIN outbox_pending p ON p.id = m.id JOIN inbox_processed i ON i.message_id = m.message_id \
               JOIN invoices v ON v.order_id = o.id AND v.cents = o.cents \
               WHERE p.key_hash <> 0 AND p.bytes > 0 AND i.consumer = 'billing'";
    assert_eq!(database.number(sql).await?, 1);
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_messages").await?, 1);
    Ok(())
}
