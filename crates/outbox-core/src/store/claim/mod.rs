//! Claiming: look without locks, then one compare-and-set that travels in one round trip.

pub mod floor;
pub mod held;
pub mod lanes;
pub mod lease;
pub mod promote;
pub mod queue;
pub mod read;
pub mod tail;

use std::ops::RangeInclusive;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{
    claim::{lease::ClaimLease, queue::UNDATED, read::Stored},
    enqueue::micros,
    text::{Digits, Hex, Ids, Reply, Text, listed, sql},
};

/// A pending row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// The id of the message.
    pub id: u64,
    /// Orders messages; 0 for no order.
    pub key_hash: u64,
    /// Bytes of key, headers and payload.
    pub bytes: u32,
    /// Failed attempts and lost leases so far.
    pub attempts: u16,
    /// The number of claims of the message that were taken over since the row was written.
    pub takeovers: u8,
}

/// A live claim as another relay wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignClaim {
    /// Its number and token.
    pub lease: ClaimLease,
    /// Its owner.
    pub owner: String,
    /// The messages that it covers.
    pub message_ids: Vec<u64>,
    /// Their keys, without 0.
    pub key_hashes: Vec<u64>,
}

/// The range of a look. By default: all claims of lane 0, and no message.
#[derive(Debug, Clone, Default)]
pub struct Look<'a> {
    /// The lane.
    pub lane: u16,
    /// The owner, whose own claims need no reading.
    pub owner: &'a str,
    /// The newest claim that is known: only newer ones are read whole.
    pub known_claim: u64,
    /// No claim up to this one is live: the look skips them. An open snapshot keeps settled claims, of kilobytes each.
    pub gone_claim: u64,
    /// Candidates have larger ids: everything up to here is claimed or lies in `below`.
    pub above: u64,
    /// Most candidates.
    pub limit: u32,
    /// The gaps between claimed ids, where a row may have been committed late or put back.
    pub below: &'a [RangeInclusive<u64>],
    /// Most rows of `below`.
    pub below_limit: u32,
    /// Keys whose rows are left out, and the largest id of the look. The server reads each row of these keys (0.4 µs).
    pub without: Option<(&'a [u64], u64)>,
}

/// The result of a look.
#[derive(Debug, Default)]
pub struct Seen {
    /// The lane's version; `None` if it has no head yet.
    pub version: Option<u64>,
    /// The lane's `low`.
    pub low: u64,
    /// All live claims of the lane that the look did not skip.
    pub leases: Vec<ClaimLease>,
    /// Claims of other owners that were not known, by their number.
    pub claims: Vec<ForeignClaim>,
    /// Claims of other owners that were not read whole, because their number was known.
    pub passed: Vec<ClaimLease>,
    /// Whether the lane has a tail: then nobody claims.
    pub has_tail: bool,
    /// Candidates, by id.
    pub fresh: Vec<Pending>,
    /// Rows in the gaps, by id.
    pub below: Vec<Pending>,
    /// The smallest key that a message of the lane holds back; [`next`](crate::store::claim::held::next) and
    /// [`among`](crate::store::claim::held::among) return the others.
    pub holds: Option<u64>,
}

/// The kinds of rows of a look; the kind is the first column.
const HEAD: i64 = 0;
const CLAIM: i64 = 1;
const FRESH: i64 = 2;
const BELOW: i64 = 3;
/// The last rows. There are always two: each is an aggregate.
const HOLDS: i64 = 4;
// In each column all parts of the union have the same type. Where they differ, MariaDB makes it DECIMAL.

/// Looks at a lane without locks, in one statement with one read view. The protocol depends on that: version, claims,
/// candidates and gaps are of one moment. So the compare-and-set detects every later change, and no row of a key is
/// seen without those before it. (Six statements took MySQL twice the time: 1.1 ms against 0.55.)
///
/// Primary keys throughout, and one seek each in `outbox_delayed_key` and `outbox_dead_key`. Reads at most the limits
/// of `look`, the rows that it leaves out, and the live claims.
pub async fn look(conn: &mut MySqlConnection, look: &Look<'_>) -> Result<Seen, sqlx::Error> {
    let row = "id, key_hash, bytes | attempts << 32 | takeovers << 48, NULL, NULL, NULL";
    let gap =
        |gap: &RangeInclusive<u64>| sql!(" OR id BETWEEN {start} AND {end}", start = *gap.start(), end = *gap.end());
    let others =
        look.without.map(|(keys, end)| sql!(" AND id <= {end} AND key_hash NOT IN ({keys})", end, keys = Ids(keys)));
    let others = others.unwrap_or_default();
    let text = sql!(
        "SELECT 0, version, low, low, NULL, NULL, NULL FROM outbox_head WHERE lane = {lane}
        UNION ALL SELECT 1, claim_id, lease_token, kind, owner,
            IF(claim_id > {known} AND owner <> {owner}, message_ids, NULL),
            IF(claim_id > {known} AND owner <> {owner}, key_hashes, NULL)
            FROM outbox_claims WHERE claim_id > {gone} AND lane = {lane}
        UNION ALL (SELECT 2, {row} FROM outbox_pending WHERE lane = {lane} AND id > {above}{others}
            ORDER BY id LIMIT {limit})
        UNION ALL (SELECT 3, {row} FROM outbox_pending WHERE lane = {lane} AND (0{gaps}){others}
            ORDER BY id LIMIT {below})
        UNION ALL SELECT 4, MIN(key_hash), MIN(key_hash), MIN(key_hash), NULL, NULL, NULL
            FROM outbox_delayed WHERE holds_key = 1 AND lane = {lane}
        UNION ALL SELECT 4, MIN(key_hash), MIN(key_hash), MIN(key_hash), NULL, NULL, NULL
            FROM outbox_dead WHERE holds_key = 1 AND lane = {lane}",
        lane = look.lane,
        known = look.known_claim,
        owner = Hex(look.owner.as_bytes()),
        gone = look.gone_claim,
        row,
        others,
        above = look.above,
        limit = look.limit,
        gaps = Text::joined(look.below.iter().map(gap), ""),
        below = look.below_limit,
    );
    let mut seen = Seen::default();
    let mut holds = Vec::new();
    for row in text.run(conn).await?.iter().flat_map(|reply| &reply.rows) {
        match row.try_get::<i64, _>(0)? {
            HEAD => (seen.version, seen.low) = (Some(row.try_get(1)?), row.try_get(2)?),
            CLAIM => seen.add_claim(row, look.owner)?,
            FRESH => seen.fresh.push(pending(row)?),
            BELOW => seen.below.push(pending(row)?),
            HOLDS => holds.push(row.try_get::<Option<u64>, _>(1)?),
            _ => {}
        }
    }
    if holds.len() != 2 {
        // Without them the pass would take no key for held, and break the order.
        return Err(sqlx::Error::Protocol("the server cut the answer to a look, as sql_select_limit does".to_owned()));
    }
    seen.holds = holds.into_iter().flatten().min();
    // A union keeps no order.
    for rows in [&mut seen.fresh, &mut seen.below] {
        rows.sort_unstable_by_key(|row| row.id);
    }
    Ok(seen)
}

impl Seen {
    fn add_claim(&mut self, row: &MySqlRow, owner: &str) -> Result<(), sqlx::Error> {
        let lease = ClaimLease { claim_id: row.try_get(1)?, lease_token: row.try_get(2)? };
        self.leases.push(lease);
        let holder: &str = row.try_get(4)?;
        if row.try_get::<u64, _>(3)? > 0 {
            self.has_tail = true;
        } else if let (Some(ids), Some(packed)) = (row.try_get(5)?, row.try_get::<Option<&[u8]>, _>(6)?) {
            self.claims.push(ForeignClaim {
                lease,
                owner: holder.to_owned(),
                // A claim that was edited by hand must not stop every relay: it covers no message, and ends with its
                // lease.
                message_ids: ids_from_json(ids).unwrap_or_default(),
                key_hashes: hashes_from_bytes(packed),
            });
        } else if holder != owner {
            self.passed.push(lease);
        }
        Ok(())
    }
}

fn pending(row: &MySqlRow) -> Result<Pending, sqlx::Error> {
    let [_, takeovers, a, b, bytes @ ..] = row.try_get::<u64, _>(3)?.to_be_bytes();
    Ok(Pending {
        id: row.try_get(1)?,
        key_hash: row.try_get(2)?,
        bytes: u32::from_be_bytes(bytes),
        attempts: u16::from_be_bytes([a, b]),
        takeovers,
    })
}

/// Hashes as their column holds them: eight bytes each.
pub(crate) fn hashes_to_bytes(hashes: &[u64]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.to_be_bytes()).collect()
}

/// Left-over bytes of a value that was edited by hand are no hash.
pub(crate) fn hashes_from_bytes(packed: &[u8]) -> Vec<u64> {
    packed.chunks_exact(8).map(|chunk| chunk.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).collect()
}

pub(crate) fn ids_from_json(text: &str) -> Result<Vec<u64>, sqlx::Error> {
    serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Claims of a lane to be made together.
#[derive(Debug)]
pub struct NewClaims<'a> {
    /// The lane.
    pub lane: u16,
    /// The version of the look.
    pub version: u64,
    /// The new `low`: no pending row that was seen has a smaller id.
    pub low: u64,
    /// The owner of the claims.
    pub owner: &'a str,
    /// How long they are valid.
    pub lease: std::time::Duration,
    /// The claims, at least one. No two of them may share a message, nor, where their holder needs it, a key.
    pub claims: &'a [NewClaim<'a>],
    /// Pending rows that move into the queues of their keys with the claims.
    pub behind: &'a [u64],
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct NewClaim<'a> {
    /// The token, random: the fence of the claim.
    pub lease_token: u64,
    /// The messages.
    pub message_ids: &'a [u64],
    /// Their keys, without 0 and without repetition.
    pub key_hashes: &'a [u64],
}

/// Makes the claims in one round trip, if the lane has not changed since the look. Returns them in no order; none if
/// another relay was faster. Locks the lane's head, then the rows that move; no lock lasts across a round trip.
///
/// After an error the caller must roll back, and call [`find`] to learn whether the claims are live.
pub async fn claim(conn: &mut MySqlConnection, new: &NewClaims<'_>) -> Result<Vec<ClaimLease>, sqlx::Error> {
    made(new, &text(new).run(conn).await?)
}

/// [`claim`] and [`read::messages`] in one round trip: for claims of few bytes. The messages are `None` if they cannot
/// be decoded.
///
/// An error may come from the read, after the claims were made.
pub async fn claim_and_read(
    conn: &mut MySqlConnection,
    new: &NewClaims<'_>,
) -> Result<(Vec<ClaimLease>, Option<Vec<Stored>>), sqlx::Error> {
    let mut ids: Vec<u64> = new.claims.iter().flat_map(|claim| claim.message_ids).copied().collect();
    ids.sort_unstable();
    let text = sql!("{claim}; {messages}", claim = text(new), messages = read::text(&ids));
    let mut replies = text.run(conn).await?;
    let messages = replies.split_off(replies.len().saturating_sub(read::STATEMENTS));
    let made = made(new, &replies)?;
    let messages = if made.is_empty() { None } else { read::decoded(conn, &ids, &messages).await.ok() };
    Ok((made, messages))
}

fn text(new: &NewClaims<'_>) -> Text {
    let token = new.claims.first().map_or(0, |claim| claim.lease_token);
    // One INSERT need not give its rows neighbouring numbers.
    let numbers = sql!(
        "; SELECT claim_id, lease_token FROM outbox_claims
            WHERE claim_id >= LAST_INSERT_ID() AND lane = {lane} AND owner = {owner}",
        lane = new.lane,
        owner = Hex(new.owner.as_bytes()),
    );
    sql!(
        "BEGIN; UPDATE outbox_head SET low = {low}{compare_and_set};
        INSERT INTO outbox_claims (lane, owner, lease_until, claimed_at, lease_token, message_ids, key_hashes)
            SELECT lane, {owner}, UTC_TIMESTAMP(6) + INTERVAL {lease} MICROSECOND, UTC_TIMESTAMP(6), {rows}
            WHERE lane = {lane} AND claimer = {token}{moves}; COMMIT{numbers}",
        low = new.low,
        compare_and_set = compare_and_set(new.lane, new.version, token),
        owner = Hex(new.owner.as_bytes()),
        lease = micros(new.lease),
        rows = rows(new.claims),
        lane = new.lane,
        token,
        moves = move_behind((new.lane, token), new.behind),
        numbers = if new.claims.len() > 1 { numbers } else { Text::default() },
    )
}

/// Token, messages and keys of the claims, one row each. A single one needs no table function.
fn rows(claims: &[NewClaim<'_>]) -> Text {
    if let [NewClaim { lease_token, message_ids, key_hashes }] = *claims {
        let ids = Ids(message_ids);
        let hashes = hashes_to_bytes(key_hashes);
        return sql!("{lease_token}, '[{ids}]', {hashes} FROM outbox_head", lease_token, ids, hashes = Hex(&hashes));
    }
    let row = |claim: &NewClaim<'_>| {
        let ids = Ids(claim.message_ids);
        let hashes = hashes_to_bytes(claim.key_hashes);
        sql!("[{token},\"[{ids}]\",\"{hashes}\"]", token = claim.lease_token, ids, hashes = Digits(&hashes))
    };
    sql!(
        "l.token, l.ids, UNHEX(l.hashes)
            FROM outbox_head STRAIGHT_JOIN JSON_TABLE('[{rows}]', '$[*]' COLUMNS (token BIGINT UNSIGNED PATH '$[0]',
                ids LONGTEXT PATH '$[1]', hashes LONGTEXT PATH '$[2]')) l",
        rows = Text::joined(claims.iter().map(row), ","),
    )
}

/// The claims, if they were made.
fn made(new: &NewClaims<'_>, replies: &[Reply]) -> Result<Vec<ClaimLease>, sqlx::Error> {
    let Some(inserted) = replies.get(2).filter(|reply| reply.done.rows_affected() > 0) else { return Ok(Vec::new()) };
    if let [NewClaim { lease_token, .. }] = *new.claims {
        return Ok(vec![ClaimLease { claim_id: inserted.done.last_insert_id(), lease_token }]);
    }
    let is_new = |lease: &ClaimLease| new.claims.iter().any(|claim| claim.lease_token == lease.lease_token);
    Ok(ClaimLease::all(replies)?.into_iter().filter(is_new).collect())
}

/// The end of an `UPDATE outbox_head`: afterwards the lane's `claimer` is `token` if and only if no other relay was
/// faster.
fn compare_and_set(lane: u16, version: u64, token: u64) -> Text {
    sql!(", version = version + 1, claimer = {token} WHERE lane = {lane} AND version = {version}", token, lane, version)
}

/// The live claims with these tokens, to be read after a lost reply. Raises the lane's version first. That waits
/// for claims that the server is still making, and voids those that it has yet to begin. So a claim that was not found
/// cannot appear later. One round trip; locks the lane's head, reads the live claims.
pub async fn find(
    conn: &mut MySqlConnection,
    lane: u16,
    owner: &str,
    lease_tokens: &[u64],
) -> Result<Vec<ClaimLease>, sqlx::Error> {
    let text = sql!(
        "UPDATE outbox_head SET version = {raised}, claimer = 0 WHERE lane = {lane};
        SELECT claim_id, lease_token FROM outbox_claims WHERE owner = {owner} AND lease_token IN ({tokens})",
        raised = tail::RAISED,
        lane,
        owner = Hex(owner.as_bytes()),
        tokens = Ids(lease_tokens),
    );
    ClaimLease::all(&text.run(conn).await?)
}

/// Moves pending rows into the queues of their keys, as [`NewClaims::behind`] does, without a claim. A compare-and-set
/// as in [`claim`]; returns whether it won. Locks the head, these rows and their new places.
pub async fn defer(
    conn: &mut MySqlConnection,
    (lane, version, token): (u16, u64, u64),
    message_ids: &[u64],
) -> Result<bool, sqlx::Error> {
    let text = sql!(
        "BEGIN; UPDATE outbox_head SET low = low{compare_and_set}{moves}; COMMIT",
        compare_and_set = compare_and_set(lane, version, token),
        moves = move_behind((lane, token), message_ids),
    );
    let replies = text.run(conn).await?;
    Ok(replies.get(1).is_some_and(|reply| reply.done.rows_affected() == 1))
}

/// The statements that put pending rows into the queues of their keys, if the lane's `claimer` is this token; no
/// statement for no rows. The rows are named by id: a DELETE by key would scan the lane, and wait for each service that
/// has a row there.
fn move_behind((lane, token): (u16, u64), message_ids: &[u64]) -> Text {
    if message_ids.is_empty() {
        return Text::default();
    }
    sql!(
        ";
        INSERT IGNORE INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason)
            SELECT p.lane, p.id, p.key_hash, p.bytes, p.attempts, {undated}, 1, 'behind'
            FROM outbox_head h STRAIGHT_JOIN {ids}
            STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY)
                ON p.lane = h.lane AND p.id = l.id AND h.claimer = {token} AND h.lane = {lane};
        DELETE p
            FROM outbox_head h STRAIGHT_JOIN {ids}
            STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY)
                ON p.lane = h.lane AND p.id = l.id AND h.claimer = {token} AND h.lane = {lane}",
        undated = UNDATED,
        ids = listed(message_ids),
        token,
        lane,
    )
}
