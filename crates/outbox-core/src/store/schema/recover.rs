//! Recovers after a restore or a failover to a replica that lagged: numbers that were given out since must not repeat.
//!
//! No relay, worker or service may run meanwhile. Each step can be repeated: it only raises numbers.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{named::FENCES, schema::counters, text::sql};

/// The findings of a recovery, and the messages that are sent again after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoverPlan {
    /// The present epoch; 0 before the first recovery.
    pub epoch: u64,
    /// The epoch to begin: the time in seconds since 1970, by the database's clock, or the one after the present.
    pub new_epoch: u64,
    /// The id of the next message.
    pub next_message: u64,
    /// The number of the next claim.
    pub next_claim: u64,
    /// The number of the next receipt.
    pub next_receipt: u64,
    /// Sequenced keys.
    pub keys: u64,
    /// The largest number of a sequenced key.
    pub highest_number: u64,
    /// Named leases.
    pub leases: u64,
    /// The largest fence of a named lease.
    pub highest_fence: u64,
    /// The messages that are pending or delayed, by lane and topic. They will be sent, again if they had been sent.
    pub unsent: Vec<Unsent>,
}

/// Messages of one lane and topic that are pending or delayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsent {
    /// The lane.
    pub lane: u16,
    /// The topic.
    pub topic: String,
    /// Their number.
    pub messages: u64,
    /// When the oldest was enqueued, UTC.
    pub oldest: String,
}

impl RecoverPlan {
    /// The number of messages that will be sent.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.unsent.iter().map(|unsent| unsent.messages).sum()
    }

    /// The lowest fence that a lease has after this recovery.
    #[must_use]
    pub fn lowest_fence(&self) -> u64 {
        self.new_epoch.saturating_mul(FENCES)
    }
}

/// Reads the plan. Reads the backlog with its messages' topics, all sequenced keys and all named leases; no lock.
pub async fn plan(conn: &mut MySqlConnection) -> Result<RecoverPlan, sqlx::Error> {
    let (used, next) = counters::message_ids(conn).await?;
    let text = "SELECT CAST(COALESCE(MAX(epoch), 0) AS UNSIGNED), \
                CAST(GREATEST(UNIX_TIMESTAMP(), COALESCE(MAX(epoch) + 1, 0)) AS UNSIGNED) FROM outbox_epochs";
    let (epoch, new_epoch) = sqlx::query_as(text).fetch_one(&mut *conn).await?;
    let text =
        "SELECT CAST(COUNT(*) AS UNSIGNED), CAST(COALESCE(MAX(last_sequence), 0) AS UNSIGNED) FROM outbox_key_sequence";
    let (keys, highest_number) = sqlx::query_as(text).fetch_one(&mut *conn).await?;
    let text = "SELECT CAST(COUNT(*) AS UNSIGNED), CAST(COALESCE(MAX(fence), 0) AS UNSIGNED) FROM outbox_leases";
    let (leases, highest_fence) = sqlx::query_as(text).fetch_one(&mut *conn).await?;
    Ok(RecoverPlan {
        epoch,
        new_epoch,
        // A copy of the rows alone may have left the counter too low.
        next_message: next.unwrap_or(1).max(used + 1),
        next_claim: next_number(conn, "outbox_claims").await?,
        next_receipt: next_number(conn, "outbox_sent").await?,
        keys,
        highest_number,
        leases,
        highest_fence,
        unsent: unsent(conn).await?,
    })
}

/// The next number of a table. MySQL caches none here, because [`counters::message_ids`] has set this session so.
async fn next_number(conn: &mut MySqlConnection, table: &str) -> Result<u64, sqlx::Error> {
    let sql = "SELECT CAST(COALESCE(auto_increment, 1) AS UNSIGNED) FROM information_schema.tables \
               WHERE table_schema = DATABASE() AND table_name = ?";
    sqlx::query_scalar(sql).bind(table).fetch_one(conn).await
}

/// Primary keys of the backlog, and of a message for each of its rows.
async fn unsent(conn: &mut MySqlConnection) -> Result<Vec<Unsent>, sqlx::Error> {
    let sql = "SELECT q.lane, m.topic, CAST(COUNT(*) AS UNSIGNED), CAST(MIN(m.created_at) AS CHAR) \
               FROM (SELECT lane, id FROM outbox_pending UNION SELECT lane, id FROM outbox_delayed) q \
               JOIN outbox_messages m ON m.id = q.id GROUP BY q.lane, m.topic ORDER BY q.lane, m.topic";
    let rows = sqlx::query(sql).fetch_all(conn).await?;
    let unsent = |row: &MySqlRow| {
        let lane = row.try_get(0)?;
        let topic = row.try_get(1)?;
        let messages = row.try_get(2)?;
        let oldest = row.try_get(3)?;
        Ok(Unsent { lane, topic, messages, oldest })
    };
    rows.iter().map(unsent).collect()
}

/// A process that may be alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub owner: String,
    /// The named lease that it holds; `None` if it has claimed messages.
    pub lease: Option<String>,
    /// The seconds that are left, unless it renews.
    pub seconds: i64,
}

/// A process whose lease has not ended: it lives, or has died since. Reads the claims and the named leases; no lock.
pub async fn holder(conn: &mut MySqlConnection) -> Result<Option<Holder>, sqlx::Error> {
    let sql = "SELECT owner, NULL, TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), lease_until) + 1 AS seconds \
               FROM outbox_claims \
               WHERE lease_until > UTC_TIMESTAMP(6) UNION ALL \
               SELECT owner, name, TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), lease_until) + 1 FROM outbox_leases \
               WHERE lease_until > UTC_TIMESTAMP(6) ORDER BY seconds DESC LIMIT 1";
    let found: Option<(String, Option<String>, i64)> = sqlx::query_as(sql).fetch_optional(conn).await?;
    Ok(found.map(|(owner, lease, seconds)| Holder { owner, lease, seconds }))
}

/// Raises the counters by a margin and begins the epoch of the plan. Waits for transactions that are open on the three
/// tables with counters, at most five seconds for each; then locks all sequenced keys and all named leases.
///
/// The counters come first: the messages from the first of the raised ids on are those of the new epoch. Any number may
/// begin an epoch, so a service that does not wait for the end of the recovery does not harm a key.
pub async fn recover(conn: &mut MySqlConnection, plan: &RecoverPlan, margin: u64) -> Result<(), sqlx::Error> {
    let first_id = plan.next_message.saturating_add(margin);
    let counters = sql!(
        "SET SESSION lock_wait_timeout = 5;
        ALTER TABLE outbox_messages AUTO_INCREMENT = {message};
        ALTER TABLE outbox_claims AUTO_INCREMENT = {claim};
        ALTER TABLE outbox_sent AUTO_INCREMENT = {receipt}",
        message = first_id,
        claim = plan.next_claim.saturating_add(margin),
        receipt = plan.next_receipt.saturating_add(margin),
    );
    counters.run(conn).await?;
    let epoch = sql!(
        "BEGIN; UPDATE outbox_key_sequence SET last_sequence = last_sequence + {margin};
        UPDATE outbox_leases SET fence = GREATEST(fence + {margin}, {fence});
        INSERT INTO outbox_epochs (epoch, first_id, margin, unsent, account)
            VALUES ({epoch}, {first_id}, {margin}, {unsent}, CURRENT_USER()); COMMIT",
        margin,
        fence = plan.lowest_fence(),
        epoch = plan.new_epoch,
        first_id,
        unsent = plan.unsent(),
    );
    if let Err(error) = epoch.run(conn).await {
        crate::store::session::rollback(conn).await?;
        return Err(error);
    }
    Ok(())
}
