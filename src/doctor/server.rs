//! The database's server, and the transactions of others.

use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        operate::doctor::{self, OpenTransaction, Server, Transactions},
        schema::migrate::SMALLEST_PAGE,
    },
};
use outbox_relay::database::{self, Login};

use super::{
    DEADLINE, Finding,
    account::{self, account},
    not_read,
};

/// Connections that two relays may need beside those in use: about 13 each with many lanes.
const CONNECTIONS: u64 = 32;
/// The largest message of a service without settings of its own, in hexadecimal digits, and some room.
const PACKET: u64 = 2_100_000;
/// The findings on a server that takes no write of a relay.
pub(super) const NO_WRITES: [&str; 2] = ["binlog_format", "read_only"];
/// The finding on a server that cannot have the tables.
pub(super) const NO_TABLES: &str = "small_pages";
/// In microseconds.
const CLOCK: i64 = 5_000_000;
/// In seconds: the default of `relay.max_transaction_age`.
const TRANSACTION: i64 = 60;

/// Looks at the server.
pub(super) async fn examine(db: &mut MySqlConnection, login: &Login) -> Result<Vec<Finding>, sqlx::Error> {
    let server = doctor::server(db).await?;
    let account = account(&server.account);
    let host = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut findings = settings(&server, i64::try_from(host.as_micros()).unwrap_or(i64::MAX));
    let privileges = async {
        let connected = tokio::time::timeout(DEADLINE, database::connect(login)).await;
        let second = connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        account::examine(second, &account, is_mariadb(&server)).await
    };
    match privileges.await {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(not_read("The privileges of the account", &error)),
    }
    findings.extend(transaction(doctor::transactions(db).await?, &account));
    Ok(findings)
}

/// Judges the settings; `host` is the time of this machine in microseconds since 1970.
fn settings(server: &Server, host: i64) -> Vec<Finding> {
    let settings = ServerSettings { server, is_mariadb: is_mariadb(server) };
    let found = [
        settings.version(),
        settings.pages(),
        settings.durability(),
        settings.binlog_durability(),
        settings.binlog_format(),
        settings.read_only(),
        settings.read_only_default(),
        settings.connections(),
        settings.packets(),
        clock(server.now - host),
    ];
    found.into_iter().flatten().collect()
}

fn is_mariadb(server: &Server) -> bool {
    server.variables.get("version").is_some_and(|it| it.contains("MariaDB"))
}

/// The servers that speak MySQL's protocol, and do not do what the statements mean: `TiDB` takes `SKIP LOCKED` and waits all
/// the same, so relays block each other; a transaction of Vitess may span servers.
const IMPOSTORS: [&str; 3] = ["OceanBase", "TiDB", "Vitess"];

/// Returns the finding on a server of this version that the statements are not for.
pub(crate) fn unsupported(version: &str) -> Option<Finding> {
    if let Some(impostor) = IMPOSTORS.iter().find(|it| version.to_lowercase().contains(&it.to_lowercase())) {
        let problem =
            Finding::problem("server_version", format!("The server is {impostor} ({version}), and not MySQL."))
                .matters("Order and leases need the row locks of InnoDB.");
        return Some(problem.fix("Use MySQL 8.0.13, MariaDB 10.6 or a later one."));
    }
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    // Aurora does not name the third number.
    let release = [numbers.next()?, numbers.next()?, numbers.next().unwrap_or(u32::MAX)];
    let (name, least, told) =
        if version.contains("MariaDB") { ("MariaDB", [10, 6, 0], "10.6") } else { ("MySQL", [8, 0, 13], "8.0.13") };
    let problem = Finding::problem("server_version", format!("The server is {name} {version}."))
        .fix(format!("Upgrade it: the statements need {name} {told}."));
    (release < least).then_some(problem)
}

struct ServerSettings<'a> {
    server: &'a Server,
    is_mariadb: bool,
}

impl ServerSettings<'_> {
    fn text(&self, name: &str) -> &str {
        self.server.variables.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.text(name), "ON" | "1" | "YES")
    }

    /// Adds the fix: a variable, and its right value.
    fn set(&self, finding: Finding, fix: &str, name: &str, value: &str) -> Finding {
        let (verb, keep) = if self.is_mariadb {
            ("GLOBAL", " Write it into the server's configuration file, too.")
        } else {
            ("PERSIST", "")
        };
        finding.fix(format!("{fix}{keep}")).sql(format!("SET {verb} {name} = {value};"))
    }

    fn version(&self) -> Option<Finding> {
        unsupported(self.text("version"))
    }

    fn pages(&self) -> Option<Finding> {
        let bytes = self.number("innodb_page_size").filter(|bytes| *bytes < SMALLEST_PAGE)?;
        let problem = Finding::problem(NO_TABLES, format!("innodb_page_size is {bytes}."))
            .matters("The keys of the outbox's tables need pages of 16 KiB: they cannot be made here.");
        Some(problem.fix("Use another server: the size is set when a server's data folder is made."))
    }

    fn durability(&self) -> Option<Finding> {
        let name = "innodb_flush_log_at_trx_commit";
        let value = self.number(name).filter(|value| *value != 1)?;
        let risk = Finding::risk("not_durable", format!("{name} is {value}.")).matters(
            "A crash of the server's machine loses the last second of commits: messages, and the record that \
                      they were sent.",
        );
        Some(self.set(risk, "Flush each commit.", name, "1"))
    }

    fn binlog_durability(&self) -> Option<Finding> {
        let value = self.number("sync_binlog").filter(|value| *value != 1 && self.is_on("log_bin"))?;
        let risk = Finding::risk("binlog_not_durable", format!("sync_binlog is {value}."))
            .matters("After a crash of the server's machine its replicas may have other messages than it has.");
        Some(self.set(risk, "Flush the binary log at each commit.", "sync_binlog", "1"))
    }

    fn binlog_format(&self) -> Option<Finding> {
        if !self.is_on("log_bin") || self.text("binlog_format") != "STATEMENT" {
            return None;
        }
        let problem = Finding::problem("binlog_format", "binlog_format is STATEMENT.")
            .matters("The server refuses (1665) what relays write at READ COMMITTED.");
        Some(self.set(problem, "Log rows. New connections follow it.", "binlog_format", "ROW"))
    }

    fn read_only(&self) -> Option<Finding> {
        let problem = Finding::problem("read_only", "The server is read-only: a replica, or made so for a while.")
            .matters("A relay cannot claim.")
            .fix("Let `database.url` name the primary.");
        // A member of a group is made writable by the group, and InnoDB at its start. A write by hand would part it
        // from the others.
        let is_free = self.text("group_replication_group_name").is_empty() && !self.is_on("innodb_read_only");
        let problem = if is_free {
            problem
                .fix("Let `database.url` name the primary. If this is the primary:")
                .sql("SET GLOBAL read_only = OFF;")
        } else {
            problem
        };
        (self.is_on("read_only") || self.is_on("innodb_read_only")).then_some(problem)
    }

    fn read_only_default(&self) -> Option<Finding> {
        let name = if self.is_mariadb { "tx_read_only" } else { "transaction_read_only" };
        let risk = Finding::risk("read_only_default", format!("{name} is ON.")).matters(
            "A service enqueues (1792) only in a transaction that it begins as READ WRITE. Relays and consumers do so.",
        );
        self.is_on(name).then(|| self.set(risk, "Let transactions write. New connections follow it.", name, "OFF"))
    }

    fn connections(&self) -> Option<Finding> {
        let most = self.number("max_connections")?;
        let open = self.server.connections;
        if most.saturating_sub(open) >= CONNECTIONS {
            return None;
        }
        let risk = Finding::risk("few_connections", format!("{open} of {most} connections are open."))
            .matters("A relay that cannot connect publishes nothing.");
        Some(self.set(risk, "Allow more, or close some.", "max_connections", &(open + 100).max(most * 2).to_string()))
    }

    fn packets(&self) -> Option<Finding> {
        let bytes = self.number("max_allowed_packet").filter(|bytes| *bytes < PACKET)?;
        let risk = Finding::risk("small_packets", format!("max_allowed_packet is {bytes}."))
            .matters("A service cannot enqueue a large message.");
        Some(self.set(risk, "Allow 16 MiB. New connections follow it.", "max_allowed_packet", "16777216"))
    }
}

/// Judges by how much the database's clock is ahead, in microseconds.
fn clock(offset: i64) -> Option<Finding> {
    let side = if offset > 0 { "ahead of" } else { "behind" };
    let evidence = format!("The database's clock is {} s {side} this machine's.", offset.abs() / 1_000_000);
    let note = Finding::note("clock_offset", evidence)
        .matters("Leases and times in the tables follow the database's clock, logs this machine's.")
        .fix("Let both follow the same time servers.");
    (offset.abs() >= CLOCK).then_some(note)
}

fn transaction(found: Transactions, account: &str) -> Option<Finding> {
    let OpenTransaction { connection, seconds, writes, user, host } = match found {
        Transactions::None => return None,
        Transactions::Oldest(transaction) => transaction,
        Transactions::Hidden => {
            let note = Finding::note("transactions_unseen", "The account may not see the server's open transactions.")
                .matters(
                    "The relay looks for late commits for relay.max_transaction_age, and this command cannot name \
                          a long transaction.",
                )
                .fix("If the account may see the statements of all sessions:")
                .sql(format!("GRANT PROCESS ON *.* TO {account};"));
            return Some(note);
        }
        Transactions::Unreadable => {
            return Some(Finding::note(
                "not_checked",
                "The server cannot show its list of open transactions for the moment.",
            ));
        }
    };
    if seconds < TRANSACTION {
        return None;
    }
    let writes = if writes { "and has written or locked rows" } else { "and holds a snapshot" };
    let risk = |evidence: String| {
        Finding::risk("open_transaction", evidence).matters(
            "The server keeps deleted rows for it, so that looks and drains become slow. Messages that it has \
                      written are seen late.",
        )
    };
    if connection == 0 {
        let evidence = format!("A prepared transaction (XA) without a connection is {seconds} s old, {writes}.");
        return Some(risk(evidence).fix("See XA RECOVER; then XA COMMIT or XA ROLLBACK, as its coordinator says."));
    }
    let evidence = format!("A transaction of {user} from {host} is {seconds} s old, {writes}.");
    Some(risk(evidence).fix("Let its program end it. To end its connection:").sql(format!("KILL {connection};")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version: &str, variables: &[(&str, &str)]) -> Server {
        let sound = [
            ("innodb_flush_log_at_trx_commit", "1"),
            ("log_bin", "ON"),
            ("sync_binlog", "1"),
            ("binlog_format", "ROW"),
            ("read_only", "OFF"),
            ("max_connections", "151"),
            ("max_allowed_packet", "16777216"),
        ];
        let all = [("version", version)].into_iter().chain(sound).chain(variables.iter().copied());
        let variables = all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Server { account: "relay@%".to_owned(), now: 0, variables, connections: 20 }
    }

    #[test]
    fn each_setting_has_its_finding() {
        let found = |server: &Server, host: i64| settings(server, host).iter().map(|it| it.finding).collect::<Vec<_>>();
        for version in ["8.0.13", "8.4.3", "9.7.1", "8.0.mysql_aurora.3.05", "10.11.6-MariaDB-log", "11.8.2-MariaDB"] {
            assert_eq!(found(&server(version, &[]), 0), [""; 0], "{version}");
        }
        for version in ["5.7.44-log", "8.0.0", "8.0.12", "10.5.9-MariaDB", "8.0.11-TiDB-v8.5.1", "8.0.40-Vitess"] {
            assert_eq!(found(&server(version, &[]), 0), ["server_version"], "{version}");
        }
        for (name, value, finding) in [
            ("innodb_flush_log_at_trx_commit", "2", "not_durable"),
            ("sync_binlog", "0", "binlog_not_durable"),
            ("binlog_format", "STATEMENT", "binlog_format"),
            ("read_only", "ON", "read_only"),
            ("transaction_read_only", "ON", "read_only_default"),
            ("max_connections", "40", "few_connections"),
            ("max_allowed_packet", "1048576", "small_packets"),
        ] {
            assert_eq!(found(&server("8.4.3", &[(name, value)]), 0), [finding]);
        }
        assert_eq!(found(&server("8.4.3", &[("log_bin", "OFF"), ("sync_binlog", "0")]), 0), [""; 0]);
        assert_eq!(found(&server("8.4.3", &[]), 5_000_000), ["clock_offset"]);
        let command = |version| settings(&server(version, &[("sync_binlog", "0")]), 0).pop().and_then(|it| it.command);
        assert_eq!(command("8.4.3").as_deref(), Some("SET PERSIST sync_binlog = 1;"));
        assert_eq!(command("10.11.6-MariaDB").as_deref(), Some("SET GLOBAL sync_binlog = 1;"));
    }

    #[test]
    fn no_member_of_a_group_is_made_writable_by_hand() {
        let command = |variables: &[(&str, &str)]| {
            settings(&server("8.4.3", variables), 0).pop().map(|it| (it.finding, it.command.is_some()))
        };
        assert_eq!(command(&[("read_only", "ON")]), Some(("read_only", true)));
        assert_eq!(command(&[("innodb_read_only", "ON")]), Some(("read_only", false)));
        let group = ("group_replication_group_name", "b7c0a2de-0000-4000-8000-000000000000");
        assert_eq!(command(&[("read_only", "ON"), group]), Some(("read_only", false)));
    }

    #[test]
    fn a_long_transaction_is_named_with_its_holder() {
        let open = |connection, seconds, writes| {
            let user = "shop".to_owned();
            let host = "10.0.0.7:4711".to_owned();
            transaction(
                Transactions::Oldest(OpenTransaction { connection, seconds, writes, user, host }),
                "'relay'@'%'",
            )
        };
        assert_eq!(open(7, 59, true), None);
        let found = open(7, 60, false).unwrap();
        assert_eq!(found.evidence, "A transaction of shop from 10.0.0.7:4711 is 60 s old, and holds a snapshot.");
        assert_eq!(found.command.as_deref(), Some("KILL 7;"));
        assert_eq!(open(0, 600, true).unwrap().command, None);
    }
}
