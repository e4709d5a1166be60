//! Whether a relay can read the binary log.

use outbox_core::{sqlx::MySqlConnection, store::operate::doctor};
use outbox_relay::binlog::{Log, Reason, Refused};

use super::{Finding, account::account};
use crate::config::Config;

/// Opens a stream, as a relay would. Findings that are there already explain some refusals.
pub(super) async fn examine(db: &mut MySqlConnection, config: &Config, found: &[Finding]) -> Option<Finding> {
    if !config.relay.tail {
        return None;
    }
    let refused = Log::open(&config.database, "relay doctor").await.err()?;
    let variable = refused.wanted.map(|(variable, _)| variable);
    let is_told = |finding: &Finding| variable.is_some_and(|variable| finding.evidence.starts_with(variable));
    if found.iter().any(is_told) {
        return None;
    }
    let server = doctor::server(db).await.ok()?;
    let is_mariadb = server.variables.get("version").is_some_and(|it| it.contains("MariaDB"));
    let reader = config.database.log.as_ref().map(|log| log.user.as_str());
    Some(finding(&refused, reader, &account(&server.account), is_mariadb))
}

/// The tables whose rows the relay reads in the log.
const TABLES: [&str; 5] = ["outbox_messages", "outbox_pending", "outbox_delayed", "outbox_dead", "outbox_claims"];

/// `reader`: the account that reads the log, if it is not the relay's own, which is `own`.
fn finding(refused: &Refused, reader: Option<&str>, own: &str, is_mariadb: bool) -> Finding {
    let note =
        Finding::note("no_tail", format!("No relay can read the binary log ({}): {refused}.", refused.reason.word()))
            .matters("Messages wait for a look, 4 to 10 ms, and the database has more work.");
    let or_off = "Or set relay.tail to off.";
    match (refused.reason, refused.wanted) {
        (Reason::Login, _) => note.fix(format!("Correct database.log_user and its password. {or_off}")),
        (Reason::Privilege, _) => {
            let account = reader.map_or_else(|| own.to_owned(), |user| account(&format!("{user}@%")));
            let select = |table| format!(" GRANT SELECT ON {table} TO {account};");
            let selects: String = reader.into_iter().flat_map(|_| TABLES).map(select).collect();
            let host = if reader.is_some() { " Put its host in the place of %." } else { "" };
            note.fix(format!("If the account may read every change of the whole server: {or_off}{host}"))
                .sql(format!("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {account};{selects}"))
        }
        (Reason::Off | Reason::SeveralNodes, _) | (_, None) => note.fix(format!("See docs/deployment.md. {or_off}")),
        (_, Some((name, value))) => {
            let verb = if is_mariadb { "GLOBAL" } else { "PERSIST" };
            note.fix(format!("Set it, in the server's configuration file, too. {or_off}"))
                .sql(format!("SET {verb} {name} = {value};"))
        }
    }
}
