//! The example runs as its README says, and finds its rows.

use std::process::Command;

use anyhow::{Result, ensure};
use testkit::{accounts::Account, database::Database, servers::Flavor};

#[tokio::test(flavor = "multi_thread")]
async fn the_example_writes_both_or_neither() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let url = database.url_as(Account::Owner)?;
    let address = url.split('?').next().unwrap_or_default();
    let output = Command::new(env!("CARGO_BIN_EXE_example-diesel")).env("DATABASE_URL", address).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 order, 1 message\n");
    // Another connection sees that the message of the committed order is due.
    let sql = "SELECT COUNT(*) FROM orders o JOIN outbox_messages m ON m.message_key = CAST(o.id AS CHAR) \
               JOIN outbox_pending p ON p.id = m.id WHERE p.key_hash <> 0 AND p.bytes > 0 \
               AND JSON_EXTRACT(CONVERT(m.payload USING utf8mb4), '$.cents') = o.cents";
    assert_eq!(database.number(sql).await?, 1);
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_messages").await?, 1);
    Ok(())
}
