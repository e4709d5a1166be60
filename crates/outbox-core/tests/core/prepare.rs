//! Prepared statements write what `enqueue` writes.

use std::{
    mem::swap,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use outbox_core::{
    Bind, Claim, EnqueueError, Inbox, Message, Outbox, Statement, Uuid, key_hash,
    sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection, Row as _, mysql::MySqlDatabaseError},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    prepared_statements_write_what_enqueue_writes,
    a_prepared_batch_keeps_the_order_of_its_messages_in_few_statements,
    prepared_statements_find_their_rows_whatever_runs_between_them,
    a_message_that_is_not_there_is_not_made_due,
    the_inboxs_statement_claims_once,
    a_message_that_is_too_large_is_not_prepared,
);

async fn execute(conn: &mut MySqlConnection, statement: Statement) -> Result<()> {
    let mut query = sqlx::query(statement.sql);
    for bind in statement.binds {
        query = match bind {
            Bind::Null => query.bind(None::<Vec<u8>>),
            Bind::Bytes(bytes) => query.bind(bytes),
            Bind::Text(text) => query.bind(text),
            Bind::Unsigned(number) => query.bind(number),
            Bind::Signed(number) => query.bind(number),
            other => anyhow::bail!("{other:?} is new"),
        };
    }
    query.execute(conn).await?;
    Ok(())
}

pub(crate) async fn run(conn: &mut MySqlConnection, statements: Vec<Statement>) -> Result<()> {
    for statement in statements {
        execute(conn, statement).await?;
    }
    Ok(())
}

/// The server's number of an error.
fn number(outcome: Result<()>) -> Option<u16> {
    let error = outcome.err()?.downcast::<sqlx::Error>().ok()?;
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Everything that is written, apart from ids and times; times as seconds after the enqueue.
const ROWS: &str = "SELECT CONCAT_WS('|', topic, COALESCE(HEX(message_key), '-'), COALESCE(event_type, '-'), \
    COALESCE(content_type, '-'), COALESCE(headers, '-'), COALESCE(HEX(payload), '-'), \
    COALESCE(TIMESTAMPDIFF(SECOND, created_at, expires_at), '-'), \
    ABS(TIMESTAMPDIFF(SECOND, created_at, UTC_TIMESTAMP(6))) < 300, \
    COALESCE(p.lane, d.lane), COALESCE(p.key_hash, d.key_hash), COALESCE(p.attempts, d.attempts), \
    p.id IS NULL, COALESCE(d.reason, '-'), COALESCE(ROUND(TIMESTAMPDIFF(SECOND, created_at, d.due_at), -3), '-'), \
    COALESCE(ROUND(TIMESTAMPDIFF(SECOND, created_at, m.due_at), -3), '-')) AS line, \
    COALESCE(p.bytes, d.bytes) AS bytes \
    FROM outbox_messages m LEFT JOIN outbox_pending p USING (id) LEFT JOIN outbox_delayed d USING (id) ORDER BY m.id";

fn messages() -> Vec<Message> {
    let minute = Duration::from_mins(1);
    let day = Duration::from_secs(86_400);
    let all: Vec<u8> = (0..=255).collect();
    vec![
        Message::new("a", all.clone()).key(all).event_type("größer 🦀").content_type("text/plain").lane(7),
        Message::new("b", "").key("").header("naïve", "it's \"quoted\" \\ and 🦀").header("x", ""),
        Message::tombstone("c").expires_after(minute),
        Message::new("d", "later").delay(day),
        Message::new("e", "at").key("k").deliver_at(SystemTime::now() + day).expires_after(2 * day),
        Message::new("f", "1").key("k").sequenced(),
        Message::new("f", "2").key("k").sequenced().header("a", "b"),
    ]
}

async fn prepared_statements_write_what_enqueue_writes(flavor: Flavor) -> Result<()> {
    let mut written = Vec::new();
    for way in 0..3 {
        let database = Database::create(flavor).await?;
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        match way {
            0 => drop(Outbox::new().enqueue_all(&mut tx, messages()).await?),
            1 => run(&mut tx, Outbox::new().prepare_all(messages())?.statements).await?,
            _ => {
                for message in messages() {
                    run(&mut tx, Outbox::new().prepare(message)?.statements).await?;
                }
            }
        }
        tx.commit().await?;
        let rows = sqlx::query(AssertSqlSafe(ROWS)).fetch_all(&mut connection).await?;
        let lines: Vec<String> = rows.iter().map(|row| row.try_get("line")).collect::<Result<_, _>>()?;
        written.push(lines);
    }
    let [enqueued, batch, prepared] = &written[..] else { anyhow::bail!("{} runs", written.len()) };
    assert_eq!(enqueued.len(), messages().len());
    assert_eq!(enqueued, batch);
    assert_eq!(enqueued, prepared);
    assert!(prepared.last().context("no row")?.contains(r#"{"a":"b","sequence":"2"}"#), "{prepared:?}");
    Ok(())
}

async fn a_prepared_batch_keeps_the_order_of_its_messages_in_few_statements(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let batch: Vec<_> = (0..120).map(|n| Message::new("t", n.to_string()).key("k").lane(n % 3)).collect();
    let prepared = Outbox::new().prepare_all(batch)?;
    // Twice fifty messages together, and twenty alone.
    assert_eq!(prepared.statements.len(), 2 * 2 + 20 * 2);
    let mut tx = connection.begin().await?;
    run(&mut tx, prepared.statements).await?;
    tx.commit().await?;
    let sql = "SELECT message_id, CAST(CONVERT(payload USING utf8mb4) AS UNSIGNED), p.lane \
               FROM outbox_messages m JOIN outbox_pending p USING (id) ORDER BY id";
    let rows: Vec<(Vec<u8>, u64, u16)> = sqlx::query_as(sql).fetch_all(&mut connection).await?;
    let expected = prepared.ids.iter().zip(0_u16..).map(|(id, n)| (id.as_bytes().to_vec(), u64::from(n), n % 3));
    assert_eq!(rows, expected.collect::<Vec<_>>());
    let large = (0..60).map(|_| Message::new("t", [0; 10_000]));
    assert_eq!(Outbox::new().prepare_all(large)?.statements.len(), 120, "a packet may be too large");
    let twice = Message::new("t", "");
    let refused = Outbox::new().prepare_all([twice.clone(), twice]);
    assert!(matches!(refused, Err(EnqueueError::Duplicate(_))), "{refused:?}");
    Ok(())
}

/// A pool gives each statement a connection that others have used before. In a transaction, other inserts may come
/// between.
async fn prepared_statements_find_their_rows_whatever_runs_between_them(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut first = database.connect().await?;
    let mut second = database.connect().await?;
    for connection in [&mut first, &mut second] {
        sqlx::raw_sql("SET autocommit = 1").execute(connection).await?;
    }
    let now = Message::new("a", "1").key("1");
    let later = Message::new("a", "2").key("2").delay(Duration::from_mins(1));
    let expected = [(now.id(), key_hash("a", Some(b"1"))), (later.id(), key_hash("a", Some(b"2")))];
    for message in [now, later] {
        for statement in Outbox::new().prepare(message)?.statements {
            between(&mut first).await?;
            execute(&mut first, statement).await?;
            swap(&mut first, &mut second);
        }
    }
    let sql = "SELECT message_id, COALESCE(p.key_hash, d.key_hash) FROM outbox_messages m LEFT \
               JOIN outbox_pending p USING (id) \
               LEFT JOIN outbox_delayed d USING (id) WHERE p.id IS NOT NULL OR d.id IS NOT NULL ORDER BY m.id";
    let due: Vec<(Vec<u8>, u64)> = sqlx::query_as(sql).fetch_all(&mut first).await?;
    assert_eq!(due, expected.map(|(id, hash)| (id.as_bytes().to_vec(), hash)));

    let mut tx = first.begin().await?;
    for statement in Outbox::new().prepare(Message::new("s", "").key("k").sequenced())?.statements {
        between(&mut tx).await?;
        execute(&mut tx, statement).await?;
    }
    tx.commit().await?;
    let headers = "SELECT headers FROM outbox_messages WHERE topic = 's'";
    assert_eq!(sqlx::query_scalar::<_, String>(headers).fetch_one(&mut first).await?, r#"{"sequence":"1"}"#);
    Ok(())
}

/// Inserts that change what the session remembers.
async fn between(conn: &mut MySqlConnection) -> Result<()> {
    let sql = "INSERT INTO outbox_messages (message_id, topic) VALUES (?, 'other')";
    sqlx::query(sql).bind(Uuid::now_v7().as_bytes().as_slice()).execute(conn).await?;
    Ok(())
}

/// The second statement runs on another connection than the first: it waits for the end of that one's transaction.
async fn a_message_that_is_not_there_is_not_made_due(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut first = database.connect().await?;
    let mut second = database.connect().await?;
    sqlx::raw_sql("SET innodb_lock_wait_timeout = 1, autocommit = 1").execute(&mut second).await?;
    for message in [Message::new("t", ""), Message::new("t", "").delay(Duration::from_mins(1))] {
        let mut statements = Outbox::new().prepare(message)?.statements;
        let due = statements.pop().context("no statement")?;
        let mut tx = first.begin().await?;
        run(&mut tx, statements).await?;
        assert_eq!(number(execute(&mut second, due.clone()).await), Some(1205));
        tx.rollback().await?;
        assert_eq!(number(execute(&mut second, due).await), Some(1048));
    }
    Ok(())
}

async fn the_inboxs_statement_claims_once(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let inbox = Inbox::new("billing")?;
    let id = Uuid::now_v7();
    let mut tx = connection.begin().await?;
    execute(&mut tx, inbox.prepare(id)).await?;
    tx.rollback().await?;
    let mut tx = connection.begin().await?;
    execute(&mut tx, inbox.prepare(id)).await?;
    assert_eq!(number(execute(&mut tx, inbox.prepare(id)).await), Some(1062));
    assert_eq!(inbox.claim(&mut tx, id).await?, Claim::Duplicate);
    execute(&mut tx, Inbox::new("mailer")?.prepare(id)).await?;
    tx.commit().await?;
    let sql =
        "SELECT COUNT(*) FROM inbox_processed WHERE ABS(TIMESTAMPDIFF(SECOND, processed_at, UTC_TIMESTAMP(6))) < 300";
    assert_eq!(database.number(sql).await?, 2);
    Ok(())
}

async fn a_message_that_is_too_large_is_not_prepared(_: Flavor) -> Result<()> {
    let outbox = Outbox::new().max_message_bytes(9);
    let refused = outbox.prepare(Message::new("t", "0123456789"));
    assert!(matches!(refused, Err(EnqueueError::TooLarge { size: 10, limit: 9 })), "{refused:?}");
    let refused = outbox.prepare(Message::new("", ""));
    assert!(matches!(refused, Err(EnqueueError::Invalid(_))), "{refused:?}");
    Ok(())
}
