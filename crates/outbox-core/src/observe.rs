//! Metrics of the enqueue, by the facade `metrics`: the service chooses their recorder.

use std::time::Instant;

use metrics::{counter, histogram};

use crate::{EnqueueError, Message};

/// A running enqueue, and its number of messages by topic.
pub(crate) struct Enqueue {
    start: Instant,
    topics: Vec<(String, u64)>,
}

impl Enqueue {
    pub(crate) fn of(messages: &[Message]) -> Self {
        let mut topics: Vec<(String, u64)> = Vec::new();
        for message in messages {
            match topics.iter_mut().find(|(topic, _)| *topic == message.contents.topic) {
                Some((_, count)) => *count += 1,
                None => topics.push((message.contents.topic.clone(), 1)),
            }
        }
        Self { start: Instant::now(), topics }
    }

    pub(crate) fn ended(self, outcome: &Result<(), EnqueueError>) {
        histogram!("outbox_enqueue_duration_seconds").record(self.start.elapsed().as_secs_f64());
        if let Err(error) = outcome {
            failed(error);
            return;
        }
        for (topic, count) in self.topics {
            counter!("outbox_enqueued_messages_total", "topic" => topic).increment(count);
        }
    }
}

pub(crate) fn failed(error: &EnqueueError) {
    counter!("outbox_enqueue_failures_total", "reason" => error.reason()).increment(1);
}
