//! One connection to RabbitMQ, and the knowledge that lasts as long.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Error, ErrorKind, ExchangeKind,
    options::{BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{FieldTable, ShortString},
};
use parking_lot::{Mutex as SyncMutex, MutexGuard};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout_at},
};

use super::{
    channels::{Channels, OpenChannel},
    plug::{self, Guard, Plug, Tls},
    token,
};
use crate::{
    driver_errors::{Trouble, explain},
    settings::{RabbitMqConfig, Secret},
    sink::PublishError,
    state::backoff::Backoff,
};

/// The time for which a round has a channel for itself.
const LONG: Duration = Duration::from_secs(1);
/// The first pause before the next connection, after one on which the broker has refused a channel.
const PAUSE: Duration = Duration::from_millis(100);
/// The time after which a refusal shows a limit, and no channels of an ended connection.
const COUNTED: Duration = Duration::from_millis(500);

/// The reason why a call on a connection failed.
pub enum ChannelFailure {
    /// Its deadline passed. The connection is unusable: the call may still take effect.
    Late,
    /// No channel was free until the deadline. The connection is sound.
    Busy,
    /// An error of lapin.
    Error(Error),
    /// The current URL in its file is not valid.
    Address,
}

/// A connection with its channels. Its socket ends with it.
pub struct BrokerSession {
    connection: Arc<Connection>,
    guard: Guard,
    channels: Channels,
    /// Exchanges that existed at their first publish.
    exchanges: SyncMutex<HashSet<String>>,
    /// The time of the last confirmed round. Before the first one, one message at a time goes out: a broker with an
    /// alarm takes connections as usual, and reports the alarm only after a publish.
    proven: SyncMutex<Option<Instant>>,
    given_up: AtomicBool,
}

impl BrokerSession {
    /// Connects before the deadline, and opens the channels that the relay uses: fewer if the broker allows fewer.
    pub async fn connect(config: &RabbitMqConfig, name: &str, deadline: Instant) -> Result<Self, ChannelFailure> {
        Self::connect_within(config, name, usize::MAX, deadline).await
    }

    /// Does the same with at most this many channels. The broker ends the connection that opens one too many for its
    /// user, and counts the channels of an ended connection for a moment.
    pub(super) async fn connect_within(
        config: &RabbitMqConfig,
        name: &str,
        mut most: usize,
        deadline: Instant,
    ) -> Result<Self, ChannelFailure> {
        let mut pauses = Backoff::new(PAUSE, LONG);
        let mut refused = None;
        loop {
            let session = Self::open(config, name, most, deadline).await?;
            let opened = session.channels.open_all(&session.connection, refused.is_none(), deadline).await;
            let now = Instant::now();
            let pause = pauses.next();
            match (opened, session.channels.limit()) {
                (Err(_), Some(limit)) if now + pause < deadline => {
                    if now >= *refused.get_or_insert(now) + COUNTED {
                        most = limit.max(1);
                    }
                }
                (opened, _) => return opened.map(|()| session),
            }
            sleep(pause).await;
        }
    }

    async fn open(config: &RabbitMqConfig, name: &str, most: usize, deadline: Instant) -> Result<Self, ChannelFailure> {
        let secrets = config.clone();
        // The files of secrets are read on a thread that may block.
        let uri =
            spawn_blocking(move || super::address(&secrets)).await.ok().flatten().ok_or(ChannelFailure::Address)?;
        let tls = Tls::of(config);
        let properties = ConnectionProperties::default().with_connection_name(format!("outbox-relay {name}").into());
        let guard = Guard(Plug::default());
        let used = uri.authority.userinfo.password.clone();
        let connecting = plug::connect(uri, tls, properties, guard.0.clone());
        let connection = Arc::new(in_time(deadline, connecting).await?);
        if let Some(password) = config.password.clone().filter(Secret::is_of_file) {
            token::renew(&connection, password, used);
        }
        Ok(Self {
            channels: Channels::new(config.channels, most, connection.configuration().channel_max()),
            connection,
            guard,
            exchanges: SyncMutex::default(),
            proven: SyncMutex::default(),
            given_up: AtomicBool::new(false),
        })
    }

    /// Whether messages may be published on this connection.
    pub(super) fn is_usable(&self) -> bool {
        self.connection.status().connected() && !self.given_up.load(Ordering::SeqCst) && !self.channels.are_spent()
    }

    /// Whether the broker takes no messages because of an alarm.
    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().connected() && self.connection.status().blocked()
    }

    /// Returns the largest frame in bytes, as both sides have agreed.
    pub(super) fn frame_max(&self) -> usize {
        self.connection.configuration().frame_max().try_into().unwrap_or(usize::MAX)
    }

    pub(super) fn is_proven(&self) -> bool {
        self.proven.lock().is_some()
    }

    pub(super) fn prove(&self) {
        *self.proven.lock() = Some(Instant::now());
    }

    /// Whether another round was confirmed in the second half of the time since then, or in the last second: then the
    /// connection is healthy.
    pub(super) fn has_confirmed_lately(&self, began: Instant) -> bool {
        let lately = (began.elapsed() / 2).max(LONG);
        self.proven.lock().is_some_and(|last| last.elapsed() <= lately)
    }

    /// Waits until a round has taken long, on a connection with a confirmed round and room for another channel.
    pub(super) async fn passes_by(&self) {
        sleep(LONG).await;
        while !self.is_proven() || self.channels.is_full() {
            sleep(LONG).await;
        }
    }

    /// Gives up the connection after a call passed its deadline. A blocked connection with next to nothing in flight
    /// stays open, because the broker reports the end of the alarm on it.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        if self.is_proven() || !self.is_blocked() {
            self.guard.0.pull();
        }
    }

    /// Returns the number of channels that can be open.
    #[must_use]
    pub fn count(&self) -> usize {
        self.channels.count()
    }

    /// Returns the channels.
    pub(crate) fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Returns the channel in this place, opened if necessary.
    pub(super) async fn channel(
        &self,
        place: &mut Option<OpenChannel>,
        deadline: Instant,
    ) -> Result<Channel, ChannelFailure> {
        self.channels.open(place, &self.connection, deadline).await
    }

    /// Whether the exchange exists. A publish to a missing one would end the channel, with all messages in flight.
    pub async fn has_exchange(&self, exchange: &str, deadline: Instant) -> Result<bool, ChannelFailure> {
        if exchange.is_empty() || self.known().contains(exchange) {
            return Ok(true);
        }
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let name = ShortString::try_new(exchange).unwrap_or_default();
        let declare = async |channel: Channel| {
            channel.exchange_declare(name, ExchangeKind::Direct, passive, FieldTable::default()).await
        };
        let exists = self.exists(declare, deadline).await?;
        if exists {
            self.known().insert(exchange.to_owned());
        }
        Ok(exists)
    }

    /// Whether the queue exists.
    pub async fn has_queue(&self, queue: &str, deadline: Instant) -> Result<bool, ChannelFailure> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let name = ShortString::try_new(queue).unwrap_or_default();
        let declare =
            async |channel: Channel| channel.queue_declare(name, passive, FieldTable::default()).await.map(drop);
        self.exists(declare, deadline).await
    }

    /// Returns why the broker takes no message of this login for the exchange, or for this routing key there. It judges
    /// the rights first, and then refuses this message for its expiration, so no queue gets it.
    pub async fn refuses(
        &self,
        exchange: &str,
        routing_key: &str,
        deadline: Instant,
    ) -> Result<Option<String>, ChannelFailure> {
        let [exchange, routing_key] =
            [exchange, routing_key].map(|name| ShortString::try_new(name).unwrap_or_default());
        let options = BasicPublishOptions::default();
        let properties = BasicProperties::default().with_expiration("none".into());
        let publish = async |channel: Channel| {
            channel.basic_publish(exchange, routing_key, options, &[], properties).await?.await.map(drop)
        };
        match self.with_channel(deadline, publish).await {
            Err(ChannelFailure::Error(error)) if soft(&error) == Some(AMQPSoftError::ACCESSREFUSED) => {
                Ok(Some(explain(Trouble::RabbitMq(&error))))
            }
            Err(ChannelFailure::Error(error)) if soft(&error).is_some() => Ok(None),
            answered => answered.map(|()| None),
        }
    }

    /// Asks; a negative answer ends the channel.
    async fn exists(
        &self,
        declare: impl AsyncFnOnce(Channel) -> lapin::Result<()>,
        deadline: Instant,
    ) -> Result<bool, ChannelFailure> {
        match self.with_channel(deadline, declare).await {
            Err(ChannelFailure::Error(error)) if soft(&error) == Some(AMQPSoftError::NOTFOUND) => Ok(false),
            Err(ChannelFailure::Error(error)) if soft(&error).is_none() => Err(ChannelFailure::Error(error)),
            Err(failure @ (ChannelFailure::Late | ChannelFailure::Busy | ChannelFailure::Address)) => Err(failure),
            // A forbidden look-up does not mean a missing one: the publish itself shows which.
            Ok(()) | Err(ChannelFailure::Error(_)) => Ok(true),
        }
    }

    /// Makes calls on a channel that no message uses meanwhile.
    pub(super) async fn with_channel<T>(
        &self,
        deadline: Instant,
        calls: impl AsyncFnOnce(Channel) -> lapin::Result<T>,
    ) -> Result<T, ChannelFailure> {
        let mut place = self.channels.idle(deadline).await?;
        let channel = self.channel(&mut place, deadline).await?;
        let called = in_time(deadline, calls(channel)).await;
        if called.is_err() {
            *place = None;
            self.channels.has_ended();
        }
        called
    }

    /// Forgets the known exchanges after the broker ended a channel: an exchange may be deleted.
    pub(super) fn forget_exchanges(&self) {
        self.known().clear();
    }

    /// Closes the connection in order; the socket ends in any case.
    pub async fn close(&self, deadline: Instant) {
        if in_time(deadline, self.connection.close(200, ShortString::default())).await.is_ok() {
            self.guard.0.let_go();
        } else {
            tracing::debug!("the connection to RabbitMQ did not end in time");
            self.guard.0.pull();
        }
    }

    fn known(&self) -> MutexGuard<'_, HashSet<String>> {
        self.exchanges.lock()
    }
}

pub(super) async fn in_time<T>(
    deadline: Instant,
    call: impl Future<Output = lapin::Result<T>>,
) -> Result<T, ChannelFailure> {
    match timeout_at(deadline.into(), call).await {
        Ok(result) => result.map_err(ChannelFailure::Error),
        Err(_) => Err(ChannelFailure::Late),
    }
}

/// Returns the error of a channel, if it is one: the connection goes on.
pub(super) fn soft(error: &Error) -> Option<AMQPSoftError> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft.clone()),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

impl From<ChannelFailure> for PublishError {
    /// For calls before a message is handed over: it surely did not arrive.
    fn from(failure: ChannelFailure) -> Self {
        match failure {
            ChannelFailure::Late => Self::Unavailable("RabbitMQ did not answer in time".to_owned()),
            ChannelFailure::Busy => Self::TurnedAway("no channel was free until the deadline".to_owned()),
            ChannelFailure::Address => {
                Self::Unavailable("the URL does not read as amqp://user:password@host:port/vhost".to_owned())
            }
            ChannelFailure::Error(error) => Self::Unavailable(explain(Trouble::RabbitMq(&error))),
        }
    }
}
