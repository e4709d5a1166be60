//! The content of the queue, for gauges and operators.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use crate::store::{
    operate::controls::{self, ControlRow},
    reason::{DelayReason, WaitsFor},
};

/// The content of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Unsent messages that are due, claimed ones included.
    pub pending: u64,
    /// Of these, claimed. A claim whose list was made unreadable by hand covers none.
    pub leased: u64,
    /// Messages that wait for a time or for their key.
    pub delayed: u64,
    /// Messages that the relay gave up on.
    pub dead: u64,
    /// Of these, those that had expired.
    pub expired: u64,
    /// When the oldest dead message died, apart from expired ones and those that hold their key: microseconds since
    /// 1970.
    pub dead_since: Option<i64>,
    /// Keys whose first message is dead, or waits until an operator acts: see [`OPERATOR`].
    pub blocked_keys: u64,
    /// Claims whose lease has passed and that no relay has taken over.
    pub expired_leases: u64,
    /// For how long messages have been due.
    pub lags: Lags,
}

/// For how long the message with the lowest id has been due (enqueue or schedule), in microseconds, by what it waits
/// for: the largest of all lanes, 0 if none waits for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lags {
    /// Nothing: it is to be sent.
    pub due: u64,
    /// Its next attempt.
    pub retry: u64,
    /// A sink, destination or route that takes nothing.
    pub parked: u64,
    /// An earlier message of its key.
    pub blocked: u64,
    /// The end of a pause.
    pub paused: u64,
    /// A time that has passed, of its schedule or of its handler: no relay has made it pending.
    pub scheduled: u64,
}

impl Lags {
    /// Returns all of them with their names.
    #[must_use]
    pub fn all(&self) -> [(&'static str, u64); 6] {
        let Self { due, retry, parked, blocked, paused, scheduled } = *self;
        [
            ("due", due),
            ("retry", retry),
            ("parked", parked),
            ("blocked", blocked),
            ("paused", paused),
            ("scheduled", scheduled),
        ]
    }

    /// The lag of these delayed messages.
    fn of(&mut self, waiting: &Waiting) -> &mut u64 {
        match waiting.waits_for() {
            WaitsFor::Time => &mut self.scheduled,
            WaitsFor::Key => &mut self.blocked,
            WaitsFor::Resume => &mut self.paused,
            WaitsFor::Retry => &mut self.retry,
            WaitsFor::Destination => &mut self.parked,
        }
    }
}

impl Stats {
    /// Returns the sums over these lanes, some of which are paused.
    #[must_use]
    pub fn of(lanes: &[LaneStats], paused: &[ControlRow]) -> Self {
        let mut stats = Self::default();
        for lane in lanes {
            stats.pending += lane.pending;
            stats.leased += lane.leased;
            stats.dead += lane.dead;
            stats.expired += lane.expired;
            stats.blocked_keys += lane.blocked_keys;
            stats.expired_leases += lane.expired_leases;
            stats.dead_since = stats.dead_since.into_iter().chain(lane.dead_since).min();
            let is_paused = paused.iter().any(|it| it.kind == "lane" && it.name == lane.lane.to_string());
            raise(if is_paused { &mut stats.lags.paused } else { &mut stats.lags.due }, lane.lag);
            for waiting in &lane.delayed {
                stats.delayed += waiting.messages;
                raise(stats.lags.of(waiting), waiting.lag);
            }
        }
        stats
    }
}

fn raise(lag: &mut u64, micros: i64) {
    *lag = u64::try_from(micros).unwrap_or(0).max(*lag);
}

/// Counts the queue, see [`lanes`].
pub async fn stats(conn: &mut MySqlConnection) -> Result<Stats, sqlx::Error> {
    let lanes = lanes(&mut *conn).await?;
    Ok(Stats::of(&lanes, &controls::paused(conn).await?))
}

/// A lane as operators see it. Times are microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// The lane.
    pub lane: u16,
    /// Messages that are due, claimed ones included.
    pub pending: u64,
    /// For how long the one with the lowest id has been due.
    pub lag: i64,
    /// Owners with a live claim.
    pub owners: u64,
    /// The owner that takes its messages from the binary log.
    pub tailed_by: Option<String>,
    /// Messages with a live claim, or below the mark of a tail. A claim whose list was made unreadable by hand covers
    /// none.
    pub leased: u64,
    /// Claims whose lease has passed and that no relay has taken over.
    pub expired_leases: u64,
    /// Whether a message was sent in the last minute.
    pub sends: bool,
    /// Messages that were sent in the last ten seconds.
    pub sent: u64,
    /// Messages that wait, by reason; the largest number first.
    pub delayed: Vec<Waiting>,
    /// Messages that the relays gave up on.
    pub dead: u64,
    /// Of these, those that had expired.
    pub expired: u64,
    /// When the oldest of the others died that holds no key, since 1970.
    pub dead_since: Option<i64>,
    /// Keys whose first message is dead, or waits until an operator acts: see [`OPERATOR`].
    pub blocked_keys: u64,
}

/// Messages that wait for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The reason.
    pub reason: String,
    /// Their number.
    pub messages: u64,
    /// The error of most of them.
    pub error: String,
    /// The number of messages with this error.
    pub share: u64,
    /// For how long the one with the lowest id has been due, in microseconds. Of scheduled ones, how long ago the first
    /// time passed.
    pub lag: i64,
}

impl Waiting {
    /// Returns what ends the wait. A reason of a later release counts as a destination that takes nothing.
    #[must_use]
    pub fn waits_for(&self) -> WaitsFor {
        DelayReason::of(&self.reason).map_or(WaitsFor::Destination, DelayReason::waits_for)
    }
}

/// Reasons for which a message waits until an operator acts, in SQL.
pub const OPERATOR: &str = "'unroutable', 'no_route', 'no_sink', 'unread', 'paused'";

/// The time for which the message `m` has been due, in SQL.
const LATE: &str = "COALESCE(TIMESTAMPDIFF(MICROSECOND, GREATEST(m.created_at, COALESCE(m.due_at, m.created_at)), \
                    UTC_TIMESTAMP(6)), 0)";

/// Counts each lane that has messages or was served lately, in one snapshot. Reads the primary keys of pending rows
/// (narrow: about 0.1 s for a million), all delayed and dead rows, the claims and the receipts of the last minute; no
/// lock. If it fails, end the connection: its transaction is open.
pub async fn lanes(conn: &mut MySqlConnection) -> Result<Vec<LaneStats>, sqlx::Error> {
    let snapshot =
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";
    sqlx::raw_sql(snapshot).execute(&mut *conn).await?;
    let mut lanes = Lanes::default();
    let sql = format!(
        "SELECT p.lane, p.messages, {LATE} FROM (SELECT lane, CAST(COUNT(*) AS UNSIGNED) AS messages, MIN(id) AS id \
         FROM outbox_pending \
        GROUP BY lane) p LEFT JOIN outbox_messages m ON m.id = p.id"
    );
    for row in sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut *conn).await? {
        let lane = lanes.of(row.try_get(0)?);
        (lane.pending, lane.lag) = (row.try_get(1)?, row.try_get(2)?);
    }
    delayed(conn, &mut lanes).await?;
    dead(conn, &mut lanes).await?;
    let sql = "SELECT lane, CAST(COUNT(DISTINCT IF(lease_until >= UTC_TIMESTAMP(6), owner, NULL)) AS UNSIGNED), \
               CAST(SUM(lease_until < UTC_TIMESTAMP(6)) AS UNSIGNED), CAST(SUM(IF(lease_until >= UTC_TIMESTAMP(6) AND \
               JSON_VALID(message_ids), JSON_LENGTH(message_ids), 0)) AS UNSIGNED), MAX(IF(kind = 1, owner, NULL)) \
               FROM outbox_claims GROUP BY lane";
    for row in sqlx::query(sql).fetch_all(&mut *conn).await? {
        let lane = lanes.of(row.try_get(0)?);
        (lane.owners, lane.expired_leases, lane.leased) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        lane.tailed_by = row.try_get(4)?;
    }
    let sql = "SELECT c.lane, CAST(COUNT(*) AS UNSIGNED) FROM outbox_claims c JOIN outbox_pending p ON p.lane = c.lane \
               AND p.id <= c.mark \
               WHERE c.kind > 0 AND c.lease_until >= UTC_TIMESTAMP(6) GROUP BY c.lane";
    for row in sqlx::query(sql).fetch_all(&mut *conn).await? {
        let below: u64 = row.try_get(1)?;
        lanes.of(row.try_get(0)?).leased += below;
    }
    let first = first_of_the_last_minute(conn).await?;
    let sql = "SELECT lane, CAST(COALESCE(SUM(IF(sent_at > UTC_TIMESTAMP(6) - INTERVAL 10 SECOND \
               AND JSON_VALID(message_ids), \
               JSON_LENGTH(message_ids), 0)), 0) AS UNSIGNED), COUNT(NULLIF(message_ids, '[]')) > 0 \
               FROM outbox_sent WHERE receipt_id >= ? GROUP BY lane";
    for row in sqlx::query(sql).bind(first).fetch_all(&mut *conn).await? {
        let lane = lanes.of(row.try_get(0)?);
        (lane.sent, lane.sends) = (row.try_get(1)?, row.try_get(2)?);
    }
    sqlx::raw_sql("COMMIT").execute(conn).await?;
    Ok(lanes.0.into_values().collect())
}

/// The number of the first receipt of the last minute, or one that no receipt has yet. Some dozens of seeks, or one
/// where nothing was sent. From the newest receipt down: at the other end are those that were purged, which a snapshot
/// may keep by the million.
pub(in crate::store) async fn first_of_the_last_minute(conn: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    // The lowest number that is known to be recent, the highest known to be older, and the distance to the next probe.
    let mut recent = u64::MAX;
    let mut old = None;
    let mut step = 1_u64;
    while old.is_none_or(|old| recent - old > 1) {
        let probe = match old {
            None if recent == u64::MAX => u64::MAX,
            None => recent.saturating_sub(step),
            Some(old) => old + (recent - old) / 2,
        };
        let sql = "SELECT receipt_id, sent_at < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE FROM outbox_sent \
                   WHERE receipt_id <= ? \
                   ORDER BY receipt_id DESC LIMIT 1";
        let receipt: Option<(u64, bool)> = sqlx::query_as(sql).bind(probe).fetch_optional(&mut *conn).await?;
        match receipt {
            Some((receipt, false)) => recent = receipt,
            Some(_) | None => old = Some(probe),
        }
        step = step.saturating_mul(2);
    }
    Ok(recent)
}

async fn delayed(conn: &mut MySqlConnection, lanes: &mut Lanes) -> Result<(), sqlx::Error> {
    let sql = format!(
        "SELECT w.lane, w.reason, w.messages, COALESCE(SUBSTR(w.first, 21), ''), CAST(COALESCE(LEFT(w.first, 20), \
         0) AS UNSIGNED), w.blocked, \
        IF(w.reason IN ('scheduled', 'snoozed'), TIMESTAMPDIFF(MICROSECOND, w.due_at, UTC_TIMESTAMP(6)), {LATE}) \
        FROM (SELECT lane, reason, CAST(SUM(messages) AS UNSIGNED) AS messages, MAX(CONCAT(LPAD(messages, 20, '0'), \
        error)) AS first, \
        MIN(id) AS id, MIN(due_at) AS due_at, CAST(SUM(blocked) AS UNSIGNED) AS blocked \
        FROM (SELECT lane, reason, NULLIF(error, '') AS error, COUNT(*) AS messages, MIN(id) AS id, \
        MIN(due_at) AS due_at, \
        COUNT(DISTINCT IF(reason IN ({OPERATOR}) AND holds_key = 1, key_hash, NULL)) AS blocked \
        FROM outbox_delayed GROUP BY lane, reason, NULLIF(error, '')) e GROUP BY lane, reason) w \
        LEFT JOIN outbox_messages m ON m.id = w.id ORDER BY w.messages DESC"
    );
    for row in sqlx::query(AssertSqlSafe(sql)).fetch_all(conn).await? {
        let lane = lanes.of(row.try_get(0)?);
        let reason = row.try_get(1)?;
        let messages = row.try_get(2)?;
        let error = row.try_get(3)?;
        let share = row.try_get(4)?;
        lane.delayed.push(Waiting { reason, messages, error, share, lag: row.try_get(6)? });
        lane.blocked_keys += row.try_get::<u64, _>(5)?;
    }
    Ok(())
}

async fn dead(conn: &mut MySqlConnection, lanes: &mut Lanes) -> Result<(), sqlx::Error> {
    let sql = "SELECT lane, CAST(COUNT(*) AS UNSIGNED), CAST(COUNT(IF(reason = 'expired', 1, NULL)) AS UNSIGNED), \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(IF(reason = 'expired' OR holds_key = 1, NULL, died_at))), \
               CAST(COUNT(DISTINCT IF(holds_key = 1, key_hash, NULL)) AS UNSIGNED) FROM outbox_dead GROUP BY lane";
    for row in sqlx::query(sql).fetch_all(conn).await? {
        let lane = lanes.of(row.try_get(0)?);
        (lane.dead, lane.expired, lane.dead_since) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        lane.blocked_keys += row.try_get::<u64, _>(4)?;
    }
    Ok(())
}

#[derive(Default)]
struct Lanes(BTreeMap<u16, LaneStats>);

impl Lanes {
    fn of(&mut self, lane: u16) -> &mut LaneStats {
        self.0.entry(lane).or_insert_with(|| LaneStats { lane, ..LaneStats::default() })
    }
}
