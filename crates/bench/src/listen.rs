//! A consumer that notes the arrival time of each message.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use futures_util::{StreamExt as _, stream::SelectAll};
use lapin::{
    Connection, ConnectionProperties,
    options::{BasicAckOptions, BasicConsumeOptions},
    types::FieldTable,
};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{Consumer as _, StreamConsumer},
};
use testkit::consume::{Broker, Topic};
use tokio::sync::Mutex;

use crate::setup::number;

/// Message numbers with their arrival times, in the order of arrival.
pub(crate) type Arrivals = Arc<Mutex<Vec<(u64, Instant)>>>;

/// The first arrival time of each message.
pub(crate) fn first_arrivals(arrivals: &[(u64, Instant)]) -> HashMap<u64, Instant> {
    let mut first = HashMap::new();
    for (number, at) in arrivals {
        first.entry(*number).or_insert(*at);
    }
    first
}

/// Waits until all messages have arrived, or none has for a while: the judge then reports the missing ones.
pub(crate) async fn wait_for(arrivals: &Arrivals, messages: u64) {
    let mut count = 0;
    let mut moved = Instant::now();
    while count < messages && moved.elapsed() < STALLED {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let arrived = arrivals.lock().await.len() as u64;
        if arrived > count {
            (count, moved) = (arrived, Instant::now());
        }
    }
}

/// A consumer without an arrival for this duration gets none any more.
const STALLED: Duration = Duration::from_secs(60);

/// Listens to these topics on the broker of `topic` until it is dropped.
pub(crate) async fn listen(
    topic: &Topic,
    names: &[String],
    arrivals: Arrivals,
) -> Result<tokio::task::JoinHandle<Result<()>>> {
    let address = topic.address().to_owned();
    Ok(match topic.broker() {
        Broker::Kafka => {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", &address).set("group.id", topic.name()).set("fetch.wait.max.ms", "10");
            let consumer: StreamConsumer = config.create()?;
            let mut partitions = TopicPartitionList::new();
            for (name, partition) in names.iter().flat_map(|name| (0..4).map(move |partition| (name, partition))) {
                partitions.add_partition_offset(name, partition, Offset::Beginning)?;
            }
            consumer.assign(&partitions)?;
            tokio::spawn(kafka(consumer, arrivals))
        }
        Broker::RabbitMq => {
            let connection = Connection::connect(&address, ConnectionProperties::default()).await?;
            tokio::spawn(rabbitmq(connection, names.to_vec(), arrivals))
        }
    })
}

async fn kafka(consumer: StreamConsumer, arrivals: Arrivals) -> Result<()> {
    loop {
        let message = consumer.recv().await?;
        arrivals.lock().await.push((number(message.payload())?, Instant::now()));
    }
}

async fn rabbitmq(connection: Connection, names: Vec<String>, arrivals: Arrivals) -> Result<()> {
    let channel = connection.create_channel().await?;
    let mut all = SelectAll::new();
    for name in names {
        let tag = name.clone().into();
        let options = BasicConsumeOptions::default();
        all.push(channel.basic_consume(name.into(), tag, options, FieldTable::default()).await?);
    }
    while let Some(delivery) = all.next().await {
        let delivery = delivery?;
        arrivals.lock().await.push((number(Some(&delivery.data))?, Instant::now()));
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}
