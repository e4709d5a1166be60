//! A round: messages that are published on one channel and settled together.

use std::{collections::HashSet, time::Duration, time::Instant};

use futures_util::future::join_all;
use lapin::{
    Channel, Confirmation, Error,
    options::BasicPublishOptions,
    protocol::AMQPSoftError::{ACCESSREFUSED, NOTFOUND, PRECONDITIONFAILED},
};
use tokio::time::{sleep, timeout_at};

use super::{
    session::{Session, soft},
    wire::Publish,
};
use crate::sink::{Outcome, PublishError, Receipt};

/// How often a new connection is asked whether the broker has blocked it.
const LOOK: Duration = Duration::from_millis(20);

/// A message that is ready to go out.
pub(super) struct Ready<'a> {
    pub(super) index: usize,
    pub(super) publish: Publish,
    pub(super) payload: &'a [u8],
}

/// How a round ended.
pub(super) enum Round {
    /// All confirms are in.
    Settled(Vec<Outcome>),
    /// The broker ended the channel because of one of the messages.
    Killed(Error),
    /// The connection was lost: any of them may have arrived.
    Lost(String),
    /// The deadline passed: any of them may have arrived.
    Late,
}

/// Publishes the messages and waits for all confirms.
///
/// Nothing is settled before the last confirm is in: RabbitMQ returns an unroutable message and then acknowledges it, and
/// lapin hangs the return on the next acknowledgement that it processes, which may be another message's.
pub(super) async fn run(session: &Session, channel: &Channel, messages: &[Ready<'_>], deadline: Instant) -> Round {
    let confirms = join_all(messages.iter().map(|message| publish(channel, message)));
    let blocked = async {
        while session.is_proven() || !session.is_blocked() {
            sleep(LOOK).await;
        }
    };
    let ended = async {
        tokio::select! {
            confirms = confirms => Ok(confirms),
            () = blocked => Err("broker_blocked: it may take the message when its alarm is over"),
        }
    };
    match timeout_at(deadline.into(), ended).await {
        Ok(Ok(confirms)) => settle(messages, confirms),
        Ok(Err(reason)) => Round::Lost(reason.to_owned()),
        Err(_) => Round::Late,
    }
}

async fn publish(channel: &Channel, message: &Ready<'_>) -> lapin::Result<Confirmation> {
    let Publish { exchange, routing_key, properties, .. } = message.publish.clone();
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    channel.basic_publish(exchange, routing_key, options, message.payload, properties).await?.await
}

fn settle(messages: &[Ready<'_>], confirms: Vec<lapin::Result<Confirmation>>) -> Round {
    let mut acked = Vec::with_capacity(messages.len());
    let mut returned = HashSet::new();
    for confirm in confirms {
        match confirm {
            Ok(confirm) => {
                acked.push(confirm.is_ack());
                returned.extend(confirm.take_message().and_then(|it| it.delivery.properties.message_id().clone()));
            }
            Err(error) if soft(&error).is_some() => return Round::Killed(error),
            Err(error) => return Round::Lost(error.to_string()),
        }
    }
    let outcomes = messages.iter().zip(acked).map(|(message, acked)| {
        let id = message.publish.properties.message_id();
        outcome(message, id.as_ref().is_some_and(|id| returned.contains(id)), acked)
    });
    Round::Settled(outcomes.collect())
}

fn outcome(message: &Ready<'_>, returned: bool, acked: bool) -> Outcome {
    match (returned, acked) {
        (true, _) => Err(unroutable("unroutable", "no queue is bound for the routing key")),
        (false, true) => Ok(Receipt::new(&format!("{}/{}", message.publish.exchange, message.publish.routing_key))),
        // One queue of several may have taken it; others may be full. Only this message waits, others go on.
        (false, false) => Err(PublishError::Unconfirmed("the broker refused it for now (nack)".to_owned())),
    }
}

/// What the end of its channel says of a message that was alone on it.
pub(super) fn guilty(error: &Error) -> PublishError {
    let text = error.to_string();
    match soft(error) {
        Some(NOTFOUND) => unroutable("unroutable", &text),
        Some(ACCESSREFUSED) => unroutable("refused", &text),
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
