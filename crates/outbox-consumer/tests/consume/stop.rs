//! A stop lets messages at work end, and leaves nothing to come again.

use anyhow::{Context as _, Result, ensure};
use testkit::{consume::Broker, servers::until};

use crate::stage::{Does, PATIENCE, Stage, messages};

#[tokio::test(flavor = "multi_thread")]
async fn messages_at_work_end_before_the_stop_and_do_not_come_again() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        // More keys than work at the same time: some wait for their turn, and are left for the next process.
        let sent = messages(30, 30, "ok");
        stage.topic.send(&sent).await?;
        let does = Does::wait();
        let consumer = stage.consume(&does)?;
        let in_flight = "outbox_inbox_in_flight_messages";
        consumer.wait_for_metric(in_flight, "", 30.0).await?;
        consumer.ask_to_stop();
        // The waits are ended by the stop; what is at work stays until the gate is opened.
        until(PATIENCE, "the waits to end", || async {
            let left = consumer.metric(in_flight, "");
            ensure!(left <= 8.0, "{left} messages are in flight");
            Ok(())
        })
        .await?;
        does.gate.add_permits(8);
        consumer.stop().await?;
        let effects = stage.effects().await?.len();
        assert!((1..=8).contains(&effects), "{broker:?}: {effects}");
        let next = stage.consume(&Does::work())?;
        stage.wait_for(sent.len()).await?;
        stage.assert_once_and_in_order(&sent).await?;
        // On RabbitMQ each message is acknowledged by itself; an offset can only tell of all before it.
        if broker == Broker::RabbitMq {
            assert!(
                next.metric("outbox_inbox_messages_total", "duplicate") < 0.5,
                "an acknowledged message came again"
            );
        }
        next.stop().await?;
        let last = stage.consume(&Does::work())?;
        let more = messages(5, 5, "ok");
        stage.topic.send(&more).await?;
        stage.wait_for(sent.len() + more.len()).await?;
        let again = last.metric("outbox_inbox_messages_total", "duplicate");
        assert!(again < 0.5, "{broker:?}: {again} messages came again after a stop in order");
        last.stop().await?;
    }
    Ok(())
}

/// Whoever supervises the process starts it again. A consumer that went on would keep the key of that message for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_outside_of_the_handler_ends_the_consumer_with_an_error() -> Result<()> {
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        stage.topic.send(&messages(1, 1, "bug")).await?;
        let end = stage.consume(&Does::work())?.end().await;
        let error = end.err().context("it ended in order")?.to_string();
        ensure!(error.contains("a task of the consumer has ended"), "{broker:?}: {error}");
    }
    Ok(())
}
