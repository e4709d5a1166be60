//! Streams of real servers.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use mysql_outbox::config::{Inputs, load_for_database};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, AssertSqlSafe, Connection as _, Executor as _, MySqlConnection},
    store::claim::read,
};
use outbox_relay::binlog::{End, Log, Reason, Refused, RowChange, StreamEnded, What};
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    proxy::{Direction, Proxy},
    servers::{Flavor, MySqlOptions},
};

use crate::stage::{PATIENCE, account};

on_both_databases!(
    commits_come_in_their_order_and_nothing_else,
    all_changes_of_a_message_are_shown,
    contents_are_those_of_the_tables,
    a_prepared_transaction_shows_its_rows_at_its_preparation,
    each_missing_condition_is_named,
    an_account_without_the_privilege_is_named,
    another_account_may_read_the_log,
    a_stream_that_is_killed_ends,
    a_stream_without_a_sign_of_life_ends,
    a_table_that_was_changed_ends_the_stream,
    rows_without_all_columns_end_the_stream,
    what_shows_no_rows_ends_the_stream,
    a_stream_outlives_what_is_not_about_the_outbox,
);

/// Opens a stream with the login of this address.
async fn try_open(url: &str) -> Result<Log, Refused> {
    open_with(&[("RELAY__DATABASE__URL", url)]).await
}

async fn open_with(variables: &[(&str, &str)]) -> Result<Log, Refused> {
    let mut inputs = Inputs::default();
    inputs.variables.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let Ok(loaded) = load_for_database(&inputs) else { unreachable!("an address is a configuration") };
    Log::open(&loaded.config.database, "relay-1").await
}

async fn open(database: &Database) -> Result<Log> {
    Ok(try_open(database.url()).await?)
}

/// Why there is no stream.
async fn refused(url: &str) -> Result<Refused> {
    try_open(url).await.err().context("it is open")
}

/// The changes of the next transaction, in words.
async fn next(log: &mut Log) -> Result<Vec<String>> {
    let (end, changes) = match log.next().await? {
        End::Committed(changes) => ("", changes),
        End::Prepared(changes) => ("prepared: ", changes),
        End::PreparedCommitted => return Ok(vec!["a prepared one is committed".to_owned()]),
    };
    let word = |RowChange { lane, what }: &RowChange| match what {
        What::Pending(row, message) => {
            let payload =
                message.as_ref().map(|it| String::from_utf8_lossy(it.contents.payload.as_deref().unwrap_or_default()));
            format!("{end}{lane} pending {row:?} {payload:?}")
        }
        other => format!("{end}{lane} {other:?}"),
    };
    Ok(changes.iter().map(word).collect())
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
            End::Committed(changes) => ids.extend(changes.iter().filter_map(|change| match &change.what {
                What::Pending(row, _) => Some(row.id),
                _ => None,
            })),
            other => anyhow::bail!("{other:?}"),
        }
    }
    Ok(ids)
}

async fn commits_come_in_their_order_and_nothing_else(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let other = Database::create(flavor).await?;
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
    let lane = 65_535;
    let id = 1_u64 << 63 | 7;
    let key_hash = u64::MAX;
    let bytes = u32::MAX;
    let texts = [
        format!("INSERT INTO outbox_pending VALUES ({lane}, {id}, {key_hash}, {bytes}, 32768, 0)"),
        format!("UPDATE outbox_pending SET takeovers = 255 WHERE lane = {lane} AND id = {id}"),
        format!(
            "BEGIN; DELETE FROM outbox_pending; INSERT INTO outbox_delayed (lane, id, key_hash, due_at, holds_key, \
             reason) \
             VALUES ({lane}, {id}, {key_hash}, '9999-12-31', 1, 'behind'); COMMIT"
        ),
        "DELETE FROM outbox_delayed".to_owned(),
        // It holds no key.
        format!(
            "INSERT INTO outbox_dead VALUES ({lane}, {id}, {key_hash}, 0, 0, '2026-01-01', 0, 'rejected', NULL, 'a')"
        ),
        format!(
            "INSERT INTO outbox_claims VALUES ({id}, {lane}, 'a', {key_hash}, '2026-01-01', '2026-01-01', '[]', '', 1, \
             9)"
        ),
        "UPDATE outbox_claims SET kind = 2".to_owned(),
    ];
    for text in &texts {
        database.execute(text).await?;
    }
    let row = |takeovers| {
        format!(
            "{lane} pending Pending {{ id: {id}, key_hash: {key_hash}, bytes: {bytes}, attempts: 32768, takeovers: \
             {takeovers} }} None"
        )
    };
    let [removed, claimed, ended] = [format!("{lane} Removed({id})"), "Claimed".to_owned(), "ClaimEnded".to_owned()];
    let held = format!("Held {{ id: {id}, key_hash: {key_hash} }}");
    let lease = format!("ClaimLease {{ claim_id: {id}, lease_token: {key_hash} }}");
    let expected = [
        vec![row(0)],
        vec![removed.clone(), row(255)],
        vec![removed, format!("{lane} Holds({held})")],
        vec![format!("{lane} HoldsNoMore({held})")],
        vec![format!("{lane} {claimed}({lease}, Open)")],
        vec![format!("{lane} {ended}({lease})"), format!("{lane} {claimed}({lease}, Closed)")],
    ];
    for changes in expected {
        assert_eq!(next(&mut log).await?, changes);
    }
    Ok(())
}

/// All of a message but its times, as reads find it.
async fn contents_are_those_of_the_tables(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.plain().await?;
    let mut log = open(&database).await?;
    let full = Message::new("orders", vec![0, 255, 10]).key("k\u{e9}").event_type("t\u{fc}").content_type("a/b");
    let full = full.header("traceparent", "\u{1f600}").header("b", "\"");
    let later = Message::new("orders", "{}").expires_after(Duration::from_secs(60));
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue_all(&mut tx, [full, Message::tombstone("orders").key("k")]).await?;
    // The log leaves out the zeros at its end.
    tx.execute(
        "INSERT INTO outbox_messages (message_id, topic, payload) \
                VALUES (x'01020304050607080910111213140000', 'orders', '')",
    )
    .await?;
    tx.execute("INSERT INTO outbox_pending (id) VALUES (LAST_INSERT_ID())").await?;
    Outbox::new().enqueue(&mut tx, later).await?;
    tx.commit().await?;
    let End::Committed(changes) = log.next().await? else { anyhow::bail!("it is not committed") };
    let shown: Vec<_> = changes
        .into_iter()
        .filter_map(|change| match change.what {
            What::Pending(row, message) => Some((row.id, message)),
            _ => None,
        })
        .collect();
    let ids: Vec<u64> = shown.iter().map(|(id, _)| *id).collect();
    let mut stored = read::messages(&mut connection, &ids).await?;
    assert_eq!(shown.last().map(|(_, message)| message.is_some()), Some(false), "the database's clock decides on it");
    for ((_, message), stored) in shown.into_iter().zip(&mut stored).take(3) {
        let message = message.context("without contents")?;
        stored.waited_micros = 0;
        assert_eq!(format!("{message:?}"), format!("{stored:?}"));
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
    let row = |id| format!("0 pending Pending {{ id: {id}, key_hash: 0, bytes: 0, attempts: 0, takeovers: 0 }} None");
    assert_eq!(next(&mut log).await?, [format!("prepared: {}", row(7))]);
    connection.execute(AssertSqlSafe(format!("XA COMMIT '{name}'"))).await?;
    assert_eq!(next(&mut log).await?, ["a prepared one is committed"]);
    let insert = "INSERT INTO outbox_pending (id) VALUES (8)";
    for text in [format!("XA START '{name}'"), insert.into(), format!("XA END '{name}'")] {
        connection.execute(AssertSqlSafe(text)).await?;
    }
    connection.execute(AssertSqlSafe(format!("XA COMMIT '{name}' ONE PHASE"))).await?;
    assert_eq!(next(&mut log).await?, [row(8)]);
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
            ("rpl_semi_sync_slave_enabled", "ON", "OFF", Reason::SemiSynchronous),
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
        let refused = refused(database.url()).await.context(*name)?;
        ensure!(refused.reason == *reason && refused.to_string().contains(bad), "{name}: {refused:?}");
        database.execute(&format!("SET GLOBAL {name} = {good}")).await?;
        drop(open(&database).await.context(*name)?);
    }
    let server = MySqlOptions::new(flavor).buffer_pool_mib(64).arg("--skip-log-bin").start().await?;
    let database = Database::create_on(&server.url()).await?;
    let found = refused(database.url()).await?;
    ensure!(found.reason == Reason::Off, "{found:?}");
    let server = MySqlOptions::new(flavor).buffer_pool_mib(64).arg("--binlog-ignore-db=hidden").start().await?;
    Database::create_empty_on(&server.url()).await?.execute("CREATE DATABASE hidden").await?;
    let hidden = Database::at(&format!("{}hidden?ssl-mode=disabled", server.url()));
    outbox_core::migrate(&mut hidden.plain().await?).await?;
    let found = refused(hidden.url()).await?;
    ensure!(found.reason == Reason::Filtered, "{found:?}");
    Ok(())
}

async fn an_account_without_the_privilege_is_named(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let url = database.url_as(Account::Relay)?;
    let found = refused(&url).await?;
    ensure!(found.reason == Reason::Privilege, "{found:?}");
    let found = refused(&url.replacen(":correct", ":wrong", 1)).await?;
    ensure!(found.reason == Reason::Login && !format!("{found:?}").contains("outbox_relay"), "{found:?}");
    let mut log = try_open(&database.url_as(Account::RelayWithTail)?).await?;
    database.execute("INSERT INTO outbox_pending (id) VALUES (7)").await?;
    assert_eq!(pending(&mut log, 1).await?, [7]);
    Ok(())
}

/// The rights that `deploy/grants/tail.sql` names for an account that does nothing else.
const READER: &str = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{user}'@'%'; \
    GRANT SELECT ON outbox_messages TO '{user}'@'%'; GRANT SELECT ON outbox_pending TO '{user}'@'%'; \
    GRANT SELECT ON outbox_delayed TO '{user}'@'%'; GRANT SELECT ON outbox_dead TO '{user}'@'%'; \
    GRANT SELECT ON outbox_claims TO '{user}'@'%'";

async fn another_account_may_read_the_log(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let relay = database.url_as(Account::Relay)?;
    let reader = account(&database, READER).await?;
    let password = tempfile::NamedTempFile::new()?;
    std::fs::write(&password, reader.password().context("it has no password")?)?;
    let file = password.path().display().to_string();
    let with = |user| {
        [
            ("RELAY__DATABASE__URL", &*relay),
            ("RELAY__DATABASE__LOG_USER", user),
            ("RELAY__DATABASE__LOG_PASSWORD_FILE", &*file),
        ]
    };
    let mut log = open_with(&with(reader.username())).await?;
    database.execute("INSERT INTO outbox_pending (id) VALUES (7)").await?;
    assert_eq!(pending(&mut log, 1).await?, [7]);
    let found = open_with(&with("outbox_relay")).await.err().context("it is open")?;
    ensure!(found.reason == Reason::Login, "{found:?}");
    Ok(())
}

async fn a_stream_that_is_killed_ends(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut log = open(&database).await?;
    let thread = database.number(&flavor.streams()).await?;
    database.execute(&format!("KILL {thread}")).await?;
    let ended = log.next().await.err().context("it goes on")?;
    ensure!(matches!(ended, StreamEnded::Lost(_)), "{ended:?}");
    Ok(())
}

/// The server is behind a path that swallows everything. The relay asks for the next event again and again.
async fn a_stream_without_a_sign_of_life_ends(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let proxy = Proxy::start(database.url()).await?;
    let mut log = try_open(proxy.address()).await?;
    proxy.black_hole(Direction::ToClient);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match tokio::time::timeout(Duration::from_millis(100), log.next()).await {
            Ok(Err(StreamEnded::Lost(_))) => return Ok(()),
            Ok(other) => anyhow::bail!("{other:?}"),
            Err(_elapsed) => ensure!(Instant::now() < deadline, "it goes on"),
        }
    }
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
    drop(open(&database).await?);
    database.execute("ALTER TABLE outbox_pending DROP COLUMN bytes").await?;
    let found = refused(database.url()).await?;
    ensure!(found.to_string().contains("outbox_pending"), "{found}");
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
    let text = "INSERT INTO outbox_pending (id) VALUES (7); SET SESSION binlog_row_image = 'MINIMAL'; DELETE \
                FROM outbox_pending";
    database.execute(text).await?;
    assert_eq!(pending(&mut log, 1).await?, [7]);
    ensure!(why(&mut log).await?.contains("binlog_row_image"));
    Ok(())
}
