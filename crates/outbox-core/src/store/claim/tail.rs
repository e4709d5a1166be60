//! The tail: a claim of one relay on all rows of a lane up to a mark. Its owner takes them from the binary log, in the
//! order of the commits.
//!
//! Every settlement replaces the claim by a successor of the same token, so that it counts once. Any relay may close
//! the claim: then its owner takes nothing more. A closed claim becomes a list of all rows that its owner may have
//! taken.
//!
//! While a lane has a tail, it is *sealed*: its version is the largest number, which no text can raise, so that nobody
//! claims.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{
    claim::{Pending, hashes_to_bytes, lease::ClaimLease},
    enqueue::micros,
    settle::{self, RECEIPT, Settlement, Way},
    text::{Hex, Ids, Reply, Text, listed, sql},
};

/// The kind of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimKind {
    /// It names its messages.
    List,
    /// A tail, whose owner may take rows.
    Open,
    /// A tail, whose owner may only settle.
    Closed,
    /// It keeps other relays from claims until those that they have are settled. Then it is opened.
    Forming,
}

impl ClaimKind {
    /// The kind that the column `kind` names.
    #[must_use]
    pub const fn of(number: u64) -> Self {
        match number {
            0 => Self::List,
            1 => Self::Open,
            2 => Self::Closed,
            _ => Self::Forming,
        }
    }
}

/// A tail, or the list that it has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailClaim {
    /// Its number and token.
    pub lease: ClaimLease,
    /// Its kind.
    pub kind: ClaimKind,
    /// The largest id that its owner may take.
    pub mark: u64,
}

/// The claim that follows a settled one. Its mark names the text: after a lost reply it tells which text was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextClaim {
    /// An open tail up to this mark, if the claim is still forming.
    Open(u64),
    /// A claim of the same kind up to this mark.
    Same(u64),
    /// A list.
    List {
        /// Its messages.
        ids: Vec<u64>,
        /// Their keys.
        keys: Vec<u64>,
        /// A number that only names the text.
        mark: u64,
    },
    /// None.
    End,
}

impl NextClaim {
    /// Its mark, if it is a claim.
    #[must_use]
    pub const fn mark(&self) -> Option<u64> {
        match self {
            Self::Open(mark) | Self::Same(mark) | Self::List { mark, .. } => Some(*mark),
            Self::End => None,
        }
    }
}

/// The state of a claim after a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FoundTail {
    /// Whether a settlement was executed: there is a receipt, and not the claim. The successor tells which one it was.
    pub is_settled: bool,
    /// The live claim with its token.
    pub claim: Option<TailClaim>,
}

/// The version of a sealed lane.
pub const SEALED: u64 = u64::MAX;

/// The version after a change that makes looks void. Looks of a sealed lane lead to no claim.
pub(in crate::store) const RAISED: &str = "version + (version < 18446744073709551615)";
/// The version after the end of a tail: no look has read it. A head `h`.
const UNSEALED: &str = "IF(h.version = 18446744073709551615, h.sealed + 1, h.version + 1)";

/// Seals a lane, and makes a tail that is forming. `None`: the lane has a tail. One round trip; locks the lane's head.
pub async fn form(
    conn: &mut MySqlConnection,
    lane: u16,
    owner: &str,
    (token, lease): (u64, Duration),
) -> Result<Option<ClaimLease>, sqlx::Error> {
    let text = sql!(
        "BEGIN; UPDATE outbox_head SET sealed = version, claimer = {token}, version = {sealed} WHERE lane = {lane}
            AND version < {sealed};
        INSERT INTO outbox_claims (lane, owner, lease_until, claimed_at, lease_token, message_ids, key_hashes, kind)
            SELECT lane, {owner}, UTC_TIMESTAMP(6) + INTERVAL {lease} MICROSECOND, UTC_TIMESTAMP(6), claimer, '[]',
                x'', 3
            FROM outbox_head WHERE lane = {lane} AND claimer = {token}; COMMIT",
        sealed = SEALED,
        lane,
        token,
        owner = Hex(owner.as_bytes()),
        lease = micros(lease),
    );
    let replies = text.run(conn).await?;
    let made = replies.get(2).filter(|reply| reply.done.rows_affected() == 1);
    Ok(made.map(|reply| ClaimLease { claim_id: reply.done.last_insert_id(), lease_token: token }))
}

/// Lifts the seal of a lane whose tail was deleted by hand. Locks the lane's head before it looks for a
/// tail: a read at the same moment would miss one that is just made.
pub async fn unseal(conn: &mut MySqlConnection, lane: u16) -> Result<(), sqlx::Error> {
    let text = sql!(
        "BEGIN; SELECT h.version FROM outbox_head h WHERE h.lane = {lane} FOR UPDATE;
        UPDATE outbox_head h SET h.claimer = 0, h.version = {unsealed} WHERE h.lane = {lane} AND h.version = {sealed}
            AND NOT EXISTS (SELECT 1 FROM outbox_claims c WHERE c.lane = {lane} AND c.kind > 0); COMMIT",
        lane,
        unsealed = UNSEALED,
        sealed = SEALED,
    );
    text.run(conn).await.map(drop)
}

/// Whether the lane has no list. Reads the live claims, without locks.
pub async fn is_alone(conn: &mut MySqlConnection, lane: u16) -> Result<bool, sqlx::Error> {
    let sql = "SELECT COUNT(*) FROM outbox_claims WHERE lane = ? AND kind = 0";
    let lists: i64 = sqlx::query_scalar(sql).bind(lane).fetch_one(conn).await?;
    Ok(lists == 0)
}

/// Settles outcomes of a claim, and replaces it by its successor, whose lease begins now. One round trip and one
/// transaction; everything depends on the claim. Locks the claim, then the lane's head, then pending rows.
///
/// After an error the caller must roll back, and call [`found`]. The text may still be executed late, so the next one
/// for the same claim needs a larger mark.
pub async fn settle(
    conn: &mut MySqlConnection,
    (owner, lane): (&str, u16),
    (claim, settlement): (ClaimLease, &Settlement),
    (next, lease): (&NextClaim, Duration),
    way: Way,
) -> Result<FoundTail, sqlx::Error> {
    let behind_receipt = Text::joined([successor(claim, next, lease), waited_for(lane, settlement)], "");
    let text = sql!(
        "{settlement}; {found}",
        settlement = settle::settlement_with(&[(claim, settlement)], way, Some(behind_receipt)),
        found = state(owner, claim),
    );
    let mut replies = text.run(conn).await?;
    let state = replies.pop();
    settle::ended(&replies)?;
    read(claim, state.as_ref())
}

/// Waits for the transactions of the rows that are to be delayed or dead. The log shows them some milliseconds before
/// reads see them, and the statements that write them elsewhere read without locks. Changes nothing.
fn waited_for(lane: u16, settlement: &Settlement) -> Text {
    let Settlement { delayed, dead, .. } = settlement;
    let ids: Vec<u64> = delayed.iter().map(|it| it.id).chain(dead.iter().map(|it| it.id)).collect();
    if ids.is_empty() {
        return Text::default();
    }
    sql!(
        ";
        UPDATE {ids} STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = {lane} AND p.id = l.id
            SET p.attempts = p.attempts",
        ids = listed(&ids),
        lane,
    )
}

/// Reads whether a claim is settled, and the live claim with its token. One seek in the receipts' index, and a range of
/// the live claims from this one on; no lock.
pub async fn found(conn: &mut MySqlConnection, owner: &str, claim: ClaimLease) -> Result<FoundTail, sqlx::Error> {
    read(claim, state(owner, claim).run(conn).await?.first())
}

/// One statement, which reads at one moment.
fn state(owner: &str, claim: ClaimLease) -> Text {
    sql!(
        "SELECT 0, s.claim_id, s.claim_id, s.claim_id FROM outbox_sent s FORCE INDEX (outbox_sent_claim)
            WHERE s.claim_id = {claim_id} AND s.lease_token = {token}
        UNION ALL SELECT 1, claim_id, kind, mark FROM outbox_claims
            WHERE claim_id >= {claim_id} AND owner = {owner} AND lease_token = {token}",
        claim_id = claim.claim_id,
        token = claim.lease_token,
        owner = Hex(owner.as_bytes()),
    )
}

fn read(claim: ClaimLease, reply: Option<&Reply>) -> Result<FoundTail, sqlx::Error> {
    let mut found = FoundTail::default();
    for row in reply.iter().flat_map(|reply| &reply.rows) {
        if row.try_get::<i64, _>(0)? == 0 {
            found.is_settled = true;
        } else {
            let lease = ClaimLease { claim_id: row.try_get(1)?, ..claim };
            found.claim = Some(TailClaim { lease, kind: ClaimKind::of(row.try_get(2)?), mark: row.try_get(3)? });
        }
    }
    // A receipt beside its live claim is of a transaction that was rolled back.
    found.is_settled &= found.claim.is_none_or(|live| live.lease != claim);
    Ok(found)
}

fn successor(claim: ClaimLease, next: &NextClaim, lease: Duration) -> Text {
    let ClaimLease { claim_id, lease_token } = claim;
    let insert = |ids: &[u64], keys: &[u64], kind: &'static str, mark: u64| {
        sql!(
            ";
            INSERT INTO outbox_claims (lane, owner, lease_until, claimed_at, lease_token, message_ids, key_hashes,
                kind, mark)
                SELECT c.lane, c.owner, UTC_TIMESTAMP(6) + INTERVAL {lease} MICROSECOND, UTC_TIMESTAMP(6),
                    c.lease_token,
                    '[{ids}]', {hashes}, {kind}, {mark}
                FROM outbox_claims c{receipt} WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token}",
            lease = micros(lease),
            ids = Ids(ids),
            hashes = Hex(&hashes_to_bytes(keys)),
            kind,
            mark,
            receipt = RECEIPT,
            claim_id,
            lease_token,
        )
    };
    // Also the successor of a list gets its number under the lock of the head: looks take it that numbers are committed
    // in their order.
    let unseal = || {
        sql!(
            ";
            UPDATE outbox_claims c{receipt} STRAIGHT_JOIN outbox_head h FORCE INDEX (PRIMARY) ON h.lane = c.lane
                SET h.claimer = IF(c.kind > 0, 0, h.claimer), h.version = IF(c.kind > 0, {unsealed}, h.version)
                WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token}",
            receipt = RECEIPT,
            unsealed = UNSEALED,
            claim_id,
            lease_token,
        )
    };
    match next {
        NextClaim::Open(mark) => insert(&[], &[], "IF(c.kind = 3, 1, c.kind)", *mark),
        NextClaim::Same(mark) => insert(&[], &[], "c.kind", *mark),
        NextClaim::List { ids, keys, mark } => Text::joined([unseal(), insert(ids, keys, "0", *mark)], ""),
        NextClaim::End => unseal(),
    }
}

/// The state of a lane when its tail begins.
#[derive(Debug, Default)]
pub struct Begun {
    /// The pending rows.
    pub pending: Vec<Pending>,
    /// Messages that hold their keys, with these.
    pub held: Vec<(u64, u64)>,
    /// Whether the tail was open at last.
    pub is_open: bool,
    /// Microseconds since 1970.
    pub now: i64,
    /// The recoveries: the first message after each, and its epoch.
    pub epochs: Vec<(u64, u64)>,
}

/// Reads the messages of a lane that hold their keys, then the pending rows, and last whether the tail is open: at most
/// `limit` rows of each table, without locks. A row that is put back in between is in both, so that later ones of its
/// key go behind it.
pub async fn begin(
    conn: &mut MySqlConnection,
    (lane, claim): (u16, ClaimLease),
    limit: u32,
) -> Result<Begun, sqlx::Error> {
    let text = sql!(
        "SELECT id, key_hash FROM outbox_delayed FORCE INDEX (outbox_delayed_key) WHERE lane = {lane} AND holds_key = 1
            LIMIT {limit};
        SELECT id, key_hash FROM outbox_dead FORCE INDEX (outbox_dead_key) WHERE lane = {lane} AND holds_key = 1
            LIMIT {limit};
        SELECT id, key_hash, bytes, CAST(attempts AS UNSIGNED), CAST(takeovers AS UNSIGNED) FROM outbox_pending
            WHERE lane = {lane} ORDER BY id LIMIT {limit};
        SELECT COUNT(*) FROM outbox_claims WHERE claim_id = {claim_id} AND lease_token = {token} AND kind = 1;
        SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
        SELECT first_id, epoch FROM outbox_epochs",
        lane,
        limit,
        claim_id = claim.claim_id,
        token = claim.lease_token,
    );
    let replies = text.run(conn).await?;
    let [delayed, dead, pending, open, now, epochs] = &*replies else { return Ok(Begun::default()) };
    let row = |row: &MySqlRow| {
        let attempts: u64 = row.try_get(3)?;
        let takeovers: u64 = row.try_get(4)?;
        Ok(Pending {
            id: row.try_get(0)?,
            key_hash: row.try_get(1)?,
            bytes: row.try_get(2)?,
            attempts: u16::try_from(attempts).unwrap_or(u16::MAX),
            takeovers: u8::try_from(takeovers).unwrap_or(u8::MAX),
        })
    };
    let held = delayed.rows.iter().chain(&dead.rows).map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let first = |reply: &Reply| reply.rows.first().map_or(Ok(0), |row| row.try_get::<i64, _>(0));
    Ok(Begun {
        pending: pending.rows.iter().map(row).collect::<Result<_, sqlx::Error>>()?,
        held: held.collect::<Result<_, sqlx::Error>>()?,
        is_open: first(open)? == 1,
        now: first(now)?,
        epochs: epochs
            .rows
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect::<Result<_, sqlx::Error>>()?,
    })
}

/// All variables of the server, of which the stream's conditions need some. Costs the server a millisecond.
pub async fn variables(conn: &mut MySqlConnection) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as("SHOW GLOBAL VARIABLES").fetch_all(conn).await
}

/// The ids of pending rows of a lane up to this one, at most `limit`, and the time in microseconds since 1970. A range
/// of the primary key.
pub async fn up_to(
    conn: &mut MySqlConnection,
    (lane, id): (u16, u64),
    limit: u32,
) -> Result<(Vec<u64>, i64), sqlx::Error> {
    let text = sql!(
        "SELECT id FROM outbox_pending WHERE lane = {lane} AND id <= {id} ORDER BY id LIMIT {limit};
        SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        lane,
        id,
        limit,
    );
    let replies = text.run(conn).await?;
    let [pending, now] = &*replies else { return Err(sqlx::Error::RowNotFound) };
    let ids = pending.rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok((ids, now.rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?))
}

/// Whether the lane has a tail. Reads the live claims, without locks.
pub async fn is_tailed(conn: &mut MySqlConnection, lane: u16) -> Result<bool, sqlx::Error> {
    let sql = "SELECT COUNT(*) FROM outbox_claims WHERE lane = ? AND kind > 0";
    let tails: i64 = sqlx::query_scalar(sql).bind(lane).fetch_one(conn).await?;
    Ok(tails > 0)
}

/// A tail as other relays see it.
#[derive(Debug, Clone)]
pub struct Stale {
    /// The claim.
    pub tail: TailClaim,
    /// Its lane.
    pub lane: u16,
    /// Its owner.
    pub owner: String,
    /// The time since it was written or closed.
    pub quiet: Duration,
}

/// All tails. Reads the live claims, without locks.
pub async fn all(conn: &mut MySqlConnection) -> Result<Vec<Stale>, sqlx::Error> {
    let sql = "SELECT claim_id, lease_token, CAST(kind AS UNSIGNED), mark, lane, owner, \
               TIMESTAMPDIFF(MICROSECOND, claimed_at, UTC_TIMESTAMP(6)) FROM outbox_claims WHERE kind > 0";
    let stale = |row: &MySqlRow| {
        let tail =
            TailClaim { lease: ClaimLease::of(row)?, kind: ClaimKind::of(row.try_get(2)?), mark: row.try_get(3)? };
        let micros: i64 = row.try_get(6)?;
        let quiet = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Ok(Stale { tail, lane: row.try_get(4)?, owner: row.try_get(5)?, quiet })
    };
    sqlx::query(sql).fetch_all(conn).await?.iter().map(stale).collect()
}

/// The number of pending rows of a lane up to a mark, at most `limit`. A range of the primary key.
pub async fn rows(conn: &mut MySqlConnection, (lane, mark): (u16, u64), limit: u32) -> Result<usize, sqlx::Error> {
    let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM outbox_pending WHERE lane = ? AND id <= ? LIMIT ?) p";
    let rows: i64 = sqlx::query_scalar(sql).bind(lane).bind(mark).bind(limit).fetch_one(conn).await?;
    Ok(usize::try_from(rows).unwrap_or(0))
}

/// Replaces a tail that has been silent for this time by a closed one with the same token and lease. Safe at any time:
/// its owner, which sees that in the log, takes nothing more. Returns whether it was there, and not closed. One round
/// trip; locks the claim.
pub async fn close(conn: &mut MySqlConnection, claim: ClaimLease, quiet: Duration) -> Result<bool, sqlx::Error> {
    let ClaimLease { claim_id, lease_token } = claim;
    let text = sql!(
        "BEGIN;
        INSERT INTO outbox_claims (lane, owner, lease_until, claimed_at, lease_token, message_ids, key_hashes, kind,
            mark)
            SELECT c.lane, c.owner, c.lease_until, UTC_TIMESTAMP(6), c.lease_token, '[]', x'', 2, c.mark
                FROM outbox_claims c
            WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token} AND c.kind IN (1, 3)
            AND c.claimed_at <= UTC_TIMESTAMP(6) - INTERVAL {quiet} MICROSECOND FOR UPDATE;
        DELETE c FROM outbox_claims c STRAIGHT_JOIN outbox_claims n FORCE INDEX (PRIMARY)
            ON n.claim_id = LAST_INSERT_ID() AND n.lease_token = c.lease_token AND n.kind = 2
            WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token} AND c.kind IN (1, 3); COMMIT",
        claim_id,
        lease_token,
        quiet = micros(quiet),
    );
    let replies = text.run(conn).await?;
    Ok(replies.get(2).is_some_and(|reply| reply.done.rows_affected() == 1))
}

/// Turns a closed tail into a list of these messages with the same token, owner and lease, and lifts the seal. They
/// must be all pending rows up to the mark that no list names, read after the close. No row: the claim just ends.
/// Returns whether the claim was there. One round trip; locks the claim, then the lane's head.
pub async fn list(
    conn: &mut MySqlConnection,
    claim: ClaimLease,
    (message_ids, key_hashes): (&[u64], &[u64]),
) -> Result<bool, sqlx::Error> {
    let closed = sql!(
        "c.claim_id = {claim_id} AND c.lease_token = {token} AND c.kind = 2",
        claim_id = claim.claim_id,
        token = claim.lease_token,
    );
    let insert = sql!(
        ";
        INSERT INTO outbox_claims (lane, owner, lease_until, claimed_at, lease_token, message_ids, key_hashes, mark)
            SELECT c.lane, c.owner, c.lease_until, c.claimed_at, c.lease_token, '[{ids}]', {hashes}, c.mark
            FROM outbox_claims c WHERE {closed}",
        ids = Ids(message_ids),
        hashes = Hex(&hashes_to_bytes(key_hashes)),
        closed,
    );
    let text = sql!(
        "BEGIN; SELECT c.claim_id FROM outbox_claims c WHERE {closed} FOR UPDATE;
        UPDATE outbox_claims c STRAIGHT_JOIN outbox_head h FORCE INDEX (PRIMARY) ON h.lane = c.lane
            SET h.claimer = 0, h.version = {unsealed} WHERE {closed}{insert};
        DELETE c FROM outbox_claims c WHERE {closed}; COMMIT",
        closed,
        unsealed = UNSEALED,
        insert = if message_ids.is_empty() { Text::default() } else { insert },
    );
    let replies = text.run(conn).await?;
    let deleted = replies.get(replies.len().saturating_sub(2));
    Ok(deleted.is_some_and(|reply| reply.done.rows_affected() == 1))
}
