//! A message on the wire.

use std::{collections::BTreeMap, time::Duration};

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString},
};

use crate::sink::{Destination, Outgoing, PublishError};

/// The header that carries the message key.
pub(super) const KEY: &str = "x-message-key";
/// The header that tells a tombstone from an empty payload.
pub(super) const TOMBSTONE: &str = "x-tombstone";

/// RabbitMQ's "deliver it even after a restart".
const PERSISTENT: u8 = 2;
/// Properties travel in one frame, whose usual limit is 131,072 bytes; a larger one ends the connection for all.
const MAX_PROPERTIES: usize = 128 * 1024 - 1024;

/// What `basic.publish` needs besides the payload.
#[derive(Debug, Clone)]
pub(super) struct Publish {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
}

/// Says how the message is published, or why it can never be.
pub(super) fn publish(message: &Outgoing) -> Result<Publish, PublishError> {
    let Destination { target, routing_key, .. } = &*message.destination;
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short("message id", &message.message_id.to_string())?)
        .with_timestamp(seconds(message.created_at_micros))
        .with_headers(headers(message)?);
    Ok(Publish {
        exchange: short("exchange", target)?,
        routing_key: short("routing key", routing_key)?,
        properties: described(message, properties)?,
    })
}

fn described(message: &Outgoing, mut properties: BasicProperties) -> Result<BasicProperties, PublishError> {
    if let Some(content_type) = &message.content_type {
        properties = properties.with_content_type(short("content type", content_type)?);
    }
    if let Some(event_type) = &message.event_type {
        properties = properties.with_type(short("event type", event_type)?);
    }
    Ok(properties)
}

/// The message's headers. AMQP has a table where the message has a list: a name that is given several times gets a list of its
/// values, in their order.
fn headers(message: &Outgoing) -> Result<FieldTable, PublishError> {
    let mut table: BTreeMap<ShortString, Vec<AMQPValue>> = BTreeMap::new();
    let mut size = message.key.as_ref().map_or(0, Vec::len);
    for (name, value) in &message.headers {
        size += name.len() + value.len() + 8;
        table.entry(short("header name", name)?).or_default().push(text(value.as_bytes()));
    }
    if size > MAX_PROPERTIES {
        let detail = format!("headers and key take {size} bytes; RabbitMQ carries {MAX_PROPERTIES}");
        return Err(PublishError::Rejected { reason: "too_large", detail });
    }
    let mut table: BTreeMap<_, _> = table.into_iter().map(|(name, values)| (name, one_or_list(values))).collect();
    if let Some(key) = &message.key {
        table.insert(short("header name", KEY)?, text(key));
    }
    if message.payload.is_none() {
        table.insert(short("header name", TOMBSTONE)?, AMQPValue::Boolean(true));
    }
    Ok(table.into())
}

fn one_or_list(mut values: Vec<AMQPValue>) -> AMQPValue {
    match values.pop() {
        Some(only) if values.is_empty() => only,
        last => AMQPValue::FieldArray(FieldArray::from(values.into_iter().chain(last).collect::<Vec<_>>())),
    }
}

fn text(bytes: &[u8]) -> AMQPValue {
    AMQPValue::LongString(LongString::from(bytes))
}

/// lapin panics on a short string of more than 255 bytes; this does not.
fn short(what: &str, text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text).map_err(|_too_long| PublishError::Rejected {
        reason: "invalid",
        detail: format!("the {what} has {} bytes; RabbitMQ carries 255", text.len()),
    })
}

fn seconds(micros: i64) -> u64 {
    Duration::from_micros(micros.try_into().unwrap_or(0)).as_secs()
}
