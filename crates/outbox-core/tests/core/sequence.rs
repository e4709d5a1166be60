//! Sequenced keys: gapless numbers in the order of the commits, whatever the service locks and rolls back.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    EnqueueError, Event, IntoMessage as _, Message, Outbox, Uuid,
    sqlx::{self, Connection as _, MySqlConnection},
    store::error_number,
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    numbers_follow_the_commits_although_the_service_enqueues_before_it_locks,
    a_batch_numbers_each_of_its_keys,
    a_refused_message_gives_its_number_back,
    two_batches_with_the_same_keys_do_not_block_each_other_for_good,
    two_transactions_that_take_two_keys_in_opposite_order_deadlock,
    a_number_in_a_snapshot_from_before_another_is_refused_by_mariadb_alone,
    keys_that_differ_in_case_or_a_trailing_space_are_different_keys,
);

const PRODUCERS: usize = 12;
const TRANSACTIONS: usize = 30;
const KEYS: usize = 3;

fn message(key: usize) -> Message {
    Message::new("orders", "{}").key(format!("k{key}")).sequenced()
}

/// The message's number in the header, by its id.
async fn number(conn: &mut MySqlConnection, id: Uuid) -> Result<u64> {
    let sql = "SELECT JSON_UNQUOTE(JSON_EXTRACT(headers, '$.sequence')) FROM outbox_messages WHERE message_id = ?";
    let text: String = sqlx::query_scalar(sql).bind(id.as_bytes().as_slice()).fetch_one(conn).await?;
    Ok(text.parse()?)
}

async fn producer(database: Database, which: usize) -> Result<()> {
    let mut connection = database.connect().await?;
    for n in which..which + TRANSACTIONS {
        // As after any deadlock: when the first transaction ever of a key rolls back, one of those that wait for it is
        // a victim.
        while let Err(error) = transact(&mut connection, (which * 6 + n * 5) % KEYS, n).await {
            let deadlock = matches!(&error, EnqueueError::Database(error) if error_number(error) == Some(1213));
            ensure!(deadlock, "{error:?}");
        }
    }
    Ok(())
}

/// Enqueues first and only then locks the business row, whose new value is the place of this commit among those of the
/// key. A fifth of the transactions is rolled back after that.
async fn transact(connection: &mut MySqlConnection, key: usize, n: usize) -> Result<(), EnqueueError> {
    let mut tx = connection.begin().await?;
    let id = Outbox::new().enqueue(&mut tx, message(key)).await?;
    tokio::time::sleep(Duration::from_millis(n as u64 % 4)).await;
    let update = "UPDATE test_keys SET sequence = LAST_INSERT_ID(sequence + 1) WHERE id = ?";
    let place = sqlx::query(update).bind(key as u64).execute(&mut *tx).await?.last_insert_id();
    let insert = "INSERT INTO commits VALUES (?, ?, ?)";
    sqlx::query(insert).bind(key as u64).bind(place).bind(id.as_bytes().as_slice()).execute(&mut *tx).await?;
    if n.is_multiple_of(5) {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(())
}

async fn numbers_follow_the_commits_although_the_service_enqueues_before_it_locks(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let commits = "CREATE TABLE commits (k BIGINT UNSIGNED, place BIGINT UNSIGNED, message_id BINARY(16), \
                   PRIMARY KEY (k, place)); \
                   INSERT INTO test_keys VALUES (0, 0), (1, 0), (2, 0)";
    database.execute(commits).await?;
    let producers: Vec<_> = (0..PRODUCERS).map(|which| tokio::spawn(producer(database.clone(), which))).collect();
    for producer in producers {
        producer.await??;
    }
    let sql = "SELECT c.k, c.place, CAST(JSON_UNQUOTE(JSON_EXTRACT(m.headers, '$.sequence')) AS UNSIGNED) \
               FROM commits c JOIN outbox_messages m USING (message_id) ORDER BY m.id";
    let rows: Vec<(u64, u64, u64)> = sqlx::query_as(sql).fetch_all(&mut database.connect().await?).await?;
    for key in 0..KEYS as u64 {
        let of_key: Vec<_> = rows.iter().filter(|row| row.0 == key).map(|row| (row.1, row.2)).collect();
        let gapless: Vec<_> = (1..=of_key.len() as u64).map(|n| (n, n)).collect();
        assert_eq!(of_key, gapless, "key {key}: in the order of the ids: (place of the commit, number)");
    }
    let committed =
        (0..PRODUCERS).flat_map(|p| (0..TRANSACTIONS).map(move |n| p + n)).filter(|n| !n.is_multiple_of(5)).count();
    assert_eq!(rows.len(), committed);
    Ok(())
}

async fn a_batch_numbers_each_of_its_keys(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let first = Outbox::new().enqueue(&mut tx, message(1)).await?;
    let plain = Message::new("orders", "{}").key("k1");
    let elsewhere = Message::new("bills", "{}").key("k1").sequenced();
    let batch = [message(1), message(0), plain, message(1), elsewhere, message(0)];
    let ids = Outbox::new().enqueue_all(&mut tx, batch).await?;
    tx.commit().await?;
    assert_eq!(number(&mut connection, first).await?, 1);
    let mut numbers = Vec::new();
    for (n, id) in ids.iter().enumerate() {
        if n != 2 {
            numbers.push(number(&mut connection, *id).await?);
        }
    }
    assert_eq!(numbers, [2, 1, 3, 1, 2]);
    let plain = "SELECT COUNT(*) FROM outbox_messages WHERE headers IS NULL";
    assert_eq!(database.number(plain).await?, 1, "a message that is not sequenced has no number");
    let astray = "SELECT COUNT(*) FROM outbox_messages m JOIN outbox_pending p USING (id) WHERE m.headers IS NOT NULL \
                  AND \
                  p.bytes <> LENGTH(m.payload) + LENGTH(m.message_key) \
                  + LENGTH('sequence') + IF(m.id = (SELECT MIN(id) \
                  FROM outbox_messages), 20, LENGTH(JSON_UNQUOTE(JSON_EXTRACT(m.headers, '$.sequence'))))";
    assert_eq!(
        database.number(astray).await?,
        0,
        "the header counts with its size, of a single message as its largest"
    );
    Ok(())
}

async fn a_refused_message_gives_its_number_back(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let outbox = Outbox::new();
    let first = outbox.enqueue(&mut tx, message(0)).await?;
    outbox.enqueue(&mut tx, message(0).message_id(first)).await.err().context("the id was taken twice")?;
    let second = outbox.enqueue(&mut tx, message(0)).await?;
    tx.commit().await?;
    assert_eq!((number(&mut connection, first).await?, number(&mut connection, second).await?), (1, 2));
    Ok(())
}

async fn two_batches_with_the_same_keys_do_not_block_each_other_for_good(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let rounds = |upwards: bool| {
        let database = database.clone();
        async move {
            let mut connection = database.connect().await?;
            for _ in 0..20 {
                let keys = (0..50).map(|n| message(if upwards { n } else { 49 - n }));
                let mut tx = connection.begin().await?;
                Outbox::new().enqueue_all(&mut tx, keys).await?;
                tx.commit().await?;
            }
            anyhow::Ok(())
        }
    };
    let (up, down) = tokio::join!(tokio::spawn(rounds(true)), tokio::spawn(rounds(false)));
    up??;
    down??;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_key_sequence WHERE last_sequence = 40").await?, 50);
    Ok(())
}

async fn two_transactions_that_take_two_keys_in_opposite_order_deadlock(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let barrier = tokio::sync::Barrier::new(2);
    let both = async |keys: [usize; 2]| -> Result<Option<u16>> {
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        Outbox::new().enqueue(&mut tx, message(keys[0])).await?;
        barrier.wait().await;
        match Outbox::new().enqueue(&mut tx, message(keys[1])).await {
            Ok(_) => tx.commit().await.map(|()| None).map_err(Into::into),
            Err(EnqueueError::Database(error)) => Ok(error_number(&error)),
            Err(other) => Err(other.into()),
        }
    };
    let (up, down) = tokio::join!(both([0, 1]), both([1, 0]));
    let mut outcomes = [up?, down?];
    outcomes.sort_unstable();
    assert_eq!(outcomes, [None, Some(1213)]);
    Ok(())
}

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "placed", sequenced)]
struct Placed {
    #[event(key)]
    order: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_can_say_that_it_is_sequenced() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue(&mut tx, &Placed { order: 7 }).await?;
    let second = (&Placed { order: 7 }).into_message()?;
    let second = Outbox::new().enqueue(&mut tx, second).await?;
    tx.commit().await?;
    assert_eq!(number(&mut connection, second).await?, 2);
    Ok(())
}

/// `innodb_snapshot_isolation`, which MariaDB has by default from 11.6.2 on.
async fn a_number_in_a_snapshot_from_before_another_is_refused_by_mariadb_alone(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let outbox = Outbox::new();
    let enqueue = async || -> Result<()> {
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        outbox.enqueue(&mut tx, message(1)).await?;
        Ok(tx.commit().await?)
    };
    enqueue().await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    sqlx::query("SELECT COUNT(*) FROM outbox_messages").execute(&mut *tx).await?;
    enqueue().await?;
    match (flavor, outbox.enqueue(&mut tx, message(1)).await) {
        (Flavor::MySql, Ok(id)) => assert_eq!(number(&mut tx, id).await?, 3),
        (Flavor::MariaDb, Err(EnqueueError::Database(error))) => {
            assert_eq!(error_number(&error), Some(1020), "{error}");
        }
        (_, other) => anyhow::bail!("{other:?}"),
    }
    Ok(())
}

async fn keys_that_differ_in_case_or_a_trailing_space_are_different_keys(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    for key in ["key", "Key", "key ", "ke\u{301}y"] {
        let id = Outbox::new().enqueue(&mut tx, Message::new("orders", "{}").key(key).sequenced()).await?;
        assert_eq!(number(&mut tx, id).await?, 1, "{key:?}");
    }
    tx.commit().await?;
    assert_eq!(database.number("SELECT COUNT(DISTINCT key_hash) FROM outbox_pending").await?, 4);
    Ok(())
}
