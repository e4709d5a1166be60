//! The resources of the relays, of the server for them, and of the tables.

use std::{collections::HashSet, fs, str::FromStr as _};

use anyhow::Result;
use faults::arena::{Arena, PATIENCE};
use outbox_core::{
    sqlx::{self, AssertSqlSafe, MySqlConnection, mysql::MySqlConnectOptions},
    store::enqueue::backlog,
};
use testkit::database::Database;

use crate::trend::Trend;

const MIB: f64 = 1_048_576.0;
/// The largest rise of each series. A lag of seconds can come from other users of the machine.
const MEMORY: f64 = 16.0;
const HANDLES: f64 = 8.0;
const PENDING: f64 = 1000.0;
const LAG: f64 = 10.0;
const ROWS: f64 = 10_000.0;

/// The tables that a purge keeps small.
const PURGED: &[&str] = &["outbox_messages", "outbox_sent", "inbox_processed"];

/// A value that is sampled at intervals.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// A rise up to this value is never too much.
    pub(crate) bound: f64,
    /// Hours since the start, and the value.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Series {
    /// The trend; `None` if there are too few points.
    pub(crate) fn trend(&self) -> Option<Trend> {
        Trend::of(&self.points, self.bound)
    }
}

/// Samples everything, and keeps the samples.
pub(crate) struct Probe {
    connection: MySqlConnection,
    port: u16,
    tables: &'static [&'static str],
    /// In the order of their first sample.
    pub(crate) series: Vec<Series>,
}

impl Probe {
    /// `purge`: the tables are purged, so that their row counts mean something.
    pub(crate) async fn new(database: &Database, purge: bool) -> Result<Self> {
        Ok(Self {
            connection: database.connect_as_admin().await?,
            port: MySqlConnectOptions::from_str(database.url())?.get_port(),
            tables: if purge { PURGED } else { &[] },
            series: Vec::new(),
        })
    }

    /// Takes a sample, this number of hours after the start.
    pub(crate) async fn look(&mut self, arena: &Arena, at: f64) -> Result<()> {
        for (number, relay) in (1..).zip(&arena.relays) {
            let metrics = relay.metrics_within(PATIENCE).await?;
            let memory = metrics.sum("process_resident_memory_bytes") / MIB;
            let connections = f64::from(connections(relay.pid(), self.port));
            self.note(&format!("relay {number}: memory, MiB"), MEMORY, (at, memory));
            self.note(&format!("relay {number}: descriptors"), HANDLES, (at, metrics.sum("process_open_fds")));
            self.note(&format!("relay {number}: database connections"), HANDLES, (at, connections));
        }
        for (variable, value) in self.status().await? {
            self.note(&format!("server: {variable}"), HANDLES, (at, value));
        }
        let pending = self.rows("outbox_pending").await?;
        self.note("pending messages", PENDING, (at, pending));
        let lag = backlog::age(&mut self.connection).await?;
        self.note("age of the oldest due message, s", LAG, (at, lag.as_secs_f64()));
        for table in self.tables {
            let rows = self.rows(table).await?;
            self.note(&format!("rows of {table}"), ROWS, (at, rows));
        }
        Ok(())
    }

    fn note(&mut self, name: &str, bound: f64, point: (f64, f64)) {
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => self.series.push(Series { name: name.to_owned(), bound, points: vec![point] }),
        }
    }

    /// The server's resources for all its clients. The producers, the consumers and this program are among them, always
    /// in the same number.
    async fn status(&mut self) -> Result<Vec<(String, f64)>> {
        let sql = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Prepared_stmt_count', 'Threads_connected')";
        let variables: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(&mut self.connection).await?;
        variables.into_iter().map(|(name, value)| Ok((name, value.parse()?))).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "a count far below 2^53")]
    async fn rows(&mut self, table: &str) -> Result<f64> {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        let rows: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.connection).await?;
        Ok(rows as f64)
    }
}

/// The number of a process's connections to a port. The server cannot distinguish the relays' sessions from others of
/// the same account.
fn connections(pid: u32, port: u16) -> u32 {
    let wanted = format!(":{port:04X}");
    let tables =
        ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default());
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The other end's address, the state (1: established), the inode.
        let wanted = fields.get(2)?.ends_with(&wanted) && fields.get(3) == Some(&"01");
        wanted.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
    };
    let sockets: HashSet<String> = tables.iter().flat_map(|table| table.lines()).filter_map(socket).collect();
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    let held = targets.filter(|target| target.to_str().is_some_and(|target| sockets.contains(target)));
    u32::try_from(held.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::connections;

    #[test]
    fn connections_to_a_port_are_counted_until_they_are_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = std::process::id();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(connections(own, port), 0);
        let open = [(); 2].map(|()| TcpStream::connect(("127.0.0.1", port)).unwrap());
        assert_eq!(connections(own, port), 2);
        drop(open);
        assert_eq!(connections(own, port), 0);
    }
}
