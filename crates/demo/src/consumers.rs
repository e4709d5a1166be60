//! The two consumers: what receiving looks like.

use std::sync::Arc;

use outbox_consumer::{ConsumerError, Delivery, Failure, Handler, kafka, rabbitmq};
use outbox_core::{
    Event as _,
    sqlx::{MySqlConnection, MySqlPool},
};
use testkit::consume::Broker;
use tokio_util::sync::CancellationToken;

use crate::{
    events::{Order, OrderPlaced, ReceiptDue},
    tables,
    tally::Intake,
};

/// A consumer, by its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Books orders, from Kafka.
    Billing,
    /// Sends receipts, from RabbitMQ.
    Mailer,
}

impl Role {
    /// The consumer of this broker.
    pub(crate) fn at(broker: Broker) -> Self {
        match broker {
            Broker::Kafka => Self::Billing,
            Broker::RabbitMq => Self::Mailer,
        }
    }

    /// The consumer's name, under which its inbox remembers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Billing => "billing",
            Self::Mailer => "mailer",
        }
    }

    /// The topic of its messages in the outbox.
    pub(crate) fn topic(self) -> &'static str {
        match self {
            Self::Billing => OrderPlaced::TOPIC,
            Self::Mailer => ReceiptDue::TOPIC,
        }
    }

    /// From where its messages come.
    pub(crate) fn broker(self) -> &'static str {
        match self {
            Self::Billing => "Kafka",
            Self::Mailer => "RabbitMQ",
        }
    }
}

/// A consumer's work on its messages.
struct Clerk {
    role: Role,
    intake: Arc<Intake>,
}

impl Handler for Clerk {
    /// The inbox's mark and this work are one transaction, so a message that comes twice has one effect.
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let order: Order = message.json()?;
        self.intake.arrived(message, &order);
        match self.role {
            Role::Billing => tables::book(tx, message.id, &order).await?,
            Role::Mailer => tables::note_mail(tx, message.id, &order).await?,
        }
        Ok(())
    }
}

/// Consumes from the topic or queue at a broker until told to stop.
pub(crate) async fn consume(
    (address, topic): (String, String),
    pool: MySqlPool,
    intake: Arc<Intake>,
    stop: CancellationToken,
) -> Result<(), ConsumerError> {
    let role = intake.role;
    let metrics = intake.metrics.clone();
    let clerk = Clerk { role, intake };
    match role {
        Role::Billing => {
            let consumer = kafka::Consumer::new(address, role.name(), pool)?.topic(topic);
            consumer.property("fetch.wait.max.ms", "20").metrics(metrics).run(clerk, stop.cancelled()).await
        }
        Role::Mailer => {
            let consumer = rabbitmq::Consumer::new(&address, &topic, role.name(), pool)?;
            consumer.metrics(metrics).run(clerk, stop.cancelled()).await
        }
    }
}
