//! The floor: no row with a smaller id can still be committed.

use sqlx::MySqlConnection;

use super::error_number;

/// A sample from which a floor may be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The largest id that was visible.
    pub max_id: u64,
    /// The database's time, in microseconds since 1970.
    pub at_micros: i64,
}

/// The largest visible id and then the time: a statement's time is that of its start, and this one may have to wait for a change of
/// the table. End of the primary key, one row, no lock.
///
/// An id up to this one was given out before now, so to a transaction that has started already.
pub async fn sample(conn: &mut MySqlConnection) -> Result<Sample, sqlx::Error> {
    let sql = "SELECT CAST(COALESCE(MAX(id), 0) AS UNSIGNED) FROM outbox_messages";
    let max_id = sqlx::query_scalar(sql).fetch_one(&mut *conn).await?;
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    Ok(Sample { max_id, at_micros: sqlx::query_scalar(sql).fetch_one(conn).await? })
}

/// What the server says of its open transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldestWriter {
    /// The oldest one that has written started then, in microseconds since 1970 (whole seconds).
    Since(i64),
    /// None has written.
    None,
    /// The server does not say: the user lacks the privilege PROCESS, or MySQL cannot show its list for the moment.
    Unknown,
}

/// When the oldest open transaction that has written, or waits for a lock, was started. Reads the list of transactions, whole; the
/// server caches it for a tenth of a second.
pub async fn oldest_writer(conn: &mut MySqlConnection) -> Result<OldestWriter, sqlx::Error> {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(trx_started)) FROM information_schema.innodb_trx \
               WHERE trx_rows_modified > 0 OR trx_state = 'LOCK WAIT'";
    match sqlx::query_scalar::<_, Option<i64>>(sql).fetch_one(conn).await {
        Ok(since) => Ok(since.map_or(OldestWriter::None, OldestWriter::Since)),
        // The list has a column with the text of each running statement, parameters included. While one of them is no text
        // (every enqueue binds a message id), MySQL refuses the whole list, whatever columns are asked for.
        Err(error) if matches!(error_number(&error), Some(super::NO_PRIVILEGE | super::NO_TEXT)) => {
            Ok(OldestWriter::Unknown)
        }
        Err(error) => Err(error),
    }
}
