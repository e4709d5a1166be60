//! The shape of messages on the wire: what a route's envelope does to a message before its sink gets it.
//!
//! Sinks know nothing of envelopes: they send content type, event type and headers as ever, and the message id where it always is. A
//! tombstone stays a tombstone, in every envelope.

use std::{borrow::Cow, collections::HashSet};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use outbox_core::SEQUENCE_HEADER;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::{
    config::{Binding, Envelope},
    sink::Outgoing,
};

/// Content type of a `CloudEvent` in JSON.
const CLOUDEVENTS_JSON: &str = "application/cloudevents+json; charset=UTF-8";

/// Bytes around the data, so that the text grows once for both: the end of base64, the member's name, quotes and braces.
const ROOM: usize = 32;

/// Headers that are no attributes of a `CloudEvent`: the relay sets these itself, they would need a form that nobody has checked, or
/// they mean something else there (`sequence` of CloudEvents is ordered as a text, in which 10 comes before 9).
const NO_EXTENSIONS: [&str; 9] =
    ["specversion", "id", "source", "type", "time", "datacontenttype", "dataschema", "data", SEQUENCE_HEADER];

/// Puts a message into its envelope; `source` is the attribute of CloudEvents. An error says why it does not go into it, without anything
/// of its contents, and leaves a message that is of no more use.
pub fn wrap(message: &mut Outgoing, envelope: Envelope, source: &str) -> Result<(), String> {
    match envelope {
        Envelope::Raw => Ok(()),
        Envelope::CloudEventsBinary(binding) => binary(message, binding, source),
        Envelope::CloudEventsJson(binding) => match message.contents.payload.take() {
            Some(payload) => structured(message, &payload, source),
            // Null has no room for an event: its attributes go into headers.
            None => binary(message, binding, source),
        },
        Envelope::Debezium => {
            debezium(message);
            Ok(())
        }
    }
}

/// Attributes as headers; the payload and its content type stay as they are.
fn binary(message: &mut Outgoing, binding: Binding, source: &str) -> Result<(), String> {
    let prefix = match binding {
        Binding::Kafka => "ce_",
        Binding::Amqp => "cloudEvents:",
    };
    let attributes = attributes(message, source)?.into_iter();
    put(message, attributes.map(|(name, value)| (format!("{prefix}{name}"), value)).collect());
    Ok(())
}

/// A JSON object around the payload.
fn structured(message: &mut Outgoing, payload: &[u8], source: &str) -> Result<(), String> {
    let attributes = attributes(message, source)?.into_iter();
    let mut event: Map<String, Value> = attributes.map(|(name, value)| (name, value.into())).collect();
    let content_type = message.contents.content_type.replace(CLOUDEVENTS_JSON.to_owned());
    if let Some(content_type) = &content_type {
        event.insert("datacontenttype".to_owned(), content_type.as_str().into());
    }
    let mut json = Value::from(event).to_string();
    json.pop();
    add_data(&mut json, content_type.as_deref(), payload)?;
    json.push('}');
    message.contents.payload = Some(json.into_bytes());
    Ok(())
}

/// Adds the member that carries the payload: JSON byte for byte, text as a string, everything else in base64.
fn add_data(json: &mut String, content_type: Option<&str>, payload: &[u8]) -> Result<(), String> {
    let lower = content_type.unwrap_or("application/json").to_ascii_lowercase();
    let (media, parameters) = lower.split_once(';').unwrap_or((lower.as_str(), ""));
    let media = media.trim();
    let is = |kind: &str| media.strip_suffix(kind).is_some_and(|start| start.ends_with(['/', '+']));
    let text: Option<Cow<'_, str>> = if is("json") {
        match (json_text(payload), content_type) {
            (Ok(text), _) => Some(Cow::Borrowed(text)),
            (Err(error), Some(_)) => {
                return Err(format!("the payload is not the JSON that its content type says: {error}"));
            }
            // Its content type does not say JSON.
            (Err(_), None) => None,
        }
    } else if (media.starts_with("text/") || is("xml")) && is_utf8(parameters) {
        std::str::from_utf8(payload).ok().map(|text| Cow::Owned(Value::from(text).to_string()))
    } else {
        None
    };
    match text {
        Some(text) => {
            json.reserve(text.len() + ROOM);
            json.extend([",\"data\":", &*text]);
        }
        None => {
            json.reserve(payload.len() / 3 * 4 + ROOM);
            json.push_str(",\"data_base64\":\"");
            BASE64.encode_string(payload, json);
            json.push('"');
        }
    }
    Ok(())
}

/// Bytes that are JSON. What is in a string is skipped unseen, so that they must be text first.
fn json_text(payload: &[u8]) -> anyhow::Result<&str> {
    let text = std::str::from_utf8(payload)?;
    serde_json::from_str::<IgnoredAny>(text)?;
    Ok(text)
}

/// Whether the parameters of a content type name no charset but UTF-8, or ASCII, which is part of it.
fn is_utf8(parameters: &str) -> bool {
    let mut charsets = parameters.split(';').filter_map(|parameter| parameter.trim().strip_prefix("charset="));
    charsets.all(|charset| matches!(charset.trim_matches('"'), "utf-8" | "us-ascii"))
}

/// The attributes of the `CloudEvent` that a message is, those that its headers make among them. Its content type is one as well,
/// which must not be empty, and has a place of its own.
fn attributes(message: &mut Outgoing, source: &str) -> Result<Vec<(String, String)>, String> {
    message.contents.content_type = message.contents.content_type.take().filter(|it| !it.is_empty());
    let event_type =
        message.contents.event_type.as_deref().filter(|it| !it.is_empty()).unwrap_or(&message.contents.topic);
    if !is_value(event_type) {
        return Err("the event type has a character that an attribute of CloudEvents cannot have".to_owned());
    }
    let mut attributes = vec![
        ("specversion".to_owned(), "1.0".to_owned()),
        ("type".to_owned(), event_type.to_owned()),
        ("source".to_owned(), source.to_owned()),
        ("id".to_owned(), message.message_id.to_string()),
        ("time".to_owned(), rfc3339(message.created_at_micros)),
    ];
    attributes.extend(message.contents.headers.iter().filter(|(name, value)| is_extension(name, value)).cloned());
    Ok(attributes)
}

fn is_extension(name: &str, value: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_name = (1..=20).contains(&name.len()) && name.bytes().all(legal) && !NO_EXTENSIONS.contains(&name);
    is_name && !value.is_empty() && is_value(value)
}

/// Whether the type `String` of CloudEvents may hold this: neither control characters nor what Unicode calls noncharacters.
fn is_value(text: &str) -> bool {
    let noncharacter = |c: char| ('\u{fdd0}'..='\u{fdef}').contains(&c) || u32::from(c) & 0xfffe == 0xfffe;
    !text.chars().any(|c| c.is_control() || noncharacter(c))
}

/// What the outbox event router sends: the payload, the id as a header (which the sink adds), and the event type in the header in
/// which its users have it placed. It knows no content type.
fn debezium(message: &mut Outgoing) {
    message.contents.content_type = None;
    let event_type = message.contents.event_type.take().map(|event_type| ("eventType".to_owned(), event_type));
    put(message, event_type.into_iter().collect());
}

/// Puts headers before those of the service; of two with one name the relay's stays.
fn put(message: &mut Outgoing, mut headers: Vec<(String, String)>) {
    let known: HashSet<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
    message.contents.headers.retain(|(name, _)| !known.contains(name.as_str()));
    headers.append(&mut message.contents.headers);
    message.contents.headers = headers;
}

/// `2018-04-05T17:31:00Z`, with microseconds where there are any.
fn rfc3339(micros: i64) -> String {
    let (days, of_day) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    let (year, month, day) = date(days);
    let (seconds, fraction) = (of_day / 1_000_000, of_day % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = if fraction == 0 { String::new() } else { format!(".{fraction:06}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Year, month and day of a day since 1970. Counts from the first of March of the year 0, so that the leap day is the last of its year.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests;
