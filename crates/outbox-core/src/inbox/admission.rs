use std::ops::{Deref, DerefMut};

use sqlx::{
    MySql, MySqlConnection, MySqlPool, SqlStr, mysql::MySqlTransactionManager as Manager, pool::PoolConnection,
};
use sqlx_core::transaction::TransactionManager as _;
use uuid::Uuid;

use super::{Claim, Inbox, InboxError};
use crate::store;

/// An open transaction in which a message is marked as processed. It is a connection: `execute(&mut *tx)`.
///
/// A transaction that ends without [`InboxTransaction::commit`] is rolled back, the mark included. If it is dropped
/// before its end (an error, a panic, a time-out around the work), it closes its connection. The next user of the pool
/// must not finish a cancelled call.
#[derive(Debug)]
pub struct InboxTransaction {
    connection: PoolConnection<MySql>,
    ended: bool,
}

impl Inbox {
    /// Begins a transaction and claims the message in it, as [`Inbox::claim`] does: the guard for consumers that have
    /// no transaction of their own. Two round trips, two more to commit.
    ///
    /// Every error is [`InboxError::Database`], also if the pool has no connection in time. No transaction is left
    /// open: let the message come again.
    ///
    /// ```no_run
    /// # use outbox_core::{Claim, Inbox, Uuid, sqlx::{self, MySqlPool}};
    /// # async fn on_message(pool: MySqlPool, id: Uuid) -> Result<(), Box<dyn std::error::Error>> {
    /// match Inbox::new("billing")?.admit(&pool, id).await? {
    ///     Claim::First(mut tx) => {
    ///         sqlx::query("INSERT INTO invoices (id) VALUES (7)").execute(&mut *tx).await?;
    ///         tx.commit().await?;
    ///     }
    ///     Claim::Duplicate => {}
    /// }
    /// // and now acknowledge to the broker
    /// # Ok(()) }
    /// ```
    pub async fn admit(&self, pool: &MySqlPool, message_id: Uuid) -> Result<Claim<InboxTransaction>, InboxError> {
        let mut tx = InboxTransaction::begin(pool).await?;
        if store::inbox::insert(&mut tx, &self.consumer, message_id).await? {
            return Ok(Claim::First(tx));
        }
        tx.rollback().await?;
        Ok(Claim::Duplicate)
    }
}

impl InboxTransaction {
    /// Begins one without a mark.
    #[doc(hidden)]
    pub async fn begin(pool: &MySqlPool) -> Result<Self, InboxError> {
        let mut tx = Self { connection: pool.acquire().await?, ended: false };
        Manager::begin(&mut tx, Some(SqlStr::from_static(store::inbox::BEGIN))).await?;
        Ok(tx)
    }

    /// Commits the work and the mark together.
    ///
    /// After [`InboxError::Database`] either all of it is committed or nothing. Let the message come again: the inbox
    /// knows its outcome. [`InboxError::TransactionEnded`] reports a bug in the work, see there.
    pub async fn commit(mut self) -> Result<(), InboxError> {
        if !store::inbox::release(&mut self).await? {
            return Err(InboxError::TransactionEnded);
        }
        Manager::commit(&mut self).await?;
        self.ended = true;
        Ok(())
    }

    /// Rolls back the work and the mark: the message may come again. After [`InboxError::Database`] the connection is
    /// closed, and the server rolls them back when it notices.
    pub async fn rollback(mut self) -> Result<(), InboxError> {
        Manager::rollback(&mut self).await?;
        self.ended = true;
        Ok(())
    }
}

impl Deref for InboxTransaction {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.connection
    }
}

impl DerefMut for InboxTransaction {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.connection
    }
}

impl Drop for InboxTransaction {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}
