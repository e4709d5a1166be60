//! The topic of the outbox where destinations have other names: consumers take order and numbers from it.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use outbox_consumer::{Handler, SequencePolicy, handler_fn, kafka, rabbitmq};
use outbox_core::{Message, Outbox, sqlx::MySqlPool};
use parking_lot::Mutex;
use testkit::{
    accounts::Account,
    consume::Broker,
    servers::{Flavor, until},
};
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::stage::{BROKERS, PATIENCE, Stage};

/// Messages that a consumer has begun to work on and those that it has processed, by topic and payload.
#[derive(Default)]
struct Seen {
    begun: Vec<String>,
    done: Vec<String>,
}

type Log = Arc<Mutex<Seen>>;

/// Writes down what it gets. A payload `wait` waits for the gate.
fn handler(log: &Log, gate: &Arc<Semaphore>) -> impl Handler {
    let log = Arc::clone(log);
    let gate = Arc::clone(gate);
    handler_fn(move |_tx, message| {
        let log = Arc::clone(&log);
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            let payload = String::from_utf8_lossy(message.contents.payload.as_deref().unwrap_or_default());
            let text = format!("{} {payload}", message.contents.topic);
            log.lock().begun.push(text.clone());
            if payload.starts_with("wait")
                && let Ok(permit) = gate.acquire().await
            {
                permit.forget();
            }
            log.lock().done.push(text);
            Ok(())
        })
    })
}

/// A consumer of this destination that refuses what is not the next of its key.
async fn consume(
    stage: &Stage,
    destination: &str,
    handler: impl Handler,
    stop: &CancellationToken,
) -> Result<JoinHandle<Result<()>>> {
    let (pool, address) =
        (MySqlPool::connect(&stage.database.url_as(Account::Service)?).await?, stage.topic.address().to_owned());
    let policy = SequencePolicy::Refuse;
    let stop = stop.clone().cancelled_owned();
    let name = destination.to_owned();
    Ok(match stage.topic.broker() {
        Broker::Kafka => {
            let consumer = kafka::Consumer::new(address, &name, pool)?.topic(&name).sequence(policy);
            tokio::spawn(async move { Ok(consumer.run(handler, stop).await?) })
        }
        Broker::RabbitMq => {
            let consumer = rabbitmq::Consumer::new(&address, &name, &name, pool)?.sequence(policy);
            tokio::spawn(async move { Ok(consumer.run(handler, stop).await?) })
        }
    })
}

/// Enqueues messages, each in a transaction of its own, and waits until they are sent.
async fn send(stage: &Stage, messages: impl IntoIterator<Item = Message>) -> Result<()> {
    let pool = MySqlPool::connect(&stage.database.url_as(Account::Service)?).await?;
    for message in messages {
        let mut tx = pool.begin().await?;
        Outbox::new().enqueue(&mut tx, message).await?;
        tx.commit().await?;
    }
    stage.database.wait_until_drained(PATIENCE).await
}

async fn wait_for_done(log: &Log, messages: &[&str]) -> Result<()> {
    let done = until(PATIENCE, "messages", || async {
        let done = log.lock().done.clone();
        ensure!(messages.iter().all(|message| done.iter().any(|it| it == message)), "{done:?}");
        Ok(())
    });
    done.await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_key_keep_their_order_and_numbers_whatever_their_routing_keys() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?.patient();
    let exchange = stage.topic.name().to_owned();
    let route = [("topics", "*"), ("sink", "rabbitmq"), ("exchange", &*exchange), ("routing_key", "{topic}.{type}")];
    stage.settings = stage.settings.first_route(route);
    for key in ["orders.placed", "orders.paid", "notes.made"] {
        stage.topic.bind(key).await?;
    }
    let _relay = stage.relay()?;
    let of_key = |kind: &str, payload: &str| {
        Message::new("orders", payload.as_bytes().to_vec()).key("7").event_type(kind).sequenced()
    };
    send(&stage, [of_key("placed", "wait 1"), of_key("paid", "2"), of_key("placed", "3")]).await?;
    send(&stage, [Message::new("notes", b"behind them in the queue".to_vec()).event_type("made")]).await?;

    let log = Log::default();
    let gate = Arc::new(Semaphore::new(0));
    let stop = CancellationToken::new();
    let consumer = consume(&stage, &exchange, handler(&log, &gate), &stop).await?;
    wait_for_done(&log, &["notes behind them in the queue"]).await?;
    let has_begun = || async {
        let begun = log.lock().begun.clone();
        ensure!(begun.iter().any(|it| it == "orders wait 1"), "{begun:?}");
        Ok(())
    };
    until(PATIENCE, "the first message", has_begun).await?;
    let begun: Vec<_> = log.lock().begun.iter().filter(|text| text.starts_with("orders")).cloned().collect();
    assert_eq!(begun, ["orders wait 1"], "two messages of a key at the same time");
    gate.close();
    let dead = "SELECT COUNT(*) FROM inbox_dead";
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 4 FROM inbox_processed").await?;
    ensure!(stage.database.number(dead).await? == 0, "a number that follows its predecessor is refused");
    stop.cancel();
    consumer.await??;
    assert_eq!(
        log.lock().begun.iter().filter(|it| it.starts_with("orders")).collect::<Vec<_>>(),
        ["orders wait 1", "orders 2", "orders 3"]
    );
    Ok(())
}

/// Two topics with the same key and the same numbers in one destination, then by a replay in another one.
#[tokio::test(flavor = "multi_thread")]
async fn topics_that_share_a_destination_keep_numbers_of_their_own() -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(Flavor::MariaDb, broker).await?.patient();
        let name = stage.topic.name().to_owned();
        let (route, to) = match broker {
            Broker::Kafka => (vec![("sink", "kafka"), ("topic", name.as_str())], format!("{name}-repair")),
            Broker::RabbitMq => {
                let keys = vec![("sink", "rabbitmq"), ("exchange", name.as_str()), ("routing_key", name.as_str())];
                (keys, stage.topic.beside(None).await?)
            }
        };
        if broker == Broker::Kafka {
            stage.topic.create_beside(&to).await?;
        }
        stage.settings = stage.settings.clone().first_route([("topics", "*")].into_iter().chain(route));
        let _relay = stage.relay()?;
        let numbers = ["1", "2", "3"];
        let topics = ["orders", "refunds"];
        let pairs: Vec<_> = numbers.iter().flat_map(|number| topics.map(|topic| (topic, *number))).collect();
        let message =
            |(topic, number): &(&str, &str)| Message::new(*topic, number.as_bytes().to_vec()).key("7").sequenced();
        send(&stage, pairs.iter().map(message)).await?;
        let expected: Vec<_> = pairs.iter().map(|(topic, number)| format!("{topic} {number}")).collect();
        let expected: Vec<_> = expected.iter().map(String::as_str).collect();

        let gate = Arc::new(Semaphore::new(0));
        let stop = CancellationToken::new();
        let log = Log::default();
        let first = consume(&stage, &name, handler(&log, &gate), &stop).await?;
        wait_for_done(&log, &expected).await.with_context(|| format!("{broker:?}"))?;

        let address = match broker {
            Broker::Kafka => format!("kafka/{to}"),
            Broker::RabbitMq => format!("rabbitmq/{to}/{to}"),
        };
        let arguments = ["--to", &address, "--confirm-destination", &address, "--yes", "--because", "a new index"];
        stage.operator()?.json("replay --all", &arguments).await?;
        let log = Log::default();
        let second = consume(&stage, &to, handler(&log, &gate), &stop).await?;
        wait_for_done(&log, &expected).await.with_context(|| format!("{broker:?}, replayed"))?;
        stop.cancel();
        first.await??;
        second.await??;
        ensure!(stage.database.number("SELECT COUNT(*) FROM inbox_dead").await? == 0, "{broker:?}: dead messages");
        // Read by the judge's reader beside the consumers' group; a queue is empty by then.
        let arrivals = stage.topic.read().await?;
        ensure!(arrivals.iter().all(|it| it.outbox_topic.as_deref().is_some_and(|topic| topics.contains(&topic))));
    }
    Ok(())
}

/// The name is in a header in every envelope, also where the destination has the same name.
#[tokio::test]
async fn the_topic_is_in_a_header_in_every_envelope() -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(Flavor::MySql, broker).await?.patient();
        let name = stage.topic.name().to_owned();
        for envelope in ["cloudevents-binary", "cloudevents-json", "debezium"] {
            let route = match broker {
                Broker::Kafka => vec![("sink", "kafka"), ("topic", name.as_str())],
                Broker::RabbitMq => {
                    vec![("sink", "rabbitmq"), ("exchange", name.as_str()), ("routing_key", name.as_str())]
                }
            };
            let route = route.into_iter().chain([("topics", envelope), ("envelope", envelope)]);
            stage.settings = stage.settings.clone().first_route(route);
        }
        let _relay = stage.relay()?;
        let topics = [name.as_str(), "cloudevents-binary", "cloudevents-json", "debezium"];
        send(&stage, topics.map(|topic| Message::new(topic, b"{}".to_vec()))).await?;
        let mut arrived: Vec<_> =
            stage.topic.read().await?.iter().map(|it| it.outbox_topic.clone().unwrap_or_default()).collect();
        arrived.sort_unstable();
        let mut expected = topics.map(str::to_owned);
        expected.sort_unstable();
        assert_eq!(arrived, expected, "{broker:?}");
    }
    Ok(())
}
