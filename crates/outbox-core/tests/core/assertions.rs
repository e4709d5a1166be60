//! The assertions of the feature `test` say what is enqueued, and where it differs.

use anyhow::{Context as _, Result};
use outbox_core::{Message, Outbox, assert_enqueued, refute_enqueued, sqlx::Connection as _, test::Expected};
use serde_json::json;
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    what_is_enqueued_is_found_before_the_commit,
    a_difference_is_named,
    an_assertion_that_fails_panics,
    a_rollback_leaves_nothing,
);

fn message() -> Message {
    let placed = Message::new("orders", r#"{ "lines": [1, 2], "order": 7 }"#).key("7").event_type("order.placed");
    placed.content_type("application/json").header("tenant", "blue")
}

async fn what_is_enqueued_is_found_before_the_commit(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue(&mut tx, message()).await?;
    Outbox::new().enqueue(&mut tx, Message::tombstone("orders").key("8")).await?;
    let order = json!({ "order": 7, "lines": [1, 2] });
    assert_enqueued!(&mut tx, topic = "orders", key = "7", json = order, header = ("tenant", "blue"));
    assert_enqueued!(&mut tx, event_type = "order.placed", content_type = "application/json");
    assert_enqueued!(&mut tx, key = "8", tombstone = true);
    assert_enqueued!(&mut tx, key = "7", tombstone = false);
    refute_enqueued!(&mut tx, key = "7", tombstone = true);
    refute_enqueued!(&mut tx, key = "8", tombstone = false);
    refute_enqueued!(&mut tx, topic = "refunds");
    Ok(())
}

async fn a_difference_is_named(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let none = Expected::new().topic("orders").find(&mut tx).await.err().context("found in an empty table")?;
    assert_eq!(none, "no message is enqueued at all; expected one with\n  topic: \"orders\"");
    Outbox::new().enqueue(&mut tx, Message::new("other", b"\xff".to_vec())).await?;
    Outbox::new().enqueue(&mut tx, message()).await?;
    let wanted = Expected::new().topic("orders").key("9").json(json!({ "order": 7, "lines": [1, 3, 4] }));
    let problem = wanted.header(("tenant", "red")).find(&mut tx).await.err().context("found what is not there")?;
    let expected = "\
        none of 2 messages enqueued is as expected:\n  topic: \"orders\"\n  key: \"9\"\n  \
        payload: {\"order\":7,\"lines\":[1,3,4]}\n  header tenant: \"red\"\n\
        the closest one differs in\n  key: expected \"9\", found \"7\"\n  payload.lines[1]: expected 3, found 2\n  \
        payload.lines[2]: expected 4, found nothing\n  header tenant: expected \"red\", found \"blue\"";
    assert_eq!(problem, expected);
    let exact = Expected::new().topic("orders").key("9").find(&mut tx).await.err().context("found")?;
    assert!(exact.ends_with("the closest one differs in\n  key: expected \"9\", found \"7\""), "{exact}");
    let exact = Expected::new().topic("other").tombstone(true).find(&mut tx).await.err().context("found")?;
    assert!(exact.ends_with("the closest one differs in\n  payload: expected nothing, found 0xff"), "{exact}");
    let refuted = Expected::new().topic("orders").miss(&mut tx).await.err().context("not found")?;
    assert_eq!(refuted, "1 of 2 messages enqueued have\n  topic: \"orders\"");
    Ok(())
}

/// The text of a panic.
async fn panicked(test: impl Future<Output = ()> + Send + 'static) -> Result<String> {
    let panic = tokio::spawn(test).await.err().context("it passed")?.try_into_panic()?;
    Ok(*panic.downcast::<String>().ok().context("it has no text")?)
}

async fn an_assertion_that_fails_panics(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let missing = panicked(async move { assert_enqueued!(&mut connection, topic = "orders") }).await?;
    assert_eq!(missing, "no message is enqueued at all; expected one with\n  topic: \"orders\"");
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue(&mut tx, message()).await?;
    tx.commit().await?;
    let there = panicked(async move { refute_enqueued!(&mut connection, topic = "orders") }).await?;
    assert_eq!(there, "1 of 1 messages enqueued have\n  topic: \"orders\"");
    Ok(())
}

async fn a_rollback_leaves_nothing(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    Outbox::new().enqueue(&mut tx, message()).await?;
    tx.rollback().await?;
    refute_enqueued!(&mut connection, topic = "orders");
    Ok(())
}
