//! One connection to RabbitMQ, from its start to its end.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::{
    Acker, Connection, ConnectionProperties, ErrorKind,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
        BasicRejectOptions, QueueDeclareOptions,
    },
    protocol::{
        AMQPErrorKind,
        AMQPSoftError::{ACCESSREFUSED, NOTFOUND},
    },
    types::{FieldTable, ShortString},
    uri::AMQPUri,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::wire;
use crate::{
    BoxError, Delivery, Handler,
    crew::{Acknowledge, Crew, CrewJob},
    process::Decision,
};

/// How long connecting may take, and each step of a close.
const CONNECT: Duration = Duration::from_secs(10);
const CLOSE: Duration = Duration::from_secs(5);

/// The place of the messages.
pub(super) struct QueueAddress {
    pub(super) uri: AMQPUri,
    pub(super) queue: ShortString,
    pub(super) prefetch: u16,
}

/// The connection is there, and the queue is not.
#[derive(Debug, thiserror::Error)]
#[error("RabbitMQ has no queue `{queue}` for this login: {error}")]
pub(super) struct NoQueue {
    queue: ShortString,
    #[source]
    error: lapin::Error,
}

/// The handle that answers RabbitMQ about a message, once. After a failure the message comes again.
pub(super) struct Delivered {
    acker: Acker,
    /// Cancelled when the connection is lost: lapin may leave a call in flight without an end, and the message would
    /// hold its key.
    gone: CancellationToken,
}

impl Acknowledge for Delivered {
    async fn settle(&self, delivery: &Delivery, decision: Decision) -> Decision {
        if matches!(decision, Decision::Later | Decision::Undecided) {
            return decision;
        }
        let tell = async {
            match &decision {
                Decision::Done => self.acker.ack(BasicAckOptions::default()).await,
                Decision::Dead(_) => self.acker.reject(BasicRejectOptions { requeue: false }).await,
                Decision::Requeue => self.acker.nack(BasicNackOptions { requeue: true, multiple: false }).await,
                Decision::Later | Decision::Undecided => Ok(true),
            }
        };
        if !matches!(self.gone.run_until_cancelled(tell).await, Some(Ok(true))) {
            tracing::info!(message_id = %delivery.id, "the connection ended before the acknowledgement: the message \
                                                       comes again");
        }
        decision
    }
}

/// A connection that consumes.
pub(super) struct ConsumerSession {
    connection: Connection,
    deliveries: lapin::Consumer,
    channel: lapin::Channel,
    queue: ShortString,
    /// Whether a message was decided meanwhile: a connection that ends before is not tried again at once.
    pub(super) is_useful: bool,
    /// Ends the waits of this connection's messages: they come again on the next one.
    stop: CancellationToken,
    gone: CancellationToken,
}

impl ConsumerSession {
    pub(super) async fn open(link: &QueueAddress, stop: &CancellationToken) -> Result<Self, BoxError> {
        timeout(CONNECT, Self::connect(link, stop.child_token()))
            .await
            .map_err(|_elapsed| "RabbitMQ does not answer")?
    }

    async fn connect(link: &QueueAddress, stop: CancellationToken) -> Result<Self, BoxError> {
        let connection = Connection::connect_uri(link.uri.clone(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.basic_qos(link.prefetch, BasicQosOptions::default()).await?;
        let queue = link.queue.clone();
        let options = BasicConsumeOptions::default();
        let deliveries = channel.basic_consume(queue.clone(), "".into(), options, FieldTable::default()).await;
        let gone = CancellationToken::new();
        match deliveries {
            Ok(deliveries) => Ok(Self { connection, deliveries, channel, queue, is_useful: false, stop, gone }),
            Err(error) if is_refused(&error) => Err(NoQueue { queue, error }.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes messages until `stop` ends. An error: the connection is lost, or the queue is deleted.
    pub(super) async fn consume<H: Handler>(
        &mut self,
        crew: &mut Crew<H, Delivered>,
        mut stop: impl Future<Output = ()> + Unpin,
    ) -> Result<(), BoxError> {
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                Some(finished) = crew.next() => {
                    drop(finished?);
                    self.is_useful = true;
                }
                delivery = self.deliveries.next() => {
                    let Some(delivery) = delivery else { return Err(self.why_ended().await) };
                    let delivery = delivery?;
                    let tag = Delivered { acker: delivery.acker.clone(), gone: self.gone.clone() };
                    let delivery = wire::delivery(delivery, self.queue.as_str());
                    crew.arrived(CrewJob { delivery, tag, stop: self.stop.clone() });
                }
            }
        }
    }

    /// Why RabbitMQ has ended the delivery: it says only that it has. Declaring the queue passively asks whether it
    /// exists.
    async fn why_ended(&self) -> BoxError {
        if !self.channel.status().connected() {
            return "the connection has ended".into();
        }
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.channel.queue_declare(self.queue.clone(), passive, FieldTable::default());
        match timeout(CLOSE, queue).await {
            Ok(Ok(_exists)) => {
                "RabbitMQ has taken its messages back, and the queue exists: a message was not answered \
                                within the consumer time-out of the queue (`consumer_timeout`, 30 minutes by default), \
                                or the queue has moved to another node"
                    .into()
            }
            Ok(Err(error)) if is_refused(&error) => NoQueue { queue: self.queue.clone(), error }.into(),
            Ok(Err(error)) => error.into(),
            Err(_elapsed) => "RabbitMQ does not answer".into(),
        }
    }

    /// Takes no more messages, lets those at work end, and closes. Messages without an acknowledgement come again.
    pub(super) async fn close<H: Handler>(self, crew: &mut Crew<H, Delivered>) {
        let cancel = self.channel.basic_cancel(self.deliveries.tag(), BasicCancelOptions::default());
        if !matches!(timeout(CLOSE, cancel).await, Ok(Ok(()))) {
            tracing::info!("RabbitMQ did not confirm the end of the consumer");
        }
        crew.wind_down(|_| {}).await;
        self.hang_up().await;
    }

    /// Ends the connection, so that messages without an acknowledgement come again on another one.
    pub(super) async fn hang_up(&self) {
        if !matches!(timeout(CLOSE, self.connection.close(200, "stopped".into())).await, Ok(Ok(()))) {
            tracing::info!("RabbitMQ did not confirm the end of the connection");
        }
    }
}

/// Whether RabbitMQ refuses the queue alone.
fn is_refused(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error)
        if matches!(error.kind(), AMQPErrorKind::Soft(NOTFOUND | ACCESSREFUSED)))
}

impl Drop for ConsumerSession {
    fn drop(&mut self) {
        self.stop.cancel();
        self.gone.cancel();
    }
}
