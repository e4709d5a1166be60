//! A dead message, its retry and a late delivery have one effect together, in any order.

use std::time::Duration;

use anyhow::Result;
use outbox_consumer::{Retry, outbox_core::store, retry_dead};
use testkit::{
    consume::{Broker, Sending, Topic},
    database::Database,
    on_both_databases,
    servers::Flavor,
};

use crate::stage::{Does, RETRY, Running, Stage, Work};

on_both_databases!(
    a_message_that_comes_again_after_its_retry_is_a_duplicate,
    a_retry_after_a_late_delivery_is_the_only_effect,
    a_dead_message_that_was_processed_meanwhile_goes,
    the_purge_of_a_dead_message_lets_its_mark_grow_old,
);

const MESSAGES: &str = "outbox_inbox_messages_total";
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// A stage with a message that is dead after one attempt, and would succeed at the next.
async fn with_a_dead_message(flavor: Flavor) -> Result<(Stage, Sending, Running)> {
    let stage = Stage::on(Database::create(flavor).await?, Topic::create(Broker::RabbitMq).await?).await?;
    let message = Sending::new("key", "flaky");
    stage.topic.send(std::slice::from_ref(&message)).await?;
    let once = Retry::new(RETRY.base, RETRY.max, 1);
    let consumer = Stage::start_rabbitmq(stage.rabbitmq()?.retry(once), &Does::work())?;
    stage.wait_for(1).await?;
    Ok((stage, message, consumer))
}

/// Makes what the inbox has older by ten days, and purges it as a relay does.
async fn ten_days_later(stage: &Stage) -> Result<()> {
    let later = "UPDATE inbox_processed SET processed_at = processed_at - INTERVAL 10 DAY; \
                 UPDATE inbox_dead SET died_at = died_at - INTERVAL 10 DAY";
    stage.database.execute(later).await?;
    store::operate::purge::inbox(&mut stage.database.connect_as_admin().await?, WEEK, 1000).await?;
    Ok(())
}

async fn retry(stage: &Stage) -> Result<(u64, u64)> {
    let retried = retry_dead(&stage.pool, stage.topic.name(), &Work(Does::work())).await?;
    Ok((retried.processed, retried.failed))
}

async fn is_dead(stage: &Stage) -> Result<bool> {
    Ok(stage.database.number("SELECT COUNT(*) FROM inbox_dead").await? > 0)
}

async fn a_message_that_comes_again_after_its_retry_is_a_duplicate(flavor: Flavor) -> Result<()> {
    let (stage, message, consumer) = with_a_dead_message(flavor).await?;
    ten_days_later(&stage).await?;
    let handler = Work(Does::work());
    for expected in [(0, 1), (1, 0)] {
        let retried = retry_dead(&stage.pool, stage.topic.name(), &handler).await?;
        assert_eq!((retried.processed, retried.failed), expected);
    }
    store::operate::purge::inbox(&mut stage.database.connect_as_admin().await?, WEEK, 1000).await?;
    stage.topic.send(&[message]).await?;
    consumer.wait_for_metric(MESSAGES, "duplicate", 1.0).await?;
    assert_eq!((stage.effects().await?.len(), is_dead(&stage).await?), (1, false));
    consumer.stop().await?;
    ten_days_later(&stage).await?;
    assert_eq!(stage.database.number("SELECT COUNT(*) FROM inbox_processed").await?, 0, "it is remembered for good");
    Ok(())
}

async fn a_retry_after_a_late_delivery_is_the_only_effect(flavor: Flavor) -> Result<()> {
    let (stage, message, consumer) = with_a_dead_message(flavor).await?;
    ten_days_later(&stage).await?;
    stage.topic.send(&[message]).await?;
    consumer.wait_for_metric(MESSAGES, "duplicate", 1.0).await?;
    assert!(stage.effects().await?.is_empty() && is_dead(&stage).await?, "a dead message waits for its retry");
    consumer.stop().await?;
    let handler = Work(Does::work());
    for expected in [(0, 1), (1, 0), (0, 0)] {
        let retried = retry_dead(&stage.pool, stage.topic.name(), &handler).await?;
        assert_eq!((retried.processed, retried.failed), expected);
    }
    assert_eq!(stage.effects().await?.len(), 1);
    Ok(())
}

/// As if its mark were deleted by hand.
async fn a_dead_message_that_was_processed_meanwhile_goes(flavor: Flavor) -> Result<()> {
    let (stage, message, consumer) = with_a_dead_message(flavor).await?;
    stage.database.execute("DELETE FROM inbox_processed").await?;
    let replayed = Sending { headers: vec![("outbox-replay".to_owned(), "1".to_owned())], ..message };
    stage.topic.send(&[replayed]).await?;
    consumer.wait_for_metric(MESSAGES, "first", 1.0).await?;
    assert!(!is_dead(&stage).await?, "a replayed message was processed, and is still dead");
    consumer.stop().await?;

    // A consumer leaves one that is neither replayed nor late to the retry.
    let second = Sending::new("key", "flaky");
    let once = Retry::new(RETRY.base, RETRY.max, 1);
    let consumer = Stage::start_rabbitmq(stage.rabbitmq()?.retry(once), &Does::work())?;
    stage.topic.send(std::slice::from_ref(&second)).await?;
    consumer.wait_for_metric(MESSAGES, "dead", 1.0).await?;
    stage.database.execute("DELETE FROM inbox_processed").await?;
    stage.topic.send(&[second]).await?;
    consumer.wait_for_metric(MESSAGES, "first", 1.0).await?;
    consumer.stop().await?;
    assert!(is_dead(&stage).await?);
    assert_eq!(retry(&stage).await?, (0, 0));
    assert_eq!((stage.effects().await?.len(), is_dead(&stage).await?), (2, false));
    Ok(())
}

async fn the_purge_of_a_dead_message_lets_its_mark_grow_old(flavor: Flavor) -> Result<()> {
    let (stage, _message, consumer) = with_a_dead_message(flavor).await?;
    consumer.stop().await?;
    ten_days_later(&stage).await?;
    let mut admin = stage.database.connect_as_admin().await?;
    assert_eq!(store::inbox::purge::dead(&mut admin, WEEK, 10).await?, 1);
    let marks = "SELECT COUNT(*) FROM inbox_processed";
    assert_eq!(stage.database.number(marks).await?, 1, "it is forgotten with the dead message");
    ten_days_later(&stage).await?;
    assert_eq!(stage.database.number(marks).await?, 0);
    Ok(())
}
