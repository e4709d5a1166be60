//! Leases: renewing one's own claims, giving them back, and taking over those of the dead.

use std::time::Duration;

use sqlx::{MySqlConnection, Row as _};

use super::{claim::ids_from_json, read::id_list, text::Text};

/// A claim and its fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The claim.
    pub claim_id: u64,
    /// Its token.
    pub lease_token: u64,
}

/// `outbox_claims c FORCE INDEX (PRIMARY)`: few rows look cheaper to scan, and a scan waits for claims that others settle; two
/// settlers that do it wait in a circle.
pub(crate) const CLAIMS: &str = "outbox_claims c FORCE INDEX (PRIMARY)";

/// ` WHERE claim_id IN (…) AND (claim_id, lease_token) IN (…)`: the first part serves the primary key, the second is the fence.
pub(crate) fn fence(text: Text, leases: &[Lease]) -> Text {
    let text = text.sql(" WHERE claim_id IN (").ints(leases.iter().map(|lease| lease.claim_id)).sql(") AND (0");
    let text = leases.iter().fold(text, |text, lease| {
        text.sql(" OR claim_id = ").int(lease.claim_id).sql(" AND lease_token = ").int(lease.lease_token)
    });
    text.sql(")")
}

/// Prolongs claims from now on; returns those that still stand. Primary key; locks just these rows, waits for whoever
/// settles one of them.
pub async fn renew(conn: &mut MySqlConnection, leases: &[Lease], lease: Duration) -> Result<Vec<u64>, sqlx::Error> {
    let text = Text::default()
        .sql("UPDATE ")
        .sql(CLAIMS)
        .sql(" SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ")
        .int(super::enqueue::micros(lease).unsigned_abs())
        .sql(" MICROSECOND")
        .then(|text| fence(text, leases))
        .sql("; SELECT claim_id FROM ")
        .sql(CLAIMS)
        .then(|text| fence(text, leases));
    let replies = text.run(conn).await?;
    replies.iter().flat_map(|reply| &reply.rows).map(|row| row.try_get(0)).collect()
}

/// Gives claims back: their messages are pending as before, no attempt is spent. Primary key, just these rows.
pub async fn release(conn: &mut MySqlConnection, leases: &[Lease]) -> Result<u64, sqlx::Error> {
    let text = Text::default().sql("DELETE c FROM ").sql(CLAIMS).then(|text| fence(text, leases));
    let replies = text.run(conn).await?;
    Ok(replies.first().map_or(0, |reply| reply.done.rows_affected()))
}

/// A claim whose lease has passed.
#[derive(Debug, Clone)]
pub struct Expired {
    /// The claim and its fence.
    pub lease: Lease,
    /// Who held it.
    pub owner: String,
    /// The lane.
    pub lane: u16,
    /// The messages that it covers.
    pub message_ids: Vec<u64>,
}

/// The claims whose lease has passed, read without locks: a locking look would wait for every claim that is being settled.
/// Reads the live claims.
pub async fn expired(conn: &mut MySqlConnection) -> Result<Vec<Expired>, sqlx::Error> {
    let sql = "SELECT claim_id, lease_token, owner, lane, message_ids FROM outbox_claims \
               WHERE lease_until < UTC_TIMESTAMP(6) ORDER BY claim_id LIMIT 20";
    let rows = sqlx::query(sql).fetch_all(conn).await?;
    let expired = |row: &sqlx::mysql::MySqlRow| {
        Ok(Expired {
            lease: Lease { claim_id: row.try_get(0)?, lease_token: row.try_get(1)? },
            owner: row.try_get(2)?,
            lane: row.try_get(3)?,
            message_ids: ids_from_json(row.try_get(4)?)?,
        })
    };
    rows.iter().map(expired).collect()
}

/// Ends a claim whose lease has passed and counts an attempt for each of its messages, so that a message that kills relays
/// is found. False: it was settled, renewed or taken over by another in the meantime. One round trip; locks the claim first.
pub async fn take_over(conn: &mut MySqlConnection, expired: &Expired) -> Result<bool, sqlx::Error> {
    let still = " AND lease_until < UTC_TIMESTAMP(6)";
    let lease = [expired.lease];
    let text = Text::default()
        .sql("BEGIN; SELECT claim_id FROM outbox_claims")
        .then(|text| fence(text, &lease))
        .sql(still)
        .sql(" FOR UPDATE; UPDATE outbox_claims c JOIN outbox_pending p ON p.lane = c.lane AND ")
        .then(|text| id_list(text, "p.id", &expired.message_ids))
        .sql(" SET p.attempts = p.attempts + 1 WHERE c.claim_id = ")
        .int(expired.lease.claim_id)
        .sql(" AND c.lease_token = ")
        .int(expired.lease.lease_token)
        .sql(" AND c.lease_until < UTC_TIMESTAMP(6); DELETE FROM outbox_claims")
        .then(|text| fence(text, &lease))
        .sql(still)
        .sql("; COMMIT");
    let replies = text.run(conn).await?;
    Ok(replies.get(3).is_some_and(|reply| reply.done.rows_affected() == 1))
}
