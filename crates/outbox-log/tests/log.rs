//! Streams of real servers.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use mysql_async::Opts;
use outbox_core::{
    Message, Outbox,
    sqlx::{self, AssertSqlSafe, Connection as _, Executor as _, MySqlConnection},
};
use outbox_log::{Change, End, Ended, Log, Pending, Reason};
use testkit::{
    database::Database,
    on_both_databases,
    servers::{Flavor, MySqlOptions},
};

on_both_databases!(
    commits_come_in_their_order_and_nothing_else,
    all_changes_of_a_message_are_shown,
    a_prepared_transaction_shows_its_rows_at_its_preparation,
    each_missing_condition_is_named,
    an_account_without_the_privilege_is_named,
    a_stream_that_is_killed_ends,
    a_table_that_was_changed_ends_the_stream,
    rows_without_all_columns_end_the_stream,
    what_shows_no_rows_ends_the_stream,
    a_stream_outlives_what_is_not_about_the_outbox,
);

/// The address and the schema of a database.
fn place(url: &str) -> Result<(Opts, String)> {
    let address = url.split('?').next().unwrap_or_default();
    let (_, schema) = address.rsplit_once('/').context("an address without a database")?;
    Ok((Opts::from_url(address)?, schema.to_owned()))
}

/// A number that no other stream has.
fn server_id() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    4_000_000_000 + NEXT.fetch_add(1, Ordering::Relaxed)
}

async fn open(database: &Database) -> Result<Log> {
    let (login, schema) = place(database.url())?;
    Ok(Log::open(login, &schema, server_id(), "relay-1").await?)
}

/// Waits until the stream has ended, and returns why.
async fn why(log: &mut Log) -> Result<String> {
    Ok(log.next().await.err().context("it goes on")?.to_string())
}

async fn enqueue(connection: &mut MySqlConnection, key: &str) -> Result<()> {
    Outbox::new().enqueue(connection, Message::new("orders", "{}").key(key)).await?;
    Ok(())
}

/// The ids of the messages that the next transactions make pending.
async fn pending(log: &mut Log, transactions: usize) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for _ in 0..transactions {
        match log.next().await? {
            End::Committed(changes) => ids.extend(changes.iter().filter_map(|change| match change {
                Change::Pending(Pending { id, .. }) => Some(*id),
                _ => None,
            })),
            other => anyhow::bail!("{other:?}"),
        }
    }
    Ok(ids)
}

async fn commits_come_in_their_order_and_nothing_else(flavor: Flavor) -> Result<()> {
    let (database, other) = (Database::create(flavor).await?, Database::create(flavor).await?);
    let mut early = database.plain().await?;
    let mut connection = database.plain().await?;
    let mut tx = connection.begin().await?;
    enqueue(&mut tx, "before").await?;
    tx.commit().await?;
    let mut log = open(&database).await?;
    // It has the lowest id of those that the stream shows, and is committed last.
    let mut last = early.begin().await?;
    enqueue(&mut last, "last").await?;
    let mut tx = connection.begin().await?;
    enqueue(&mut tx, "rolled back").await?;
    tx.rollback().await?;
    let mut tx = connection.begin().await?;
    enqueue(&mut tx, "first").await?;
    tx.execute("SAVEPOINT here").await?;
    enqueue(&mut tx, "undone").await?;
    tx.execute("ROLLBACK TO SAVEPOINT here").await?;
    enqueue(&mut tx, "second").await?;
    tx.commit().await?;
    let mut elsewhere = other.plain().await?;
    let mut tx = elsewhere.begin().await?;
    enqueue(&mut tx, "elsewhere").await?;
    tx.commit().await?;
    database.execute("CREATE TABLE beside (id INT); INSERT INTO beside VALUES (1)").await?;
    if flavor == Flavor::MySql {
        connection.execute("SET SESSION binlog_transaction_compression = ON").await?;
    }
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue_all(&mut tx, (0..1000).map(|_| Message::new("orders", vec![b'x'; 2000]))).await?;
    tx.commit().await?;
    last.commit().await?;
    let found = pending(&mut log, 3).await?;
    let keys = "SELECT CAST(message_key AS CHAR) FROM outbox_messages WHERE id = ?";
    let mut names = Vec::new();
    for id in found.first_chunk::<2>().into_iter().flatten().chain(found.last()) {
        names.push(sqlx::query_scalar::<_, String>(keys).bind(id).fetch_one(&mut connection).await?);
    }
    assert_eq!(names, ["first", "second", "last"]);
    assert_eq!(found.len(), 1003);
    let all: BTreeSet<u64> = found.into_iter().collect();
    let tables = database.number("SELECT COUNT(*) FROM outbox_pending").await?;
    assert_eq!((all.len(), tables), (1003, 1004), "the one from before is not shown");
    Ok(())
}

async fn all_changes_of_a_message_are_shown(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut log = open(&database).await?;
    // Each number with its highest bit: the log of MariaDB does not say that they have no sign.
    let (lane, id, key_hash, bytes) = (65_535, 1 << 63 | 7, u64::MAX, u32::MAX);
    let texts = [
        format!("INSERT INTO outbox_pending VALUES ({lane}, {id}, {key_hash}, {bytes}, 32768, 0)"),
        format!("UPDATE outbox_pending SET takeovers = 255 WHERE lane = {lane} AND id = {id}"),
        format!(
            "BEGIN; DELETE FROM outbox_pending; INSERT INTO outbox_delayed (lane, id, key_hash, due_at, holds_key, reason) \
             VALUES ({lane}, {id}, {key_hash}, '9999-12-31', 1, 'behind'); COMMIT"
        ),
        "DELETE FROM outbox_delayed".to_owned(),
        format!(
            "INSERT INTO outbox_dead VALUES ({lane}, {id}, {key_hash}, 0, 0, '2026-01-01', 0, 'rejected', NULL, 'a')"
        ),
    ];
    for text in &texts {
        database.execute(text).await?;
    }
    let row = |takeovers| Pending { lane, id, key_hash, bytes, attempts: 32_768, takeovers };
    let waits = |holds_key| outbox_log::Waiting { lane, id, key_hash, holds_key };
    let expected = [
        vec![Change::Pending(row(0))],
        vec![Change::Removed(row(0)), Change::Pending(row(255))],
        vec![Change::Removed(row(255)), Change::Waits(waits(true))],
        vec![Change::WaitsNoMore(waits(true))],
        vec![Change::Waits(waits(false))],
    ];
    for changes in expected {
        assert_eq!(log.next().await?, End::Committed(changes));
    }
    Ok(())
}

async fn a_prepared_transaction_shows_its_rows_at_its_preparation(flavor: Flavor) -> Result<()> {
    let server = MySqlOptions::new(flavor).buffer_pool_mib(64).start().await?;
    let database = Database::create_on(&server.url()).await?;
    let mut connection = database.plain().await?;
    let mut log = open(&database).await?;
    let insert = "INSERT INTO outbox_pending (id) VALUES (7)";
    let name = "a";
    for text in
        [format!("XA START '{name}'"), insert.into(), format!("XA END '{name}'"), format!("XA PREPARE '{name}'")]
    {
        connection.execute(AssertSqlSafe(text)).await?;
    }
    let row = Pending { lane: 0, id: 7, key_hash: 0, bytes: 0, attempts: 0, takeovers: 0 };
    assert_eq!(log.next().await?, End::Prepared(vec![Change::Pending(row)]));
    connection.execute(AssertSqlSafe(format!("XA COMMIT '{name}'"))).await?;
    assert_eq!(log.next().await?, End::PreparedCommitted);
    let row = Pending { id: 8, ..row };
    let insert = "INSERT INTO outbox_pending (id) VALUES (8)";
    for text in [format!("XA START '{name}'"), insert.into(), format!("XA END '{name}'")] {
        connection.execute(AssertSqlSafe(text)).await?;
    }
    connection.execute(AssertSqlSafe(format!("XA COMMIT '{name}' ONE PHASE"))).await?;
    assert_eq!(log.next().await?, End::Committed(vec![Change::Pending(row)]));
    Ok(())
}

async fn each_missing_condition_is_named(flavor: Flavor) -> Result<()> {
    let server = MySqlOptions::new(flavor).buffer_pool_mib(64).start().await?;
    let database = Database::create_on(&server.url()).await?;
    drop(open(&database).await?);
    let both = [
        ("binlog_format", "MIXED", "ROW", Reason::Format),
        ("binlog_row_image", "MINIMAL", "FULL", Reason::Image),
        ("sync_binlog", "0", "1", Reason::NotDurable),
        ("innodb_flush_log_at_trx_commit", "2", "1", Reason::NotDurable),
    ];
    let own: &[_] = match flavor {
        Flavor::MySql => &[("binlog_order_commits", "OFF", "ON", Reason::Unordered)],
        Flavor::MariaDb => &[
            ("log_bin_compress", "ON", "OFF", Reason::Compressed),
            (
                "rpl_semi_sync_master_enabled = ON, GLOBAL rpl_semi_sync_master_wait_point",
                "AFTER_SYNC",
                "AFTER_COMMIT",
                Reason::SemiSynchronous,
            ),
        ],
    };
    for (name, bad, good, reason) in both.iter().chain(own) {
        database.execute(&format!("SET GLOBAL {name} = {bad}")).await?;
        let (login, schema) = place(database.url())?;
        let refused = Log::open(login, &schema, server_id(), "").await.err().context(*name)?;
        ensure!(refused.reason == *reason && refused.to_string().contains(bad), "{name}: {refused:?}");
        database.execute(&format!("SET GLOBAL {name} = {good}")).await?;
        drop(open(&database).await.context(*name)?);
    }
    let server = MySqlOptions::new(flavor).buffer_pool_mib(64).arg("--skip-log-bin").start().await?;
    let database = Database::create_on(&server.url()).await?;
    let (login, schema) = place(database.url())?;
    let refused = Log::open(login, &schema, server_id(), "").await.err().context("no log")?;
    ensure!(refused.reason == Reason::Off, "{refused:?}");
    let server = MySqlOptions::new(flavor).buffer_pool_mib(64).arg("--binlog-ignore-db=hidden").start().await?;
    Database::create_empty_on(&server.url()).await?.execute("CREATE DATABASE hidden").await?;
    let hidden = Database::at(&format!("{}hidden?ssl-mode=disabled", server.url()));
    outbox_core::migrate(&mut hidden.plain().await?).await?;
    let (login, schema) = place(hidden.url())?;
    let refused = Log::open(login, &schema, server_id(), "").await.err().context("a hidden schema")?;
    ensure!(refused.reason == Reason::Filtered, "{refused:?}");
    Ok(())
}

async fn an_account_without_the_privilege_is_named(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let (_, schema) = place(database.url())?;
    let account = format!("'{}'@'%'", schema.chars().rev().take(30).collect::<String>());
    let user = account.split('\'').nth(1).unwrap_or_default();
    database
        .execute(&format!("CREATE USER {account} IDENTIFIED BY 'secret'; GRANT SELECT ON {schema}.* TO {account}"))
        .await?;
    let (login, schema) = place(&database.url().replacen("root@", &format!("{user}:secret@"), 1))?;
    let refused = Log::open(login.clone(), &schema, server_id(), "").await.err().context("no privilege")?;
    ensure!(refused.reason == Reason::Privilege, "{refused:?}");
    let wrong = mysql_async::OptsBuilder::from_opts(login.clone()).pass(Some("wrong"));
    let refused = Log::open(wrong.into(), &schema, server_id(), "").await.err().context("no login")?;
    ensure!(refused.reason == Reason::Privilege, "{refused:?}");
    database.execute(&format!("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {account}")).await?;
    let mut log = Log::open(login, &schema, server_id(), "").await?;
    database.execute("INSERT INTO outbox_pending (id) VALUES (7)").await?;
    assert_eq!(pending(&mut log, 1).await?, [7]);
    Ok(())
}

async fn a_stream_that_is_killed_ends(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut log = open(&database).await?;
    let (_, schema) = place(database.url())?;
    let find = format!(
        "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE db = '{schema}' AND command LIKE 'Binlog Dump%'"
    );
    let thread = database.number(&find).await?;
    database.execute(&format!("KILL {thread}")).await?;
    let ended = log.next().await.err().context("it goes on")?;
    ensure!(matches!(ended, Ended::Lost(_)), "{ended:?}");
    Ok(())
}

async fn a_table_that_was_changed_ends_the_stream(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut log = open(&database).await?;
    database.execute("ALTER TABLE outbox_pending MODIFY bytes BIGINT UNSIGNED NOT NULL DEFAULT 0").await?;
    database.execute("INSERT INTO outbox_pending (id) VALUES (7)").await?;
    ensure!(why(&mut log).await?.contains("changes tables"));
    let mut log = open(&database).await?;
    database.execute("INSERT INTO outbox_pending (id) VALUES (8)").await?;
    ensure!(why(&mut log).await?.contains("outbox_pending.bytes"));
    database.execute("ALTER TABLE outbox_pending ADD COLUMN beside INT").await?;
    let (login, schema) = place(database.url())?;
    drop(Log::open(login, &schema, server_id(), "").await?);
    database.execute("ALTER TABLE outbox_pending DROP COLUMN bytes").await?;
    let (login, schema) = place(database.url())?;
    let refused = Log::open(login, &schema, server_id(), "").await.err().context("a table without a column")?;
    ensure!(refused.to_string().contains("outbox_pending"), "{refused}");
    Ok(())
}

/// Statements in place of rows, and a rollback to a savepoint that stays in the log.
async fn what_shows_no_rows_ends_the_stream(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute("CREATE TABLE beside (id INT) ENGINE = MyISAM").await?;
    let insert = |id: u64| format!("INSERT INTO outbox_pending (id) VALUES ({id})");
    let mut log = open(&database).await?;
    database.execute(&format!("SET SESSION binlog_format = STATEMENT; {}", insert(1))).await?;
    ensure!(why(&mut log).await?.contains("binlog_format"));
    if flavor == Flavor::MySql {
        // With GTIDs it refuses such transactions.
        return Ok(());
    }
    let mut log = open(&database).await?;
    let text = format!(
        "BEGIN; {}; SAVEPOINT s; INSERT INTO beside VALUES (1); {}; ROLLBACK TO s; COMMIT",
        insert(2),
        insert(3)
    );
    database.execute(&text).await?;
    ensure!(why(&mut log).await?.contains("SAVEPOINT"));
    Ok(())
}

/// Heartbeats, other files, other numbers of the tables, transactions of others, tables of the service.
async fn a_stream_outlives_what_is_not_about_the_outbox(flavor: Flavor) -> Result<()> {
    let server = MySqlOptions::new(flavor).buffer_pool_mib(64).start().await?;
    let database = Database::create_on(&server.url()).await?;
    let mut log = open(&database).await?;
    let quiet = tokio::time::timeout(Duration::from_secs(7), log.next()).await;
    ensure!(quiet.is_err(), "{quiet:?}");
    let mut log = open(&database).await?;
    let mut connection = database.plain().await?;
    for text in [
        "FLUSH BINARY LOGS",
        "FLUSH TABLES",
        "CREATE TABLE beside (id INT)",
        "XA START 'a', 'b', 7",
        "INSERT INTO beside VALUES (1)",
        "XA END 'a', 'b', 7",
        "XA PREPARE 'a', 'b', 7",
        "XA COMMIT 'a', 'b', 7",
        "XA START 'c'",
        "INSERT INTO beside VALUES (2)",
        "XA END 'c'",
        "XA PREPARE 'c'",
        "XA ROLLBACK 'c'",
        "DROP TABLE beside",
        "INSERT INTO outbox_pending (id) VALUES (7)",
    ] {
        connection.execute(text).await.context(text)?;
    }
    assert_eq!(pending(&mut log, 1).await?, [7]);
    Ok(())
}

async fn rows_without_all_columns_end_the_stream(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut log = open(&database).await?;
    let text = "INSERT INTO outbox_pending (id) VALUES (7); SET SESSION binlog_row_image = 'MINIMAL'; DELETE FROM outbox_pending";
    database.execute(text).await?;
    assert_eq!(pending(&mut log, 1).await?, [7]);
    ensure!(why(&mut log).await?.contains("binlog_row_image"));
    Ok(())
}
