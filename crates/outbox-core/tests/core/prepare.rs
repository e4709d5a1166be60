//! Prepared statements write what `enqueue` writes.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use outbox_core::{
    Bind, EnqueueError, Message, Outbox, Prepared,
    sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection, Row as _},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(prepared_statements_write_what_enqueue_writes, a_message_that_is_too_large_is_not_prepared);

async fn run(conn: &mut MySqlConnection, prepared: Prepared) -> Result<()> {
    for statement in prepared.statements {
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
        query.execute(&mut *conn).await?;
    }
    Ok(())
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
    let (minute, day) = (Duration::from_mins(1), Duration::from_secs(86_400));
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
    for prepared in [false, true] {
        let database = Database::create(flavor).await?;
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        for message in messages() {
            if prepared {
                run(&mut tx, Outbox::new().prepare(message)?).await?;
            } else {
                Outbox::new().enqueue(&mut tx, message).await?;
            }
        }
        tx.commit().await?;
        let rows = sqlx::query(AssertSqlSafe(ROWS)).fetch_all(&mut connection).await?;
        let lines: Vec<String> = rows.iter().map(|row| row.try_get("line")).collect::<Result<_, _>>()?;
        written.push(lines);
    }
    let [enqueued, prepared] = &written[..] else { anyhow::bail!("{} runs", written.len()) };
    assert_eq!(enqueued.len(), messages().len());
    assert_eq!(enqueued, prepared);
    assert!(prepared.last().context("no row")?.contains(r#"{"a":"b","sequence":"2"}"#), "{prepared:?}");
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
