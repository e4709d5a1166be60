//! What is enqueued is counted, and what is refused with why.

use std::collections::BTreeMap;

use anyhow::Result;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use outbox_core::{BoxError, Event, Message, Outbox, sqlx::Connection as _};
use testkit::{database::Database, servers::Flavor};

struct Broken;

impl Event for Broken {
    const TYPE: &'static str = "broken";
    const TOPIC: &'static str = "t";

    fn key(&self) -> Option<Vec<u8>> {
        None
    }

    fn payload(&self) -> Result<Vec<u8>, BoxError> {
        Err("broken".into())
    }
}

#[tokio::test]
async fn enqueues_and_failures_are_counted_and_timed() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut connection = database.connect().await?;
    let recorder = DebuggingRecorder::new();
    // Of this thread, on which the whole test runs.
    let local = metrics::set_default_local_recorder(&recorder);
    let outbox = Outbox::new();
    let id = outbox_core::Uuid::now_v7();
    outbox.enqueue(&mut connection, Message::new("a", "")).await.unwrap_err();
    let mut tx = connection.begin().await?;
    outbox.enqueue(&mut tx, Message::new("a", "").message_id(id)).await?;
    outbox.enqueue(&mut tx, Message::new("a", "").message_id(id)).await.unwrap_err();
    outbox.enqueue_all(&mut tx, [Message::new("a", ""), Message::new("b", ""), Message::new("a", "")]).await?;
    outbox.enqueue(&mut tx, Message::new("no topic", "")).await.unwrap_err();
    outbox.enqueue(&mut tx, &Broken).await.unwrap_err();
    tx.commit().await?;
    drop(local);
    let mut counters = BTreeMap::new();
    let mut timed = 0;
    for (key, _, _, value) in recorder.snapshotter().snapshot().into_vec() {
        let labels: Vec<_> = key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        match value {
            DebugValue::Counter(count) => drop(counters.insert(format!("{}{labels:?}", key.key().name()), count)),
            DebugValue::Histogram(values) => {
                assert_eq!(key.key().name(), "outbox_enqueue_duration_seconds");
                timed += values.len();
            }
            DebugValue::Gauge(_) => anyhow::bail!("{key:?} is no gauge"),
        }
    }
    let expected = [
        ("outbox_enqueue_failures_total[\"reason=duplicate\"]", 1),
        ("outbox_enqueue_failures_total[\"reason=encode\"]", 1),
        ("outbox_enqueue_failures_total[\"reason=invalid\"]", 1),
        ("outbox_enqueue_failures_total[\"reason=not_in_transaction\"]", 1),
        ("outbox_enqueued_messages_total[\"topic=a\"]", 3),
        ("outbox_enqueued_messages_total[\"topic=b\"]", 1),
    ];
    assert_eq!(counters, expected.map(|(name, count)| (name.to_owned(), count)).into_iter().collect());
    assert_eq!(timed, 5, "each attempt with a message that could be made is timed");
    Ok(())
}
