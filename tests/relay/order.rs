//! Messages of a key go out in the order in which they were enqueued.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    EnqueueError, Message, Outbox,
    sqlx::{Connection as _, MySqlConnection},
    store::error_number,
};
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    judge::Expectations,
    ledger::{Draft, Opened},
    load::{Load, insert_business_rows},
    servers::Flavor,
};

use crate::stage::{PATIENCE, Stage};

async fn three_relays(flavor: Flavor, broker: Broker, transactions: u64) -> Result<()> {
    let mut stage = Stage::new(flavor, broker).await?.patient();
    let relays = [stage.relay()?, stage.relay()?, stage.relay()?];
    let load = Load::new(stage.topic.name()).tasks(8).keys(50).transactions(transactions).messages(1..=20);
    load.payload(64..=200).rolled_back(0.05).held(Duration::from_millis(5)).run(&stage.database, &stage.ledger).await?;
    let least = usize::try_from(transactions * 8)?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let mut busy = 0;
    for relay in &relays {
        busy += i32::from(relay.metrics().await?.sum("outbox_relay_published_messages_total") > 0.0);
    }
    stage.judge(&Expectations::new().at_least(least).witness("several relays published", busy >= 2)).await
}

#[tokio::test]
async fn three_relays_keep_the_order_of_fifty_keys_on_kafka() -> Result<()> {
    three_relays(Flavor::MySql, Broker::Kafka, 1000).await
}

#[tokio::test]
async fn three_relays_keep_the_order_of_fifty_keys_on_rabbitmq() -> Result<()> {
    three_relays(Flavor::MySql, Broker::RabbitMq, 600).await
}

#[tokio::test]
async fn three_relays_keep_the_order_of_fifty_keys_from_mariadb() -> Result<()> {
    three_relays(Flavor::MariaDb, Broker::Kafka, 600).await
}

/// Enqueues to three keys, and rolls back a fifth of the transactions.
async fn number(database: Database, topic: String, first: usize) -> Result<()> {
    let mut connection = database.connect().await?;
    for n in 0..30 {
        loop {
            let mut tx = connection.begin().await?;
            let message = Message::new(topic.as_str(), "{}").key(format!("k{}", (first + n) % 3)).sequenced();
            match Outbox::new().enqueue(&mut tx, message).await {
                Ok(_) if n % 5 == 0 => tx.rollback().await?,
                Ok(_) => tx.commit().await?,
                // A deadlock of transactions that wait for the first transaction ever of a key, when that rolls back.
                // Or the others took too long.
                Err(EnqueueError::Database(error)) if matches!(error_number(&error), Some(1205 | 1213)) => continue,
                Err(error) => return Err(error.into()),
            }
            break;
        }
    }
    Ok(())
}

async fn sequenced(flavor: Flavor, broker: Broker) -> Result<()> {
    let mut stage = Stage::new(flavor, broker).await?;
    let _relays = [stage.relay()?, stage.relay()?, stage.relay()?];
    let producer = |first| tokio::spawn(number(stage.database.clone(), stage.topic.name().to_owned(), first));
    for producer in (0..6).map(producer).collect::<Vec<_>>() {
        producer.await??;
    }
    stage.database.wait_until_drained(PATIENCE).await?;
    let (mut ids, mut keys) = (HashSet::new(), HashMap::<_, Vec<u64>>::new());
    for arrival in stage.topic.read().await? {
        if ids.insert(arrival.id) {
            let (_, number) = arrival.headers.iter().find(|(name, _)| name == "sequence").context("no number")?;
            keys.entry(arrival.key.clone()).or_default().push(number.parse()?);
        }
    }
    ensure!(ids.len() == 6 * 24, "{} have arrived", ids.len());
    for (key, numbers) in keys {
        ensure!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{key:?}: {numbers:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_numbers_of_sequenced_keys_arrive_without_gap_and_in_order_on_kafka() -> Result<()> {
    sequenced(Flavor::MySql, Broker::Kafka).await
}

#[tokio::test]
async fn the_numbers_of_sequenced_keys_arrive_without_gap_and_in_order_on_rabbitmq() -> Result<()> {
    sequenced(Flavor::MariaDb, Broker::RabbitMq).await
}

/// Enqueues messages with their business rows in a transaction that stays open.
async fn write(stage: &Stage, tx: &mut MySqlConnection, drafts: &[Draft]) -> Result<Opened> {
    let opened = stage.ledger.open(drafts);
    Outbox::new().enqueue_all(tx, drafts.iter().map(Draft::message)).await?;
    insert_business_rows(tx, drafts).await?;
    Ok(opened)
}

/// No transaction locks a business row: the first message of the key is committed last.
#[tokio::test]
async fn messages_go_out_in_the_order_of_their_inserts_and_not_of_their_commits() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let [first, second] = [1, 2].map(|n| [stage.draft(0).key("k", n)]);
    let mut slow = stage.database.plain().await?;
    let mut tx = slow.begin().await?;
    let opened = write(&stage, &mut tx, &first).await?;
    stage.commit(&second).await?;
    tx.commit().await?;
    opened.committed();
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(2)).await
}

#[tokio::test]
async fn a_lower_id_that_commits_late_is_delivered_and_in_order_for_its_key() -> Result<()> {
    tokio::try_join!(late(Flavor::MySql, Account::Relay), late(Flavor::MariaDb, Account::Relay))?;
    Ok(())
}

/// With PROCESS the relay knows which transactions are open.
#[tokio::test]
async fn a_lower_id_that_commits_late_is_no_late_commit_for_a_relay_that_sees_its_transaction() -> Result<()> {
    tokio::try_join!(late(Flavor::MySql, Account::RelayWithProcess), late(Flavor::MariaDb, Account::RelayWithProcess))?;
    Ok(())
}

/// The time for which a transaction is open: long enough that the floor would rise above it.
const OPEN: Duration = Duration::from_secs(6);

/// The lower id belongs to another key. A long transaction holds up no other, and its own messages come after its
/// commit, before later ones of their key.
async fn late(flavor: Flavor, account: Account) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    stage.settings = stage.settings.clone().set("database", "url", stage.database.url_as(account)?);
    let mut relay = stage.relay()?;
    let draft = |key: &str, sequence| Draft::new(stage.topic.name(), key).key(key, sequence);
    let late = [draft("late", 1)];
    let mut slow = stage.database.plain().await?;
    let mut tx = slow.begin().await?;
    let opened = write(&stage, &mut tx, &late).await?;
    let began = Instant::now();
    let mut others = 0_u32;
    while others < 50 || began.elapsed() < OPEN {
        others += 1;
        stage.commit(&[draft("other", others.into())]).await?;
    }
    let done = |m: &testkit::relay::Metrics| m.sum("outbox_relay_published_messages_total") >= f64::from(others);
    relay.wait_for_metrics(PATIENCE, "the messages while the lower id is not committed", done).await?;
    tx.commit().await?;
    opened.committed();
    stage.commit(&[draft("late", 2)]).await?;
    stage.drain_and_judge(&Expectations::new().at_least(52)).await?;
    ensure!(relay.metrics().await?.sum("outbox_relay_late_commits_total") < 0.5, "the floor had passed an open writer");
    Ok(())
}

/// Nothing shows that such a transaction is still open, and the floor passes its ids. A full look each second finds
/// them.
#[tokio::test]
async fn a_commit_later_than_the_longest_transaction_is_delivered_and_counted() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    stage.settings = stage.settings.clone().set("relay", "max_transaction_age", "1s");
    let relay = stage.relay()?;
    relay.metrics_within(PATIENCE).await?;
    let late = [Draft::new(stage.topic.name(), "very late").key("late", 1)];
    let mut slow = stage.database.plain().await?;
    let mut tx = slow.begin().await?;
    let opened = write(&stage, &mut tx, &late).await?;
    // Messages come all the time, so that the floor has a reason to rise.
    let others = Load::new(stage.topic.name()).tasks(1).transactions(60).pause(Duration::from_millis(100));
    others.run(&stage.database, &stage.ledger).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_pending").await?;
    tx.commit().await?;
    opened.committed();
    stage.drain_and_judge(&Expectations::new().at_least(50)).await?;
    let counted = relay.metrics().await?.sum("outbox_relay_late_commits_total");
    ensure!((counted - 1.0).abs() < 0.5, "the metric counts {counted} late commits");
    Ok(())
}

/// With each change of the lane, one more message comes behind the waiting one.
#[tokio::test]
async fn rows_that_keep_coming_for_a_key_that_waits_hold_up_no_other() -> Result<()> {
    let stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let draft = |key: &str| Draft::new(stage.topic.name(), key).key(key, 1);
    let waiting = [draft("waits")];
    stage.commit(&waiting).await?;
    let one_more = "INSERT INTO outbox_pending (lane, id, key_hash, bytes) \
                    SELECT lane, id + 1000000 + UUID_SHORT() % 1000000, key_hash, bytes FROM outbox_delayed \
                    WHERE reason = 'rejected'";
    for sql in [
        "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason) \
         SELECT lane, id, key_hash, bytes, attempts, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 1, 'rejected' \
         FROM outbox_pending",
        "DELETE FROM outbox_pending",
        one_more,
        &format!("CREATE TRIGGER one_more AFTER UPDATE ON outbox_head FOR EACH ROW {one_more}"),
    ] {
        stage.database.execute(sql).await?;
    }
    stage.commit(&[draft("goes")]).await?;
    // A starting relay waits if the next ids are below those of the rows.
    stage.database.execute("ALTER TABLE outbox_messages AUTO_INCREMENT = 4000000").await?;
    let _relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_sent").await?;
    // The trigger and the relay both need the lane.
    stage.database.execute("DROP TRIGGER one_more").await
}
