//! A message that ends its process is dead in the end, its neighbours are not, and RabbitMQ drops none that comes back.

use std::{future::pending, time::Duration};

use anyhow::{Context as _, Result, ensure};
use outbox_consumer::{
    Delivery, Failure, Handler, Retry,
    outbox_core::sqlx::{self, MySqlConnection},
    rabbitmq,
};
use testkit::{
    consume::{Broker, Sending, Topic},
    proxy::Proxy,
    servers::until,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::stage::{Does, PATIENCE, Stage, messages};

/// The processes that may end before the message that ends them must be dead: four with a note, and on RabbitMQ one
/// before them.
const PROCESSES: usize = 5;

/// Ends its process at a message that says so.
struct Mortal {
    ended: CancellationToken,
}

impl Handler for Mortal {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let sql = "INSERT INTO test_effects (message_id) VALUES (?)";
        sqlx::query(sql).bind(message.id.as_bytes().as_slice()).execute(&mut *tx).await?;
        match message.contents.payload.as_deref() {
            Some(b"end") => {
                self.ended.cancel();
                pending::<()>().await;
            }
            // Its work takes longer than the other needs to end the process.
            Some(b"slow") => sleep(Duration::from_millis(300)).await,
            _ => {}
        }
        Ok(())
    }
}

/// Runs a process until it ends, or all messages are decided. Returns whether it has ended.
async fn process(stage: &Stage, messages: usize) -> Result<bool> {
    let ended = CancellationToken::new();
    let stop = CancellationToken::new();
    let handler = Mortal { ended: ended.clone() };
    let stopped = stop.clone().cancelled_owned();
    let task = match stage.topic.broker() {
        Broker::Kafka => tokio::spawn(stage.kafka()?.run(handler, stopped)),
        Broker::RabbitMq => tokio::spawn(stage.rabbitmq()?.run(handler, stopped)),
    };
    tokio::select! {
        () = ended.cancelled() => {
            task.abort();
            task.await.err().context("it is to be aborted")?;
            Ok(true)
        }
        decided = stage.wait_for(messages) => {
            decided?;
            stop.cancel();
            task.await??;
            Ok(false)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_ends_its_process_is_dead_in_the_end_and_its_neighbours_are_not() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        let guilty = Sending::new("guilty", "end");
        let mut sent = vec![Sending::new("slow 1", "slow"), guilty.clone(), Sending::new("slow 2", "slow")];
        sent.extend(messages(60, 10, "ok"));
        stage.topic.send(&sent).await?;
        let mut ends = 0;
        while process(&stage, sent.len()).await? {
            ends += 1;
            ensure!(ends <= PROCESSES, "{broker:?}: {ends} processes have ended");
        }
        ensure!(ends >= 4, "{broker:?}: dead after {ends} processes");
        let dead = "SELECT message_id, reason FROM inbox_dead";
        let dead: Vec<(Vec<u8>, String)> = sqlx::query_as(dead).fetch_all(&stage.pool).await?;
        let id = guilty.id.context("no id")?;
        assert_eq!(dead, [(id.as_bytes().to_vec(), "crashes".to_owned())], "{broker:?}");
        sent.retain(|message| message.id != guilty.id);
        stage.assert_once_and_in_order(&sent).await?;
        // The end of a process may leave the note of a message that is processed.
        let noted = "SELECT COUNT(*) FROM inbox_started JOIN inbox_dead USING (consumer, message_id)";
        assert_eq!(stage.database.number(noted).await?, 0, "{broker:?}");
    }
    Ok(())
}

/// Accounts with earlier grants, or tables of an earlier version: the messages are processed, and none is noted.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_table_a_consumer_goes_on() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    stage.database.execute("DROP TABLE inbox_started").await?;
    let sent = messages(20, 4, "ok");
    stage.topic.send(&sent).await?;
    let consumer = stage.consume(&Does::work())?;
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    consumer.stop_and(|it| assert!(it.metric("outbox_inbox_messages_total", "failed") < 0.5)).await
}

/// It waits for its next attempt in a process whose connection is lost again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_back_again_and_again_is_dead_before_its_queue_drops_it() -> Result<()> {
    let stage = Stage::with(Topic::create_counting(8).await?).await?;
    let sent = [Sending::new("key", "never")];
    stage.topic.send(&sent).await?;
    let id = sent[0].id.context("no id")?;
    let proxy = Proxy::start(stage.topic.address()).await?;
    let name = stage.topic.name();
    let consumer = rabbitmq::Consumer::new(proxy.address(), name, name, stage.pool.clone())?.delivery_limit(8);
    let does = Does::work();
    let hour = Duration::from_hours(1);
    let consumer = Stage::start_rabbitmq(consumer.retry(Retry::new(hour, hour, 99)), &does)?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "failed", 1.0).await?;
    until(PATIENCE, "its end", || async {
        if consumer.metric("outbox_inbox_in_flight_messages", "") > 0.5 {
            proxy.reset();
        }
        ensure!(stage.database.number("SELECT COUNT(*) FROM inbox_dead").await? == 1);
        Ok(())
    })
    .await?;
    stage.wait_for(sent.len()).await?;
    let dead = "SELECT reason FROM inbox_dead";
    assert_eq!(sqlx::query_scalar::<_, String>(dead).fetch_all(&stage.pool).await?, ["returned"]);
    assert_eq!(does.tries(id), 2, "with six of eight returns it has one attempt left");
    consumer.stop().await
}
