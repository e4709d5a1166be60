//! The answers to an operator during a case: `relay status` names the fault, and `relay why` explains each message.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_core::sqlx;
use outbox_relay::operate::{
    status::lanes,
    why::{Reference, Why, why},
};
use testkit::servers::until;
use tokio::time::timeout;

use crate::arena::{Arena, PATIENCE};

/// The time in which a relay answers that nothing has stopped.
const ANSWER: Duration = Duration::from_secs(1);
/// Twenty unsent messages at most: of each state, and the first and the last pending ones.
const SAMPLE: &str = "(SELECT id FROM outbox_pending ORDER BY id LIMIT 5) \
    UNION (SELECT id FROM outbox_pending ORDER BY id DESC LIMIT 5) \
    UNION (SELECT id FROM outbox_delayed ORDER BY id LIMIT 5) UNION (SELECT id FROM outbox_dead ORDER BY id LIMIT 5)";
/// The causes that explain a pending or delayed message. `stuck` is none: then live relays do nothing for no known
/// reason.
const CAUSES: [&str; 20] = [
    "paused",
    "behind",
    "expired",
    "in_line",
    "no_relay",
    "sink",
    "next_of_key",
    "due",
    "scheduled",
    "unconfirmed",
    "rejected",
    "turned_away",
    "parked",
    "unroutable",
    "no_route",
    "unread",
    "claimed",
    "tailed",
    "closed",
    "lease_ended",
];

/// The answers of a case.
#[derive(Debug, Default)]
pub struct Answers {
    /// The words of the verdict on a lane while the fault lasts; empty if nobody asks then.
    pub(crate) words: &'static str,
    /// Whether a verdict had these words.
    pub(crate) were_told: bool,
    /// Answers that were wrong.
    pub(crate) wrong: Vec<String>,
}

impl Arena {
    /// Waits, while the fault lasts, until the verdict on a lane names it in the case's words.
    pub async fn told(&mut self) -> Result<()> {
        let words = self.answers.words;
        let database = &self.database;
        until(PATIENCE, "the verdict on the fault", || async {
            let lanes = lanes(&mut database.plain().await?).await?;
            ensure!(lanes.iter().any(|lane| lane.verdict.contains(words)), "{words} is not in {lanes:?}");
            Ok(())
        })
        .await?;
        self.answers.were_told = true;
        self.sample().await;
        self.explained().await
    }

    /// Notes the metrics that have moved, some only while the fault lasts. A relay that the fault has stopped does not
    /// answer.
    async fn sample(&mut self) {
        for relay in &self.relays {
            if let Ok(Ok(metrics)) = timeout(ANSWER, relay.metrics()).await {
                self.counts.moved.extend(metrics.moved().map(str::to_owned));
            }
        }
    }

    /// Asks why some messages are not sent. The database answers, though perhaps not at once.
    pub(crate) async fn explained(&mut self) -> Result<()> {
        let database = &self.database;
        let asked = until(PATIENCE, "answers", || async {
            let mut db = database.plain().await?;
            let mut wrong = Vec::new();
            let ids: Vec<u64> = sqlx::query_scalar(SAMPLE).fetch_all(&mut db).await?;
            for id in ids {
                let answer = why(&mut db, Reference::Number(id)).await?;
                if !is_explained(&answer) {
                    wrong.push(format!("message {id} is {}, {}: {}", answer.state, answer.cause, answer.why));
                }
            }
            Ok(wrong)
        });
        let wrong = asked.await?;
        self.answers.wrong.extend(wrong);
        Ok(())
    }

    /// After everything is sent, no lane has anything to do.
    pub(crate) async fn idle(&mut self) -> Result<()> {
        let lanes = lanes(&mut self.database.plain().await?).await?;
        let wrong = lanes.iter().filter(|lane| lane.state != "idle");
        self.answers.wrong.extend(wrong.map(|lane| format!("lane {} is {}: {}", lane.lane, lane.state, lane.verdict)));
        Ok(())
    }
}

/// A message may be sent, or discarded by an operator, between the sample and the question.
fn is_explained(answer: &Why) -> bool {
    match answer.state {
        "sent" | "dead" | "unknown" => true,
        "pending" | "claimed" | "delayed" => CAUSES.contains(&answer.cause.as_str()),
        _ => false,
    }
}
