//! Consuming from RabbitMQ.

mod session;
mod wire;

use std::{sync::Arc, time::Duration};

use lapin::{types::ShortString, uri::AMQPUri};
use outbox_core::{Inbox, sqlx::MySqlPool, store::settle::losses::Losses};
use tokio::{sync::Semaphore, time::sleep};

use self::session::{ConsumerSession, Delivered, NoQueue, QueueAddress};
use crate::{
    BoxError, ConsumerError, Handler, Metrics, Retry, crew::Crew, lines, options::Options, process::Processor,
    purge::Purging, starts::Starts, unfinished::Unfinished,
};

/// Waits between two attempts to connect: at most 100 ms at first, 5 s later.
const RECONNECT: Retry =
    Retry { base: Duration::from_millis(100), max: Duration::from_secs(5), max_attempts: u32::MAX };
/// Seconds between heartbeats, unless the URL has another number: a dead connection is noticed after two of them.
const HEARTBEAT: u16 = 10;
/// The largest frame in bytes that is offered, unless the URL has another: RabbitMQ's own default. The driver makes
/// buffers of 32 frames of the agreed size, and a broker may offer gigabytes.
const FRAME_MAX: u32 = 131_072;

/// A consumer of a RabbitMQ queue that applies each message once.
///
/// Messages of one topic and key are worked on in the order of the queue. To keep that order with several processes let
/// the queue have a single active consumer (`x-single-active-consumer`). A message is acknowledged when its transaction
/// is committed. After a lost connection the messages without an acknowledgement come again, and the inbox absorbs
/// them.
///
/// ```no_run
/// # use outbox_consumer::{Delivery, Failure, Handler, rabbitmq, stop_signal};
/// # use outbox_core::sqlx::{MySqlConnection, MySqlPool};
/// # struct Mailer;
/// # impl Handler for Mailer {
/// #     async fn handle(&self, _: &mut MySqlConnection, _: &Delivery) -> Result<(), Failure> { Ok(()) }
/// # }
/// # async fn consume(pool: MySqlPool) -> Result<(), outbox_consumer::ConsumerError> {
/// rabbitmq::Consumer::new("amqp://127.0.0.1:5672/%2f", "receipts", "mailer", pool)?.run(Mailer, stop_signal()).await?;
/// # Ok(()) }
/// ```
pub struct Consumer {
    /// Holds the password: never to be printed.
    uri: AMQPUri,
    queue: ShortString,
    prefetch: u16,
    dead_letter_exchange: bool,
    delivery_limit: u32,
    options: Options,
    inbox: Inbox,
    pool: MySqlPool,
}

impl Consumer {
    /// A consumer of this queue, which must exist. The name (1 to 100 printable ASCII characters) is that of its inbox:
    /// all its processes share it. `url` is `amqps://user:password@host:port/vhost`. An invalid name is an error
    /// ([`ConsumerError::Name`]). So is a URL that cannot be read, or a queue's name of more than 255 bytes
    /// ([`ConsumerError::Client`]). Connects to nothing yet.
    ///
    /// The pool needs as many connections as [`Consumer::concurrency`], 8 by default, besides what the service uses
    /// itself.
    pub fn new(url: &str, queue: &str, name: &str, pool: MySqlPool) -> Result<Self, ConsumerError> {
        // The parser's own errors may show the URL.
        let mut uri: AMQPUri =
            url.parse().map_err(|_shown| ConsumerError::Client("the URL of RabbitMQ is not one".into()))?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        uri.query.frame_max.get_or_insert(FRAME_MAX);
        let queue = ShortString::try_new(queue)
            .map_err(|_too_long| ConsumerError::Client("the queue's name has more than 255 bytes".into()))?;
        let options = Options::default();
        let inbox = Inbox::new(name)?;
        Ok(Self { uri, queue, prefetch: 256, dead_letter_exchange: false, delivery_limit: 20, options, inbox, pool })
    }

    /// Most messages that RabbitMQ delivers ahead of their acknowledgement, 256 by default. Messages behind one that
    /// waits for its next attempt count too: a key whose messages fill this number stops the queue.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Rejects dead messages, so that RabbitMQ sends them to the queue's dead-letter exchange
    /// (`x-dead-letter-exchange`), instead of keeping them in the table `inbox_dead`. They are not marked as processed,
    /// so they may be sent back. **A queue without such an exchange drops them.**
    #[must_use]
    pub fn dead_letter_exchange(mut self) -> Self {
        self.dead_letter_exchange = true;
        self
    }

    /// The queue's `x-delivery-limit`, 20 by default, as that of a quorum queue in RabbitMQ 4; 0 if it has none.
    /// RabbitMQ drops a message that came back more often, because its connection was lost or its process has ended
    /// (before RabbitMQ 4.3 also by [`Failure::Requeue`](crate::Failure::Requeue)). So one that came back three
    /// quarters as often has one attempt left, and is dead after its failure. A message that gets no attempt, because
    /// the database is away or another one of its key is at work, can still be dropped: give the queue no limit (`-1`),
    /// or a dead-letter exchange. Classic queues count nothing.
    #[must_use]
    pub fn delivery_limit(mut self, returns: u32) -> Self {
        self.delivery_limit = returns;
        self
    }

    crate::options::common_options!();

    /// Consumes until `stop` ends; then lets messages at work end and acknowledges them.
    ///
    /// Waits without end for a broker, a queue or a database that cannot be reached. An error: a bug of this library.
    pub async fn run<H: Handler>(mut self, handler: H, stop: impl Future<Output = ()>) -> Result<(), ConsumerError> {
        let purging = Purging::new(&mut self.options, self.inbox.consumer(), &self.pool);
        purging.beside(self.consume(handler, stop)).await
    }

    async fn consume<H: Handler>(self, handler: H, stop: impl Future<Output = ()>) -> Result<(), ConsumerError> {
        let link = QueueAddress { uri: self.uri, queue: self.queue, prefetch: self.prefetch };
        let mut crew = Crew::new(Processor {
            at_work: Semaphore::new(self.options.concurrency),
            inbox: self.inbox,
            pool: self.pool,
            handler,
            options: self.options,
            can_requeue: true,
            broker_buries: self.dead_letter_exchange,
            delivery_limit: self.delivery_limit,
            starts: Starts::default(),
            unfinished: Unfinished::default(),
            losses: Losses::default(),
        });
        let processor = Arc::clone(&crew.processor);
        tokio::spawn(async move { processor.forget_old_starts().await });
        tokio::pin!(stop);
        let mut failures = 0;
        loop {
            let error = match ConsumerSession::open(&link, &crew.stop).await {
                Ok(mut session) => {
                    tracing::info!(consumer = crew.processor.consumer(), queue = %link.queue, "consumes from RabbitMQ");
                    match session.consume(&mut crew, stop.as_mut()).await {
                        Ok(()) => {
                            session.close(&mut crew).await;
                            return Ok(());
                        }
                        Err(error) => {
                            session.hang_up().await;
                            failures = if session.is_useful { 0 } else { failures };
                            error
                        }
                    }
                }
                Err(error) => error,
            };
            let next = match error.downcast::<ConsumerError>() {
                // A message whose task has ended would hold its key for ever.
                Ok(bug) => Err(*bug),
                Err(error) => {
                    failures += 1;
                    report(crew.processor.consumer(), &crew.processor.options.metrics, &error);
                    pause(&mut crew, RECONNECT.wait(failures), stop.as_mut()).await
                }
            };
            if !matches!(next, Ok(true)) {
                crew.wind_down(|_| {}).await;
                return next.map(drop);
            }
        }
    }
}

/// Waits for the next try to connect. Meanwhile the messages of the lost connection end, and count as in flight no
/// longer. False: `stop` has ended.
async fn pause<H: Handler>(
    crew: &mut Crew<H, Delivered>,
    time: Duration,
    mut stop: impl Future<Output = ()> + Unpin,
) -> Result<bool, ConsumerError> {
    let time = sleep(time);
    tokio::pin!(time);
    loop {
        tokio::select! {
            () = &mut time => return Ok(true),
            () = &mut stop => return Ok(false),
            Some(finished) = crew.next() => drop(finished?),
        }
    }
}

/// Counts and logs why there are no messages.
fn report(consumer: &str, metrics: &Metrics, error: &BoxError) {
    if error.is::<NoQueue>() {
        metrics.broker_event(consumer, "missing");
        if lines::shown(consumer, "no queue") {
            tracing::warn!(consumer, %error, "no queue: trying again");
        }
        return;
    }
    metrics.disconnects.with_label_values(&[consumer]).inc();
    if lines::shown(consumer, "no connection to RabbitMQ") {
        tracing::warn!(consumer, %error, "no connection to RabbitMQ: trying again");
    }
}
