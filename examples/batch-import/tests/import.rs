//! The program imports a file as a whole, or not at all.

use std::{
    io::Write as _,
    process::{Command, Output},
};

use anyhow::{Result, ensure};
use tempfile::NamedTempFile;
use testkit::{accounts::Account, database::Database, servers::Flavor};

const ORDERS: u64 = 10_000;

/// Writes a file of this many orders. Line 1 is the header, so order `n` is on line `n + 1`.
fn lines() -> Vec<String> {
    let order = |id: u64| format!("{id},{},{}", id % 97, id * 7);
    std::iter::once("id,customer,cents".to_owned()).chain((1..=ORDERS).map(order)).collect()
}

fn import(database: &Database, lines: &[String]) -> Result<Output> {
    let mut file = NamedTempFile::new()?;
    writeln!(file, "{}", lines.join("\n"))?;
    let mut program = Command::new(env!("CARGO_BIN_EXE_batch-import"));
    Ok(program.env("DATABASE_URL", database.url_as(Account::Owner)?).arg(file.path()).output()?)
}

/// Returns the numbers of orders, of messages, and of due messages.
async fn counts(database: &Database) -> Result<[i64; 3]> {
    Ok([
        database.number("SELECT COUNT(*) FROM orders").await?,
        database.number("SELECT COUNT(*) FROM outbox_messages").await?,
        database.number("SELECT COUNT(*) FROM outbox_pending").await?,
    ])
}

/// Returns the program's error for a file that it refuses.
fn refusal(output: &Output) -> Result<String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && output.stdout.is_empty(), "it was imported");
    Ok(errors.into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_order_of_the_file_is_there_with_its_message() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let output = import(&database, &lines())?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "10000 orders, 10000 messages\n");
    assert_eq!(counts(&database).await?, [10_000; 3]);
    let told = "SELECT COUNT(DISTINCT o.id) FROM outbox_messages m \
                JOIN orders o ON o.id = CAST(JSON_EXTRACT(CONVERT(m.payload USING utf8mb4), '$.id') AS UNSIGNED) \
                WHERE m.topic = 'orders' AND m.event_type = 'order.placed' \
                AND CONVERT(m.message_key USING utf8mb4) = o.customer \
                AND JSON_EXTRACT(CONVERT(m.payload USING utf8mb4), '$.cents') = o.cents";
    assert_eq!(database.number(told).await?, 10_000);

    // The same file again: the database refuses its first order, and nothing is there twice.
    let refusal = refusal(&import(&database, &lines())?)?;
    ensure!(refusal.contains("lines 2 to 1001"), "{refusal}");
    assert_eq!(counts(&database).await?, [10_000; 3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_line_leaves_nothing_and_is_named() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    for (bad, complaint) in [
        ("9000,1,9.95", "column 3 (cents): \"9.95\" is not a whole number"),
        ("9000,,995", "column 2 (customer): \"\" is not a whole number"),
        ("-1,1,995", "column 1 (id): \"-1\" is not a whole number"),
        ("9000,1", "3 columns, and here are 2"),
        ("", "3 columns, and here are 1"),
    ] {
        let mut lines = lines();
        lines[9000] = bad.to_owned();
        let refusal = refusal(&import(&database, &lines)?)?;
        ensure!(refusal.contains("line 9001\n") && refusal.contains(complaint), "{bad}: {refusal}");
        assert_eq!(counts(&database).await?, [0; 3], "{bad}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_in_the_file_twice_leaves_nothing() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut lines = lines();
    lines.push("1,1,995".to_owned());
    let refusal = refusal(&import(&database, &lines)?)?;
    ensure!(refusal.contains("lines 10002 to 10002") && refusal.contains("Duplicate entry '1'"), "{refusal}");
    assert_eq!(counts(&database).await?, [0; 3]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_its_header_is_not_read() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let refusal = refusal(&import(&database, &lines()[1..])?)?;
    ensure!(refusal.contains("line 1 must be id,customer,cents"), "{refusal}");
    assert_eq!(counts(&database).await?, [0; 3]);
    Ok(())
}
