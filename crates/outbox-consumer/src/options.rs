//! The options of both consumers.

use std::time::Duration;

use outbox_core::{INBOX_RETENTION, InboxPurge};

use crate::{Metrics, Retry, SequencePolicy};

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) retry: Retry,
    pub(crate) sequence: SequencePolicy,
    pub(crate) concurrency: usize,
    pub(crate) inbox_retention: Duration,
    pub(crate) purge: Option<InboxPurge>,
    pub(crate) deadline: Duration,
    pub(crate) stop_deadline: Duration,
    pub(crate) metrics: Metrics,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            retry: Retry::default(),
            sequence: SequencePolicy::Accept,
            concurrency: 8,
            inbox_retention: INBOX_RETENTION,
            purge: None,
            deadline: Duration::from_secs(60),
            stop_deadline: Duration::from_secs(15),
            metrics: Metrics::unread(),
        }
    }
}

/// The methods that set them, on either consumer.
macro_rules! common_options {
    () => {
        /// The number of attempts of a message, and the waits between them.
        #[must_use]
        pub fn retry(mut self, retry: crate::Retry) -> Self {
            self.options.retry = retry;
            self
        }

        /// The policy for a message of a sequenced key that is not the next one; by default it is only reported.
        #[must_use]
        pub fn sequence(mut self, policy: crate::SequencePolicy) -> Self {
            self.options.sequence = policy;
            self
        }

        /// How many messages are at work at the same time, each of another key; 8 by default. Each has a connection of
        /// the pool; messages that wait for their next attempt have none.
        #[must_use]
        pub fn concurrency(mut self, messages: usize) -> Self {
            self.options.concurrency = messages.max(1);
            self
        }

        /// How long the inbox remembers: `retention.inbox` of the relay, 7 days by default; zero is for ever. It
        /// decides how long the dead row of a message that was processed meanwhile stays, and warns of messages that
        /// can come again, or have come, after that. [`Self::purge_inbox`] sets it too.
        #[must_use]
        pub fn inbox_retention(mut self, time: std::time::Duration) -> Self {
            self.options.inbox_retention = time;
            self
        }

        /// Purges the inbox while this consumer runs: for a database that no relay purges. By default nothing is
        /// purged, and the tables grow. Of all processes with this setting one purges. An observer of the purge is
        /// replaced by the metric `outbox_inbox_purged_rows_total`.
        #[must_use]
        pub fn purge_inbox(mut self, purge: outbox_core::InboxPurge) -> Self {
            self.options.inbox_retention = purge.processed_kept();
            self.options.purge = Some(purge);
            self
        }

        /// How long the handler may take for a message, 60 s by default; then its work is rolled back, and counts as
        /// failed. The inbox waits equally long for a reply of the database before it tries again on another
        /// connection. So it must be more than the server's lock wait (`innodb_lock_wait_timeout`, 50 s).
        #[must_use]
        pub fn deadline(mut self, time: std::time::Duration) -> Self {
            self.options.deadline = time;
            self
        }

        /// How long a stop waits for messages at work, 15 s by default. A message that is still at work then goes on by
        /// itself, is not acknowledged, and comes again as a duplicate. The end of the connection has what is left of
        /// this time, and 5 s at least: brokers that are away do not hold the process.
        #[must_use]
        pub fn stop_deadline(mut self, time: std::time::Duration) -> Self {
            self.options.stop_deadline = time;
            self
        }

        /// The metrics to count in.
        #[must_use]
        pub fn metrics(mut self, metrics: crate::Metrics) -> Self {
            self.options.metrics = metrics;
            self
        }
    };
}
pub(crate) use common_options;
