//! RabbitMQ.
//!
//! A message counts as sent only when the broker has confirmed it and has not returned it. Messages are persistent and
//! mandatory. On the wire: properties `message_id` (UUID text), `type`, `content_type`, `timestamp` (seconds), and a
//! table with the message's headers as long strings. A name with several values has a list. The message key is the
//! header `x-message-key` (its bytes); a tombstone is an empty body with the header `x-tombstone: true`.
//!
//! - *unroutable*: no queue is bound, or the exchange does not exist. Exchanges are looked up before their first
//!   message. A publish to a missing exchange ends the channel with all messages in flight.
//! - The broker may end a channel because of one message (too large, forbidden, an exchange just deleted). Then the
//!   messages in flight go out again one by one, so only the guilty one is refused. Some neighbours may arrive twice.
//! - A nack is *unconfirmed*: one queue of several may have the message, and a full queue must hold up only its own
//!   messages.
//! - If one queue confirms nothing until the deadline, its round loses its channel. The confirmed messages of the round
//!   count, unless one of its messages was returned. The connection is dropped only if no other round was confirmed
//!   meanwhile.
//! - While the broker blocks the connection (memory or disk alarm), messages are *unavailable*. lapin's calls never
//!   return then. So each has a deadline, and a call that misses it drops the connection with its socket.
//!
//! lapin logs returned messages with their payload at WARN under `lapin::returned_messages`: keep that target off.

mod arrivals;
mod channels;
mod link;
mod plug;
mod round;
mod session;
mod token;
mod wire;

use std::{
    collections::HashMap,
    ops::DerefMut,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::future::join_all;
use lapin::uri::AMQPUri;
use tokio::{sync::Mutex, time::timeout_at};

#[doc(hidden)]
pub use self::session::{BrokerSession, ChannelFailure};
use self::{
    channels::OpenChannel,
    link::{Link, blocked},
    round::{ReadyPublish, Round, guilty, late, unroutable},
};
use super::{Feed, KeyOrder, Outcome, Outgoing, PublishError, Sink, arrivals::Arrivals};
use crate::{destination::Destination, error::RunError, settings};

/// Seconds between heartbeats, unless the URL has another value: a vanished broker is noticed after two.
const HEARTBEAT: u16 = 10;
/// The largest frame in bytes that the relay offers, unless the URL has another value: RabbitMQ's own default. The
/// driver makes 32 buffers of the size agreed on, and a broker may offer gigabytes.
const FRAME_MAX: u32 = 131_072;
/// Most time for an orderly close.
const GOODBYE: Duration = Duration::from_secs(2);

/// A RabbitMQ node or cluster. See the [module](self) for its guarantees.
pub struct RabbitMq {
    link: Mutex<Link>,
    window: usize,
}

/// An unusable configuration of a RabbitMQ sink. The URL is not repeated, because it holds the password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RabbitMqConfigError {
    /// The URL is not valid.
    #[error("sink {0}: the URL does not read as amqp://user:password@host:port/vhost")]
    Url(String),
}

/// Makes the sink of these settings.
pub(crate) fn feed(name: &str, config: &settings::RabbitMqConfig) -> Result<Feed, RunError> {
    let sink = RabbitMq::new(name, config).map_err(RunError::configuration)?;
    Ok(Feed::direct(name, Arc::new(sink), config.channels, config.window))
}

/// Listens at an exchange, if the destination has one.
pub(crate) async fn listen(
    config: &settings::RabbitMqConfig,
    destination: &Destination,
    deadline: Instant,
) -> Result<Option<Box<dyn Arrivals>>, PublishError> {
    if destination.target.is_empty() {
        return Ok(None);
    }
    Ok(Some(Box::new(arrivals::QueueArrivals::listen(config, destination, deadline).await?)))
}

impl RabbitMq {
    /// Creates a sink of this name. Needs no network: it connects on its first use.
    ///
    /// # Errors
    ///
    /// If the URL is not valid.
    pub fn new(name: &str, config: &settings::RabbitMqConfig) -> Result<Self, RabbitMqConfigError> {
        address(config).ok_or_else(|| RabbitMqConfigError::Url(name.to_owned()))?;
        Ok(Self { link: Mutex::new(Link::new(name, config.clone())), window: config.window.max(1) })
    }

    async fn session(&self, deadline: Instant) -> Result<Arc<BrokerSession>, PublishError> {
        let late = |_| PublishError::Unavailable("RabbitMQ did not answer in time".to_owned());
        timeout_at(deadline.into(), async { self.link.lock().await.session(deadline).await }).await.map_err(late)?
    }

    /// Publishes ready messages, spread over the channels. Messages of one key keep to one channel.
    async fn spread(&self, ready: Vec<ReadyPublish<'_>>, keys: &[u64], deadline: Instant) -> Vec<(usize, Outcome)> {
        let session = match self.session(deadline).await {
            Ok(session) => session,
            Err(error) => return same(&ready, &error),
        };
        let (ready, mut outcomes) = acceptable(&session, ready, deadline).await;
        // A negative answer may have taken the last channel of the connection.
        let session = match self.session(deadline).await {
            Ok(session) => session,
            Err(error) => {
                outcomes.extend(same(&ready, &error));
                return outcomes;
            }
        };
        let places = session.channels().places();
        let mut lanes: Vec<Vec<_>> = places.iter().map(|_| Vec::new()).collect();
        let count = lanes.len() as u64;
        for (turn, message) in (0..).zip(ready) {
            let key = keys.get(message.index).copied().filter(|key| *key != 0).unwrap_or(turn);
            let lane = usize::try_from(key % count).unwrap_or(0);
            if let Some(lane) = lanes.get_mut(lane) {
                lane.push(message);
            }
        }
        let lanes = lanes.into_iter().zip(places).filter(|(lane, _)| !lane.is_empty());
        let published = lanes.map(|(lane, place)| self.lane(&session, place, lane, deadline));
        outcomes.extend(join_all(published).await.into_iter().flatten());
        outcomes
    }

    /// Publishes on one channel, a window at a time.
    async fn lane(
        &self,
        session: &BrokerSession,
        place: &Mutex<Option<OpenChannel>>,
        messages: Vec<ReadyPublish<'_>>,
        deadline: Instant,
    ) -> Vec<(usize, Outcome)> {
        let mut outcomes = Vec::with_capacity(messages.len());
        let mut rest = messages.as_slice();
        while !rest.is_empty() {
            let locked = timeout_at(deadline.into(), place.lock()).await;
            let Some(locked) = locked.ok().filter(|_| Instant::now() < deadline) else {
                let busy = PublishError::TurnedAway("its channel was busy until the deadline".to_owned());
                outcomes.extend(same(rest, &busy));
                break;
            };
            let window = if session.is_proven() { self.window.min(rest.len()) } else { 1 };
            let (round, later) = rest.split_at(window);
            match attempt(session, locked, round, deadline).await {
                Ok(Round::Killed(_)) if round.len() > 1 => {
                    outcomes.extend(self.one_by_one(round, deadline).await);
                }
                Ok(ended) => outcomes.extend(outcomes_of(round, ended)),
                Err(error) => {
                    outcomes.extend(same(rest, &error));
                    break;
                }
            }
            rest = later;
        }
        outcomes
    }

    /// Finds the message for which the broker ended the channel. Each message may have arrived in the round before.
    ///
    /// The connection may have ended as well: for the broker, anything that lapin still writes to an ended channel is
    /// an error.
    async fn one_by_one(&self, round: &[ReadyPublish<'_>], deadline: Instant) -> Vec<(usize, Outcome)> {
        let mut outcomes = Vec::with_capacity(round.len());
        let mut last: Option<(Arc<BrokerSession>, Option<OpenChannel>)> = None;
        for message in round.chunks(1) {
            let ended = match self.session(deadline).await {
                Ok(_) if Instant::now() >= deadline => Ok(Round::Late(vec![Err(late())])),
                Ok(session) => {
                    let place = last.take().filter(|(before, _)| Arc::ptr_eq(before, &session));
                    let (session, place) = last.insert(place.unwrap_or((session, None)));
                    attempt(session, place, message, deadline).await
                }
                Err(error) => Err(error),
            };
            outcomes.extend(match ended {
                Ok(ended) => outcomes_of(message, ended),
                Err(error) => same(message, &PublishError::Unconfirmed(error.to_string())),
            });
        }
        for (_, outcome) in &mut outcomes {
            if let Ok(receipt) = outcome {
                receipt.resent = true;
            }
        }
        outcomes
    }
}

#[async_trait]
impl Sink for RabbitMq {
    fn key_order(&self, _message: &Outgoing) -> KeyOrder {
        KeyOrder::OneInFlight
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        let mut outcomes = vec![Err(PublishError::Unconfirmed("its outcome was lost".to_owned())); batch.len()];
        let mut ready = Vec::with_capacity(batch.len());
        let mut known = Vec::new();
        for (index, message) in batch.iter().enumerate() {
            match wire::publish(message) {
                Ok(publish) => {
                    ready.push(ReadyPublish { index, publish, message, has_key: has_key(message) });
                }
                Err(error) => known.push((index, Err(error))),
            }
        }
        if !ready.is_empty() {
            let keys: Vec<_> = batch.iter().map(|message| message.key_hash).collect();
            known.extend(self.spread(ready, &keys, deadline).await);
        }
        for (index, outcome) in known {
            if let Some(place) = outcomes.get_mut(index) {
                *place = outcome;
            }
        }
        outcomes
    }

    async fn check(&self, deadline: Instant) -> Result<(), PublishError> {
        self.session(deadline).await.map(drop)
    }

    async fn close(&self) {
        let session = self.link.lock().await.take();
        if let Some(session) = session {
            session.close(Instant::now() + GOODBYE).await;
        }
    }
}

/// Returns the address to connect to, with the current login; `None` if the URL cannot be parsed.
pub(crate) fn address(config: &settings::RabbitMqConfig) -> Option<AMQPUri> {
    let mut uri = config.address()?.as_str().parse::<AMQPUri>().ok()?;
    uri.query.heartbeat.get_or_insert(HEARTBEAT);
    uri.query.frame_max.get_or_insert(FRAME_MAX);
    Some(uri)
}

/// Whether the routing key has the message's key in it.
fn has_key(message: &Outgoing) -> bool {
    let key = message.contents.key.as_deref().map(String::from_utf8_lossy).filter(|key| !key.is_empty());
    key.is_some_and(|key| message.destination.routing_key.contains(&*key))
}

/// Runs one round; an error means that nothing of it was handed over. A long round goes on without its place, where a
/// new channel is opened for the next round, if the broker allows one more: one of its queues may confirm nothing.
async fn attempt(
    session: &BrokerSession,
    mut place: impl DerefMut<Target = Option<OpenChannel>>,
    messages: &[ReadyPublish<'_>],
    deadline: Instant,
) -> Result<Round, PublishError> {
    if session.is_blocked() {
        return Err(blocked());
    }
    if !session.is_usable() {
        return Err(PublishError::Unavailable("the connection was lost".to_owned()));
    }
    let channel = session.channel(&mut place, deadline).await.map_err(|failure| {
        if !matches!(failure, ChannelFailure::Busy) {
            session.give_up();
        }
        PublishError::from(failure)
    })?;
    let mut place = Some(place);
    let mut left = None;
    let began = Instant::now();
    let mut round = pin!(round::run(session, &channel, messages, deadline));
    let ended = tokio::select! {
        ended = &mut round => ended,
        () = session.passes_by() => {
            left = place.take().and_then(|mut place| place.take());
            round.await
        }
    };
    match &ended {
        Round::Settled(_) => session.prove(),
        Round::Killed(_) => {
            session.forget_exchanges();
            session.channels().has_ended();
            place.take().map(|mut place| place.take());
        }
        Round::Late(_) if session.has_confirmed_lately(began) => {
            left = left.or(place.take().and_then(|mut place| place.take()));
        }
        Round::Late(_) | Round::Lost(_) => session.give_up(),
    }
    if let Some(open) = left {
        session.channels().leave(open);
    }
    Ok(ended)
}

/// Separates messages that the broker would answer with the end of the channel or the connection. Their properties are
/// larger than its frames, or their exchange does not exist.
async fn acceptable<'a>(
    session: &BrokerSession,
    ready: Vec<ReadyPublish<'a>>,
    deadline: Instant,
) -> (Vec<ReadyPublish<'a>>, Vec<(usize, Outcome)>) {
    let mut exists: HashMap<String, Result<bool, PublishError>> = HashMap::new();
    let mut left = Vec::with_capacity(ready.len());
    let mut outcomes = Vec::new();
    for message in ready {
        if let Err(error) = message.publish.fits(session.frame_max()) {
            outcomes.push((message.index, Err(error)));
            continue;
        }
        let name = message.publish.exchange.as_str();
        if !exists.contains_key(name) {
            let answer = session.has_exchange(name, deadline).await;
            if matches!(answer, Err(ChannelFailure::Late)) {
                session.give_up();
            }
            let answer = answer.map_err(PublishError::from);
            exists.insert(name.to_owned(), answer);
        }
        match exists.get(name) {
            Some(Ok(true)) => left.push(message),
            Some(Err(error)) => outcomes.push((message.index, Err(error.clone()))),
            _ => outcomes.push((message.index, Err(unroutable("unroutable", "the exchange does not exist")))),
        }
    }
    (left, outcomes)
}

fn outcomes_of(messages: &[ReadyPublish<'_>], ended: Round) -> Vec<(usize, Outcome)> {
    match ended {
        Round::Settled(outcomes) | Round::Late(outcomes) => {
            messages.iter().map(|message| message.index).zip(outcomes).collect()
        }
        Round::Killed(error) => same(messages, &guilty(&error)),
        Round::Lost(reason) => same(messages, &PublishError::Unconfirmed(reason)),
    }
}

fn same(messages: &[ReadyPublish<'_>], error: &PublishError) -> Vec<(usize, Outcome)> {
    messages.iter().map(|message| (message.index, Err(error.clone()))).collect()
}
