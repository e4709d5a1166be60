//! A slow handler bounds what is received.

use std::time::Duration;

use anyhow::Result;
use outbox_consumer::Retry;
use testkit::consume::Broker;

use crate::stage::{Does, Stage, messages};

const IN_FLIGHT: &str = "outbox_inbox_in_flight_messages";
const PAUSED: &str = "outbox_inbox_paused_partitions";

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_full_is_paused_and_goes_on_later() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    // Of one key, and so of one partition: one can start, 150 may wait behind it.
    let sent = messages(200, 1, "ok");
    stage.topic.send(&sent).await?;
    let does = Does::wait();
    let consumer = Stage::start_kafka(stage.kafka()?.window(10), &does)?;
    consumer.wait_for_metric(PAUSED, "", 1.0).await?;
    consumer.wait_for_metric(IN_FLIGHT, "", 10.0).await?;
    // What is sent to the other partitions still comes: only the full one is paused.
    let others = messages(40, 20, "ok").split_off(20);
    stage.topic.send(&others).await?;
    consumer.wait_for_metric(IN_FLIGHT, "", 15.0).await?;
    assert!(consumer.metric(IN_FLIGHT, "") <= 160.0 + 20.0, "no more than the room of the full partition");
    assert!(stage.effects().await?.is_empty());
    does.gate.close();
    stage.wait_for(sent.len() + others.len()).await?;
    stage.assert_once_and_in_order(&[sent, others].concat()).await?;
    consumer.stop().await
}

/// An hour before its next attempt, and with more messages behind it than the window has room for.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_waits_holds_back_no_other() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        let hour = Duration::from_secs(3600);
        let retry = Retry::new(hour, hour, 3);
        let waits = [messages(1, 1, "flaky"), messages(60, 1, "ok")].concat();
        let others = messages(120, 40, "ok").split_off(40);
        let others: Vec<_> = others.into_iter().filter(|message| message.key != waits[0].key).collect();
        stage.topic.send(&[waits.as_slice(), &others].concat()).await?;
        let does = Does::work();
        let consumer = match broker {
            Broker::Kafka => Stage::start_kafka(stage.kafka()?.window(10).retry(retry), &does)?,
            Broker::RabbitMq => Stage::start_rabbitmq(stage.rabbitmq()?.retry(retry), &does)?,
        };
        stage.wait_for(others.len()).await?;
        stage.assert_once_and_in_order(&others).await?;
        assert_eq!(waits.iter().filter_map(|message| message.id).map(|id| does.tries(id)).sum::<u32>(), 1);
        consumer.stop().await?;
    }
    Ok(())
}

/// Nothing else happens meanwhile that would make the member look.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_partition_that_goes_and_comes_back_is_received_again() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let sent = messages(300, 300, "ok");
    stage.topic.send(&sent).await?;
    let own = Does::wait();
    let guests = Does::wait();
    let small = || Ok::<_, anyhow::Error>(stage.kafka()?.window(10).concurrency(4));
    let member = Stage::start_kafka(small()?, &own)?;
    member.wait_for_metric(PAUSED, "", 3.0).await?;
    let guest = Stage::start_kafka(small()?.stop_deadline(Duration::from_millis(100)), &guests)?;
    guest.wait_for_metric(PAUSED, "", 1.0).await?;
    assert!(member.metric(PAUSED, "") < 2.5, "the guest has one of three");
    guest.stop().await?;
    member.wait_for_metric(PAUSED, "", 3.0).await?;
    own.gate.close();
    guests.gate.close();
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    member.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prefetch_bounds_what_is_received_from_a_queue() -> Result<()> {
    let stage = Stage::new(Broker::RabbitMq).await?;
    let sent = messages(100, 1, "ok");
    stage.topic.send(&sent).await?;
    let does = Does::wait();
    let consumer = Stage::start_rabbitmq(stage.rabbitmq()?.prefetch(10), &does)?;
    consumer.wait_for_metric(IN_FLIGHT, "", 10.0).await?;
    let bystander = stage.consume(&does)?;
    bystander.wait_for_metric(IN_FLIGHT, "", 1.0).await?;
    assert!(consumer.metric(IN_FLIGHT, "") <= 10.0);
    does.gate.close();
    stage.wait_for(sent.len()).await?;
    assert_eq!(stage.effects().await?.len(), sent.len());
    bystander.stop().await?;
    consumer.stop().await
}
