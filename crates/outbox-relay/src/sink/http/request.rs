//! A message as a request.
//!
//! | header | is |
//! |---|---|
//! | `webhook-id`, `webhook-timestamp`, `webhook-signature` | message id, time of the request, signatures |
//! | `content-type` | the content type |
//! | `outbox-topic`, `outbox-type`, `outbox-key`, `outbox-time` | topic, event type, message key, time of the enqueue |
//! | `outbox-tombstone` | `true`: the payload is null, and not empty |
//! | of the service | under its own name, if that has letters, digits and `-` alone and is none of a request's own |
//! | `outbox-header` | any other of the service, as `name=value` |
//!
//! Values are percent-encoded as the HTTP binding of `CloudEvents` says, but for the content type. `outbox-header` has
//! only letters, digits and `-._~` as they are, so proxies may join several to a list with commas.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue},
    http::request::Builder,
};
use outbox_core::TOPIC_HEADER;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};

use super::secret;
use crate::{
    moment::rfc3339,
    sink::{Outgoing, PublishError},
};

/// The characters that the HTTP binding of `CloudEvents` encodes in a header, besides those that are not ASCII.
const VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');
/// Names and values of `outbox-header`.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// A path keeps its slashes.
const PATH: &AsciiSet = &PART.remove(b'/').remove(b'@').remove(b':').remove(b',').remove(b'=').remove(b'+');

const TYPE: &str = "outbox-type";
const KEY: &str = "outbox-key";
const TIME: &str = "outbox-time";
const TOMBSTONE: &str = "outbox-tombstone";
const OTHER: &str = "outbox-header";

/// Names that HTTP, Standard Webhooks or this sink give a meaning. Proxies remove some of them.
const OWN: [&str; 23] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    TOPIC_HEADER,
    TYPE,
    KEY,
    TIME,
    TOMBSTONE,
    OTHER,
];

/// The receiver, as a request names it.
pub(super) struct ReceiverUrl {
    /// Host, and port if it is not that of the scheme.
    pub(super) host: String,
    /// The path before that of a route.
    pub(super) path: String,
}

/// Returns the request, signed with these keys at this time in seconds since 1970, or why there can be none.
pub(super) fn request(
    message: &Outgoing,
    place: &ReceiverUrl,
    keys: &[Vec<u8>],
    timestamp: u64,
) -> Result<Request<Full<Bytes>>, PublishError> {
    let id = message.message_id.to_string();
    let body = message.contents.payload.as_deref().unwrap_or_default();
    let mut request = Request::post(path(place, &message.destination.target)?)
        .header(HOST, &place.host)
        // hyper leaves it out of a request without a body, and some servers then answer 411.
        .header(CONTENT_LENGTH, body.len())
        .header("webhook-id", &id)
        .header("webhook-timestamp", timestamp);
    if !keys.is_empty() {
        request = request.header("webhook-signature", secret::signatures(keys, &id, timestamp, body));
    }
    if let Some(content_type) = &message.contents.content_type {
        let value = HeaderValue::from_str(content_type);
        request = request.header(
            CONTENT_TYPE,
            value.map_err(|_unfit| invalid("the content type has characters that HTTP cannot carry"))?,
        );
    }
    let request = described(message, request).body(Full::new(Bytes::copy_from_slice(body)));
    request.map_err(|_unfit| invalid("it has more headers than a request can carry"))
}

fn described(message: &Outgoing, mut request: Builder) -> Builder {
    let contents = &message.contents;
    let time = rfc3339(message.created_at_micros);
    let known = [
        (TOPIC_HEADER, Some(contents.topic.as_bytes())),
        (TYPE, contents.event_type.as_deref().map(str::as_bytes)),
        (KEY, contents.key.as_deref()),
        (TIME, time.as_deref().map(str::as_bytes)),
        (TOMBSTONE, contents.payload.is_none().then_some(&b"true"[..])),
    ];
    for (name, value) in known {
        if let Some(value) = value {
            request = request.header(name, percent_encode(value, VALUE).to_string());
        }
    }
    for (name, value) in &contents.headers {
        request = if is_plain(name) {
            request.header(name, utf8_percent_encode(value, VALUE).to_string())
        } else {
            let name = utf8_percent_encode(name, PART);
            request.header(OTHER, format!("{name}={}", utf8_percent_encode(value, PART)))
        };
    }
    request
}

/// Whether a header may have this name in a request. Some servers drop those with other characters, `_` included.
fn is_plain(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !name.is_empty() && name.bytes().all(legal) && !OWN.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Returns the path of a target. One with a segment `.` or `..` would lead elsewhere.
fn path(place: &ReceiverUrl, target: &str) -> Result<String, PublishError> {
    if target.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(invalid("the path of its route has a segment `.` or `..`"));
    }
    if target.is_empty() {
        return Ok(place.path.clone());
    }
    Ok(format!("{}/{}", place.path.trim_end_matches('/'), utf8_percent_encode(target, PATH)))
}

fn invalid(detail: &str) -> PublishError {
    PublishError::Rejected { reason: "invalid", detail: detail.to_owned() }
}
