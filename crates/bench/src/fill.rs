//! Millions of rows by SQL alone: pending ones as the table contract says, sent ones as a relay leaves them.

use anyhow::Result;
use outbox_core::sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection};

use crate::{Common, setup::Stage};

/// Rows of one INSERT.
const CHUNK: u64 = 100_000;
/// Messages of one receipt: a whole claim.
const RECEIPT: u64 = 1000;
/// A table of numbers to select from, and limits for id lists longer than MySQL's default.
const NUMBERS: &str = "\
    SET SESSION group_concat_max_len = 1048576, SESSION cte_max_recursion_depth = 1000000; \
    CREATE TABLE IF NOT EXISTS bench_numbers (n INT UNSIGNED PRIMARY KEY); \
    INSERT IGNORE INTO bench_numbers \
    WITH RECURSIVE r (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM r WHERE n < 99999) SELECT n FROM r";

/// Neighbouring ids: the first, and their number.
type Ids = (u64, u64);

impl Stage {
    /// Adds messages sent a day ago, with their receipts. The tables have to be empty.
    pub(crate) async fn fill_sent(&self, common: &Common, messages: u64) -> Result<()> {
        let mut db = self.filler().await?;
        for ids in chunks(1, messages) {
            self.insert_messages(&mut db, common, ids).await?;
            insert_receipts(&mut db, ids).await?;
        }
        // The next claim gets a number without a receipt.
        let next = messages / RECEIPT + 2;
        run(&mut db, format!("ALTER TABLE outbox_claims AUTO_INCREMENT = {next}")).await?;
        Ok(db.close().await?)
    }

    /// Adds messages that are due.
    pub(crate) async fn fill_pending(&self, common: &Common, messages: u64) -> Result<()> {
        let last = self.database.number("SELECT CAST(COALESCE(MAX(id), 0) AS SIGNED) FROM outbox_messages").await?;
        let mut db = self.filler().await?;
        for ids in chunks(u64::try_from(last)? + 1, messages) {
            self.insert_messages(&mut db, common, ids).await?;
            insert_pending(&mut db, ids).await?;
        }
        Ok(db.close().await?)
    }

    async fn filler(&self) -> Result<MySqlConnection> {
        let mut db = self.database.connect_as_admin().await?;
        // These rows are of no use in a binary log. An account that may not switch it off writes them there.
        sqlx::raw_sql("SET SESSION sql_log_bin = 0").execute(&mut db).await.ok();
        sqlx::raw_sql(NUMBERS).execute(&mut db).await?;
        Ok(db)
    }

    /// Payloads are those of `setup::payload`. Keys are in no order, and not those of `setup::key`.
    async fn insert_messages(&self, db: &mut MySqlConnection, common: &Common, (first, count): Ids) -> Result<()> {
        let topic = self.topic.name();
        let keys = common.keys.max(1);
        let bytes = common.bytes.max(20);
        let sql = format!(
            "INSERT INTO outbox_messages (id, message_id, topic, message_key, payload) \
             SELECT {first} + n, UNHEX(LPAD(HEX({first} + n), 32, '0')), '{topic}', \
             CONCAT('key-', CRC32({first} + n) % {keys}), RPAD(LPAD({first} + n - 1, 20, '0'), {bytes}, 'x') \
             FROM bench_numbers WHERE n < {count} ORDER BY n"
        );
        run(db, sql).await
    }
}

fn chunks(first: u64, rows: u64) -> impl Iterator<Item = Ids> {
    (0..rows.div_ceil(CHUNK)).map(move |chunk| (first + chunk * CHUNK, CHUNK.min(rows - chunk * CHUNK)))
}

async fn insert_pending(db: &mut MySqlConnection, (first, count): Ids) -> Result<()> {
    let sql = format!(
        "INSERT INTO outbox_pending (id, key_hash, bytes) SELECT id, \
         GREATEST(1, CAST(CONV(LEFT(SHA2(CONCAT(topic, 0x00, message_key), 256), 16), 16, 10) AS UNSIGNED)), \
         LENGTH(message_key) + LENGTH(payload) FROM outbox_messages WHERE id BETWEEN {first} AND {} ORDER BY id",
        first + count - 1
    );
    run(db, sql).await
}

/// Each chunk holds whole receipts, except the last one.
async fn insert_receipts(db: &mut MySqlConnection, (first, count): Ids) -> Result<()> {
    let claim = first / RECEIPT + 1;
    let sql = format!(
        "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, receipts) \
         SELECT {claim} + MIN(n) DIV {RECEIPT}, 0, 0, 'bench', UTC_TIMESTAMP(6) - INTERVAL 1 DAY, \
         UTC_TIMESTAMP(6) - INTERVAL 1 DAY, CONCAT('[', GROUP_CONCAT({first} + n ORDER BY n), ']'), \
         CONCAT('[', REPEAT('\"null\",', COUNT(*) - 1), '\"null\"]') \
         FROM bench_numbers WHERE n < {count} GROUP BY n DIV {RECEIPT}"
    );
    run(db, sql).await
}

async fn run(db: &mut MySqlConnection, sql: String) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(db).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::chunks;

    #[test]
    fn chunks_follow_one_another_up_to_the_last_row() {
        assert_eq!(chunks(11, 250_000).collect::<Vec<_>>(), [(11, 100_000), (100_011, 100_000), (200_011, 50_000)]);
        assert_eq!(chunks(1, 100_000).collect::<Vec<_>>(), [(1, 100_000)]);
        assert_eq!(chunks(1, 0).count(), 0);
    }
}
