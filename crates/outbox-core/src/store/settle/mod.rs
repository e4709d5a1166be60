//! Writes the outcomes of messages back, in one round trip for many claims.

pub mod attempts;
pub mod losses;
pub mod work;

use std::time::Duration;

use sqlx::MySqlConnection;

use crate::store::{
    claim::{
        lease::{ClaimLease, fence, listed},
        queue::UNDATED,
        read::id_list,
    },
    enqueue::micros,
    reason::DelayReason,
    text::{Digits, Hex, Ids, Reply, Text, sql},
};

/// The outcomes of a claim's messages. A message in none of the lists goes back to pending as it was.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    /// Sent, in the order of ids, each with its place at the broker.
    pub sent: Vec<(u64, String)>,
    /// To be retried.
    pub delayed: Vec<Delayed>,
    /// Given up.
    pub dead: Vec<Dead>,
}

/// A message that waits for a time.
#[derive(Debug, Clone)]
pub struct Delayed {
    /// The message.
    pub id: u64,
    /// How long it waits from the settlement on; `None` if it waits in the queue of its key, behind an earlier message.
    pub wait: Option<Duration>,
    /// Whether an attempt was spent.
    pub spent: bool,
    /// Why it waits.
    pub reason: DelayReason,
    /// The broker's error text.
    pub error: String,
}

impl Delayed {
    /// A message in the queue of its key.
    #[must_use]
    pub fn behind(id: u64) -> Self {
        Self { id, wait: None, spent: false, reason: DelayReason::Behind, error: String::new() }
    }
}

/// A message that the relay gave up on.
#[derive(Debug, Clone)]
pub struct Dead {
    /// The message.
    pub id: u64,
    /// Whether an attempt was spent.
    pub spent: bool,
    /// Whether later messages of its key wait for the operator.
    pub holds_key: bool,
    /// A short code, as in the metric `outbox_relay_dead_messages_total`.
    pub reason: &'static str,
    /// The broker's error text.
    pub error: String,
}

/// How a settlement finds the pending rows to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Neighbours as ranges, if there are many: 6 µs a row instead of 10 (MySQL 9.7). But the optimizer may read the
    /// whole table if it has few other rows, and the statement then waits for transactions that have rows there.
    Ranges,
    /// Each by its primary key: locks nothing else, whatever the optimizer decides.
    OneByOne,
}

/// From this number of rows on, ranges are used.
const MANY: usize = 200;
/// Longest receipts that share a statement with others: MariaDB 10.11 cuts a hexadecimal literal of 64 KiB or more in a
/// UNION, without an error.
const MAX_UNITED: usize = 16 << 10;
/// Longest error text that is kept, in characters: the width of the columns `error`.
const MAX_ERROR: usize = 500;
/// Longest reason that is kept, in ASCII characters: the width of the columns `reason`. Sinks have words of their own.
const MAX_REASON: usize = 32;

/// Settles claims in one transaction and one round trip; returns those that were live and are settled now. Nothing is
/// written for a lost claim: every statement joins the claim row by its token.
///
/// Locks the claim rows first (primary key), so that no take-over comes in between; then deletes pending rows by
/// primary key. Waits for a lock at most a second, as only renewals and take-overs lock such rows, for milliseconds.
/// After an error the caller must roll back and call [`settled`] before it tries again. If the server refused, it tries
/// with [`Way::OneByOne`].
///
/// A Galera node may roll the transaction back between two statements without an error, and commit each later statement
/// by itself. Before the receipts: the release of the savepoint fails, and a receipt may be there, beside its live
/// claim. After the receipts: the rollback deletes the receipt that the later statements join (`RECEIPT`). They change
/// nothing, and claims that are still there are an error. A rollback just before COMMIT goes unnoticed: the messages
/// are pending, and are sent again.
pub async fn settle(
    conn: &mut MySqlConnection,
    claims: &[(ClaimLease, &Settlement)],
    way: Way,
) -> Result<Vec<ClaimLease>, sqlx::Error> {
    ended(&settlement(claims, way).run(conn).await?)
}

/// Executes each statement of a settlement for a claim that does not exist. Changes nothing, and fails if the account
/// may not settle.
pub async fn try_all(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let settlement = Settlement {
        sent: vec![(0, String::new())],
        delayed: vec![Delayed { spent: true, ..Delayed::behind(0) }],
        dead: vec![Dead { id: 0, spent: true, holds_key: false, reason: "expired", error: String::new() }],
    };
    settle(conn, &[(ClaimLease { claim_id: 0, lease_token: 0 }, &settlement)], Way::OneByOne).await.map(drop)
}

/// The claims that the statements of [`settlement`] locked, if they deleted the same number.
pub(in crate::store) fn ended(replies: &[Reply]) -> Result<Vec<ClaimLease>, sqlx::Error> {
    let [statements @ .., _commit] = replies else { return Ok(Vec::new()) };
    let locked = ClaimLease::all(statements)?;
    if locked.len() as u64 == deleted(statements) {
        return Ok(locked);
    }
    Err(sqlx::Error::Protocol("the server took a settlement back, and reported no error".into()))
}

/// The text of a settlement.
pub(crate) fn settlement(claims: &[(ClaimLease, &Settlement)], way: Way) -> Text {
    settlement_with(claims, way, None)
}

/// [`settlement`] with further statements behind the receipts.
pub(in crate::store) fn settlement_with(claims: &[(ClaimLease, &Settlement)], way: Way, next: Option<Text>) -> Text {
    let leases: Vec<ClaimLease> = claims.iter().map(|(lease, _)| *lease).collect();
    sql!(
        "SET SESSION innodb_lock_wait_timeout = 1; BEGIN; SAVEPOINT outbox_settle;
        SELECT c.claim_id, c.lease_token FROM {claims} FOR UPDATE{receipts};
        RELEASE SAVEPOINT outbox_settle{next}{outcomes}; COMMIT",
        claims = fence(&leases),
        receipts = mark_sent(claims),
        next = Text::joined(next, ""),
        outcomes = write(claims, way),
    )
}

/// The number of claims that the last of these statements deleted.
pub(in crate::store) fn deleted(replies: &[Reply]) -> u64 {
    replies.last().map_or(0, |reply| reply.done.rows_affected())
}

/// The approximate size of a settlement's text in bytes, to keep a text below `max_allowed_packet`.
#[must_use]
pub fn text_size(settlement: &Settlement) -> usize {
    let sent = settlement.sent.iter().map(|(_, receipt)| receipt.len());
    let delayed = settlement.delayed.iter().map(|delayed| delayed.error.len().min(4 * MAX_ERROR));
    let dead = settlement.dead.iter().map(|dead| dead.error.len().min(4 * MAX_ERROR));
    1000 + sent.chain(delayed).chain(dead).map(|text| 2 * text + 100).sum::<usize>()
}

/// The receipt of a claim `c`, which this transaction has written: one entry of a unique index.
pub(in crate::store) const RECEIPT: &str = " STRAIGHT_JOIN outbox_sent s FORCE INDEX (outbox_sent_claim) \
    ON s.claim_id = c.claim_id AND s.lease_token = c.lease_token";

/// The statements behind the receipts, each behind a semicolon: outcomes, pending rows, and last the claims. A
/// statement costs the server as much as a dozen rows, so that claims share them.
pub(in crate::store) fn write(claims: &[(ClaimLease, &Settlement)], way: Way) -> Text {
    let failures = claims.iter().flat_map(|(lease, settlement)| {
        [delay(*lease, &settlement.delayed), bury(*lease, &settlement.dead), attempts::note(*lease, settlement)]
    });
    let gone = claims.iter().map(|(lease, settlement)| (*lease, gone(settlement)));
    let (many, few): (Vec<_>, Vec<_>) = gone.partition(|(_, ids)| way == Way::Ranges && ids.len() >= MANY);
    let ranges = many.iter().map(|(lease, ids)| {
        // Of one table alone: if the statistics show an empty table, a join reads it whole, with the millions of
        // deleted rows that a snapshot may keep in it. Without its claim or receipt the lane is NULL.
        sql!(
            ";
            DELETE FROM outbox_pending WHERE lane = (SELECT c.lane FROM outbox_claims c{receipt}
                WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token}) AND {ids}",
            receipt = RECEIPT,
            claim_id = lease.claim_id,
            lease_token = lease.lease_token,
            ids = id_list("id", ids),
        )
    });
    let leases: Vec<ClaimLease> = claims.iter().map(|(lease, _)| *lease).collect();
    sql!(
        "{failures}{ranges}{few};
        DELETE c FROM {claims}{receipt}",
        failures = Text::joined(failures, ""),
        ranges = Text::joined(ranges, ""),
        few = delete(&few),
        claims = fence(&leases),
        receipt = RECEIPT,
    )
}

/// The messages with an outcome, sorted.
fn gone(settlement: &Settlement) -> Vec<u64> {
    let Settlement { sent, delayed, dead } = settlement;
    let sent = sent.iter().map(|(id, _)| *id);
    let mut ids: Vec<u64> = sent.chain(delayed.iter().map(|it| it.id)).chain(dead.iter().map(|it| it.id)).collect();
    ids.sort_unstable();
    ids
}

/// Deletes pending rows of claims, each by its primary key; no statement for no claim.
fn delete(claims: &[(ClaimLease, Vec<u64>)]) -> Text {
    if claims.is_empty() {
        return Text::default();
    }
    let rows = claims.iter().map(|(lease, ids)| {
        sql!("[{id},{token},[{ids}]]", id = lease.claim_id, token = lease.lease_token, ids = Ids(ids))
    });
    sql!(
        ";
        DELETE p FROM JSON_TABLE('[{rows}]', '$[*]'
            COLUMNS (claim_id BIGINT UNSIGNED PATH '$[0]', lease_token BIGINT UNSIGNED PATH '$[1]',
                NESTED PATH '$[2][*]' COLUMNS (id BIGINT UNSIGNED PATH '$'))) l
            STRAIGHT_JOIN outbox_claims c FORCE INDEX (PRIMARY)
                ON c.claim_id = l.claim_id AND c.lease_token = l.lease_token{receipt}
            STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = c.lane AND p.id = l.id",
        rows = Text::joined(rows, ","),
        receipt = RECEIPT,
    )
}

/// The receipts are written even if no message was sent: they distinguish a lost reply from a lost claim. A receipt
/// beside its live claim is of a transaction that was rolled back, and is replaced.
pub(in crate::store) fn mark_sent(claims: &[(ClaimLease, &Settlement)]) -> Text {
    let receipts = |settlement: &Settlement| {
        let receipts: Vec<&str> = settlement.sent.iter().map(|(_, receipt)| receipt.as_str()).collect();
        serde_json::to_vec(&receipts).unwrap_or_else(|_| b"[]".to_vec())
    };
    let marks = claims.iter().map(|(lease, settlement)| (*lease, *settlement, receipts(settlement)));
    let is_long = |sent: &[_], receipts: &[u8]| sent.len() >= MANY || receipts.len() > MAX_UNITED;
    let (long, short): (Vec<_>, Vec<_>) = marks.partition(|(_, it, receipts)| is_long(&it.sent, receipts));
    // No claim is in an empty group, and each long list has a statement of its own.
    let groups = short.chunks(short.len().max(1)).chain(long.chunks(1));
    Text::joined(groups.map(insert_sent), "")
}

fn insert_sent(marks: &[(ClaimLease, &Settlement, Vec<u8>)]) -> Text {
    let rows = marks.iter().map(|(lease, Settlement { sent, .. }, receipts)| {
        let ids = sent.iter().map(|(id, _)| *id);
        sql!(
            "SELECT c.claim_id, c.lease_token, c.lane, c.owner, IF(c.kind = 0, c.claimed_at, UTC_TIMESTAMP(6)), UTC_TIMESTAMP(6), '[{ids}]', {receipts}
            FROM outbox_claims c WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token}",
            ids = Ids(ids),
            receipts = Hex(receipts),
            claim_id = lease.claim_id,
            lease_token = lease.lease_token,
        )
    });
    sql!(
        ";
        REPLACE INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, receipts)
            {rows}",
        rows = Text::joined(rows, " UNION ALL "),
    )
}

fn delay(lease: ClaimLease, delayed: &[Delayed]) -> Text {
    if delayed.is_empty() {
        return Text::default();
    }
    let rows = delayed.iter().map(|it| {
        let wait = it.wait.map_or(u64::MAX, |wait| micros(wait).unsigned_abs());
        failure((it.id, it.spent), wait, it.reason.word(), &it.error)
    });
    sql!(
        ";
        REPLACE INTO outbox_delayed (lane, id, key_hash, bytes, attempts, reason, error, due_at, holds_key)
            SELECT p.lane, p.id, p.key_hash, p.bytes, LEAST(p.attempts, 65534) + l.spent, UNHEX(l.reason), UNHEX(l.error),
                IF(l.how = {queue}, {undated}, UTC_TIMESTAMP(6) + INTERVAL l.how MICROSECOND),
                p.key_hash <> 0
            FROM {failures}",
        queue = u64::MAX,
        undated = UNDATED,
        failures = failures(lease, rows),
    )
}

fn bury(lease: ClaimLease, dead: &[Dead]) -> Text {
    if dead.is_empty() {
        return Text::default();
    }
    let rows = dead.iter().map(|it| failure((it.id, it.spent), u64::from(it.holds_key), it.reason, &it.error));
    sql!(
        ";
        REPLACE INTO outbox_dead (lane, id, key_hash, bytes, attempts, reason, error, died_at, holds_key, owner)
            SELECT p.lane, p.id, p.key_hash, p.bytes, LEAST(p.attempts, 65534) + l.spent, UNHEX(l.reason), UNHEX(l.error),
                UTC_TIMESTAMP(6), l.how AND p.key_hash <> 0, c.owner
            FROM {failures}",
        failures = failures(lease, rows),
    )
}

/// A message that was not sent. `how`: the microseconds that it waits, `u64::MAX` in a queue; or whether it holds its
/// key.
fn failure((id, spent): (u64, bool), how: u64, reason: &'static str, error: &str) -> Text {
    let reason: String = reason.chars().filter(char::is_ascii).take(MAX_REASON).collect();
    let error: String = error.chars().take(MAX_ERROR).collect();
    sql!(
        "[{id},{spent},{how},\"{reason}\",\"{error}\"]",
        id,
        spent = u64::from(spent),
        how,
        reason = Digits(reason.as_bytes()),
        error = Digits(error.as_bytes()),
    )
}

/// The pending rows `p` of failures `l` of a claim `c`. All in one statement: after an outage a claim fails as a whole,
/// and 1,000 statements take the server ten times as long.
fn failures(lease: ClaimLease, rows: impl Iterator<Item = Text>) -> Text {
    sql!(
        "outbox_claims c{receipt}
            STRAIGHT_JOIN JSON_TABLE('[{rows}]', '$[*]'
                COLUMNS (id BIGINT UNSIGNED PATH '$[0]', spent INT UNSIGNED PATH '$[1]', how BIGINT UNSIGNED PATH '$[2]',
                    reason VARCHAR(64) PATH '$[3]', error VARCHAR(4000) PATH '$[4]')) l
            STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = c.lane AND p.id = l.id
            WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token}",
        receipt = RECEIPT,
        rows = Text::joined(rows, ","),
        claim_id = lease.claim_id,
        lease_token = lease.lease_token,
    )
}

/// The settled ones of these claims, to be read after a lost reply. Only a receipt with the claim's token is a proof:
/// its number may be that of an earlier claim. A receipt beside a live claim is no proof (see [`settle`]). Index
/// `outbox_sent_claim` and primary key, one row a claim each, no lock.
pub async fn settled(conn: &mut MySqlConnection, leases: &[ClaimLease]) -> Result<Vec<ClaimLease>, sqlx::Error> {
    let text = sql!(
        "SELECT s.claim_id, s.lease_token FROM {leases}
            STRAIGHT_JOIN outbox_sent s FORCE INDEX (outbox_sent_claim)
                ON s.claim_id = l.claim_id AND s.lease_token = l.lease_token
            LEFT JOIN outbox_claims c ON c.claim_id = s.claim_id AND c.lease_token = s.lease_token
            WHERE c.claim_id IS NULL",
        leases = listed(leases),
    );
    ClaimLease::all(&text.run(conn).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements(failed: u64) -> usize {
        let delayed = |id| Delayed {
            id,
            wait: Some(Duration::ZERO),
            spent: true,
            reason: DelayReason::Unconfirmed,
            error: "; no reply".into(),
        };
        let settlement = Settlement { delayed: (1..=failed).map(delayed).collect(), ..Settlement::default() };
        let lease = ClaimLease { claim_id: 1, lease_token: 1 };
        let text = write(&[(lease, &settlement)], Way::OneByOne);
        text.into_sql_str().as_str().matches(';').count()
    }

    #[test]
    fn however_many_failed_they_are_written_in_two_statements() {
        assert_eq!([0, 1, 1000].map(statements), [2, 4, 4], "pending rows and claims are deleted by one each");
    }
}
