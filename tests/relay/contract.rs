//! A service in any language. It runs the table contract's own SQL by the command line client, with the account of
//! `deploy/grants`. Its messages are delivered like those of the library.

use std::{io::Write as _, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    key_hash,
    sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection},
};
use testkit::{
    consume::Broker,
    judge::Expectations,
    ledger::Draft,
    on_both_databases,
    servers::{Flavor, mysql_client},
};
use url::Url;

use crate::stage::{PATIENCE, Stage, account, sql_block};

on_both_databases!(numbers_and_delays_that_the_text_writes_are_kept, the_receivers_text_has_one_effect);

const PAGE: &str = include_str!("../../docs/table-contract.md");
const GRANTS: &str = include_str!("../../deploy/grants/service.sql");

fn block(text: &str) -> Result<&'static str> {
    sql_block(PAGE, text)
}

/// Returns the page's transaction with the values of a draft in place of the page's, and the test's business table.
fn script(draft: &Draft) -> Result<String> {
    let value = |text: Option<&str>| text.map_or_else(|| "NULL".to_owned(), |text| format!("'{text}'"));
    let bytes = |bytes: &Option<Vec<u8>>| anyhow::Ok(value(bytes.as_deref().map(str::from_utf8).transpose()?));
    let page = block("START TRANSACTION")?;
    let headers = draft.headers.iter();
    let headers: Vec<_> = headers.map(|(name, value)| format!("\"{name}\":\"{value}\"")).collect();
    let headers = (!headers.is_empty()).then(|| format!("{{{}}}", headers.join(",")));
    let values = format!(
        "SET @message_id = 0x{}, @topic = '{}', @key = {}, @type = {}, @headers = {}, @payload = {}, @due_at = NULL;\n",
        draft.id.simple(),
        draft.topic,
        bytes(&draft.key)?,
        value(draft.event_type.as_deref()),
        value(headers.as_deref()),
        bytes(&draft.payload)?,
    );
    let (_, transaction) = page.split_once("START TRANSACTION").context("no transaction")?;
    let business = "INSERT INTO orders (id, cents) VALUES (42, 995);";
    ensure!(transaction.contains(business), "the page writes another business row");
    let own = "INSERT INTO test_orders (message_id) VALUES (@message_id);";
    Ok(format!("{values}START TRANSACTION{}", transaction.replace(business, own)))
}

/// Does the same, with the page's number of the key as a header.
fn numbered(draft: &Draft) -> Result<String> {
    let header = "SET @headers = JSON_SET(@headers, '$.sequence', CAST(LAST_INSERT_ID() AS CHAR));";
    let begin = "START TRANSACTION;";
    let number = block("INSERT INTO outbox_key_sequence")?;
    Ok(script(draft)?.replace(begin, &format!("{begin}\n{number}{header}")))
}

/// Does the same, with the page's row for a later time in place of the pending one.
fn delayed(draft: &Draft) -> Result<String> {
    let script = script(draft)?;
    let row = block("INSERT INTO outbox_delayed")?;
    let (before, _) = script.split_once("INSERT INTO outbox_pending").context("no pending row")?;
    let (values, transaction) = before.split_once("START").context("no transaction")?;
    Ok(format!("{values}{}START{transaction}{row}COMMIT;\n", block("SET @due_at")?))
}

/// Runs SQL with only the client `mysql`, as an account with the grants of `service.sql` and on the business table. The
/// unpacked client is too new to log in to MariaDB, where sqlx sends the same text.
async fn run(stage: &Stage, flavor: Flavor, sql: &str) -> Result<()> {
    let grants = GRANTS.replace("outbox_service", "{user}");
    let url = account(&stage.database, &(grants + "GRANT INSERT ON test_orders TO '{user}'@'%'")).await?;
    let ran = match flavor {
        Flavor::MySql => client(&url, sql),
        Flavor::MariaDb => send(&url, sql).await,
    };
    stage.database.execute(&format!("DROP USER '{}'@'%'", url.username())).await?;
    ran
}

async fn send(url: &Url, sql: &str) -> Result<()> {
    let mut connection = MySqlConnection::connect(url.as_str()).await?;
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
    Ok(connection.close().await?)
}

fn client(url: &Url, sql: &str) -> Result<()> {
    let host = url.host_str().context("no host")?;
    let port = url.port().context("no port")?.to_string();
    let database = url.path().trim_start_matches('/');
    let password = format!("--password={}", url.password().context("no password")?);
    let user = ["-u", url.username(), &password];
    let connection = [["--no-defaults", "--protocol=TCP", "-h"], [host, "-P", &port], user].concat();
    let mut command = mysql_client(&connection)?;
    command.args(["--default-character-set=utf8mb4", database]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no stdin")?.write_all(sql.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn draft(topic: &str, sequence: u64) -> Draft {
    Draft::new(topic, format!("{{\"n\":{sequence},\"name\":\"größe 🦀\"}}"))
        .key("größe", sequence)
        .described("order.placed.v1", "application/json")
        .header("tenant", "ü")
        .header("a", "b")
}

async fn what_the_text_writes_is_delivered(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let topic = stage.topic.name().to_owned();
    let mut drafts: Vec<Draft> = (1..=3).map(|sequence| draft(&topic, sequence)).collect();
    // Without key, headers and type.
    drafts.push(Draft { content_type: Some("application/json".to_owned()), ..Draft::new(&topic, "{}") });
    let opened = stage.ledger.open(&drafts);
    let sql = drafts.iter().map(script).collect::<Result<String>>()?;
    run(&stage, flavor, &sql).await?;
    opened.committed();
    let hash = key_hash(&topic, Some("größe".as_bytes()));
    let same = format!("SELECT COUNT(*) FROM outbox_pending WHERE key_hash = {hash}");
    assert_eq!(stage.database.number(&same).await?, 3, "the page computes another hash");
    let size = "SELECT COUNT(*) FROM outbox_pending JOIN outbox_messages m USING (id) \
                WHERE bytes >= COALESCE(LENGTH(m.message_key), 0) + LENGTH(m.payload)";
    assert_eq!(stage.database.number(size).await?, 4, "the page counts too few bytes");
    assert_eq!(stage.database.number("SELECT COUNT(*) FROM outbox_pending WHERE key_hash = 0").await?, 1);
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(4)).await
}

/// The judge finds an unexpected number, because it compares the headers.
async fn numbers_and_delays_that_the_text_writes_are_kept(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let topic = stage.topic.name().to_owned();
    let first = draft(&topic, 1);
    let second = draft(&topic, 2);
    let later = Draft { sequence: None, ..draft(&topic, 3) };
    let sql = [numbered(&first)?, numbered(&second)?, delayed(&later)?].concat();
    let opened = stage.ledger.open(&[first.header("sequence", "1"), second.header("sequence", "2"), later]);
    run(&stage, flavor, &sql).await?;
    opened.committed();
    let _relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 2 FROM outbox_sent_messages").await?;
    let waits = format!(
        "SELECT COUNT(*) FROM outbox_delayed d JOIN outbox_messages m USING (id) \
         WHERE d.due_at = m.due_at AND d.due_at >= m.created_at + INTERVAL 59 MINUTE AND key_hash = {}",
        key_hash(&topic, Some("größe".as_bytes()))
    );
    assert_eq!(stage.database.number(&waits).await?, 1, "it does not wait for its hour");
    stage.database.execute("UPDATE outbox_delayed SET due_at = UTC_TIMESTAMP(6)").await?;
    stage.drain_and_judge(&Expectations::new().at_least(3)).await
}

/// A message comes twice. The second time the server refuses it, by the error that the page names.
async fn the_receivers_text_has_one_effect(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let (page, business) =
        (block("INSERT INTO inbox_processed")?, "INSERT INTO invoices (order_id, cents) VALUES (42, 995);");
    ensure!(page.contains(business), "the page does another work");
    let text = page.replace(business, "INSERT INTO test_orders (message_id) VALUES (UNHEX(REPLACE(UUID(), '-', '')));");
    run(&stage, flavor, &text).await?;
    let refused = run(&stage, flavor, &text).await.err().context("the message was processed twice")?;
    ensure!(format!("{refused:#}").contains("1062"), "{refused:#}");
    assert_eq!(stage.database.number("SELECT COUNT(*) FROM test_orders").await?, 1);
    Ok(())
}

#[tokio::test]
async fn what_the_command_line_client_enqueues_is_delivered() -> Result<()> {
    what_the_text_writes_is_delivered(Flavor::MySql).await
}

#[tokio::test]
async fn what_the_same_text_enqueues_into_mariadb_is_delivered() -> Result<()> {
    what_the_text_writes_is_delivered(Flavor::MariaDb).await
}

#[test]
fn the_page_has_the_grants_of_the_file_and_every_column() -> Result<()> {
    let page = block("GRANT INSERT")?;
    for line in page.lines().filter(|line| line.starts_with("GRANT")) {
        ensure!(GRANTS.lines().any(|own| own == line), "{line} is not in deploy/grants/service.sql");
    }
    let columns = outbox_core::MIGRATIONS.iter().flat_map(|(_, _, sql)| sql.split("CREATE TABLE ").skip(1));
    let written = ["outbox_messages", "outbox_pending", "outbox_delayed", "outbox_key_sequence", "inbox_processed"];
    for table in columns.filter(|table| written.iter().any(|name| table.starts_with(name))) {
        let lines = table.lines().skip(1).take_while(|line| !line.starts_with(')'));
        for column in
            lines.filter_map(|line| line.split_whitespace().next()).filter(|word| *word == word.to_lowercase())
        {
            ensure!(PAGE.contains(&format!("| `{column}` |")), "the page does not describe the column {column}");
        }
    }
    Ok(())
}
