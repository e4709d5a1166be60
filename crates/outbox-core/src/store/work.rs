//! The transaction of a worker: the work of a claim's messages and their outcomes, all or nothing.
//!
//! A transaction that does not end with [`commit`] is ended by closing its connection.

use std::time::Duration;

use sqlx::{MySqlConnection, mysql::MySqlTransactionManager as Manager};
use sqlx_core::transaction::TransactionManager as _;

use super::{
    NO_SUCH_SAVEPOINT, error_number,
    lease::{ClaimLease, fence},
    session::{SETTINGS, reset},
    settle::{RECEIPT, Settlement, Way, deleted, mark_sent, write},
    text::{Reply, Text, sql},
};

/// Opens the transaction, with the mark that the other functions look for. If the server receives nothing for `silence`
/// (whole seconds, at least one), it ends connection and transaction. So the locks of a worker that is frozen, or whose
/// machine is lost, do not stay for hours. Like the other functions it sets the session as
/// [`session::prepare`](super::session::prepare) did, with `database`, whatever a handler has changed. One round trip.
pub async fn begin(conn: &mut MySqlConnection, database: Option<&str>, silence: Duration) -> Result<(), sqlx::Error> {
    let text = sql!(
        "{settings}, SESSION wait_timeout = {silence}; {reset}START TRANSACTION; SAVEPOINT outbox_work",
        settings = SETTINGS,
        silence = silence.as_secs().max(1),
        reset = reset(database),
    );
    Manager::begin(conn, Some(text.into_sql_str())).await
}

/// Keeps the work since the last mark, and sets the next one. False: the server has ended the transaction in between,
/// after a deadlock, a DDL statement, or a COMMIT of other code. One round trip; locks nothing.
pub async fn keep(conn: &mut MySqlConnection, database: Option<&str>) -> Result<bool, sqlx::Error> {
    marked(conn, database, KEEP).await
}

/// The last statement proves the savepoint: without a transaction SAVEPOINT does nothing, and a Galera node may have
/// ended the transaction after the release.
pub(super) const KEEP: &str = "RELEASE SAVEPOINT outbox_work; SAVEPOINT outbox_work; ROLLBACK TO SAVEPOINT outbox_work";

/// Takes back the work since the last mark. False: as for [`keep`]. One round trip; the locks of that work stay.
pub async fn undo(conn: &mut MySqlConnection, database: Option<&str>) -> Result<bool, sqlx::Error> {
    marked(conn, database, "ROLLBACK TO SAVEPOINT outbox_work").await
}

async fn marked(conn: &mut MySqlConnection, database: Option<&str>, sql: &'static str) -> Result<bool, sqlx::Error> {
    match sql!("{reset}{sql}", reset = reset(database), sql).run(conn).await {
        Ok(_) => Ok(true),
        Err(error) if error_number(&error) == Some(NO_SUCH_SAVEPOINT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the transaction may be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// It may: the claim is live, and no relay can take it over before the end of the transaction.
    Standing,
    /// Another relay has the claim, or it is deleted: nothing was written.
    Lost,
    /// The server had ended the transaction: nothing was written.
    Ended,
}

/// Settles the claim in the transaction of its work, to be committed with it. A message in none of the lists goes back
/// to pending. Like [`super::settle::settle`] without BEGIN and COMMIT: locks the claim, then deletes pending rows, all
/// by primary key. One round trip, and a second one if the server has ended the transaction.
pub async fn finish(
    conn: &mut MySqlConnection,
    database: Option<&str>,
    lease: ClaimLease,
    settlement: &Settlement,
) -> Result<Finish, sqlx::Error> {
    let outcome = finishing(database, lease, settlement).run(conn).await;
    conclude(conn, lease, outcome).await
}

/// Judges the replies to [`finishing`].
pub(super) async fn conclude(
    conn: &mut MySqlConnection,
    lease: ClaimLease,
    outcome: Result<Vec<Reply>, sqlx::Error>,
) -> Result<Finish, sqlx::Error> {
    match outcome {
        Ok(replies) if deleted(&replies) > 0 => Ok(Finish::Standing),
        // Of all statements only the fence returns rows.
        Ok(replies) if replies.iter().any(|reply| !reply.rows.is_empty()) => Ok(Finish::Ended),
        Ok(_) => Ok(Finish::Lost),
        Err(error) if error_number(&error) == Some(NO_SUCH_SAVEPOINT) => {
            forget_early(conn, lease).await?;
            Ok(Finish::Ended)
        }
        Err(error) => Err(error),
    }
}

/// The first release of the savepoint proves that the work's transaction is open, the second that the receipt belongs
/// to it. A Galera node may end the transaction in between without an error. The later statements join the receipt.
pub(super) fn finishing(database: Option<&str>, lease: ClaimLease, settlement: &Settlement) -> Text {
    let claims = [(lease, settlement)];
    sql!(
        "{reset}RELEASE SAVEPOINT outbox_work; SAVEPOINT outbox_work;
        SELECT c.claim_id FROM {claim} FOR UPDATE{receipts};
        RELEASE SAVEPOINT outbox_work{outcomes}",
        reset = reset(database),
        claim = fence(&[lease]),
        receipts = mark_sent(&claims),
        outcomes = write(&claims, Way::OneByOne),
    )
}

/// Deletes a receipt that was committed without its work, while its claim is still live: the receipt names pending
/// messages. Locks the claim and the receipt, each by a unique key.
async fn forget_early(conn: &mut MySqlConnection, lease: ClaimLease) -> Result<(), sqlx::Error> {
    let text = sql!("DELETE s FROM {claim}{receipt}", claim = fence(&[lease]), receipt = RECEIPT);
    text.run(conn).await.map(drop)
}

/// Commits work and settlement. After an error without an answer of the server the commit may have happened:
/// [`super::lease::release`] waits for it, and then does nothing.
pub async fn commit(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    Manager::commit(conn).await?;
    // The commit is done. If the connection fails here, its next user gets the error.
    sqlx::raw_sql("SET SESSION wait_timeout = 28800").execute(conn).await.ok();
    Ok(())
}
