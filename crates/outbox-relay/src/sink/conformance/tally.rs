//! The outcomes of a case's messages, and the arrivals that they allow.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use tokio::time::sleep;
use uuid::Uuid;

use super::{
    Arrived,
    messages::{PAUSE, publish},
};
use crate::sink::{Outcome, Outgoing, PublishError, Sink};

/// All outcomes so far, by message.
#[derive(Default)]
pub(super) struct Tally(HashMap<Uuid, ArrivalCount>);

#[derive(Default)]
struct ArrivalCount {
    confirmed: usize,
    /// The place of the last confirmation.
    place: String,
    /// Whether more copies may arrive than were confirmed.
    may_repeat: bool,
}

impl Tally {
    /// Adds the outcomes of a batch of good messages. They may fail, but a rejection is an error: the message would be
    /// dead.
    pub(super) fn add(&mut self, messages: &[Outgoing], outcomes: &[Outcome]) -> Result<()> {
        ensure!(outcomes.len() == messages.len(), "{} outcomes for {} messages", outcomes.len(), messages.len());
        for (message, outcome) in messages.iter().zip(outcomes) {
            let count = self.0.entry(message.message_id).or_default();
            match outcome {
                Ok(receipt) => {
                    count.confirmed += 1;
                    count.place.clone_from(&receipt.place);
                    count.may_repeat |= receipt.resent;
                }
                Err(PublishError::Unconfirmed(_)) => count.may_repeat = true,
                // After a restart a destination may be unknown for a moment.
                Err(PublishError::Unavailable(_) | PublishError::TurnedAway(_) | PublishError::Unroutable { .. }) => {}
                Err(error @ PublishError::Rejected { .. }) => bail!("a good message is {error}"),
            }
        }
        Ok(())
    }

    /// Publishes those messages that are not confirmed yet until all are, each outcome added.
    pub(super) async fn publish_all(&mut self, sink: &dyn Sink, messages: &[Outgoing], within: Duration) -> Result<()> {
        let end = Instant::now() + within;
        let mut rest: Vec<_> = messages.iter().filter(|message| !self.is_confirmed(message)).cloned().collect();
        while !rest.is_empty() {
            let outcomes = publish(sink, &rest).await;
            self.add(&rest, &outcomes)?;
            rest.retain(|message| !self.is_confirmed(message));
            if let Some(error) = outcomes.into_iter().find_map(Result::err) {
                ensure!(Instant::now() <= end, "{} not confirmed within {within:?}: {error}", rest.len());
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    fn is_confirmed(&self, message: &Outgoing) -> bool {
        self.0.get(&message.message_id).is_some_and(|count| count.confirmed > 0)
    }

    /// Returns the number of confirmed messages.
    pub(super) fn confirmed(&self) -> usize {
        self.0.values().filter(|count| count.confirmed > 0).count()
    }

    /// Checks that each confirmed message arrived, and no message more often than its outcomes allow.
    pub(super) fn check(&self, arrived: &[Arrived]) -> Result<()> {
        let mut times: HashMap<Uuid, usize> = HashMap::new();
        for message in arrived {
            *times.entry(message.message_id).or_default() += 1;
        }
        let strangers: HashSet<_> = times.keys().filter(|id| !self.0.contains_key(id)).collect();
        ensure!(strangers.is_empty(), "{} messages arrived that were not sent", strangers.len());
        for (id, ArrivalCount { confirmed, place, may_repeat }) in &self.0 {
            let times = times.get(id).copied().unwrap_or_default();
            ensure!(times > 0 || *confirmed == 0, "a confirmed message did not arrive: {place}");
            ensure!(*may_repeat || times <= *confirmed, "a message arrived {times} times, confirmed {confirmed} times");
        }
        Ok(())
    }
}
