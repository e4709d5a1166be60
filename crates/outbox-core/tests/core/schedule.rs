//! Messages for later: their times are the database's, in UTC, whatever the session's time zone is.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    a_delayed_message_waits_from_the_enqueue_on,
    a_scheduled_message_waits_for_its_time,
    an_expiry_counts_from_the_enqueue_on,
);

async fn enqueue(database: &Database, message: Message) -> Result<()> {
    let mut connection = database.connect().await?;
    sqlx::raw_sql("SET SESSION time_zone = '+05:30'").execute(&mut connection).await?;
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue(&mut tx, message).await?;
    Ok(tx.commit().await?)
}

/// Microseconds between the enqueue and this column.
async fn after_the_enqueue(database: &Database, column: &str) -> Result<i64> {
    let sql = format!(
        "SELECT TIMESTAMPDIFF(MICROSECOND, m.created_at, {column}) FROM outbox_messages m LEFT \
         JOIN outbox_delayed d USING (id)"
    );
    database.number(&sql).await
}

async fn a_delayed_message_waits_from_the_enqueue_on(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    enqueue(&database, Message::new("t", "").key("k").delay(Duration::from_micros(90_000_001))).await?;
    for due_at in ["d.due_at", "m.due_at"] {
        let late = after_the_enqueue(&database, due_at).await? - 90_000_001;
        assert!((0..5_000_000).contains(&late), "{due_at}: {late} µs late");
    }
    let row = "SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'scheduled' AND holds_key = 0 AND attempts = 0 \
               AND key_hash > 0 AND bytes = 1 AND error IS NULL";
    assert_eq!(database.number(row).await?, 1);
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_pending").await?, 0);
    let age = "SELECT ABS(TIMESTAMPDIFF(SECOND, created_at, UTC_TIMESTAMP())) FROM outbox_messages";
    assert!(database.number(age).await? < 60, "the time of the enqueue is not UTC");
    Ok(())
}

async fn a_scheduled_message_waits_for_its_time(flavor: Flavor) -> Result<()> {
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(2_000_000_000_123_456);
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    for (time, text) in [(time, "2033-05-18 03:33:20.123456"), (past, "1970-01-01 00:00:01.000000")] {
        let database = Database::create(flavor).await?;
        enqueue(&database, Message::new("t", "").deliver_at(time)).await?;
        let sql = format!(
            "SELECT COUNT(*) FROM outbox_delayed d JOIN outbox_messages m USING (id, due_at) WHERE due_at = '{text}'"
        );
        assert_eq!(database.number(&sql).await?, 1, "{text}");
    }
    Ok(())
}

async fn an_expiry_counts_from_the_enqueue_on(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    enqueue(&database, Message::new("t", "").expires_after(Duration::from_secs(7))).await?;
    assert_eq!(after_the_enqueue(&database, "m.expires_at").await?, 7_000_000);
    let due_at_once = "SELECT COUNT(*) FROM outbox_pending JOIN outbox_messages USING (id) WHERE due_at IS NULL";
    assert_eq!(database.number(due_at_once).await?, 1);
    Ok(())
}
