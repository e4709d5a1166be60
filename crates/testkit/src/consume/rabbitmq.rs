//! Empties a RabbitMQ queue.

use anyhow::{Context as _, Result};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind,
    message::BasicGetMessage,
    options::{
        BasicAckOptions, BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
        QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{Arrival, PATIENCE};

/// An exchange and a queue of this name, with the name as the binding key. `room`: the number of messages beyond which
/// the queue refuses more.
pub(super) async fn declare(url: &str, name: &str, room: Option<i32>) -> Result<()> {
    let mut limits = FieldTable::default();
    if let Some(room) = room {
        limits.insert("x-max-length".into(), AMQPValue::LongInt(room));
        limits.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    }
    declare_with(url, name, limits).await
}

/// The same, but the queue's dead messages go to another such exchange.
pub(super) async fn declare_with_graves(url: &str, name: &str, graves: &str) -> Result<()> {
    let mut arguments = FieldTable::default();
    for argument in ["x-dead-letter-exchange", "x-dead-letter-routing-key"] {
        arguments.insert(argument.into(), AMQPValue::LongString(graves.into()));
    }
    declare_with(url, name, arguments).await
}

/// The same with a quorum queue, which drops a message that was given back more often than this.
pub(super) async fn declare_counting(url: &str, name: &str, returns: i32) -> Result<()> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(returns));
    declare_with(url, name, arguments).await
}

/// The same, but it takes messages back that are not answered within this time, and drops none.
pub(super) async fn declare_impatient(url: &str, name: &str, milliseconds: i32) -> Result<()> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(-1));
    arguments.insert("x-consumer-timeout".into(), AMQPValue::LongInt(milliseconds));
    declare_with(url, name, arguments).await
}

async fn declare_with(url: &str, name: &str, arguments: FieldTable) -> Result<()> {
    let (_connection, channel) = channel(url).await?;
    let it = ShortString::try_new(name)?;
    let none = FieldTable::default;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(it.clone(), ExchangeKind::Topic, options, none()).await?;
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(it.clone(), options, arguments).await?;
    channel.queue_bind(it.clone(), it.clone(), it, QueueBindOptions::default(), none()).await?;
    Ok(())
}

/// The queue of the consumers, which gets everything that the judge's gets.
pub(super) fn copy(name: &str) -> String {
    format!("{name}-consumers")
}

/// Makes the queue of the consumers.
pub(super) async fn declare_copy(url: &str, name: &str) -> Result<()> {
    let (connection, channel) = channel(url).await?;
    let it = ShortString::try_new(name)?;
    let queue = ShortString::try_new(copy(name))?;
    let none = FieldTable::default;
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(queue.clone(), options, none()).await?;
    channel.queue_bind(queue, it.clone(), it, QueueBindOptions::default(), none()).await?;
    Ok(connection.close(200, "declared".into()).await?)
}

/// Binds the queue to the exchange of its name.
pub(super) async fn bind(url: &str, name: &str, routing_key: &str) -> Result<()> {
    let (connection, channel) = channel(url).await?;
    let it = ShortString::try_new(name)?;
    let key = ShortString::try_new(routing_key)?;
    channel.queue_bind(it.clone(), it, key, QueueBindOptions::default(), FieldTable::default()).await?;
    Ok(connection.close(200, "bound".into()).await?)
}

/// Deletes both, and the consumers' queue if it exists.
pub(super) async fn remove(url: &str, name: &str) -> Result<()> {
    let (connection, channel) = channel(url).await?;
    let it = ShortString::try_new(name)?;
    channel.queue_delete(it.clone(), QueueDeleteOptions::default()).await?;
    channel.queue_delete(ShortString::try_new(copy(name))?, QueueDeleteOptions::default()).await?;
    channel.exchange_delete(it, ExchangeDeleteOptions::default()).await?;
    Ok(connection.close(200, "removed".into()).await?)
}

/// Deletes the exchange, but not the queue.
pub(super) async fn remove_exchange(url: &str, name: &str) -> Result<()> {
    let (connection, channel) = channel(url).await?;
    channel.exchange_delete(ShortString::try_new(name)?, ExchangeDeleteOptions::default()).await?;
    Ok(connection.close(200, "removed".into()).await?)
}

/// Moves the messages that the queue has now to the end of `arrivals`. Each is acknowledged after it is noted.
pub(super) async fn take(url: &str, queue: &str, arrivals: &mut Vec<Arrival>) -> Result<()> {
    let (connection, channel) = channel(url).await?;
    // While relays publish there may always be one more.
    let mut left = u32::MAX;
    while left > 0
        && let Some(message) = get(&channel, queue).await?
    {
        left = message.message_count.min(left - 1);
        arrivals.push(arrival(&message, queue)?);
        channel.basic_ack(message.delivery_tag, BasicAckOptions::default()).await?;
    }
    // Without an orderly close, acknowledgements may be lost, and their messages come again.
    tokio::time::timeout(PATIENCE, connection.close(200, "read".into())).await??;
    Ok(())
}

async fn get(channel: &Channel, queue: &str) -> Result<Option<BasicGetMessage>> {
    let get = channel.basic_get(ShortString::try_new(queue)?, BasicGetOptions::default());
    Ok(tokio::time::timeout(PATIENCE, get).await.context("the queue does not answer")??)
}

async fn channel(url: &str) -> Result<(Connection, Channel)> {
    let connect = Connection::connect(url, ConnectionProperties::default());
    let connection = tokio::time::timeout(PATIENCE, connect).await.context("RabbitMQ does not answer")??;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

fn arrival(message: &BasicGetMessage, queue: &str) -> Result<Arrival> {
    let properties: &BasicProperties = &message.properties;
    let mut key = None;
    let mut outbox_topic = None;
    let mut tombstone = false;
    let mut headers = Vec::new();
    for (name, value) in properties.headers().iter().flatten() {
        match (name.as_str(), value) {
            ("x-message-key", AMQPValue::LongString(bytes)) => key = Some(bytes.as_bytes().to_vec()),
            ("outbox-topic", value) => outbox_topic = Some(text(value)?),
            ("x-tombstone", AMQPValue::Boolean(is)) => tombstone = *is,
            // Fields that RabbitMQ adds to a dead letter are no headers of the message.
            ("x-death", _) => {}
            (name, value) => headers.push((name.to_owned(), text(value)?)),
        }
    }
    Ok(Arrival {
        id: properties.message_id().as_ref().context("a message without id")?.as_str().parse()?,
        topic: message.routing_key.to_string(),
        outbox_topic,
        key,
        event_type: properties.kind().as_ref().map(ToString::to_string),
        content_type: properties.content_type().as_ref().map(ToString::to_string),
        headers,
        payload: (!tombstone).then(|| message.data.clone()),
        place: queue.to_owned(),
        redelivered: message.redelivered,
    })
}

fn text(value: &AMQPValue) -> Result<String> {
    let bytes = value.as_long_string().context("a header that is no text")?.as_bytes();
    Ok(String::from_utf8(bytes.to_vec())?)
}
