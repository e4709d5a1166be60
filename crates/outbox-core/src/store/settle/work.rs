//! The transaction of a worker: the work of a claim's messages and their outcomes, all or nothing.
//!
//! A transaction that [`finish`] does not commit is ended by closing its connection.

use std::time::Duration;

use sqlx::{MySqlConnection, mysql::MySqlTransactionManager as Manager};
use sqlx_core::transaction::TransactionManager as _;

use crate::store::{
    NO_SUCH_SAVEPOINT, OUT_OF_RANGE,
    claim::lease::{ClaimLease, fence},
    error_number,
    session::{Modes, OUTSIDE, SERVER_MODES, reset},
    settle::{RECEIPT, Settlement, Way, deleted, mark_sent, write},
    text::{Reply, Text, sql},
};

/// Opens the transaction, with the mark that the other functions look for. If the server receives nothing for `silence`
/// (whole seconds, at least one), it ends connection and transaction. So the locks of a worker that is frozen, or whose
/// machine is lost, do not stay for hours. The session must be as [`session::prepare`](crate::store::session::prepare) or
/// [`finish`] left it. One round trip.
pub async fn begin(conn: &mut MySqlConnection, silence: Duration) -> Result<(), sqlx::Error> {
    let text = sql!(
        "SET {modes}, SESSION wait_timeout = {silence}; START TRANSACTION; SAVEPOINT outbox_work",
        modes = SERVER_MODES,
        silence = silence.as_secs().max(1),
    );
    // The driver still counts the transaction that [`finish`] has ended. Its count makes a handler's BEGIN a savepoint.
    if Manager::get_transaction_depth(conn) > 0 {
        return text.run(conn).await.map(drop);
    }
    Manager::begin(conn, Some(text.into_sql_str())).await
}

/// Keeps the work since the last mark, and sets the next one. False: the server has ended the transaction in between,
/// after a deadlock, a DDL statement, or a COMMIT of other code. Like the functions below it sets the session as
/// [`session::prepare`](crate::store::session::prepare) did, with `database`, whatever a handler has changed. One round trip;
/// locks nothing.
pub async fn keep(conn: &mut MySqlConnection, database: Option<&str>) -> Result<bool, sqlx::Error> {
    marked(conn, database, KEEP).await
}

/// The last statement proves the savepoint: without a transaction SAVEPOINT does nothing, and a Galera node may have
/// ended the transaction after the release.
pub(in crate::store) const KEEP: &str =
    "RELEASE SAVEPOINT outbox_work; SAVEPOINT outbox_work; ROLLBACK TO SAVEPOINT outbox_work";

/// Takes back the work since the last mark. False: as for [`keep`]. One round trip; the locks of that work stay.
pub async fn undo(conn: &mut MySqlConnection, database: Option<&str>) -> Result<bool, sqlx::Error> {
    marked(conn, database, "ROLLBACK TO SAVEPOINT outbox_work").await
}

async fn marked(conn: &mut MySqlConnection, database: Option<&str>, sql: &'static str) -> Result<bool, sqlx::Error> {
    match sql!("{reset}{sql}", reset = reset(database, Modes::Server), sql).run(conn).await {
        Ok(_) => Ok(true),
        Err(error) if error_number(&error) == Some(NO_SUCH_SAVEPOINT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The end of the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// Work and settlement are committed.
    Committed,
    /// Another relay has the claim, or it is deleted: nothing is committed.
    Lost,
    /// The server had ended the transaction: nothing is committed.
    Ended,
}

/// Settles the claim in the transaction of its work, and commits. A message in none of the lists goes back to pending.
/// Like [`crate::store::settle::settle`]: locks the claim, then deletes pending rows, all by primary key. One round trip, and
/// a second one if the server has ended the transaction.
///
/// After an error without an answer of the server the commit may have happened, or may still happen:
/// [`crate::store::claim::lease::release`] waits for it, or prevents it.
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
pub(in crate::store) async fn conclude(
    conn: &mut MySqlConnection,
    lease: ClaimLease,
    outcome: Result<Vec<Reply>, sqlx::Error>,
) -> Result<Finish, sqlx::Error> {
    match outcome {
        Ok(replies) => match &*replies {
            [statements @ .., _commit, _level, _settings] if deleted(statements) > 0 => Ok(Finish::Committed),
            _ => Ok(Finish::Ended),
        },
        Err(error) => match error_number(&error) {
            Some(OUT_OF_RANGE) => Ok(Finish::Lost),
            Some(NO_SUCH_SAVEPOINT) => {
                forget_early(conn, lease).await?;
                Ok(Finish::Ended)
            }
            _ => Err(error),
        },
    }
}

/// The first release of the savepoint proves that the work's transaction is open, the second that the receipt belongs
/// to it. A Galera node may end the transaction in between without an error. The later statements join the receipt.
/// The receipt locks the claim. Without a claim there is no receipt, and an error ([`OUT_OF_RANGE`]) stops the text
/// before COMMIT.
pub(in crate::store) fn finishing(database: Option<&str>, lease: ClaimLease, settlement: &Settlement) -> Text {
    let claims = [(lease, settlement)];
    sql!(
        "{reset}RELEASE SAVEPOINT outbox_work; SAVEPOINT outbox_work{receipt} FOR UPDATE;
        SELECT EXP(1000 * (ROW_COUNT() = 0));
        RELEASE SAVEPOINT outbox_work{outcomes}; COMMIT; {outside}",
        reset = reset(database, Modes::Own),
        receipt = mark_sent(&claims),
        outcomes = match (&*settlement.sent, settlement.delayed.len() + settlement.dead.len()) {
            ([(id, _)], 0) => forget(lease, *id),
            _ => write(&claims, Way::OneByOne),
        },
        outside = OUTSIDE,
    )
}

/// Deletes a claim and its one message, as [`write`] does for any claims, in half of the time.
fn forget(lease: ClaimLease, id: u64) -> Text {
    sql!(
        ";
        DELETE c, p FROM outbox_claims c{receipt}
            LEFT JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = c.lane AND p.id = {id}
            WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token}",
        receipt = RECEIPT,
        id,
        claim_id = lease.claim_id,
        lease_token = lease.lease_token,
    )
}

/// Deletes a receipt that was committed without its work, while its claim is still live: the receipt names pending
/// messages. Locks the claim and the receipt, each by a unique key.
async fn forget_early(conn: &mut MySqlConnection, lease: ClaimLease) -> Result<(), sqlx::Error> {
    let text = sql!("DELETE s FROM {claim}{receipt}", claim = fence(&[lease]), receipt = RECEIPT);
    text.run(conn).await.map(drop)
}
