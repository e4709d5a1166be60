//! Many messages at once, and large ones: all or none, and each with its own pending row.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use outbox_core::{
    EnqueueError, Message, Outbox, Uuid,
    sqlx::{self, Connection as _, MySqlConnection, Row as _},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    ten_thousand_messages_commit_together_in_their_order,
    ten_thousand_messages_roll_back_together,
    ids_are_right_where_the_server_counts_in_steps,
    a_message_may_have_just_the_limit_and_no_byte_more,
    a_message_above_max_allowed_packet_is_refused_before_it_is_sent,
    headers_count_as_they_are_sent,
    a_large_batch_of_large_messages_is_cut_into_packets,
);

/// Messages whose size names them: `bytes` of the pending row must be that of the message with the same id.
fn numbered(count: usize) -> impl Iterator<Item = Message> {
    (0..count).map(|n| Message::new("orders", vec![b'x'; n % 1009]).key(format!("{}", n % 50)))
}

async fn enqueue(conn: &mut MySqlConnection, messages: impl Iterator<Item = Message>) -> Result<Vec<Uuid>> {
    Ok(Outbox::new().enqueue_all(conn, messages).await?)
}

async fn ten_thousand_messages_commit_together_in_their_order(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let ids = enqueue(&mut tx, numbered(10_000)).await?;
    tx.commit().await?;
    assert_eq!(stored_order(&mut connection).await?, ids);
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_pending").await?, 10_000);
    let astray = "SELECT COUNT(*) FROM outbox_messages m LEFT JOIN outbox_pending p USING (id) \
                  WHERE p.bytes IS NULL OR p.bytes <> LENGTH(m.payload) + LENGTH(m.message_key)";
    assert_eq!(database.number(astray).await?, 0);
    Ok(())
}

async fn stored_order(conn: &mut MySqlConnection) -> Result<Vec<Uuid>> {
    let rows = sqlx::query("SELECT message_id FROM outbox_messages ORDER BY id").fetch_all(conn).await?;
    rows.iter().map(|row| Ok(Uuid::from_slice(row.try_get(0)?)?)).collect()
}

async fn ten_thousand_messages_roll_back_together(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    enqueue(&mut tx, numbered(10_000)).await?;
    tx.rollback().await?;
    let rows = "SELECT (SELECT COUNT(*) FROM outbox_messages) + (SELECT COUNT(*) FROM outbox_pending)";
    assert_eq!(database.number(rows).await?, 0);
    Ok(())
}

async fn ids_are_right_where_the_server_counts_in_steps(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let steps = "SET SESSION auto_increment_increment = 3, SESSION auto_increment_offset = 2";
    sqlx::raw_sql(steps).execute(&mut connection).await?;
    let mut tx = connection.begin().await?;
    // Delayed ones in between: both kinds of rows are counted from the same first id.
    let hour = std::time::Duration::from_secs(3600);
    let mixed = numbered(350).enumerate().map(|(n, message)| if n % 3 == 0 { message.delay(hour) } else { message });
    enqueue(&mut tx, mixed).await?;
    tx.commit().await?;
    let sql = "SELECT m.id, LENGTH(m.payload) + LENGTH(m.message_key), CAST(COALESCE(p.bytes, d.bytes) AS SIGNED) \
               FROM outbox_messages m LEFT JOIN outbox_pending p USING (id) LEFT JOIN outbox_delayed d USING (id)";
    let rows: Vec<(u64, i64, Option<i64>)> = sqlx::query_as(sql).fetch_all(&mut connection).await?;
    assert_eq!(rows.len(), 350);
    assert!(rows.iter().all(|(id, size, bytes)| id % 3 == 2 && *bytes == Some(*size)), "{rows:?}");
    Ok(())
}

async fn a_message_may_have_just_the_limit_and_no_byte_more(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let outbox = Outbox::new().max_message_bytes(1000);
    let of_size = |size: usize| Message::new("orders", vec![0; size - 10]).key("12345").header("ab", "cde");
    let mut tx = connection.begin().await?;
    outbox.enqueue(&mut tx, of_size(999)).await?;
    outbox.enqueue(&mut tx, of_size(1000)).await?;
    let refused = outbox.enqueue(&mut tx, of_size(1001)).await.err().context("it was taken")?;
    assert!(matches!(refused, EnqueueError::TooLarge { size: 1001, limit: 1000 }));
    assert_eq!(
        refused.to_string(),
        "the message has 1001 bytes, the limit is 1000: store the large part elsewhere and send a reference, \
         or raise `Outbox::max_message_bytes` and the broker's own limit"
    );
    tx.commit().await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_pending").await?, 2);
    Ok(())
}

async fn a_message_above_max_allowed_packet_is_refused_before_it_is_sent(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let packet = usize::try_from(database.number("SELECT CAST(@@max_allowed_packet AS SIGNED)").await?)?;
    let outbox = Outbox::new().max_message_bytes(usize::MAX);
    let mut tx = connection.begin().await?;
    let before = outbox.enqueue(&mut tx, Message::new("orders", "small")).await?;
    let limit = packet - 16 * 1024;
    let refused =
        outbox.enqueue(&mut tx, Message::new("orders", vec![0; packet])).await.err().context("it was taken")?;
    assert_eq!((refused.reason(), refused.to_string()), ("too_large", above_packet(packet, limit)));
    let largest = outbox.enqueue(&mut tx, Message::new("orders", vec![7; limit])).await?;
    tx.commit().await?;
    let sql = "SELECT message_id, LENGTH(payload) FROM outbox_messages";
    let rows: Vec<(Vec<u8>, i64)> = sqlx::query_as(sql).fetch_all(&mut connection).await?;
    let lengths: HashMap<Uuid, i64> =
        rows.into_iter().map(|(id, length)| Ok((Uuid::from_slice(&id)?, length))).collect::<Result<_>>()?;
    assert_eq!(lengths, HashMap::from([(before, 5), (largest, i64::try_from(limit)?)]));
    Ok(())
}

fn above_packet(size: usize, limit: usize) -> String {
    format!(
        "the message has {size} bytes as the database gets it, and one packet has room for {limit}: store the large \
         part elsewhere and send a reference, or raise the server's `max_allowed_packet` (connections that are open \
         keep the old one) and the broker's own limit"
    )
}

/// As JSON, where each has six bytes more: the server ends the connection of a packet that is too large.
async fn headers_count_as_they_are_sent(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let packet = usize::try_from(database.number("SELECT CAST(@@max_allowed_packet AS SIGNED)").await?)?;
    let limit = packet - 16 * 1024;
    let message = |size: usize| {
        let payload = Message::new("orders", vec![0; size]);
        (10_000..20_000).fold(payload, |message, n: u32| message.header(n.to_string(), "v"))
    };
    // Eleven bytes each, a comma between each two, and braces.
    let json = 12 * 10_000 + 1;
    let outbox = Outbox::new().max_message_bytes(usize::MAX);
    let mut tx = connection.begin().await?;
    outbox.enqueue(&mut tx, message(limit - json)).await?;
    let refused = outbox.enqueue(&mut tx, message(limit - json + 1)).await.err().context("it was taken")?;
    assert_eq!(refused.to_string(), above_packet(limit + 1, limit));
    tx.commit().await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_pending").await?, 1);
    Ok(())
}

async fn a_large_batch_of_large_messages_is_cut_into_packets(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    // 50 MB together, more than MariaDB's packet of 16 MiB.
    enqueue(&mut tx, (0..100).map(|_| Message::new("orders", vec![b'x'; 500_000]))).await?;
    tx.commit().await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_messages WHERE LENGTH(payload) = 500000").await?, 100);
    Ok(())
}
