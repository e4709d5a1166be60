//! A consumer that purges its inbox, with the account of a consumer.

use anyhow::{Result, ensure};
use outbox_consumer::outbox_core::{InboxPurge, sqlx::mysql::MySqlPoolOptions};
use testkit::{
    accounts::Account,
    consume::Broker,
    servers::{PATIENCE, until},
};

use crate::stage::{Does, Stage, messages};

const OLD: &str = "\
    INSERT INTO inbox_processed (consumer, message_id, processed_at) \
    VALUES ('a', 'old 1', '2020-01-01'), ('a', 'old 2', '2020-01-01'); \
    INSERT INTO inbox_dead (consumer, message_id, topic, attempts, died_at, reason) \
    VALUES ('a', 'old 1', 't', 1, '2020-01-01', 'refused'); \
    INSERT INTO inbox_sequence (consumer, topic, message_key, sequence, missing, seen_at) \
    VALUES ('a', 't', 'k', 1, '[]', '2020-01-01')";

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_purges_the_inbox_and_goes_on_consuming() -> Result<()> {
    for broker in Broker::ALL {
        let mut stage = Stage::new(broker).await?;
        let account = stage.database.url_as(Account::Consumer)?;
        stage.pool = MySqlPoolOptions::new().max_connections(12).connect(&account).await?;
        stage.database.execute(OLD).await?;
        let does = Does::work();
        let purge = InboxPurge::new();
        let consumer = match broker {
            Broker::Kafka => Stage::start_kafka(stage.kafka()?.purge_inbox(purge), &does)?,
            Broker::RabbitMq => Stage::start_rabbitmq(stage.rabbitmq()?.purge_inbox(purge), &does)?,
        };
        until(PATIENCE, "the purge", || async {
            let purged = |table| consumer.labelled("outbox_inbox_purged_rows_total", "table", table);
            let purged = ["inbox_processed", "inbox_dead", "inbox_sequence"].map(purged);
            ensure!(format!("{purged:?}") == "[2.0, 1.0, 1.0]", "{purged:?}");
            Ok(())
        })
        .await?;
        let sent = messages(20, 5, "ok");
        stage.topic.send(&sent).await?;
        stage.wait_for(sent.len()).await?;
        stage.assert_once_and_in_order(&sent).await?;
        consumer.stop().await?;
        let free = "SELECT COUNT(*) FROM outbox_leases WHERE lease_until < UTC_TIMESTAMP(6)";
        assert_eq!(stage.database.number(free).await?, 1, "the lease outlives the consumer");
    }
    Ok(())
}
