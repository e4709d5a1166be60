//! Members come and go under load: partitions change hands, effects do not.

use std::time::Duration;

use anyhow::{Result, ensure};
use rdkafka::{
    ClientConfig, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
};
use testkit::{consume::Broker, servers::until};

use tokio::time::Instant;

use crate::stage::{Does, PATIENCE, Stage, messages};

#[tokio::test(flavor = "multi_thread")]
async fn a_rebalance_under_load_loses_and_doubles_no_effect() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let does = Does::work();
    let mut sent = Vec::new();
    let mut members = vec![stage.consume(&does)?];
    for round in 0..4 {
        for _ in 0..10 {
            let more = messages(60, 12, if round % 2 == 0 { "ok" } else { "flaky" });
            stage.topic.send(&more).await?;
            sent.extend(more);
        }
        // One joins in each round, and the oldest leaves in every second one.
        members.push(stage.consume(&does)?);
        let end = Instant::now() + PATIENCE;
        while members.last().is_some_and(|it| it.metric("outbox_inbox_messages_total", "first") < 1.0) {
            let some = messages(12, 12, "ok");
            stage.topic.send(&some).await?;
            sent.extend(some);
            ensure!(Instant::now() < end, "the new member gets nothing");
            // No more than the members can do meanwhile.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if round % 2 == 1 {
            members.remove(0).stop().await?;
        }
    }
    stage.wait_for(sent.len()).await?;
    stage.assert_once_and_in_order(&sent).await?;
    for member in members {
        member
            .stop_and(|it| assert!(it.labelled("outbox_inbox_broker_events_total", "event", "begun_anew") < 0.5))
            .await?;
    }
    assert_committed_to_the_end(&stage).await
}

/// Whoever joins next has nothing left to do.
async fn assert_committed_to_the_end(stage: &Stage) -> Result<()> {
    let address = stage.topic.address().to_owned();
    let name = stage.topic.name().to_owned();
    until(PATIENCE, "committed offsets", || {
        let address = address.clone();
        let name = name.clone();
        async move {
            tokio::task::spawn_blocking(move || {
                let mut config = ClientConfig::new();
                let group: BaseConsumer =
                    config.set("bootstrap.servers", address).set("group.id", name.as_str()).create()?;
                let mut list = TopicPartitionList::new();
                list.add_partition_range(&name, 0, 3);
                for place in group.committed_offsets(list, PATIENCE)?.elements() {
                    let (_, high) = group.fetch_watermarks(&name, place.partition(), PATIENCE)?;
                    let committed = place.offset().to_raw().unwrap_or_default();
                    ensure!(committed == high, "partition {}: {committed} of {high}", place.partition());
                }
                Ok(())
            })
            .await?
        }
    })
    .await
}
