//! Reads what an exchange gives to a routing key.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lapin::{
    Consumer,
    options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions},
    types::{FieldTable, ShortString},
};

use super::session::{BrokerSession, ChannelFailure};
use crate::{
    settings::RabbitMqConfig,
    sink::{Destination, PublishError, arrivals::Arrivals},
};

/// The time that the broker has to confirm the end of the connection.
const CLOSE: Duration = Duration::from_secs(2);

/// A queue of this connection only, bound to an exchange. It ends with the connection.
pub(crate) struct QueueArrivals {
    consumer: Consumer,
    session: BrokerSession,
}

impl QueueArrivals {
    /// Binds the queue. Needs the rights to configure, write and read `amq.gen-*`, and to read the exchange.
    pub(crate) async fn listen(
        config: &RabbitMqConfig,
        destination: &Destination,
        deadline: Instant,
    ) -> Result<Self, PublishError> {
        let session = BrokerSession::connect_within(config, "canary", 1, deadline).await?;
        let consumer = session.listen(&destination.target, &destination.routing_key, deadline).await?;
        Ok(Self { consumer, session })
    }
}

impl BrokerSession {
    async fn listen(&self, exchange: &str, routing_key: &str, deadline: Instant) -> Result<Consumer, ChannelFailure> {
        let name = |text: &str| ShortString::try_new(text).unwrap_or_default();
        let none = FieldTable::default;
        let of_own = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
        let unconfirmed = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        self.with_channel(deadline, async |channel| {
            let queue = channel.queue_declare(ShortString::default(), of_own, none()).await?.name().clone();
            let bind = QueueBindOptions::default();
            channel.queue_bind(queue.clone(), name(exchange), name(routing_key), bind, none()).await?;
            channel.basic_consume(queue, ShortString::default(), unconfirmed, none()).await
        })
        .await
    }
}

#[async_trait]
impl Arrivals for QueueArrivals {
    async fn next(&mut self) -> Result<Vec<u8>, PublishError> {
        let ended = || PublishError::Unavailable("the connection of the canary's queue has ended".to_owned());
        let delivery = self.consumer.next().await.ok_or_else(ended)?;
        Ok(delivery.map_err(|error| PublishError::from(ChannelFailure::Error(error)))?.data)
    }

    async fn close(self: Box<Self>) {
        self.session.close(Instant::now() + CLOSE).await;
    }
}
