//! A consumer that notes when each message arrived.

use std::{sync::Arc, time::Instant};

use anyhow::Result;
use futures_util::StreamExt as _;
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

/// Message numbers with the times of their arrival, in the order of arrival.
pub(crate) type Arrivals = Arc<Mutex<Vec<(u64, Instant)>>>;

/// Listens to the topic until it is dropped.
pub(crate) async fn listen(topic: &Topic, arrivals: Arrivals) -> Result<tokio::task::JoinHandle<Result<()>>> {
    let (address, name) = (topic.address().to_owned(), topic.name().to_owned());
    Ok(match topic.broker() {
        Broker::Kafka => {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", &address).set("group.id", &name).set("fetch.wait.max.ms", "10");
            let consumer: StreamConsumer = config.create()?;
            let mut partitions = TopicPartitionList::new();
            for partition in 0..4 {
                partitions.add_partition_offset(&name, partition, Offset::Beginning)?;
            }
            consumer.assign(&partitions)?;
            tokio::spawn(kafka(consumer, arrivals))
        }
        Broker::RabbitMq => {
            let connection = Connection::connect(&address, ConnectionProperties::default()).await?;
            tokio::spawn(rabbitmq(connection, name, arrivals))
        }
    })
}

async fn kafka(consumer: StreamConsumer, arrivals: Arrivals) -> Result<()> {
    loop {
        let message = consumer.recv().await?;
        arrivals.lock().await.push((number(message.payload())?, Instant::now()));
    }
}

async fn rabbitmq(connection: Connection, queue: String, arrivals: Arrivals) -> Result<()> {
    let channel = connection.create_channel().await?;
    let options = BasicConsumeOptions::default();
    let mut deliveries = channel.basic_consume(queue.into(), "bench".into(), options, FieldTable::default()).await?;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        arrivals.lock().await.push((number(Some(&delivery.data))?, Instant::now()));
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}
