//! The two consumers: what receiving looks like.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use outbox_core::{
    Claim, Inbox, Uuid,
    sqlx::{MySqlConnection, MySqlPool},
};

use tokio::time::sleep;

use crate::{
    events::Order,
    tables,
    tally::{Board, Intake},
};

const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);

/// Who consumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Books orders, from Kafka.
    Billing,
    /// Sends receipts, from RabbitMQ.
    Mailer,
}

impl Role {
    /// The name under which its inbox remembers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Billing => "billing",
            Self::Mailer => "mailer",
        }
    }

    /// From where its messages come.
    pub(crate) fn broker(self) -> &'static str {
        match self {
            Self::Billing => "Kafka",
            Self::Mailer => "RabbitMQ",
        }
    }

    async fn apply(self, tx: &mut MySqlConnection, order: &Order) -> Result<()> {
        match self {
            Self::Billing => tables::book(tx, order).await,
            Self::Mailer => tables::note_mail(tx, order).await,
        }
    }
}

/// What becomes of a message at its broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is done.
    Acknowledge,
    /// It has to come again.
    Redeliver,
}

/// A consumer with its inbox.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    pub(crate) role: Role,
    pub(crate) pool: MySqlPool,
    pub(crate) inbox: Inbox,
    pub(crate) intake: Arc<Intake>,
    pub(crate) board: Arc<Board>,
}

impl Consumer {
    /// Claims the message and does the work in one transaction, so that a message that comes twice is worked on once.
    /// The caller acknowledges after it.
    async fn consume(&self, id: Uuid, order: &Order) -> Result<Claim> {
        let mut tx = self.pool.begin().await?;
        let claim = self.inbox.claim(&mut tx, id).await?;
        if claim == Claim::First {
            self.role.apply(&mut tx, order).await?;
        }
        tx.commit().await?;
        Ok(claim)
    }

    /// Handles a delivery. Now and then it forgets to acknowledge, so that the inbox has something to absorb.
    pub(crate) async fn handle(&self, id: Result<Uuid>, payload: &[u8]) -> Next {
        let order = match id.and_then(|id| Ok((id, serde_json::from_slice::<Order>(payload)?))) {
            Ok((id, order)) => (id, order),
            Err(error) => {
                self.board.note(format!("{} skipped a message that is none of the shop's: {error}", self.role.name()));
                return Next::Acknowledge;
            }
        };
        self.intake.arrived(&order.1);
        match self.consume(order.0, &order.1).await {
            Ok(claim) if self.intake.processed(claim) => Next::Acknowledge,
            Ok(_) => Next::Redeliver,
            Err(error) => {
                self.intake.failed();
                self.board.note(format!("{} failed and gets the message again: {error:#}", self.role.name()));
                sleep(PAUSE_AFTER_ERROR).await;
                Next::Redeliver
            }
        }
    }
}
