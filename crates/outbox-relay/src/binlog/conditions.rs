//! The conditions under which the log can be read, and shows nothing that a crash or a failover takes back.

use std::collections::HashMap;

use mysql_async::{Conn, Error, Row, prelude::Queryable as _};
use outbox_core::words;

/// Why there is no stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    /// In one word.
    pub reason: Reason,
    /// The variable of the server that has another value than this one.
    pub wanted: Option<(&'static str, &'static str)>,
    text: String,
}

impl Refused {
    pub(crate) fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, wanted: None, text: text.into() }
    }
}

words! {
    /// Why there is no stream, in one word.
    pub enum Reason {
        /// `log_bin = OFF`.
        Off = "off",
        /// The log has statements, not rows.
        Format = "format",
        /// The log has parts of rows.
        Image = "image",
        /// A crash of the server may lose commits that the log has shown.
        NotDurable = "not_durable",
        /// Commits may become visible in another order than that of the log.
        Unordered = "unordered",
        /// A failover may lose commits that the log has shown.
        SemiSynchronous = "semi_synchronous",
        /// Several nodes write.
        SeveralNodes = "several_nodes",
        /// The log is compressed in a way that is not understood.
        Compressed = "compressed",
        /// The log leaves this schema out.
        Filtered = "filtered",
        /// The account may not read the log.
        Privilege = "privilege",
        /// The server refuses the login.
        Login = "login",
        /// The log has shown something that cannot be read.
        Unreadable = "unreadable",
        /// The log does not show what is written.
        Blind = "blind",
        /// Other tables write too much.
        Busy = "busy",
        /// The server cannot be reached.
        Unavailable = "unavailable",
    }
}

/// The values that a variable must have where the server knows it, and the reason otherwise.
const WANTED: [(&str, &[&str], Reason); 10] = [
    ("log_bin", &["ON"], Reason::Off),
    ("binlog_format", &["ROW"], Reason::Format),
    ("binlog_row_image", &["FULL"], Reason::Image),
    ("sync_binlog", &["1"], Reason::NotDurable),
    // MariaDB's 3 writes as often.
    ("innodb_flush_log_at_trx_commit", &["1", "3"], Reason::NotDurable),
    ("binlog_order_commits", &["ON"], Reason::Unordered),
    ("wsrep_on", &["OFF"], Reason::SeveralNodes),
    // Of group replication, where it is loaded.
    ("group_replication_single_primary_mode", &["ON"], Reason::SeveralNodes),
    // The driver unpacks each transaction as a whole, whatever its size.
    ("binlog_transaction_compression", &["OFF"], Reason::Compressed),
    ("log_bin_compress", &["OFF"], Reason::Compressed),
];
/// Whether the server is a source of semi-synchronous replicas, and when it waits for them: the names of two releases.
const SEMI_SYNCHRONOUS: [(&str, &str); 2] = [
    ("rpl_semi_sync_source_enabled", "rpl_semi_sync_source_wait_point"),
    ("rpl_semi_sync_master_enabled", "rpl_semi_sync_master_wait_point"),
];

/// Where a stream begins.
pub(crate) struct LogStart {
    pub(crate) server: String,
    pub(crate) file: String,
    pub(crate) position: u64,
}

/// Looks at the conditions, and at the end of the log.
pub(crate) async fn look(connection: &mut Conn, schema: &str) -> Result<LogStart, Refused> {
    let semi_synchronous = SEMI_SYNCHRONOUS.iter().flat_map(|(enabled, point)| [*enabled, *point]);
    let names = WANTED.iter().map(|(name, ..)| *name).chain([
        "server_uuid",
        "server_uid",
        "version",
        "hostname",
        "port",
        "rpl_semi_sync_slave_enabled",
        "init_rpl_role",
    ]);
    let names: Vec<String> = names.chain(semi_synchronous).map(|name| format!("'{name}'")).collect();
    let sql = format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({})", names.join(", "));
    let variables: Vec<(String, String)> = connection.query(sql).await?;
    let server = judge(variables)?;
    let (file, position, only, never) = end(connection).await?;
    if position > u64::from(u32::MAX) {
        return Err(Refused::new(
            Reason::Unavailable,
            "the binary log's file has more than 4 GiB: it ends with the next commit",
        ));
    }
    let is_named = |list: &str| list.split(',').any(|name| name.eq_ignore_ascii_case(schema));
    if !only.is_empty() && !is_named(&only) || is_named(&never) {
        return Err(Refused::new(Reason::Filtered, format!("the binary log leaves the schema {schema} out")));
    }
    Ok(LogStart { server, file, position })
}

/// Judges the variables of a server. Returns its identity.
pub(crate) fn judge(variables: Vec<(String, String)>) -> Result<String, Refused> {
    let variables: HashMap<String, String> = variables.into_iter().collect();
    let needs = |name: &'static str, wanted: &[&'static str], reason| match variables.get(name) {
        Some(value) if wanted.iter().all(|it| !value.eq_ignore_ascii_case(it)) => {
            let text = format!("{name} = {value}: a stream of the binary log needs {}", wanted.join(" or "));
            let first = wanted.first().copied().unwrap_or_default();
            Err(Refused { wanted: Some((name, first)), ..Refused::new(reason, text) })
        }
        _ => Ok(()),
    };
    for (name, wanted, reason) in WANTED {
        needs(name, wanted, reason)?;
    }
    // A source that waits for a replica before the commit shows commits that a failover loses, and that no session has
    // seen.
    let is_on = |name: &str| variables.get(name).is_some_and(|value| value.eq_ignore_ascii_case("ON"));
    for (_, point) in SEMI_SYNCHRONOUS.iter().filter(|(enabled, _)| is_on(enabled)) {
        needs(point, &["AFTER_COMMIT"], Reason::SemiSynchronous)?;
    }
    // A replica of MariaDB takes back, at its next start, prepared transactions that its log has shown (MDEV-21117,
    // MDEV-33465).
    if variables.get("version").is_some_and(|version| version.contains("MariaDB")) {
        needs("rpl_semi_sync_slave_enabled", &["OFF"], Reason::SemiSynchronous)?;
        needs("init_rpl_role", &["MASTER"], Reason::SemiSynchronous)?;
    }
    let value = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
    let place = || format!("{}:{}", value("hostname").unwrap_or_default(), value("port").unwrap_or_default());
    Ok(value("server_uuid").or_else(|| value("server_uid")).unwrap_or_else(place))
}

/// The file and the position of the end, the schemas that the log has, and those that it leaves out.
async fn end(connection: &mut Conn) -> Result<(String, u64, String, String), Refused> {
    let row: Result<Option<Row>, Error> = connection.query_first("SHOW BINARY LOG STATUS").await;
    // The name before MySQL 8.2, and of MariaDB.
    let row = match row {
        Err(Error::Server(error)) if error.code == 1064 => connection.query_first("SHOW MASTER STATUS").await,
        row => row,
    };
    let row: Option<Row> = row?;
    let text = |at: usize| row.as_ref().and_then(|row| row.get_opt::<String, _>(at)?.ok()).unwrap_or_default();
    let position = row.as_ref().and_then(|row| row.get_opt::<u64, _>(1)?.ok());
    match position {
        Some(position) => Ok((text(0), position, text(2), text(3))),
        None => Err(Refused::new(Reason::Off, "the server has no binary log")),
    }
}

/// The refusal for a failed login. It leaves out the text of the server, which names the account.
pub(crate) fn of_login(error: Error) -> Refused {
    match error {
        Error::Server(error) if error.code == 1045 => Refused::new(Reason::Login, "user or password is wrong"),
        error => error.into(),
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let reason = match &error {
            // Access denied: to the log, to a database, a table, a column, or for lack of a privilege.
            Error::Server(error) if [1044, 1045, 1142, 1143, 1227].contains(&error.code) => Reason::Privilege,
            _ => Reason::Unavailable,
        };
        Self::new(reason, error.to_string())
    }
}
