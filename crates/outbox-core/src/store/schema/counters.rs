//! Counters that must not be below the numbers in the tables, as after TRUNCATE, or a copy of some tables without
//! others.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::SEQUENCE_HEADER;
use crate::store::{NO_SUCH_PRIVILEGE, error_number, named::FENCES, text::sql};

/// A counter that would repeat a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Behind {
    /// A new message would get the id of another one, and the purge of the old one would delete the new one unsent.
    #[error(
        "the next message would get the id {next}, and the tables name message {used}: stop the services, run \
         `ALTER TABLE outbox_messages AUTO_INCREMENT = {}`, and start them again",
        used + 1
    )]
    MessageIds {
        /// The next id.
        next: u64,
        /// The largest id in the tables.
        used: u64,
    },
    /// A consumer would treat the next messages of the key as processed.
    #[error(
        "outbox_key_sequence has a key of the topic {topic} at number {last}, and message {id} has its number {used}: \
         stop the services, and set its last_sequence to {used} or more"
    )]
    SequencedKey {
        /// The topic.
        topic: String,
        /// The last number by `outbox_key_sequence`.
        last: u64,
        /// The number of the message.
        used: u64,
        /// The message.
        id: u64,
    },
    /// A holder would get a fence that is lower than one of the epoch before.
    #[error(
        "the named lease {name} has the fence {fence}, and the fences of this epoch begin at {least}: run \
         `UPDATE outbox_leases SET fence = {least} WHERE fence < {least}`"
    )]
    Fence {
        /// The lease.
        name: String,
        /// Its fence.
        fence: u64,
        /// The first fence of the epoch.
        least: u64,
    },
}

/// The first counter that is below the numbers in the tables. Reads the ends of primary keys, the ids of the newest
/// 1,000 receipts, the headers of the newest 1,000 messages, and the named leases; no lock. For the start of a process.
pub async fn behind(conn: &mut MySqlConnection) -> Result<Option<Behind>, sqlx::Error> {
    let (used, next) = message_ids(conn).await?;
    match next {
        Some(next) if next <= used => Ok(Some(Behind::MessageIds { next, used })),
        Some(_) => match sequenced_key(conn).await? {
            None => fence(conn).await,
            behind => Ok(behind),
        },
        None => Ok(None),
    }
}

/// The largest id in the tables, and the next one. The latter is `None` if `outbox_messages` is a view, which may be
/// slow and has no counter.
///
/// The ids in use are read before the counter, which may rise in between. MySQL caches a counter for a day unless set
/// otherwise; MariaDB skips that setting, a version comment. After a crash MySQL reports 1 for a table that no
/// statement has opened yet.
pub(in crate::store) async fn message_ids(conn: &mut MySqlConnection) -> Result<(u64, Option<u64>), sqlx::Error> {
    let text = sql!(
        "SELECT CAST(COALESCE(MAX(id), 0) AS UNSIGNED) FROM (
            SELECT MAX(id) AS id FROM (SELECT MAX(id) AS id FROM outbox_pending GROUP BY lane) lanes
            UNION ALL SELECT MAX(id) FROM (SELECT MAX(id) AS id FROM outbox_delayed GROUP BY lane) lanes
            UNION ALL SELECT MAX(id) FROM (SELECT MAX(id) AS id FROM outbox_dead GROUP BY lane) lanes
            UNION ALL SELECT MAX(first_id) - 1 FROM outbox_epochs
            UNION ALL SELECT MAX(l.id) FROM
                (SELECT message_ids FROM outbox_sent ORDER BY receipt_id DESC LIMIT 1000) s,
                JSON_TABLE(IF(JSON_VALID(s.message_ids), s.message_ids, '[]'), '$[*]'
                    COLUMNS (id BIGINT UNSIGNED PATH '$')) l) used;
        SELECT id FROM outbox_messages LIMIT 0;
        SET @outbox = 0 /*!80000 , SESSION information_schema_stats_expiry = 0 */;
        SELECT CAST(COALESCE(auto_increment, 1) AS UNSIGNED) FROM information_schema.tables
            WHERE table_schema = DATABASE() AND table_name = 'outbox_messages' AND table_type = 'BASE TABLE'"
    );
    let replies = text.run(conn).await?;
    let mut numbers = replies.iter().flat_map(|reply| &reply.rows).map(|row| row.try_get::<u64, _>(0));
    Ok((numbers.next().transpose()?.unwrap_or(0), numbers.next().transpose()?))
}

/// A key that `outbox_key_sequence` lacks is not reported: a message that is not sequenced may have such a header of
/// its own service. Without the privilege to read `outbox_key_sequence` nothing is reported.
async fn sequenced_key(conn: &mut MySqlConnection) -> Result<Option<Behind>, sqlx::Error> {
    let sql = "SELECT m.topic, k.last_sequence, m.used, m.id FROM (SELECT id, topic, message_key, \
        CAST(JSON_UNQUOTE(JSON_EXTRACT(headers, CONCAT('$.', ?))) AS UNSIGNED) AS used FROM \
        (SELECT id, topic, message_key, headers FROM outbox_messages ORDER BY id DESC LIMIT 1000) newest \
        WHERE JSON_VALID(headers)) m \
        JOIN outbox_key_sequence k ON k.topic = m.topic AND k.message_key = m.message_key \
        WHERE m.used > k.last_sequence ORDER BY m.used DESC LIMIT 1";
    let row = match sqlx::query(sql).bind(SEQUENCE_HEADER).fetch_optional(conn).await {
        Err(error) if error_number(&error) == Some(NO_SUCH_PRIVILEGE) => return Ok(None),
        row => row?,
    };
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Behind::SequencedKey {
        topic: row.try_get(0)?,
        last: row.try_get(1)?,
        used: row.try_get(2)?,
        id: row.try_get(3)?,
    }))
}

/// `relay recover` raises all fences to those of its epoch. So a lower one was restored or inserted alone.
async fn fence(conn: &mut MySqlConnection) -> Result<Option<Behind>, sqlx::Error> {
    let sql = "SELECT l.name, l.fence, e.epoch * ? FROM outbox_leases l \
               JOIN (SELECT MAX(epoch) AS epoch FROM outbox_epochs) e ON l.fence < e.epoch * ? LIMIT 1";
    let row = sqlx::query(sql).bind(FENCES).bind(FENCES).fetch_optional(conn).await?;
    let behind =
        |row: MySqlRow| Ok(Behind::Fence { name: row.try_get(0)?, fence: row.try_get(1)?, least: row.try_get(2)? });
    row.map(behind).transpose()
}
