//! The purge of the inbox beside a consumer.

use outbox_core::{InboxPurge, Purged, sqlx::MySqlPool};
use tokio_util::sync::CancellationToken;

use crate::options::Options;

/// The purge that a service has asked for.
pub(crate) struct Purging {
    purge: Option<InboxPurge>,
    pool: MySqlPool,
}

impl Purging {
    /// Takes the purge from the options; it counts in their metrics.
    pub(crate) fn new(options: &mut Options, consumer: &str, pool: &MySqlPool) -> Self {
        let counter = options.metrics.purged.clone();
        let consumer = consumer.to_owned();
        let count = move |Purged { processed, dead, sequences, .. }: Purged| {
            for (table, rows) in [("inbox_processed", processed), ("inbox_dead", dead), ("inbox_sequence", sequences)] {
                counter.with_label_values(&[consumer.as_str(), table]).inc_by(rows);
            }
        };
        Self { purge: options.purge.take().map(|purge| purge.observe(count)), pool: pool.clone() }
    }

    /// Purges for as long as the consumer works. Both futures are large, and boxed.
    pub(crate) async fn beside<T>(self, work: impl Future<Output = T>) -> T {
        let work = Box::pin(work);
        let Some(purge) = self.purge else { return work.await };
        let ended = CancellationToken::new();
        let work = async {
            let _ends = ended.clone().drop_guard();
            work.await
        };
        tokio::join!(work, Box::pin(purge.run(&self.pool, ended.cancelled()))).0
    }
}
