//! Kafka partitions whose offsets begin anew while messages wait.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_consumer::{Retry, outbox_core::Uuid};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
    error::{KafkaError, RDKafkaErrorCode},
};
use testkit::{
    consume::{Broker, Sending, Topic},
    servers::{create_topic, delete_topic, until},
};

use crate::stage::{Does, PATIENCE, Running, Stage, messages};

const EVENTS: &str = "outbox_inbox_broker_events_total";

/// A topic with one partition, and a consumer of which the sixth message waits for an hour.
async fn waiting() -> Result<(Stage, Running)> {
    let address = Broker::Kafka.address().await?;
    let name = format!("test-{}", Uuid::now_v7());
    create_topic(&address, &name, 1).await?;
    let stage = Stage::with(Topic::of_kafka(&address, &name)).await?;
    let hour = Duration::from_hours(1);
    let consumer = Stage::start_kafka(stage.kafka()?.retry(Retry::new(hour, hour, 99)), &Does::work())?;
    let mut sent = messages(5, 5, "ok");
    sent.push(Sending::new("waits", "never"));
    stage.topic.send(&sent).await?;
    stage.wait_for(5).await?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "failed", 1.0).await?;
    committed(&stage, 5).await?;
    Ok((stage, consumer))
}

/// Waits until the group has committed this position.
async fn committed(stage: &Stage, position: i64) -> Result<()> {
    until(PATIENCE, "the committed position", || async {
        let found = as_member(stage, |group, list| Ok(group.committed_offsets(list, PATIENCE)?)).await?;
        let found: Vec<_> =
            found.elements().iter().map(rdkafka::topic_partition_list::TopicPartitionListElem::offset).collect();
        ensure!(found == [Offset::Offset(position)], "{found:?}");
        Ok(())
    })
    .await
}

/// Does something with the group's offset of the only partition.
async fn as_member<T: Send + 'static>(
    stage: &Stage,
    work: impl FnOnce(BaseConsumer, TopicPartitionList) -> Result<T> + Send + 'static,
) -> Result<T> {
    let address = stage.topic.address().to_owned();
    let name = stage.topic.name().to_owned();
    tokio::task::spawn_blocking(move || {
        let mut config = ClientConfig::new();
        let group = config.set("bootstrap.servers", address).set("group.id", name.as_str()).create()?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&name, 0, Offset::Beginning)?;
        work(group, list)
    })
    .await?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_made_again_while_a_message_waits_is_read_from_its_start() -> Result<()> {
    let (stage, consumer) = waiting().await?;
    let address = stage.topic.address();
    let name = stage.topic.name();
    delete_topic(address, name).await?;
    until(PATIENCE, "the topic", || create_topic(address, name, 1)).await?;
    stage.topic.send(&messages(4, 4, "ok")).await?;
    stage.wait_for(5 + 4).await?;
    // The position of the new topic, although it is lower than the one that was committed before.
    committed(&stage, 4).await?;
    // One of them has the offset of the message that waits.
    stage.topic.send(&messages(4, 4, "ok")).await?;
    stage.wait_for(5 + 8).await?;
    committed(&stage, 8).await?;
    ensure!(consumer.labelled(EVENTS, "event", "begun_anew") >= 1.0, "it is not counted");
    consumer.stop().await
}

/// Kafka refuses it while a member lives; the next member begins where it was put.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_an_operator_resets_while_a_message_waits_are_followed() -> Result<()> {
    let (stage, consumer) = waiting().await?;
    let reset = |group: BaseConsumer, mut list: TopicPartitionList| {
        list.set_all_offsets(Offset::Offset(0))?;
        Ok(group.commit(&list, CommitMode::Sync))
    };
    let refused = as_member(&stage, reset).await?;
    let unknown = KafkaError::ConsumerCommit(RDKafkaErrorCode::UnknownMemberId);
    assert_eq!(refused, Err(unknown));
    consumer.stop().await?;
    as_member(&stage, reset).await??;
    let consumer = stage.consume(&Does::work())?;
    consumer.wait_for_metric("outbox_inbox_messages_total", "duplicate", 5.0).await?;
    committed(&stage, 6).await?;
    assert_eq!(stage.effects().await?.len(), 5, "the sixth message is dead");
    consumer.stop().await
}
