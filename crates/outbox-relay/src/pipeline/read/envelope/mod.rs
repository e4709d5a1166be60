//! The shape of messages on the wire: applies a route's envelope to a message before its sink gets it.
//!
//! Sinks know nothing of envelopes. They send content type, event type, headers and message id in the usual places. A
//! tombstone stays a tombstone in every envelope.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use outbox_core::{BoxError, SEQUENCE_HEADER};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::{
    moment::rfc3339,
    settings::{Binding, Envelope},
    sink::Outgoing,
};

/// Content type of a `CloudEvent` in JSON.
const CLOUDEVENTS_JSON: &str = "application/cloudevents+json; charset=UTF-8";

/// Bytes around the data, so that the text grows only once: the end of base64, the member's name, quotes and braces.
const ROOM: usize = 32;

/// Headers that do not become attributes of a `CloudEvent`. The relay sets some itself, some would need a form that
/// nothing checks, and some have another meaning there. (CloudEvents orders `sequence` as text, in which 10 comes
/// before 9.)
const NO_EXTENSIONS: [&str; 9] =
    ["specversion", "id", "source", "type", "time", "datacontenttype", "dataschema", "data", SEQUENCE_HEADER];

/// Puts a message into its envelope; `source` is the attribute of CloudEvents. The error says why the message does not
/// fit, without any of its contents. The message is unusable after an error.
pub fn wrap(message: &mut Outgoing, envelope: Envelope, source: &str) -> Result<(), String> {
    match envelope {
        Envelope::Raw => Ok(()),
        Envelope::CloudEventsBinary(binding) => binary(message, binding, source),
        Envelope::CloudEventsJson(binding) => match message.contents.payload.take() {
            Some(payload) => structured(message, &payload, source),
            // A null payload has no room for an event, so its attributes go into headers.
            None => binary(message, binding, source),
        },
        Envelope::Debezium => {
            debezium(message);
            Ok(())
        }
    }
}

/// Sets the attributes as headers; the payload and its content type stay as they are.
fn binary(message: &mut Outgoing, binding: Binding, source: &str) -> Result<(), String> {
    let prefix = binding.prefix;
    let attributes = attributes(message, source)?.into_iter();
    put(message, attributes.map(|(name, value)| (format!("{prefix}{name}"), value)).collect());
    Ok(())
}

/// Wraps the payload in a JSON object.
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
            // No content type says that it is JSON.
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

/// Returns JSON bytes as text. The parser skips strings unread, so the bytes are checked as UTF-8 first.
fn json_text(payload: &[u8]) -> Result<&str, BoxError> {
    let text = std::str::from_utf8(payload)?;
    serde_json::from_str::<IgnoredAny>(text)?;
    Ok(text)
}

/// Whether the parameters of a content type name no charset but UTF-8, or ASCII, which is part of it.
fn is_utf8(parameters: &str) -> bool {
    let mut charsets = parameters.split(';').filter_map(|parameter| parameter.trim().strip_prefix("charset="));
    charsets.all(|charset| matches!(charset.trim_matches('"'), "utf-8" | "us-ascii"))
}

/// Returns the attributes of the message's `CloudEvent`, including those made from headers. The content type is an
/// attribute as well; it must not be empty, and has a place of its own.
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
    ];
    attributes.extend(rfc3339(message.created_at_micros).map(|time| ("time".to_owned(), time)));
    attributes.extend(message.contents.headers.iter().filter(|(name, value)| is_extension(name, value)).cloned());
    Ok(attributes)
}

fn is_extension(name: &str, value: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_name = (1..=20).contains(&name.len()) && name.bytes().all(legal) && !NO_EXTENSIONS.contains(&name);
    is_name && !value.is_empty() && is_value(value)
}

/// Whether the type `String` of CloudEvents allows this text: no control characters and no Unicode noncharacters.
fn is_value(text: &str) -> bool {
    let noncharacter = |c: char| ('\u{fdd0}'..='\u{fdef}').contains(&c) || u32::from(c) & 0xfffe == 0xfffe;
    !text.chars().any(|c| c.is_control() || noncharacter(c))
}

/// Shapes a message like the outbox event router of Debezium. That sends the payload, the id as a header (added by the
/// sink), and the event type in the header where its users place it. It has no content type.
fn debezium(message: &mut Outgoing) {
    message.contents.content_type = None;
    let event_type = message.contents.event_type.take().map(|event_type| ("eventType".to_owned(), event_type));
    put(message, event_type.into_iter().collect());
}

/// Puts headers before those of the service. If two have the same name, the relay's stays.
fn put(message: &mut Outgoing, mut headers: Vec<(String, String)>) {
    // HTTP does not tell `A` from `a`.
    let is_known = |name: &str| headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    message.contents.headers.retain(|(name, _)| !is_known(name));
    headers.append(&mut message.contents.headers);
    message.contents.headers = headers;
}

#[cfg(test)]
mod tests;
