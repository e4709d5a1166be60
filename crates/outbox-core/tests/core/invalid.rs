//! What no broker would take is refused where it is made, with a text that says what to change.

use anyhow::{Context as _, Result};
use outbox_core::{EnqueueError, Event, Message, Outbox, sqlx::Connection as _};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(invalid_messages_are_refused_with_what_to_change, what_is_just_valid_is_taken);

fn on(topic: &str) -> Message {
    Message::new(topic, "{}")
}

fn with_headers(count: usize) -> Message {
    (0..count).fold(on("t"), |message, n| message.header(format!("h{n}"), "v"))
}

/// Messages with one fault each, and what is said about it.
fn invalid() -> Vec<(Message, String)> {
    let long = "x".repeat(256);
    let century = std::time::Duration::from_secs(100 * 365 * 86_400 + 1);
    let not_a_topic = |name: &str| format!("topic {name:?} is not a topic name: use letters, digits, `.`, `_` and `-`");
    let mut cases: Vec<(Message, String)> =
        ["", ".", "..", "a b", "größe", "a/b", "a\0b"].into_iter().map(|name| (on(name), not_a_topic(name))).collect();
    let others = [
        (on(&"x".repeat(250)), "topic is longer than 249 bytes"),
        (on("t").key(vec![0; 1025]), "key is longer than 1024 bytes: use a hash of it"),
        (on("t").event_type(&long), "event type is longer than 255 bytes"),
        (on("t").event_type("a\nb"), "event type \"a\\nb\" contains a control character"),
        (on("t").content_type(&long), "content type is longer than 255 bytes"),
        (on("t").header(&long, ""), "header name is longer than 255 bytes"),
        (on("t").header("", "v"), "header name is empty"),
        (on("t").header("a\0", "v"), "header name \"a\\0\" contains a control character"),
        (on("t").header("id", "v"), "header name `id` is reserved: the relay sets it"),
        (on("t").header("type", "v"), "header name `type` is reserved: the relay sets it"),
        (on("t").header("content-type", "v"), "header name `content-type` is reserved: the relay sets it"),
        (on("t").header("outbox-topic", "v"), "header name `outbox-topic` is reserved: the relay sets it"),
        (on("t").header("a", "1").header("a", "2"), "header name `a` is given twice"),
        (on("t").header("a", "\0"), "headers the value of `a` contains a NUL character"),
        (on("t").header("a", "x".repeat(65_536)), "headers have 65537 bytes together, the limit is 65536"),
        (with_headers(10_001), "headers are 10001, the limit is 10000"),
        (on("t").sequenced(), "key is missing: a sequence counts the messages of a key"),
        (
            on("t").key("k").sequenced().delay(std::time::Duration::from_secs(1)),
            "delay does not go with a sequence: later messages of the key would overtake this one",
        ),
        (
            on("t").key("k").sequenced().header("sequence", "1"),
            "header name `sequence` is reserved in a sequenced message",
        ),
        (
            on("t").key("k").sequenced().header("sequence-epoch", "1"),
            "header name `sequence-epoch` is reserved in a sequenced message",
        ),
        (on("t").delay(century), "delay is longer than 100 years"),
        (on("t").deliver_at(std::time::SystemTime::now() + 2 * century), "delay is longer than 100 years"),
        (on("t").expires_after(century), "expiry is longer than 100 years"),
    ];
    cases.extend(others.map(|(message, text)| (message, text.to_owned())));
    cases
}

async fn invalid_messages_are_refused_with_what_to_change(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    for (message, text) in invalid() {
        let error = Outbox::new().enqueue(&mut tx, message).await.err().with_context(|| format!("taken: {text}"))?;
        assert!(matches!(error, EnqueueError::Invalid(_)), "{error:?}");
        assert_eq!(error.to_string(), text);
    }
    // The transaction is still usable, and nothing of them is in it.
    Outbox::new().enqueue(&mut tx, on("t")).await?;
    tx.commit().await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_messages").await?, 1);
    Ok(())
}

async fn what_is_just_valid_is_taken(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let longest = "x".repeat(255);
    let century = std::time::Duration::from_secs(100 * 365 * 86_400);
    let messages = [
        on(&"x".repeat(249)),
        on("Aa0._-"),
        on("t").key(vec![0xff; 1024]),
        on("t").key(""),
        on("t").event_type(&longest).content_type(&longest).header(&longest, "line\nbreak"),
        on("t").header("a", "x".repeat(65_535)),
        on("t").delay(century).expires_after(century),
        with_headers(200),
        with_headers(10_000),
    ];
    let count = messages.len();
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    tx.commit().await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_messages").await?, i64::try_from(count)?);
    Ok(())
}

/// An event whose serialization fails.
#[derive(Event)]
#[event(topic = "t", type = "broken", no_key)]
struct Broken;

impl serde::Serialize for Broken {
    fn serialize<S: serde::Serializer>(&self, _serializer: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("no number"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_encoded_is_refused() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let refused = Outbox::new().enqueue(&mut tx, &Broken).await;
    assert!(matches!(refused, Err(EnqueueError::Encode(_))), "{refused:?}");
    Ok(())
}
