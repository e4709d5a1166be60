//! A message shares the fate of its transaction, whatever becomes of that.

use anyhow::{Result, bail};
use outbox_core::{
    EnqueueError, Message, Outbox, Uuid,
    sqlx::{self, Connection as _, MySqlConnection, MySqlPool},
    store::error_number,
    test::Drain,
};
use testkit::{accounts::Account, database::Database, on_both_databases, proxy::Proxy, servers::Flavor};

on_both_databases!(
    a_commit_writes_the_message_and_its_pending_row,
    a_rollback_leaves_nothing,
    enqueueing_outside_a_transaction_is_refused,
    a_transaction_opened_by_raw_sql_is_accepted,
    a_swallowed_deadlock_is_found_and_leaves_no_phantom,
    a_swallowed_ddl_statement_is_found_and_leaves_no_phantom,
    without_autocommit_a_later_statement_hides_that_the_transaction_has_ended,
    a_message_before_ddl_is_committed_with_it,
    a_duplicate_id_is_named_and_the_transaction_stays_usable,
    a_duplicate_that_was_committed_behind_the_transactions_back_is_named,
    a_duplicate_in_a_late_chunk_takes_the_whole_batch_back,
    an_id_chosen_twice_in_one_batch_is_refused_before_anything_is_written,
    a_cancelled_enqueue_leaves_a_whole_message_and_half_of_a_large_one_which_is_never_sent,
    a_message_is_enqueued_in_one_round_trip,
    all_parts_of_a_message_are_stored_as_they_are,
);

const ROWS: &str = "SELECT (SELECT COUNT(*) FROM outbox_messages) * 1000 + (SELECT COUNT(*) FROM outbox_pending)";

fn message() -> Message {
    Message::new("orders", "{}").key("k")
}

async fn a_commit_writes_the_message_and_its_pending_row(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let id = Outbox::new().enqueue(&mut tx, message()).await?;
    assert_eq!(database.number(ROWS).await?, 0, "seen before the commit");
    tx.commit().await?;
    assert_eq!(database.number(ROWS).await?, 1001);
    assert!(database.tables().await?.pending.contains(&id));
    Ok(())
}

async fn a_rollback_leaves_nothing(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue(&mut tx, message()).await?;
    tx.rollback().await?;
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue_all(&mut tx, (0..100).map(|_| message())).await?;
    drop(tx);
    connection.ping().await?;
    assert_eq!(database.number(ROWS).await?, 0);
    Ok(())
}

async fn enqueueing_outside_a_transaction_is_refused(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let outbox = Outbox::new();
    let conn = &mut connection;
    let one = outbox.enqueue(conn, message()).await;
    assert!(matches!(one, Err(EnqueueError::NotInTransaction)), "{one:?}");
    let many = outbox.enqueue_all(conn, [message()]).await;
    assert!(matches!(many, Err(EnqueueError::NotInTransaction)), "{many:?}");
    let large = outbox.enqueue(conn, Message::new("orders", "x".repeat(300_000))).await;
    assert!(matches!(large, Err(EnqueueError::NotInTransaction)), "{large:?}");
    let sequenced = outbox.enqueue_all(conn, [message().sequenced(), message().sequenced()]).await;
    assert!(matches!(sequenced, Err(EnqueueError::NotInTransaction)), "{sequenced:?}");
    assert_eq!(database.number(ROWS).await?, 0);
    Ok(())
}

async fn a_transaction_opened_by_raw_sql_is_accepted(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    sqlx::raw_sql("START TRANSACTION").execute(&mut connection).await?;
    let id = Outbox::new().enqueue(&mut connection, message()).await?;
    sqlx::raw_sql("COMMIT").execute(&mut connection).await?;
    assert!(database.tables().await?.pending.contains(&id));
    sqlx::raw_sql("START TRANSACTION; ROLLBACK").execute(&mut connection).await?;
    let ended = Outbox::new().enqueue(&mut connection, message()).await;
    assert!(matches!(ended, Err(EnqueueError::NotInTransaction)), "{ended:?}");
    assert_eq!(database.number(ROWS).await?, 1001);
    Ok(())
}

async fn a_swallowed_deadlock_is_found_and_leaves_no_phantom(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute("INSERT INTO test_keys VALUES (1, 0), (2, 0)").await?;
    let mut a = database.connect().await?;
    let mut b = database.connect().await?;
    let mut a = a.begin().await?;
    let mut b = b.begin().await?;
    lock(&mut a, 1).await?;
    lock(&mut b, 2).await?;
    let (in_a, in_b) = tokio::join!(lock(&mut a, 2), lock(&mut b, 1));
    assert!(in_a.is_err() != in_b.is_err(), "one of the two is the victim");
    let victim = if in_a.is_err() { &mut a } else { &mut b };
    assert_eq!(in_a.or(in_b).err().as_ref().and_then(error_number), None, "the other one goes on");
    let swallowed = Outbox::new().enqueue(victim, message()).await;
    assert!(matches!(swallowed, Err(EnqueueError::TransactionEnded)), "{swallowed:?}");
    a.rollback().await?;
    b.rollback().await?;
    assert_eq!(database.number(ROWS).await?, 0);
    Ok(())
}

async fn lock(conn: &mut MySqlConnection, id: u64) -> sqlx::Result<()> {
    sqlx::query("UPDATE test_keys SET sequence = sequence + 1 WHERE id = ?").bind(id).execute(conn).await.map(drop)
}

async fn a_swallowed_ddl_statement_is_found_and_leaves_no_phantom(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    sqlx::raw_sql("CREATE TABLE surprise (id INT PRIMARY KEY)").execute(&mut *tx).await?;
    let ended = Outbox::new().enqueue(&mut tx, message()).await;
    assert!(matches!(ended, Err(EnqueueError::TransactionEnded)), "{ended:?}");
    tx.rollback().await?;
    assert_eq!(database.number(ROWS).await?, 0);
    Ok(())
}

/// The statement begins another transaction, which cannot be told from the first; with `autocommit` it does not.
async fn without_autocommit_a_later_statement_hides_that_the_transaction_has_ended(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    for (autocommit, hidden) in [(1, false), (0, true)] {
        let mut connection = database.connect().await?;
        sqlx::query("SET SESSION autocommit = ?").bind(autocommit).execute(&mut connection).await?;
        let mut tx = connection.begin().await?;
        for sql in ["ROLLBACK", "INSERT INTO test_effects (message_id) VALUES (REPEAT('x', 16))"] {
            sqlx::raw_sql(sql).execute(&mut *tx).await?;
        }
        let enqueued = Outbox::new().enqueue(&mut tx, message()).await;
        assert_eq!(enqueued.is_ok(), hidden, "{enqueued:?}");
        tx.rollback().await?;
    }
    Ok(())
}

/// Nobody looks at the transaction again after the enqueue.
async fn a_message_before_ddl_is_committed_with_it(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let id = Outbox::new().enqueue(&mut tx, message()).await?;
    sqlx::raw_sql("CREATE TABLE surprise (id INT PRIMARY KEY)").execute(&mut *tx).await?;
    tx.rollback().await?;
    assert!(database.tables().await?.pending.contains(&id));
    Ok(())
}

async fn a_duplicate_id_is_named_and_the_transaction_stays_usable(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let outbox = Outbox::new();
    let id = Uuid::now_v7();
    let mut tx = connection.begin().await?;
    outbox.enqueue(&mut tx, message().message_id(id)).await?;
    tx.commit().await?;
    let mut tx = connection.begin().await?;
    let before = outbox.enqueue(&mut tx, message()).await?;
    let again = outbox.enqueue(&mut tx, message().message_id(id)).await;
    assert!(matches!(again, Err(EnqueueError::Duplicate(it)) if it == id), "{again:?}");
    let after = outbox.enqueue(&mut tx, message()).await?;
    tx.commit().await?;
    let pending = database.tables().await?.pending;
    assert_eq!(pending, [id, before, after].into_iter().collect());
    Ok(())
}

/// As after a commit whose answer did not come: the service tries again in a transaction that does not see it.
async fn a_duplicate_that_was_committed_behind_the_transactions_back_is_named(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut first = database.connect().await?;
    let mut second = database.connect().await?;
    let outbox = Outbox::new();
    let id = Uuid::now_v7();
    let mut late = second.begin().await?;
    sqlx::query("SELECT COUNT(*) FROM outbox_messages").execute(&mut *late).await?;
    let mut tx = first.begin().await?;
    outbox.enqueue(&mut tx, message().message_id(id)).await?;
    tx.commit().await?;
    let again = outbox.enqueue(&mut late, message().message_id(id)).await;
    assert!(matches!(again, Err(EnqueueError::Duplicate(it)) if it == id), "{again:?}");
    Ok(())
}

async fn a_duplicate_in_a_late_chunk_takes_the_whole_batch_back(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let outbox = Outbox::new();
    let id = Uuid::now_v7();
    let mut tx = connection.begin().await?;
    outbox.enqueue(&mut tx, message().message_id(id)).await?;
    let batch = (0..600).map(|n| if n == 590 { message().message_id(id) } else { message() });
    let refused = outbox.enqueue_all(&mut tx, batch).await;
    assert!(matches!(refused, Err(EnqueueError::Duplicate(it)) if it == id), "{refused:?}");
    tx.commit().await?;
    assert_eq!(database.number(ROWS).await?, 1001);
    Ok(())
}

async fn an_id_chosen_twice_in_one_batch_is_refused_before_anything_is_written(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let id = Uuid::now_v7();
    let mut tx = connection.begin().await?;
    let refused = Outbox::new().enqueue_all(&mut tx, [message().message_id(id), message().message_id(id)]).await;
    assert!(matches!(refused, Err(EnqueueError::Duplicate(it)) if it == id), "{refused:?}");
    tx.commit().await?;
    assert_eq!(database.number(ROWS).await?, 0);
    Ok(())
}

/// The service gives up while the server writes a message, and commits all the same. How many messages there are then,
/// how many of them are to be sent, and how many arrive.
async fn cancelled(flavor: Flavor, message: Message) -> Result<[usize; 3]> {
    let database = Database::create(flavor).await?;
    let mut service = database.connect().await?;
    let mut other = database.connect().await?;
    let mut lock = other.begin().await?;
    sqlx::query("SELECT * FROM outbox_messages FOR UPDATE").fetch_all(&mut *lock).await?;
    let mut tx = service.begin().await?;
    let outbox = Outbox::new();
    tokio::select! {
        enqueued = outbox.enqueue(&mut tx, message) => bail!("it has waited for nobody: {enqueued:?}"),
        waits = database.wait_for_lock_waits(flavor, 1) => waits?,
    }
    lock.rollback().await?;
    tx.commit().await?;
    let tables = database.tables().await?;
    assert_eq!((tables.delayed.len(), tables.dead.len()), (0, 0));
    let arrived = Drain::new().run(&MySqlPool::connect(&database.url_as(Account::Owner)?).await?).await?;
    Ok([tables.messages.len(), tables.pending.len(), arrived.len()])
}

async fn a_cancelled_enqueue_leaves_a_whole_message_and_half_of_a_large_one_which_is_never_sent(
    flavor: Flavor,
) -> Result<()> {
    let large = Message::new("orders", vec![0; 300_000]);
    assert_eq!([cancelled(flavor, message()).await?, cancelled(flavor, large).await?], [[1, 1, 1], [1, 0, 0]]);
    Ok(())
}

/// Payload, key, type, content type and lane.
type Row = (Option<Vec<u8>>, Option<Vec<u8>>, Option<String>, Option<String>, u16);

async fn all_parts_of_a_message_are_stored_as_they_are(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let bytes: Vec<u8> = (0..=255).collect();
    let full = Message::new("orders", bytes.clone())
        .key(bytes.clone())
        .event_type("größer 🦀")
        .content_type("application/json")
        .header("naïve", "it's \"quoted\" \\ and 🦀")
        .lane(7);
    let outbox = Outbox::new();
    let full = outbox.enqueue(&mut tx, full).await?;
    let empty = outbox.enqueue(&mut tx, Message::new("orders", "").key("")).await?;
    let tombstone = outbox.enqueue(&mut tx, Message::tombstone("orders")).await?;
    tx.commit().await?;
    let sql = "SELECT message_key, payload, event_type, headers, lane FROM outbox_messages \
               JOIN outbox_pending USING (id) \
               WHERE message_id = ?";
    let mut rows: Vec<Row> = Vec::new();
    for id in [full, empty, tombstone] {
        rows.push(sqlx::query_as(sql).bind(id.as_bytes().as_slice()).fetch_one(&mut connection).await?);
    }
    let headers = r#"{"naïve":"it's \"quoted\" \\ and 🦀"}"#.to_owned();
    let expected: [Row; 3] = [
        (Some(bytes.clone()), Some(bytes), Some("größer 🦀".into()), Some(headers), 7),
        (Some(vec![]), Some(vec![]), None, None, 0),
        (None, None, None, None, 0),
    ];
    assert_eq!(rows, expected);
    Ok(())
}

/// However many statements it has.
async fn a_message_is_enqueued_in_one_round_trip(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let proxy = Proxy::start(database.url()).await?;
    let mut service = MySqlConnection::connect(proxy.address()).await?;
    let outbox = Outbox::new();
    // Without autocommit the server is asked whether there is a transaction.
    for (autocommit, expected) in [("SET autocommit = 1", [1, 1, 1]), ("SET autocommit = 0", [3, 3, 3])] {
        sqlx::raw_sql(autocommit).execute(&mut service).await?;
        let mut tx = service.begin().await?;
        let mut at = vec![proxy.counts().round_trips];
        outbox.enqueue(&mut tx, message()).await?;
        at.push(proxy.counts().round_trips);
        outbox.enqueue(&mut tx, message().sequenced()).await?;
        at.push(proxy.counts().round_trips);
        outbox.enqueue_all(&mut tx, (0..500).map(|_| message())).await?;
        at.push(proxy.counts().round_trips);
        let round_trips: Vec<u64> = at.iter().zip(at.iter().skip(1)).map(|(before, after)| after - before).collect();
        assert_eq!(round_trips, expected, "of a message, a sequenced one, and 500");
        tx.commit().await?;
    }
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_pending").await?, 1004);
    Ok(())
}
