//! Leases of claims: renews and releases a relay's own, and takes over those of dead relays.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{
    claim::ids_from_json,
    enqueue::micros,
    session,
    settle::attempts,
    text::{self, Reply, Text, sql},
};

/// A claim and its token. Only both together name a claim: the number may repeat if tables were copied without their
/// counters, truncated or restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimLease {
    /// The claim.
    pub claim_id: u64,
    /// Its token, random.
    pub lease_token: u64,
}

impl ClaimLease {
    /// From the first two columns, `claim_id` and `lease_token`.
    pub(crate) fn of(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        Ok(Self { claim_id: row.try_get(0)?, lease_token: row.try_get(1)? })
    }

    /// The claims of all rows.
    pub(crate) fn all(replies: &[Reply]) -> Result<Vec<Self>, sqlx::Error> {
        replies.iter().flat_map(|reply| &reply.rows).map(Self::of).collect()
    }
}

/// A table `l` of claim numbers and tokens.
pub(crate) fn listed(leases: &[ClaimLease]) -> Text {
    let pair = |lease: &ClaimLease| sql!("[{id},{token}]", id = lease.claim_id, token = lease.lease_token);
    // Derived, because MySQL takes no FOR UPDATE on a table function.
    sql!(
        "(SELECT claim_id, lease_token FROM JSON_TABLE('[{leases}]', '$[*]'
            COLUMNS (claim_id BIGINT UNSIGNED PATH '$[0]', lease_token BIGINT UNSIGNED PATH '$[1]')) j) l",
        leases = Text::joined(leases.iter().map(pair), ","),
    )
}

/// The claims `c` of these leases that are still live, to be read, changed or deleted. Each is found by its primary key
/// (see [`text::listed`]), and only with its token, which is the fence.
pub(crate) fn fence(leases: &[ClaimLease]) -> Text {
    sql!(
        "{leases} STRAIGHT_JOIN outbox_claims c FORCE INDEX (PRIMARY)
            ON c.claim_id = l.claim_id AND c.lease_token = l.lease_token",
        leases = listed(leases),
    )
}

/// The outcome of a renewal.
#[derive(Debug, Default)]
pub struct Renewed {
    /// The claims whose lease was renewed.
    pub prolonged: Vec<ClaimLease>,
    /// The live claims: these, and those whose rows a settlement or a take-over had locked.
    pub standing: Vec<ClaimLease>,
}

/// Renews claims from now on. Waits for no lock: one connection that is silent while it settles a claim must not cost
/// all other claims their lease. Primary key; locks just these rows, across one of its two round trips. The server ends
/// the session if the second one does not come within the lease. Otherwise a machine that vanishes would keep its
/// claims locked for hours.
pub async fn renew(conn: &mut MySqlConnection, leases: &[ClaimLease], lease: Duration) -> Result<Renewed, sqlx::Error> {
    let text = sql!(
        "SET SESSION wait_timeout = {seconds}; BEGIN;
        SELECT c.claim_id, c.lease_token FROM {claims} FOR UPDATE SKIP LOCKED",
        seconds = lease.as_secs().max(1),
        claims = fence(leases),
    );
    let prolonged = ClaimLease::all(&text.run(conn).await?)?;
    let text = sql!(
        "UPDATE {prolonged} SET c.lease_until = UTC_TIMESTAMP(6) + INTERVAL {lease} MICROSECOND; COMMIT;
        SET SESSION wait_timeout = {idle}; SELECT c.claim_id, c.lease_token FROM {claims}",
        prolonged = fence(&prolonged),
        lease = micros(lease),
        idle = session::IDLE,
        claims = fence(leases),
    );
    let standing = ClaimLease::all(&text.run(conn).await?)?;
    Ok(Renewed { prolonged, standing })
}

/// The live claims of one process, which knows none whose confirmation it did not wait for. Read without locks. Reads
/// all live claims.
pub async fn of_owner(conn: &mut MySqlConnection, owner: &str) -> Result<Vec<ClaimLease>, sqlx::Error> {
    let sql = "SELECT claim_id, lease_token FROM outbox_claims WHERE owner = ?";
    let rows = sqlx::query(sql).bind(owner).fetch_all(conn).await?;
    rows.iter().map(ClaimLease::of).collect()
}

/// Releases claims: their messages are pending as before, and no attempt is spent. Primary key, just these rows.
pub async fn release(conn: &mut MySqlConnection, leases: &[ClaimLease]) -> Result<u64, sqlx::Error> {
    let text = sql!("DELETE c FROM {claims}", claims = fence(leases));
    let replies = text.run(conn).await?;
    Ok(replies.first().map_or(0, |reply| reply.done.rows_affected()))
}

/// A claim whose lease has passed.
#[derive(Debug, Clone)]
pub struct Expired {
    /// The claim and its token.
    pub lease: ClaimLease,
    /// Its owner.
    pub owner: String,
    /// The lane.
    pub lane: u16,
    /// The messages that it covers; none if the list was edited by hand and cannot be read.
    pub message_ids: Vec<u64>,
    /// The mark of a tail, which names no message; 0 for lists.
    pub mark: u64,
}

/// Most claims that [`expired`] returns.
pub const MOST_EXPIRED: usize = 20;

/// The claims above this one whose lease has passed, at most [`MOST_EXPIRED`] by their number, read without locks: a
/// locking read would wait for every claim that is being settled. Of tails only those that nobody has turned into a
/// list for ten seconds: they have too many rows. Reads the live claims.
pub async fn expired(conn: &mut MySqlConnection, above: u64) -> Result<Vec<Expired>, sqlx::Error> {
    let sql = "SELECT claim_id, lease_token, owner, lane, message_ids, CAST(IF(kind = 0, 0, mark) AS UNSIGNED) \
               FROM outbox_claims \
               WHERE claim_id > ? AND lease_until < UTC_TIMESTAMP(6) \
               AND (kind = 0 OR kind = 2 AND claimed_at < UTC_TIMESTAMP(6) - INTERVAL 10 SECOND) ORDER BY claim_id \
               LIMIT ?";
    let rows = sqlx::query(sql).bind(above).bind(MOST_EXPIRED as u64).fetch_all(conn).await?;
    let expired = |row: &MySqlRow| {
        Ok(Expired {
            lease: ClaimLease::of(row)?,
            owner: row.try_get(2)?,
            lane: row.try_get(3)?,
            message_ids: ids_from_json(row.try_get(4)?).unwrap_or_default(),
            mark: row.try_get(5)?,
        })
    };
    rows.iter().map(expired).collect()
}

/// Ends a claim whose lease has passed and counts an attempt for each of its messages, so that a message that kills
/// relays is found. False: it was settled, renewed or taken over by another relay in the meantime. One round trip;
/// locks the claim first.
pub async fn take_over(conn: &mut MySqlConnection, expired: &Expired) -> Result<bool, sqlx::Error> {
    let text = sql!(
        "BEGIN; SELECT c.claim_id FROM {claim} WHERE c.lease_until < UTC_TIMESTAMP(6) FOR UPDATE;
        UPDATE outbox_claims c STRAIGHT_JOIN {messages}
            STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = c.lane AND p.id = l.id
            SET p.attempts = LEAST(p.attempts, 65534) + 1, p.takeovers = LEAST(p.takeovers, 254) + 1
            WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token} AND c.lease_until < UTC_TIMESTAMP(6);
        REPLACE INTO outbox_attempts (id, slot, attempt, failed_at, owner, reason)
            SELECT p.id, {slot}, p.attempts, UTC_TIMESTAMP(6), c.owner, 'taken_over'
            FROM outbox_claims c STRAIGHT_JOIN {messages}
            STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = c.lane AND p.id = l.id
            WHERE c.claim_id = {claim_id} AND c.lease_token = {lease_token} AND c.lease_until < UTC_TIMESTAMP(6);
        DELETE c FROM {claim} WHERE c.lease_until < UTC_TIMESTAMP(6); COMMIT",
        claim = fence(&[expired.lease]),
        messages = text::listed(&expired.message_ids),
        slot = attempts::slot("p.id"),
        claim_id = expired.lease.claim_id,
        lease_token = expired.lease.lease_token,
    );
    let replies = text.run(conn).await?;
    Ok(replies.get(4).is_some_and(|reply| reply.done.rows_affected() == 1))
}
