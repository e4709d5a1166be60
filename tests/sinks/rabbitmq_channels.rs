//! RabbitMQ that allows fewer channels than a sink is to have.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use outbox_relay::{
    settings,
    sink::{
        Destination, Outcome, Outgoing, PublishError, Sink,
        conformance::{DEADLINE, Draft, Harness as _},
        rabbitmq::RabbitMq,
    },
};
use testkit::servers;

use crate::rabbitmq_harness::{RabbitHarness, destination, sink, take};

fn soon() -> Instant {
    Instant::now() + DEADLINE
}

fn some(destination: &Arc<Destination>, count: usize) -> Vec<Outgoing> {
    (0..count).map(|n| Draft::new(destination, "{}").key(n.to_string().as_bytes()).build()).collect()
}

/// A node with a user that may open this number of channels, and the user's address.
async fn allowing(channels: u8) -> Result<(servers::RabbitMq, String)> {
    let broker = servers::RabbitMq::start().await?;
    broker.ctl(&["add_user", "few", "few"]).await?;
    broker.ctl(&["set_permissions", "few", ".*", ".*", ".*"]).await?;
    broker.ctl(&["set_user_limits", "few", &format!("{{\"max-channels\":{channels}}}")]).await?;
    let url = broker.amqp_url().replace("guest:guest@", "few:few@");
    Ok((broker, url))
}

/// Sends messages of many keys, among them some for a missing exchange: the answer ends a channel.
async fn all_is_sent(url: &str, queue: &Arc<Destination>) -> Result<()> {
    let sink = sink(url);
    sink.check(soon()).await?;
    for round in 0..3 {
        let missing = some(&destination("no-such-exchange", "key"), 3);
        let outcomes = sink.publish(&[some(queue, 200), missing].concat(), soon()).await;
        let (sent, refused) = outcomes.split_at(200);
        ensure!(sent.iter().all(Result::is_ok), "round {round}: {:?}", sent.iter().find(|it| it.is_err()));
        let is_unroutable = |outcome: &Outcome| matches!(outcome, Err(PublishError::Unroutable { .. }));
        ensure!(refused.iter().all(is_unroutable), "round {round}: {refused:?}");
    }
    sink.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_fewer_channels_than_configured_all_is_sent() -> Result<()> {
    let shared = RabbitHarness::shared().await?;
    let queue = shared.destination().await?;
    for most in [1, 2] {
        all_is_sent(&format!("{}?channel_max={most}", shared.url), &queue).await?;
    }
    ensure!(take(&shared.url, &queue.target, 1200).await?.len() == 1200, "something came twice");
    let (broker, url) = allowing(2).await?;
    let harness = RabbitHarness::at(&broker.amqp_url());
    let queue = harness.destination().await?;
    all_is_sent(&url, &queue).await?;
    ensure!(take(&harness.url, &queue.target, 600).await?.len() == 600, "something came twice");
    Ok(())
}

/// A round that takes long leaves its channel, and the next round wants another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_the_broker_does_not_open_ends_no_round_of_others() -> Result<()> {
    let (broker, url) = allowing(2).await?;
    let harness = RabbitHarness::at(&broker.amqp_url());
    let good = harness.destination().await?;
    let silent = harness.destination().await?;
    let sink = RabbitMq::new("rabbit", &settings::RabbitMqConfig::new(&url))?;
    ensure!(sink.publish(&some(&good, 20), soon()).await.iter().all(Result::is_ok), "nothing is sent");
    broker.suspend_queue(&silent.target).await?;
    let deadline = Instant::now() + Duration::from_secs(3);
    let others = async {
        let mut outcomes = Vec::new();
        while Instant::now() < deadline {
            outcomes.extend(sink.publish(&some(&good, 20), deadline).await);
        }
        outcomes
    };
    let stuck = some(&silent, 1);
    let (stuck, others) = tokio::join!(sink.publish(&stuck, deadline), others);
    ensure!(matches!(stuck.as_slice(), [Err(PublishError::Unconfirmed(_))]), "{stuck:?}");
    let is_sound = |outcome: &Outcome| matches!(outcome, Ok(_) | Err(PublishError::TurnedAway(_)));
    ensure!(others.iter().all(is_sound), "{:?}", others.iter().find(|it| !is_sound(it)));
    ensure!(others.iter().any(Result::is_ok), "no other message was sent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_any_channel_left_is_told_so() -> Result<()> {
    let (_broker, url) = allowing(0).await?;
    let checked = sink(&url).check(Instant::now() + Duration::from_secs(2)).await;
    let words = checked.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(words.contains("has no channel left for this user") && words.contains("max-channels"), "{words}");
    Ok(())
}
