//! One effect for each message, in the order of its key, whatever the handler and the broker do.

use anyhow::Result;
use outbox_consumer::outbox_core::sqlx::{Executor as _, mysql::MySqlPoolOptions};
use testkit::{
    accounts::Account,
    consume::{Broker, Sending, Topic},
    database::Database,
    servers::{Flavor, PATIENCE},
};

use crate::stage::{Does, Running, Stage, messages};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_several_times_has_one_effect() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        let sent = messages(50, 7, "ok");
        for _ in 0..3 {
            stage.topic.send(&sent).await?;
        }
        let consumer = stage.consume(&Does::work())?;
        consumer.wait_for_metric("outbox_inbox_messages_total", "duplicate", 100.0).await?;
        stage.assert_once_and_in_order(&sent).await?;
        consumer.stop().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_keeps_its_order_while_its_messages_fail_and_are_tried_again() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        let payloads = ["ok", "flaky", "ok", "panic", "passing", "later"];
        let sent: Vec<Sending> =
            (0..200).map(|n| Sending::new(&format!("key {}", n % 7), payloads[n % payloads.len()])).collect();
        stage.topic.send(&sent).await?;
        let consumer = stage.consume(&Does::work())?;
        stage.wait_for(sent.len()).await?;
        stage.assert_once_and_in_order(&sent).await?;
        assert_eq!(stage.database.number("SELECT COUNT(*) FROM inbox_dead").await?, 0, "what passes costs no attempt");
        consumer.stop().await?;
    }
    Ok(())
}

/// Those of a pool whose sessions only read, end with each commit, cut answers, and end when they are idle for a
/// second.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_works_in_a_session_with_any_settings() -> Result<()> {
    const HOSTILE: &str = "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY; SET timestamp = 1, SESSION \
                           completion_type = 2, SESSION sql_select_limit = 0, SESSION sql_safe_updates = 1, SESSION \
                           sql_auto_is_null = 1 /*M! , SESSION idle_transaction_timeout = 1, SESSION sql_mode = \
                           'EMPTY_STRING_IS_NULL' */";
    for (flavor, broker) in [(Flavor::MySql, Broker::Kafka), (Flavor::MariaDb, Broker::RabbitMq)] {
        let mut stage = Stage::on(Database::create(flavor).await?, Topic::create(broker).await?).await?;
        let hostile = MySqlPoolOptions::new()
            .max_connections(12)
            .after_connect(|connection, _| Box::pin(async move { connection.execute(HOSTILE).await.map(drop) }));
        let plain =
            std::mem::replace(&mut stage.pool, hostile.connect(&stage.database.url_as(Account::Service)?).await?);
        let sent =
            [vec![Sending::new("slow", "ok")], messages(20, 7, "ok"), vec![Sending::new("dead", "refuse")]].concat();
        stage.topic.send(&sent).await?;
        let does = Does::wait();
        let consumer = stage.consume(&does)?;
        if flavor == Flavor::MariaDb {
            // The server makes the list of transactions anew if nobody has read it for a tenth of a second.
            let idle = "SELECT COUNT(*) + SLEEP(0.15) > 0 FROM information_schema.processlist WHERE db = DATABASE() \
                        AND command = 'Sleep' \
                        AND time_ms > 2500 AND id IN (SELECT trx_mysql_thread_id FROM information_schema.innodb_trx)";
            stage.database.wait_for(PATIENCE, idle).await?;
        }
        does.gate.close();
        stage.wait_for(sent.len()).await?;
        consumer.stop().await?;
        stage.pool = plain;
        assert_eq!(stage.effects().await?.len(), 21);
        let now = "SELECT COUNT(*) = 22 AND MIN(processed_at) > '2020-01-01' FROM inbox_processed";
        assert_eq!(stage.database.number(now).await?, 1, "the inbox has the true time");
    }
    Ok(())
}

/// The server ends the transactions of the first tries: their commits are refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_counted_when_its_transaction_is_committed_and_not_before() -> Result<()> {
    let stage = Stage::new(Broker::RabbitMq).await?;
    let sent = messages(10, 10, "ended");
    stage.topic.send(&sent).await?;
    let consumer = stage.consume(&Does::work())?;
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    let counted = |it: &Running| {
        let [first, failed] = ["first", "failed"].map(|result| it.metric("outbox_inbox_messages_total", result));
        assert!((first - 10.0).abs() < 0.5 && failed > 9.5, "{first} processed, {failed} failed");
    };
    consumer.stop_and(counted).await
}

/// It counts its calls, and no transaction takes that back.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_does_outside_its_transaction_is_done_again() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        let sent = messages(1, 1, "flaky");
        stage.topic.send(&sent).await?;
        let does = Does::work();
        let consumer = stage.consume(&does)?;
        stage.wait_for(1).await?;
        stage.assert_once_and_in_order(&sent).await?;
        assert_eq!(does.tries(sent[0].id.unwrap()), 2, "{broker:?}");
        consumer.stop().await?;
    }
    Ok(())
}

/// It goes back into the queue, and the next one of its key does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn later_messages_of_its_key_go_before_a_requeued_one() -> Result<()> {
    let stage = Stage::new(Broker::RabbitMq).await?;
    let sent = ["leave", "ok"].map(|payload| Sending::new("key", payload));
    stage.topic.send(&sent).await?;
    let leaves = stage.consume(&Does::leave())?;
    stage.wait_for(1).await?;
    let works = stage.consume(&Does::work())?;
    stage.wait_for(2).await?;
    assert_eq!(stage.effects().await?, [sent[1].id.unwrap(), sent[0].id.unwrap()]);
    leaves.stop().await?;
    works.stop().await
}

/// Without `x-single-active-consumer`: one is slow with the first message, the other gets the second.
#[tokio::test(flavor = "multi_thread")]
async fn two_consumers_of_one_queue_do_not_keep_the_order_of_a_key() -> Result<()> {
    let stage = Stage::new(Broker::RabbitMq).await?;
    let sent = messages(2, 1, "ok");
    stage.topic.send(&sent).await?;
    let slow = Does::wait();
    let first = Stage::start_rabbitmq(stage.rabbitmq()?.prefetch(1), &slow)?;
    first.wait_for_metric("outbox_inbox_in_flight_messages", "", 1.0).await?;
    let second = stage.consume(&Does::work())?;
    stage.wait_for(1).await?;
    assert_eq!(stage.effects().await?, [sent[1].id.unwrap()]);
    slow.gate.close();
    stage.wait_for(2).await?;
    first.stop().await?;
    second.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requeued_message_is_done_by_another_consumer() -> Result<()> {
    let stage = Stage::new(Broker::RabbitMq).await?;
    let sent = messages(10, 10, "leave");
    stage.topic.send(&sent).await?;
    let leaves = stage.consume(&Does::leave())?;
    leaves.wait_for_metric("outbox_inbox_messages_total", "requeued", 20.0).await?;
    assert!(stage.effects().await?.is_empty());
    let works = stage.consume(&Does::work())?;
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    leaves.stop().await?;
    works.stop().await
}
