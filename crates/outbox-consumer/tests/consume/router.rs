//! Handlers that are made of others.

use std::sync::Arc;

use anyhow::Result;
use outbox_consumer::{
    Delivery, Failure, Handler, Router, Unknown, handler_fn,
    outbox_core::{Contents, Event, Uuid, sqlx},
};
use testkit::{
    consume::{Broker, Sending},
    database::Database,
    servers::Flavor,
};
use tokio_util::sync::CancellationToken;

use crate::stage::Stage;

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(topic = "orders", type = "placed")]
struct Placed {
    #[event(key)]
    order: u64,
}

#[derive(serde::Deserialize)]
struct Cancelled {
    reason: String,
}

const EFFECT: &str = "INSERT INTO test_effects (message_id) VALUES (?)";

/// Each effect has the text that its handler has read.
fn router(unknown: Unknown) -> Router {
    Router::new(unknown)
        .on_event(|tx, placed: Placed, _message| {
            Box::pin(async move {
                sqlx::query(EFFECT).bind(format!("placed {}", placed.order)).execute(tx).await?;
                Ok(())
            })
        })
        .on("cancelled", |tx, cancelled: Cancelled, message| {
            Box::pin(async move {
                let text = format!("{} {}", cancelled.reason, message.attempt);
                sqlx::query(EFFECT).bind(text).execute(tx).await?;
                Ok(())
            })
        })
        .route("raw", handler_fn(|_tx, _message| Box::pin(async { Err(Failure::requeue("by the raw handler")) })))
}

fn delivery(event_type: Option<&str>, payload: &str) -> Delivery {
    let event_type = event_type.map(str::to_owned);
    let payload = Some(payload.into());
    Delivery::new(Uuid::now_v7(), Contents { event_type, payload, ..Contents::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_gives_each_type_to_its_handler_and_says_what_becomes_of_others() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut connection = database.connect().await?;
    for (event_type, payload, unknown, expected) in [
        (Some("placed"), r#"{"order":7}"#, Unknown::Dead, "Ok"),
        (Some("cancelled"), r#"{"reason":"late"}"#, Unknown::Dead, "Ok"),
        (Some("placed"), r#"{"reason":"late"}"#, Unknown::Ignore, "Dead: missing field `order` at line 1 column 17"),
        (Some("raw"), "", Unknown::Ignore, "Requeue: by the raw handler"),
        (Some("paid"), "{}", Unknown::Dead, "Dead: no handler for the event type Some(\"paid\")"),
        (None, "{}", Unknown::Dead, "Dead: no handler for the event type None"),
        (Some("paid"), "{}", Unknown::Ignore, "Ok"),
        (None, "{}", Unknown::Ignore, "Ok"),
    ] {
        let handled = Arc::new(router(unknown)).handle(&mut connection, &delivery(event_type, payload)).await;
        let outcome = match handled {
            Ok(()) => "Ok".to_owned(),
            Err(failure @ Failure::Dead(_)) => format!("Dead: {failure}"),
            Err(failure @ Failure::Requeue(_)) => format!("Requeue: {failure}"),
            Err(failure) => format!("another failure: {failure}"),
        };
        assert_eq!(outcome, expected, "{event_type:?} {unknown:?}");
    }
    let effects =
        "SELECT GROUP_CONCAT(TRIM(TRAILING '\\0' FROM CAST(message_id AS CHAR)) ORDER BY id) FROM test_effects";
    let effects: String = sqlx::query_scalar(effects).fetch_one(&mut connection).await?;
    assert_eq!(effects, "placed 7,late 1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_runs_a_shared_router_of_closures() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let mut sent = Sending::new("key", "7");
    sent.headers.push(("type".to_owned(), "counted".to_owned()));
    stage.topic.send(std::slice::from_ref(&sent)).await?;
    let router = Router::new(Unknown::Dead).on("counted", |tx, number: u64, message| {
        Box::pin(async move {
            assert_eq!(number, 7);
            sqlx::query(EFFECT).bind(message.id.as_bytes().as_slice()).execute(tx).await?;
            Ok(())
        })
    });
    let stop = CancellationToken::new();
    let consumer = tokio::spawn(stage.kafka()?.run(Arc::new(router), stop.clone().cancelled_owned()));
    stage.wait_for(1).await?;
    stage.assert_once_and_in_order(&[sent]).await?;
    stop.cancel();
    Ok(consumer.await??)
}
