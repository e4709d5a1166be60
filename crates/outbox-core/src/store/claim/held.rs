//! The keys that waiting and dead messages hold back.

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::text::{listed, sql};

/// The smallest key above this one that a message of the lane holds back. One entry of `outbox_delayed_key` and of
/// `outbox_dead_key`, however many messages wait; no lock. As for [`among`], the look comes first.
pub async fn next(conn: &mut MySqlConnection, lane: u16, above: u64) -> Result<Option<u64>, sqlx::Error> {
    let text = sql!(
        "(SELECT key_hash FROM outbox_delayed FORCE INDEX (outbox_delayed_key)
            WHERE lane = {lane} AND holds_key = 1 AND key_hash > {above} ORDER BY key_hash LIMIT 1)
        UNION ALL (SELECT key_hash FROM outbox_dead FORCE INDEX (outbox_dead_key)
            WHERE lane = {lane} AND holds_key = 1 AND key_hash > {above} ORDER BY key_hash LIMIT 1)",
        lane,
        above,
    );
    let replies = text.run(conn).await?;
    let keys: Vec<u64> =
        replies.iter().flat_map(|reply| &reply.rows).map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok(keys.into_iter().min())
}

/// The keys among these that a message holds back, each with the smallest id of such a message. To be called after
/// [`look`](crate::store::claim::look): a message that has stopped holding its key meanwhile has raised the version.
///
/// One seek a key in `outbox_delayed_key` and in `outbox_dead_key`, however many messages wait; no lock.
/// (`GROUP BY key_hash` reads every message that waits, on MySQL 9.7 and MariaDB 10.11: 300,000 rows, 43 and 67 ms. So
/// does an `ORDER BY` of `id` alone, on MySQL.)
pub async fn among(conn: &mut MySqlConnection, lane: u16, key_hashes: &[u64]) -> Result<Vec<(u64, u64)>, sqlx::Error> {
    let text = sql!(
        "SELECT l.id,
            (SELECT d.id FROM outbox_delayed d FORCE INDEX (outbox_delayed_key)
                WHERE d.lane = {lane} AND d.holds_key = 1 AND d.key_hash = l.id ORDER BY d.key_hash, d.id LIMIT 1),
            (SELECT d.id FROM outbox_dead d FORCE INDEX (outbox_dead_key)
                WHERE d.lane = {lane} AND d.holds_key = 1 AND d.key_hash = l.id ORDER BY d.key_hash, d.id LIMIT 1)
        FROM {keys}",
        lane,
        keys = listed(key_hashes),
    );
    let replies = text.run(conn).await?;
    let held = |row: &MySqlRow| {
        let heads: [Option<u64>; 2] = [row.try_get(1)?, row.try_get(2)?];
        Ok(heads.into_iter().flatten().min().map(|head| (row.try_get(0), head)))
    };
    let rows = replies.iter().flat_map(|reply| &reply.rows).map(held).filter_map(Result::transpose);
    rows.map(|row| row.and_then(|(key, head)| Ok((key?, head)))).collect()
}
