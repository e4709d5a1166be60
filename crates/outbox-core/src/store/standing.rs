//! The standing claim: a claim of one relay on all rows of a lane up to a mark.
//!
//! Its owner takes rows by looks alone, while the claim is open in the look's own read. Every settlement replaces the claim by a
//! successor of the same token, so that it counts once. Any relay may close the claim: then later looks of the owner take nothing.
//! A closed claim becomes a list of all rows that its owner may have taken.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use super::{
    claim::hashes_to_bytes,
    enqueue::micros,
    lease::ClaimLease,
    settle::{self, RECEIPT, Settlement, Way},
    text::{Hex, Ids, Reply, Text, sql},
};

/// The kind of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It names its messages.
    List,
    /// It stands, and its owner may take rows.
    Open,
    /// It stands, and its owner may only settle.
    Closed,
}

impl Kind {
    pub(super) const fn of(number: u64) -> Self {
        match number {
            0 => Self::List,
            1 => Self::Open,
            _ => Self::Closed,
        }
    }
}

/// A standing claim, or the list that it has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Its number and token.
    pub lease: ClaimLease,
    /// Its kind.
    pub kind: Kind,
    /// The largest id that its owner may take.
    pub mark: u64,
}

/// The claim that follows a settled one. Its mark names the text: after a lost reply it tells which text was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// A claim of the same kind.
    Standing {
        /// The largest id that its owner may take.
        mark: u64,
        /// The version of a look, and the lane's `low` after it. `low` stays if the version is another one: then rows were put back.
        low: Option<(u64, u64)>,
    },
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

impl Next {
    /// Its mark, if it is a claim.
    #[must_use]
    pub const fn mark(&self) -> Option<u64> {
        match self {
            Self::Standing { mark, .. } | Self::List { mark, .. } => Some(*mark),
            Self::End => None,
        }
    }
}

/// The state of a claim after a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Whether a settlement was executed: there is a receipt, and not the claim. The successor tells which one it was.
    pub is_settled: bool,
    /// The live claim with its token.
    pub claim: Option<Standing>,
}

/// Settles outcomes of a claim, and replaces it by its successor, whose lease begins now. One round trip and one transaction;
/// everything depends on the claim. Locks the claim, then the lane's head, then pending rows.
///
/// After an error the caller must roll back, and call [`found`]. The text may still be executed late, so the next one for the same
/// claim needs a larger mark.
pub async fn settle(
    conn: &mut MySqlConnection,
    owner: &str,
    (claim, settlement): (ClaimLease, &Settlement),
    (next, lease): (&Next, Duration),
    way: Way,
) -> Result<Found, sqlx::Error> {
    let text = sql!(
        "{settlement}; {found}",
        settlement = settle::settlement_with(&[(claim, settlement)], way, Some(successor(claim, next, lease))),
        found = state(owner, claim),
    );
    let mut replies = text.run(conn).await?;
    let state = replies.pop();
    settle::ended(&replies)?;
    read(claim, state.as_ref())
}

/// Reads whether a claim is settled, and the live claim with its token. One seek in the receipts' index, and a range of the live
/// claims from this one on; no lock.
pub async fn found(conn: &mut MySqlConnection, owner: &str, claim: ClaimLease) -> Result<Found, sqlx::Error> {
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

fn read(claim: ClaimLease, reply: Option<&Reply>) -> Result<Found, sqlx::Error> {
    let mut found = Found::default();
    for row in reply.iter().flat_map(|reply| &reply.rows) {
        if row.try_get::<i64, _>(0)? == 0 {
            found.is_settled = true;
        } else {
            let lease = ClaimLease { claim_id: row.try_get(1)?, ..claim };
            found.claim = Some(Standing { lease, kind: Kind::of(row.try_get(2)?), mark: row.try_get(3)? });
        }
    }
    // A receipt beside its live claim is of a transaction that was rolled back.
    found.is_settled &= found.claim.is_none_or(|live| live.lease != claim);
    Ok(found)
}

fn successor(claim: ClaimLease, next: &Next, lease: Duration) -> Text {
    let ClaimLease { claim_id, lease_token } = claim;
    let insert = |ids: &[u64], keys: &[u64], kind: &'static str, mark: u64| {
        sql!(
            ";
            INSERT INTO outbox_claims (lane, owner, lease_until, claimed_at, lease_token, message_ids, key_hashes, kind, mark)
                SELECT c.lane, c.owner, UTC_TIMESTAMP(6) + INTERVAL {lease} MICROSECOND, UTC_TIMESTAMP(6), c.lease_token,
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
    let raise = |(version, low): (u64, u64)| {
        sql!(
            ";
            UPDATE outbox_claims c{receipt}
                STRAIGHT_JOIN outbox_head h FORCE INDEX (PRIMARY) ON h.lane = c.lane AND h.version = {version}
                SET h.low = {low} WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token}",
            receipt = RECEIPT,
            version,
            low,
            claim_id,
            lease_token,
        )
    };
    match next {
        Next::Standing { mark, low } => {
            Text::joined([low.map(raise).unwrap_or_default(), insert(&[], &[], "c.kind", *mark)], "")
        }
        Next::List { ids, keys, mark } => insert(ids, keys, "0", *mark),
        Next::End => Text::default(),
    }
}

/// The lane's version. It is raised with each row that is put back. One row, no lock.
pub async fn version(conn: &mut MySqlConnection, lane: u16) -> Result<Option<u64>, sqlx::Error> {
    sqlx::query_scalar("SELECT version FROM outbox_head WHERE lane = ?").bind(lane).fetch_optional(conn).await
}

/// A standing claim as other relays see it.
#[derive(Debug, Clone)]
pub struct Stale {
    /// The claim.
    pub standing: Standing,
    /// Its lane.
    pub lane: u16,
    /// Its owner.
    pub owner: String,
    /// The time since it was written or closed.
    pub quiet: Duration,
}

/// All standing claims. Reads the live claims, without locks.
pub async fn all(conn: &mut MySqlConnection) -> Result<Vec<Stale>, sqlx::Error> {
    let sql = "SELECT claim_id, lease_token, CAST(kind AS UNSIGNED), mark, lane, owner, \
               TIMESTAMPDIFF(MICROSECOND, claimed_at, UTC_TIMESTAMP(6)) FROM outbox_claims WHERE kind > 0";
    let stale = |row: &MySqlRow| {
        let standing = Standing { lease: ClaimLease::of(row)?, kind: Kind::of(row.try_get(2)?), mark: row.try_get(3)? };
        let micros: i64 = row.try_get(6)?;
        let quiet = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Ok(Stale { standing, lane: row.try_get(4)?, owner: row.try_get(5)?, quiet })
    };
    sqlx::query(sql).fetch_all(conn).await?.iter().map(stale).collect()
}

/// The number of pending rows of a lane up to a mark, at most `limit`. A range of the primary key.
pub async fn rows(conn: &mut MySqlConnection, (lane, mark): (u16, u64), limit: u32) -> Result<usize, sqlx::Error> {
    let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM outbox_pending WHERE lane = ? AND id <= ? LIMIT ?) p";
    let rows: i64 = sqlx::query_scalar(sql).bind(lane).bind(mark).bind(limit).fetch_one(conn).await?;
    Ok(usize::try_from(rows).unwrap_or(0))
}

/// Closes a standing claim that has been silent for this time. Safe at any time: later looks of its owner take nothing. Returns
/// whether it was open. Locks the claim.
pub async fn close(conn: &mut MySqlConnection, claim: ClaimLease, quiet: Duration) -> Result<bool, sqlx::Error> {
    let text = sql!(
        "UPDATE outbox_claims SET kind = 2, claimed_at = UTC_TIMESTAMP(6)
            WHERE claim_id = {claim_id} AND lease_token = {token} AND kind = 1
            AND claimed_at <= UTC_TIMESTAMP(6) - INTERVAL {quiet} MICROSECOND",
        claim_id = claim.claim_id,
        token = claim.lease_token,
        quiet = micros(quiet),
    );
    let replies = text.run(conn).await?;
    Ok(replies.first().is_some_and(|reply| reply.done.rows_affected() == 1))
}

/// Turns a closed claim into a list of these messages with the same token, owner and lease. They must be all pending rows up to the
/// mark that no list names, read after the close. No row: the claim just ends. Returns whether the claim was there. One round trip;
/// locks the claim, then the lane's head.
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
            SET h.version = h.version + 1, h.claimer = 0 WHERE {closed}{insert};
        DELETE c FROM outbox_claims c WHERE {closed}; COMMIT",
        closed,
        insert = if message_ids.is_empty() { Text::default() } else { insert },
    );
    let replies = text.run(conn).await?;
    let deleted = replies.get(replies.len().saturating_sub(2));
    Ok(deleted.is_some_and(|reply| reply.done.rows_affected() == 1))
}
