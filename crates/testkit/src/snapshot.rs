//! A snapshot of a database, and its restore: like a dump that is loaded, or a lagging replica that is promoted.

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::{
    database::Database,
    servers::{PATIENCE, until},
};

impl Database {
    /// Copies all tables as they are at one moment, into tables beside them. Meanwhile transactions wait, or fail.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn keep(&self) -> Result<()> {
        let tables = self.table_names().await?;
        let each = |line: &dyn Fn(&str) -> String| tables.iter().map(|table| line(table)).collect::<Vec<_>>();
        self.execute(&each(&|table| format!("CREATE TABLE kept_{table} LIKE {table}")).join("; ")).await?;
        let locks = each(&|table| format!("{table} READ, kept_{table} WRITE")).join(", ");
        let copies = each(&|table| format!("INSERT INTO kept_{table} SELECT * FROM {table}")).join("; ");
        // A transaction that holds some tables and wants others blocks it; one of the two is refused.
        let locked = format!("LOCK TABLES {locks}; {copies}; UNLOCK TABLES");
        until(PATIENCE, "a snapshot", async || self.execute(&locked).await).await
    }

    /// Restores all tables as they were at the snapshot. Their counters continue after their rows.
    ///
    /// # Errors
    /// When there is no snapshot, or the server refuses.
    pub async fn restore(&self) -> Result<()> {
        for table in self.table_names().await? {
            let back = format!(
                "DROP TABLE {table}; CREATE TABLE {table} LIKE kept_{table}; INSERT INTO {table} SELECT * \
                 FROM kept_{table}"
            );
            self.execute(&back).await?;
        }
        Ok(())
    }

    async fn table_names(&self) -> Result<Vec<String>> {
        let sql = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE() \
                   AND table_type = 'BASE TABLE' AND LEFT(table_name, 5) <> 'kept_' ORDER BY 1";
        let mut connection = self.plain().await?;
        let names = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok(names)
    }
}
