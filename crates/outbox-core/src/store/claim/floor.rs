//! The floor: no row with a smaller id can still be committed.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{error_number, text::sql};

/// A sample from which a floor may be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The largest id that was visible.
    pub max_id: u64,
    /// The database's time, in microseconds since 1970.
    pub at_micros: i64,
}

/// Reads the largest visible id and then the time. A statement's time is that of its start, and the first one may have
/// to wait for a change of the table. End of the primary key, one row, no lock.
///
/// Every id up to this one was given out before that time, so to a transaction that had started already. One round
/// trip.
pub async fn sample(conn: &mut MySqlConnection) -> Result<Sample, sqlx::Error> {
    let text = sql!(
        "SELECT CAST(COALESCE(MAX(id), 0) AS UNSIGNED) FROM outbox_messages;
        SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    );
    let replies = text.run(conn).await?;
    let [Some(max_id), Some(time)] = [0, 1].map(|n: usize| replies.get(n).and_then(|reply| reply.rows.first())) else {
        return Err(sqlx::Error::RowNotFound);
    };
    Ok(Sample { max_id: max_id.try_get(0)?, at_micros: time.try_get(0)? })
}

/// The server's open transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldestWriter {
    /// The oldest one that may have written started then, in microseconds since 1970 (whole seconds), or later.
    Since(i64),
    /// None has written.
    None,
    /// The server gives no answer: the user lacks the privilege PROCESS, MySQL cannot show its list for the moment, or
    /// the start is in the server's future. Or the server is a node of a Galera cluster, which lists only its own
    /// transactions.
    Unknown,
}

/// The server shows a start in the local time of its process, whatever `time_zone` is. `SYSTEM` is that zone. Its
/// offset from UTC is read for now and for two hours before the start, because autumn repeats an hour.
const OLDEST_WRITER: &str = "\
    SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', started), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', now), zone, \
      TIMESTAMPDIFF(SECOND, started - INTERVAL zone + 7200 SECOND, \
        CONVERT_TZ(started - INTERVAL zone + 7200 SECOND, '+00:00', 'SYSTEM')) \
    FROM (SELECT MIN(trx_started) AS started, UTC_TIMESTAMP() AS now, \
        TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')) AS zone \
      FROM information_schema.innodb_trx \
      WHERE trx_rows_modified > 0 OR trx_tables_locked > 0 OR trx_state = 'LOCK WAIT') AS oldest";

/// Whether the server is a node of a Galera cluster. Reads no table.
pub async fn is_in_galera(conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
    let sql = "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'";
    let found: Option<(String, String)> = sqlx::query_as(sql).fetch_optional(conn).await?;
    Ok(found.is_some_and(|(_, value)| value == "ON"))
}

/// The start of the oldest open transaction that has written, runs a statement that writes (it may have an id and no
/// row yet), or waits for a lock. Reads the whole list of transactions; the server caches it for a tenth of a second.
pub async fn oldest_writer(conn: &mut MySqlConnection) -> Result<OldestWriter, sqlx::Error> {
    if is_in_galera(conn).await? {
        return Ok(OldestWriter::Unknown);
    }
    match sqlx::query(OLDEST_WRITER).fetch_one(conn).await {
        Ok(row) => since(&row),
        // The list has a column with the text of each running statement, parameters included. While a parameter is not
        // text (every enqueue binds a message id), MySQL refuses the whole list, whatever columns are selected.
        Err(error) if matches!(error_number(&error), Some(crate::store::NO_PRIVILEGE | crate::store::NO_TEXT)) => {
            Ok(OldestWriter::Unknown)
        }
        Err(error) => Err(error),
    }
}

fn since(row: &MySqlRow) -> Result<OldestWriter, sqlx::Error> {
    let Some(started) = row.try_get::<Option<i64>, _>(0)? else { return Ok(OldestWriter::None) };
    let (Some(now), Some(zone), Some(before)) = (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?) else {
        return Ok(OldestWriter::Unknown);
    };
    Ok(in_utc(started, now, zone, before))
}

/// Converts a start in local time to UTC: `zone` seconds east of it now, `before` seconds two hours before the start.
/// If the clocks were put back in between, the hour of the start may have come twice: the first one counts.
fn in_utc(started: i64, now: i64, zone: i64, before: i64) -> OldestWriter {
    let started = started - zone.max(before) * 1_000_000;
    if started > now { OldestWriter::Unknown } else { OldestWriter::Since(started) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    #[test]
    fn a_start_in_local_time_is_the_earliest_that_it_may_be_in_utc() {
        let at = |hours: i64| hours * HOUR * 1_000_000;
        // Started, now, zone now, zone before: at ten in UTC.
        let cases = [
            ((at(9), 0, 0), OldestWriter::Since(at(9))),
            ((at(18), 9 * HOUR, 9 * HOUR), OldestWriter::Since(at(9))),
            ((at(4), -5 * HOUR, -5 * HOUR), OldestWriter::Since(at(9))),
            // Put back one or two hours ago: nine o'clock came twice.
            ((at(10), HOUR, 2 * HOUR), OldestWriter::Since(at(8))),
            // Put forward after the start.
            ((at(11), 2 * HOUR, HOUR), OldestWriter::Since(at(9))),
            ((at(20), 9 * HOUR, 9 * HOUR), OldestWriter::Unknown),
        ];
        for ((started, zone, before), expected) in cases {
            assert_eq!(in_utc(started, at(10), zone, before), expected, "{started} {zone} {before}");
        }
    }
}
