//! The RabbitMQ sink: the conformance suite against a real broker, and RabbitMQ's own traps.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::rabbitmq_harness::{RabbitHarness, channel, destination, sink, take};
use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use lapin::{
    options::ExchangeDeleteOptions,
    types::{AMQPValue, FieldTable},
};
use outbox_relay::{
    settings,
    sink::{
        Destination, Outcome, Outgoing, PublishError, Sink,
        conformance::{self, DEADLINE, Draft, Harness as _, publish_until_sent},
        rabbitmq::RabbitMq,
    },
};
use testkit::{
    proxy::{Direction, Proxy},
    servers::{self, PATIENCE},
};

/// The time beyond its deadline that a call may need to return. After it the relay gives up the call.
const GRACE: Duration = Duration::from_secs(1);

fn soon() -> Instant {
    Instant::now() + DEADLINE
}

fn some(destination: &Arc<Destination>, count: usize) -> Vec<Outgoing> {
    (0..count).map(|n| Draft::new(destination, vec![b'x'; 1000]).key(n.to_string().as_bytes()).build()).collect()
}

/// Checks that only messages reported as sent again are there more than once.
async fn only_the_resent_came_twice(url: &str, queue: &str, messages: &[Outgoing], outcomes: &[Outcome]) -> Result<()> {
    let mut came: HashMap<String, usize> = HashMap::new();
    for message in take(url, queue, messages.len() - 3).await? {
        *came.entry(message.properties.message_id().as_ref().context("no id")?.to_string()).or_default() += 1;
    }
    assert!(outcomes.iter().flatten().any(|receipt| receipt.resent), "nothing was sent again: the test shows nothing");
    for (message, outcome) in messages.iter().zip(outcomes) {
        let came = came.get(&message.message_id.to_string()).copied().unwrap_or(0);
        assert!(came <= 1 || outcome.as_ref().is_ok_and(|it| it.resent), "came {came} times: {outcome:?}");
    }
    Ok(())
}

fn is_rejected(outcome: &Outcome, expected: &str) -> bool {
    let unroutable = matches!(outcome, Err(PublishError::Unroutable { reason, .. }) if *reason == expected);
    unroutable || matches!(outcome, Err(PublishError::Rejected { reason, .. }) if *reason == expected)
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_conforms() -> Result<()> {
    Ok(conformance::run(&RabbitHarness::start().await?).await?)
}

/// lapin waits for ever if opening its socket fails just before its first frame. On a busy machine one of some ten
/// thousand tries does.
#[tokio::test(flavor = "multi_thread")]
async fn no_refused_connection_is_waited_for() {
    let checks = (0..20_000).map(|_| async {
        let sink = sink("amqp://guest:guest@127.0.0.1:1/%2f");
        sink.check(soon()).await
    });
    let checked: Vec<_> = futures_util::stream::iter(checks).buffer_unordered(8).collect().await;
    for outcome in checked {
        assert!(
            matches!(&outcome, Err(PublishError::Unavailable(reason)) if reason.contains("refused")),
            "{outcome:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wire_has_the_documented_properties() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let queue = harness.destination().await?;
    let message = Draft::new(&queue, "{}").key(b"k").described("made", "application/json").build();
    let receipt = harness.sink().publish(std::slice::from_ref(&message), soon()).await.remove(0)?;
    let properties = take(&harness.url, &queue.target, 1).await?.remove(0).delivery.properties;
    assert_eq!(properties.message_id().as_ref().map(ToString::to_string), Some(message.message_id.to_string()));
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    assert_eq!(properties.kind().as_ref().map(ToString::to_string).as_deref(), Some("made"));
    assert_eq!(receipt.place, format!("{}/key", queue.target));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_unroutable_message_of_thousands_counts_as_sent_and_no_routable_one_as_rejected() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    // An exclusive queue is in memory: its confirms come at once and are coalesced with those of returned messages.
    let (_connection, channel) = channel(&harness.url).await?;
    let queue = harness.exclusive_queue(&channel).await?;
    let nowhere = destination(&queue.target, "nowhere");
    for _ in 0..5 {
        let mut messages = some(&queue, 2000);
        for n in (0..2000).step_by(10) {
            messages[n] = Draft::new(&nowhere, vec![b'x'; 1000]).build();
        }
        let outcomes = harness.sink().publish(&messages, soon()).await;
        for (n, outcome) in outcomes.iter().enumerate() {
            assert!(if n % 10 == 0 { is_rejected(outcome, "unroutable") } else { outcome.is_ok() }, "{n}: {outcome:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_exchange_rejects_its_own_messages_only() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let queue = harness.destination().await?;
    let mut messages = some(&queue, 500);
    messages.insert(250, Draft::new(&destination("no-such-exchange", "key"), "1").build());
    let outcomes = harness.sink().publish(&messages, soon()).await;
    assert!(is_rejected(&outcomes[250], "unroutable"), "{:?}", outcomes[250]);
    assert!(outcomes.iter().enumerate().all(|(n, it)| n == 250 || it.is_ok()));
    assert_eq!(take(&harness.url, &queue.target, 500).await?.len(), 500, "nothing twice");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_vanishes_rejects_its_own_messages_only() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let queue = harness.destination().await?;
    let gone = harness.destination().await?;
    harness.sink().publish(&some(&gone, 1), soon()).await.remove(0)?;
    let (_connection, channel) = channel(&harness.url).await?;
    channel.exchange_delete(gone.target.as_str().into(), ExchangeDeleteOptions::default()).await?;
    let mut messages = some(&queue, 800);
    messages.splice(400..400, some(&gone, 3));
    let outcomes = harness.sink().publish(&messages, soon()).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        let guilty = (400..403).contains(&n);
        assert!(if guilty { is_rejected(outcome, "unroutable") } else { outcome.is_ok() }, "{n}: {outcome:?}");
    }
    only_the_resent_came_twice(&harness.url, &queue.target, &messages, &outcomes).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_holds_up_its_own_messages_and_never_kills_them() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let mut full = FieldTable::default();
    full.insert("x-max-length".into(), AMQPValue::LongInt(5));
    full.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let full = harness.queue(full).await?;
    let queue = harness.destination().await?;
    let outcomes = harness.sink().publish(&[some(&full, 100), some(&queue, 100)].concat(), soon()).await;
    assert!(outcomes[100..].iter().all(Result::is_ok));
    let refused = outcomes[..100].iter().filter(|it| matches!(it, Err(PublishError::Unconfirmed(_)))).count();
    let sent = outcomes[..100].iter().filter(|it| it.is_ok()).count();
    assert!(refused + sent == 100 && refused >= 50, "{refused} refused, {sent} sent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_amqp_cannot_carry_is_rejected_before_it_is_sent() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let queue = harness.destination().await?;
    let long = "x".repeat(256);
    let mut messages = some(&queue, 6);
    messages[0] = Draft::new(&destination(&long, "key"), "1").build();
    messages[1] = Draft::new(&destination(&queue.target, &long), "1").build();
    messages[2] = Draft::new(&queue, "1").described(&long, "").build();
    messages[3] = Draft::new(&queue, "1").header(&long, "").build();
    messages[4] = Draft::new(&queue, "1").header("large", &"x".repeat(200_000)).build();
    let outcomes = harness.sink().publish(&messages, soon()).await;
    let rejected = |reason, detail: String| -> Outcome { Err(PublishError::Rejected { reason, detail }) };
    for (outcome, what) in outcomes.iter().zip(["exchange", "routing key", "event type", "header name"]) {
        let expected = rejected("invalid", format!("the {what} has 256 bytes; RabbitMQ carries 255"));
        assert_eq!(*outcome, expected);
    }
    let large = "headers and key take 200040 bytes; this connection carries 130048: see frame_max";
    assert_eq!(outcomes[4], rejected("too_large", large.to_owned()));
    assert!(outcomes[5].is_ok(), "{:?}", outcomes[5]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_and_a_routing_key_of_255_bytes_are_carried() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let name = format!("test-{}", uuid::Uuid::now_v7());
    let key = "k".repeat(255);
    let exchange = format!("{name:x<255}");
    let queue = harness.queue_at(destination(&exchange, &key), FieldTable::default()).await?;
    harness.sink().publish(&some(&queue, 1), soon()).await.remove(0)?;
    let taken = take(&harness.url, &exchange, 1).await?.remove(0).delivery;
    assert_eq!((taken.exchange.to_string(), taken.routing_key.to_string()), (exchange, key));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_headers_that_pass_do_not_end_the_connection() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let queue = harness.destination().await?;
    // Each header takes six bytes more than its name and its value.
    let many = (0..8600).fold(Draft::new(&queue, "1"), |draft, n| draft.header(&format!("{n:04}"), "12345"));
    let large = Draft::new(&queue, "1").described(&"t".repeat(255), &"c".repeat(255)).header("h", &"x".repeat(129_000));
    let outcomes = harness.sink().publish(&[many.build(), large.build()], soon()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn where_frames_are_small_only_the_message_is_rejected_whose_headers_do_not_fit() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let queue = harness.destination().await?;
    let sink = sink(&format!("{}?frame_max=8192", harness.url));
    let with_header = |bytes: usize| Draft::new(&queue, "1").header("h", &"x".repeat(bytes)).build();
    let outcomes = sink.publish(&[with_header(7132), with_header(7133), with_header(1)], soon()).await;
    let detail = "headers and key take 7169 bytes; this connection carries 7168: see frame_max".to_owned();
    assert_eq!(outcomes[1], Err(PublishError::Rejected { reason: "too_large", detail }));
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    Ok(())
}

/// The driver would make 32 buffers of the size that a broker offers, even of gigabytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_offers_large_frames_gets_usual_ones() -> Result<()> {
    let broker = servers::RabbitMq::start().await?;
    broker.ctl(&["eval", "application:set_env(rabbit, frame_max, 1048576)."]).await?;
    let harness = RabbitHarness::at(&broker.amqp_url());
    let large = Draft::new(&harness.destination().await?, "1").header("large", &"x".repeat(200_000)).build();
    let outcomes = harness.sink().publish(&[large], soon()).await;
    assert!(is_rejected(&outcomes[0], "too_large"), "{outcomes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_message_that_is_too_large_for_the_broker_is_rejected() -> Result<()> {
    let broker = servers::RabbitMq::start().await?;
    // RabbitMQ 3 reads the first setting, RabbitMQ 4 the second.
    let limit = "application:set_env(rabbit, max_message_size, 100000), persistent_term:put(max_message_size, 100000).";
    broker.ctl(&["eval", limit]).await?;
    let harness = RabbitHarness::at(&broker.amqp_url());
    let queue = harness.destination().await?;
    let sink = sink(&harness.url);
    let mut messages = some(&queue, 300);
    messages.insert(150, Draft::new(&queue, vec![b'x'; 200_000]).build());
    let outcomes = sink.publish(&messages, soon()).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        assert!(if n == 150 { is_rejected(outcome, "too_large") } else { outcome.is_ok() }, "{n}: {outcome:?}");
    }
    only_the_resent_came_twice(&harness.url, &queue.target, &messages, &outcomes).await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_broker_has_an_alarm_nothing_hangs_and_soon_nothing_costs_an_attempt() -> Result<()> {
    let broker = servers::RabbitMq::start().await?;
    let harness = RabbitHarness::at(&broker.amqp_url());
    let queue = harness.destination().await?;
    let sink = sink(&harness.url);
    sink.publish(&some(&queue, 10), soon()).await.remove(0)?;
    broker.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await?;
    let mut late = 0;
    for round in 0..4 {
        let deadline = Instant::now() + Duration::from_secs(2);
        let outcomes = sink.publish(&some(&queue, 2000), deadline).await;
        late += usize::from(Instant::now() >= deadline + GRACE);
        assert!(outcomes.iter().all(Result::is_err), "round {round}: confirmed in spite of the alarm");
        let spent = outcomes.iter().filter(|it| matches!(it, Err(PublishError::Unconfirmed(_)))).count();
        // The first round loses its windows. The second loses the first message of each channel, which brings the
        // alarm.
        assert!(spent <= [2000, 4, 0, 0][round], "round {round}: {spent} attempts spent");
    }
    // One round may have met a machine that stalled for a moment.
    assert!(late <= 1, "{late} rounds returned too late");
    let checked = sink.check(soon()).await;
    assert!(
        matches!(&checked, Err(PublishError::Unavailable(text)) if text.starts_with("broker_blocked")),
        "{checked:?}"
    );
    assert!(connections(&harness.url) <= 1, "{} connections", connections(&harness.url));
    broker.ctl(&["set_vm_memory_high_watermark", "0.4"]).await?;
    Ok(publish_until_sent(&sink, &some(&queue, 20), PATIENCE).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_confirms_nothing_and_leaves_no_connection() -> Result<()> {
    let broker = servers::RabbitMq::start().await?;
    let harness = RabbitHarness::at(&broker.amqp_url());
    let queue = harness.destination().await?;
    let sink = sink(&harness.url);
    sink.publish(&some(&queue, 10), soon()).await.remove(0)?;
    broker.pause()?;
    let mut late = 0;
    for _ in 0..5 {
        let deadline = Instant::now() + Duration::from_secs(1);
        let outcomes = sink.publish(&some(&queue, 100), deadline).await;
        late += usize::from(Instant::now() >= deadline + GRACE);
        assert!(outcomes.iter().all(Result::is_err));
    }
    assert!(late <= 1, "{late} rounds returned too late");
    let open = connections(&harness.url);
    broker.resume()?;
    assert_eq!(open, 0, "connections that were given up and stay open");
    Ok(publish_until_sent(&sink, &some(&queue, 20), PATIENCE).await?)
}

/// The queue is silent, like a quorum queue whose other nodes are down.
#[tokio::test(flavor = "multi_thread")]
async fn beside_a_queue_that_confirms_nothing_counts_what_is_confirmed_unless_a_message_was_returned() -> Result<()> {
    let broker = servers::RabbitMq::start().await?;
    let harness = RabbitHarness::at(&broker.amqp_url());
    let good = harness.queue(FieldTable::default()).await?;
    let silent = harness.queue(FieldTable::default()).await?;
    let unrouted = destination(&good.target, "nowhere");
    let mut config = settings::RabbitMqConfig::new(broker.amqp_url());
    config.channels = 1;
    let sink = RabbitMq::new("rabbit", &config)?;
    let messages = async |destinations: &[&Arc<Destination>]| {
        let messages: Vec<_> = destinations.iter().flat_map(|destination| some(destination, 1)).collect();
        sink.publish(&messages, soon()).await
    };
    assert!(messages(&[&good, &silent]).await.iter().all(Result::is_ok), "the queues take nothing");
    broker.suspend_queue(&silent.target).await?;
    let outcomes = messages(&[&good, &silent, &good]).await;
    let is_unconfirmed = |outcome: &Outcome| matches!(outcome, Err(PublishError::Unconfirmed(_)));
    assert!(
        matches!(outcomes.as_slice(), [Ok(_), silent, Ok(_)] if is_unconfirmed(silent)),
        "beside a silent queue: {outcomes:?}"
    );
    // A new connection has one message in flight until one is confirmed.
    assert!(messages(&[&good]).await.iter().all(Result::is_ok), "nothing is sent any more");
    let outcomes = messages(&[&good, &unrouted, &silent, &good]).await;
    assert!(outcomes.iter().all(is_unconfirmed), "beside a silent queue and a return: {outcomes:?}");
    assert!(messages(&[&good]).await.iter().all(Result::is_ok), "nothing is sent any more");
    let outcomes = messages(&[&good, &unrouted, &good]).await;
    assert!(
        matches!(outcomes.as_slice(), [Ok(_), unrouted, Ok(_)] if is_rejected(unrouted, "unroutable")),
        "beside a return: {outcomes:?}"
    );
    Ok(())
}

/// The first publish to an exchange asks whether it exists. A connection that does not answer no longer counts as
/// healthy.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_for_an_exchange_without_an_answer_ends_the_connection() -> Result<()> {
    let harness = RabbitHarness::shared().await?;
    let proxy = Proxy::start(&harness.url).await?;
    let sink = sink(proxy.address());
    sink.check(soon()).await?;
    proxy.black_hole(Direction::ToClient);
    let in_a_second = || Instant::now() + Duration::from_secs(1);
    let outcomes = sink.publish(&some(&destination("amq.direct", "nowhere"), 1), in_a_second()).await;
    assert!(matches!(outcomes.as_slice(), [Err(PublishError::Unavailable(_))]), "{outcomes:?}");
    let checked = sink.check(in_a_second()).await;
    assert!(matches!(checked, Err(PublishError::Unavailable(_))), "{checked:?}");
    proxy.heal();
    Ok(publish_until_sent(&sink, &some(&harness.destination().await?, 1), PATIENCE).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_is_in_no_error() {
    for url in ["amqp://user:S3CRET@127.0.0.1:1/%2f", "http://user:S3CRET@host", "S3CRET"] {
        let config = settings::RabbitMqConfig::new(url);
        let error = match RabbitMq::new("r", &config) {
            Ok(sink) => sink.check(soon()).await.unwrap_err().to_string(),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!error.contains("S3CRET"), "{error}");
    }
}

/// Returns the number of connections to this broker that are open on both sides.
fn connections(url: &str) -> usize {
    let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next()?.parse::<u16>().ok());
    let remote = format!(":{:04X} 01 ", port.unwrap_or_default());
    std::fs::read_to_string("/proc/self/net/tcp").unwrap_or_default().lines().filter(|it| it.contains(&remote)).count()
}
