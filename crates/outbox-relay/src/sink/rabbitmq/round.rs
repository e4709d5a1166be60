//! A round: messages that are published on one channel and settled together.

use std::{collections::HashSet, time::Duration, time::Instant};

use futures_util::{
    FutureExt as _,
    future::{join_all, maybe_done},
};
use lapin::{
    Channel, Confirmation, Error,
    options::BasicPublishOptions,
    protocol::AMQPSoftError::{ACCESSREFUSED, NOTFOUND, PRECONDITIONFAILED},
};
use tokio::time::{sleep, timeout_at};

use super::{
    session::{BrokerSession, soft},
    wire::Publish,
};
use crate::{
    driver_errors::{Trouble, explain},
    sink::{Outcome, Outgoing, PublishError, Receipt},
};

/// The pause between two checks whether the broker has blocked a new connection.
const LOOK: Duration = Duration::from_millis(20);

/// A message that is ready to go out.
pub(super) struct ReadyPublish<'a> {
    pub(super) index: usize,
    pub(super) publish: Publish,
    pub(super) message: &'a Outgoing,
    /// Whether the routing key has the message's key in it, which no error shows.
    pub(super) has_key: bool,
}

impl ReadyPublish<'_> {
    /// The error of a message that no queue gets.
    fn unbound(&self) -> PublishError {
        let routing_key = if self.has_key { "(that of the message)" } else { self.publish.routing_key.as_str() };
        unroutable("unroutable", &format!("no queue is bound for the routing key {routing_key}"))
    }
}

/// The outcome of a round.
pub(super) enum Round {
    /// All confirms are in.
    Settled(Vec<Outcome>),
    /// The broker ended the channel because of one of the messages.
    Killed(Error),
    /// The connection was lost: any message may have arrived.
    Lost(String),
    /// The deadline passed before the last confirm: any message not known to be sent may have arrived.
    Late(Vec<Outcome>),
}

/// Publishes the messages and waits for all confirms.
pub(super) async fn run(
    session: &BrokerSession,
    channel: &Channel,
    messages: &[ReadyPublish<'_>],
    deadline: Instant,
) -> Round {
    let mut confirms: Vec<_> = messages.iter().map(|message| Box::pin(maybe_done(publish(channel, message)))).collect();
    let blocked = async {
        while session.is_proven() || !session.is_blocked() {
            sleep(LOOK).await;
        }
    };
    let ended = async {
        tokio::select! {
            _ = join_all(&mut confirms) => None,
            () = blocked => Some("broker_blocked: it may take the message when its alarm is over"),
        }
    };
    if let Ok(Some(reason)) = timeout_at(deadline.into(), ended).await {
        return Round::Lost(reason.to_owned());
    }
    let mut look = || -> Vec<bool> {
        let known = confirms.iter_mut().map(|confirm| confirm.as_mut().now_or_never().is_some());
        known.collect()
    };
    // The second pass sees all that was confirmed before any confirm seen by the first pass.
    let (known, _) = (look(), look());
    settle(messages, &known, confirms.iter_mut().map(|confirm| confirm.as_mut().take_output()))
}

async fn publish(channel: &Channel, message: &ReadyPublish<'_>) -> lapin::Result<Confirmation> {
    let Publish { exchange, routing_key, properties, .. } = message.publish.clone();
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let payload = message.message.contents.payload.as_deref().unwrap_or(&[]);
    let confirm = channel.basic_publish(exchange, routing_key, options, payload, properties).await?.await?;
    if confirm.is_ack() {
        message.message.progress.iter().for_each(|progress| progress.confirmed(Instant::now()));
    }
    Ok(confirm)
}

/// Returns the outcomes of messages, some or all of them confirmed.
///
/// RabbitMQ returns an unroutable message and then acknowledges it. lapin attaches the return to the next
/// acknowledgement that it processes. That may be another message's, but comes no later than the message's own. So
/// while a confirm is missing, no message counts as sent if any was returned.
fn settle(
    messages: &[ReadyPublish<'_>],
    known: &[bool],
    confirms: impl Iterator<Item = Option<lapin::Result<Confirmation>>>,
) -> Round {
    let mut acked = Vec::with_capacity(messages.len());
    let mut returned = HashSet::new();
    for confirm in confirms {
        acked.push(match confirm {
            Some(Ok(confirm)) => {
                let is_ack = confirm.is_ack();
                returned.extend(confirm.take_message().map(|it| it.delivery.properties.message_id().clone()));
                is_ack
            }
            Some(Err(error)) if soft(&error).is_some() => return Round::Killed(error),
            Some(Err(error)) => return Round::Lost(error.to_string()),
            None => false,
        });
    }
    let is_late = known.contains(&false);
    let outcomes = messages.iter().zip(acked).zip(known).map(|((message, acked), known)| {
        if is_late && (!known || !returned.is_empty()) {
            return Err(late());
        }
        outcome(message, returned.contains(message.publish.properties.message_id()), acked)
    });
    if is_late { Round::Late(outcomes.collect()) } else { Round::Settled(outcomes.collect()) }
}

pub(super) fn late() -> PublishError {
    PublishError::Unconfirmed("no confirm before the deadline".to_owned())
}

fn outcome(message: &ReadyPublish<'_>, returned: bool, acked: bool) -> Outcome {
    match (returned, acked) {
        (true, _) => Err(message.unbound()),
        (false, true) => Ok(Receipt::new(&format!("{}/{}", message.publish.exchange, message.publish.routing_key))),
        // One queue of several may have taken it; others may be full. Only this message waits.
        (false, false) => Err(PublishError::Unconfirmed("the broker refused it for now (nack)".to_owned())),
    }
}

/// Returns the outcome of a message that was alone on its channel when the broker ended that.
pub(super) fn guilty(error: &Error) -> PublishError {
    let text = error.to_string();
    match soft(error) {
        Some(NOTFOUND) => unroutable("unroutable", &text),
        Some(ACCESSREFUSED) => unroutable("refused", &explain(Trouble::RabbitMq(error))),
        Some(PRECONDITIONFAILED) if text.contains("size") => rejected("too_large", &text),
        Some(PRECONDITIONFAILED) => rejected("invalid", &text),
        _ => PublishError::Unconfirmed(text),
    }
}

fn rejected(reason: &'static str, detail: &str) -> PublishError {
    PublishError::Rejected { reason, detail: detail.to_owned() }
}

pub(super) fn unroutable(reason: &'static str, detail: &str) -> PublishError {
    PublishError::Unroutable { reason, detail: detail.to_owned() }
}
