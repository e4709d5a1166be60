//! The relay's account: privileges that it lacks, and those beyond the outbox, its own or through roles.

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::operate::doctor::{self, Privilege},
};

use super::Finding;

/// The account of a relay, as `deploy/grants` gives it.
const RELAY: &str = include_str!("../../deploy/grants/relay.sql");
const MATTERS: &str = "Whoever has the relay's password can read or change what is not the outbox's.";

/// Looks at the privileges of this account, which is quoted. Takes a connection, because it changes the roles of the
/// session.
pub(super) async fn examine(
    mut db: MySqlConnection,
    account: &str,
    is_mariadb: bool,
) -> Result<Vec<Finding>, sqlx::Error> {
    let lacking = lacking(&mut db).await?;
    doctor::take_role(&mut db, "NONE").await?;
    let own = doctor::grants(&mut db).await?;
    let mut findings: Vec<_> = own.iter().filter_map(|grant| excessive(grant, account)).collect();
    let roles: Vec<_> = own.iter().flat_map(|grant| roles(grant)).collect();
    for role in &roles {
        doctor::take_role(&mut db, role).await?;
        findings.extend(excessive_role(role, &doctor::grants(&mut db).await?, &own, account));
    }
    if !lacking.is_empty() {
        let activation = activation(&mut db, roles, account, is_mariadb).await?;
        findings.push(missing(&lacking, activation, account));
    }
    Ok(findings)
}

/// `'relay'@'10.0.0.%'` for `relay@10.0.0.%`.
pub(super) fn account(account: &str) -> String {
    let (user, host) = account.rsplit_once('@').unwrap_or((account, "%"));
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    format!("{}@{}", quoted(user), quoted(host))
}

/// The statements of a file in `deploy/grants`: each a list of privileges and a table.
fn statements(file: &str) -> impl Iterator<Item = (String, String)> {
    let text: String = file.lines().filter(|line| !line.starts_with("--")).flat_map(|line| [line, " "]).collect();
    let statements: Vec<_> = text.split(';').map(str::to_owned).collect();
    statements.into_iter().filter_map(|statement| {
        let (privileges, rest) = statement.trim().strip_prefix("GRANT ")?.split_once(" ON ")?;
        Some((privileges.to_owned(), rest.split_whitespace().next()?.to_owned()))
    })
}

/// Splits `SELECT, UPDATE (a, b)` into privileges and columns.
fn privileges(list: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut depth = 0;
    let parts = list.split(move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    parts.map(|part| match part.trim().split_once(" (") {
        Some((name, columns)) => (name, columns.trim_end_matches(')')),
        None => (part.trim(), ""),
    })
}

/// The lines of [`RELAY`] that the session lacks: lists of privileges, and tables.
async fn lacking(db: &mut MySqlConnection) -> Result<Vec<(String, String)>, sqlx::Error> {
    let mut lines = Vec::new();
    for (list, table) in statements(RELAY) {
        let mut lacks = false;
        for (name, columns) in privileges(&list) {
            lacks = lacks || doctor::lacks(db, &Privilege { name, columns, table: &table }).await?;
        }
        if lacks {
            lines.push((list, table));
        }
    }
    Ok(lines)
}

/// The statement that activates a role at each login, if the account has one with which it lacks nothing. MariaDB has
/// one active role at a time.
async fn activation(
    db: &mut MySqlConnection,
    roles: Vec<String>,
    account: &str,
    is_mariadb: bool,
) -> Result<Option<String>, sqlx::Error> {
    let choices = if is_mariadb || roles.is_empty() { roles } else { vec!["ALL".to_owned()] };
    for role in choices {
        doctor::take_role(db, &role).await?;
        if lacking(db).await?.is_empty() {
            let whose = if is_mariadb { "FOR" } else { "TO" };
            return Ok(Some(format!("SET DEFAULT ROLE {role} {whose} {account};")));
        }
    }
    Ok(None)
}

fn missing(lacking: &[(String, String)], activation: Option<String>, account: &str) -> Finding {
    let evidence = format!("The account {account} lacks privileges on {} tables or views.", lacking.len());
    let problem =
        Finding::problem("privilege_missing", evidence).matters("The relay may not be ready, and may publish nothing.");
    if let Some(command) = activation {
        return problem.fix("It has them by a role that is not active. Activate it at each login:").sql(command);
    }
    let grant = |(list, table): &(String, String)| format!("GRANT {list} ON {table} TO {account};");
    problem
        .fix("Run deploy/grants/relay.sql of this release, or its lines that are missing:")
        .sql(lacking.iter().map(grant).collect::<Vec<_>>().join("\n"))
}

/// Privileges beyond tables that `deploy/grants` gives a relay, as MySQL and MariaDB name them.
const HARMLESS: [&str; 5] = ["USAGE", "PROCESS", "REPLICATION SLAVE", "REPLICATION CLIENT", "BINLOG MONITOR"];

/// The privileges of a line of SHOW GRANTS that go beyond tables, and their object. Nothing else of a line is shown: it
/// may hold the hash of a password.
fn beyond(grant: &str) -> Option<(Vec<&str>, &str)> {
    let (list, rest) = grant.strip_prefix("GRANT ")?.split_once(" ON ")?;
    let object = rest.split_once(" TO ")?.0;
    let harmless = |name: &&str| !HARMLESS.contains(name);
    let mut names: Vec<_> = privileges(list).map(|(name, _)| name).filter(harmless).collect();
    if grant.ends_with("WITH GRANT OPTION") {
        names.push("GRANT OPTION");
    }
    (object.ends_with(".*") && !names.is_empty()).then_some((names, object))
}

fn few(names: &[&str]) -> String {
    match names {
        [first, second, third, _, ..] => format!("{first}, {second}, {third} and {} more", names.len() - 3),
        few => few.join(", "),
    }
}

/// Judges a line of SHOW GRANTS without any role.
fn excessive(grant: &str, account: &str) -> Option<Finding> {
    let (names, object) = beyond(grant)?;
    let evidence = format!("The account {account} has {} on {object}.", few(&names));
    let command = match names.as_slice() {
        // REVOKE takes these two only as a pair of its own.
        ["ALL PRIVILEGES", ..] => format!("REVOKE ALL PRIVILEGES ON {object} FROM {account};"),
        names => format!("REVOKE {} ON {object} FROM {account};", names.join(", ")),
    };
    let risk = Finding::risk("privilege_excessive", evidence).matters(MATTERS);
    if object == "*.*" && names.contains(&"GRANT OPTION") {
        // It is an administrator's.
        return Some(risk.fix("Give the relay an account of its own, with the privileges of deploy/grants/relay.sql."));
    }
    Some(risk.fix("Run deploy/grants/relay.sql for this account, then take the rest away:").sql(command))
}

/// Judges SHOW GRANTS with a role, active or not: the account may take it. Others may have the same role, so that its
/// privileges stay.
fn excessive_role(role: &str, with_role: &[String], own: &[String], account: &str) -> Option<Finding> {
    let is_own = |name: &str, object: &str| {
        own.iter().filter_map(|grant| beyond(grant)).any(|(names, on)| on == object && names.contains(&name))
    };
    let through = |grant| {
        let (mut names, object) = beyond(grant)?;
        names.retain(|name| !is_own(name, object));
        (!names.is_empty()).then(|| format!("{} on {object}", few(&names)))
    };
    let through: Vec<_> = with_role.iter().filter_map(|grant| through(grant)).collect();
    let evidence = format!("The account {account} has {} through the role {role}.", through.join(", "));
    let risk = Finding::risk("privilege_excessive", evidence).matters(MATTERS);
    let fix = "Run deploy/grants/relay.sql for this account, then take the role away:";
    (!through.is_empty()).then(|| risk.fix(fix).sql(format!("REVOKE {role} FROM {account};")))
}

/// The roles that a line of SHOW GRANTS gives, as the server quotes them.
fn roles(grant: &str) -> Vec<String> {
    let list = grant.strip_prefix("GRANT ").and_then(|rest| rest.rsplit_once(" TO ")).map_or("", |(list, _)| list);
    let Some(quote) = list.chars().next().filter(|c| "`'\"".contains(*c)) else { return Vec::new() };
    let mut is_quoted = false;
    let parts = list.split(move |c: char| {
        is_quoted ^= c == quote;
        c == ',' && !is_quoted
    });
    parts.map(|role| role.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grants_of_a_relay_are_read_from_their_file() {
        let found: Vec<_> = statements(RELAY).collect();
        assert!(found.contains(&("SELECT, DELETE".to_owned(), "outbox_messages".to_owned())), "{found:?}");
        let update = found.iter().find(|(_, table)| table == "outbox_pending").unwrap();
        let parts: Vec<_> = privileges(&update.0).collect();
        assert_eq!(parts, [("SELECT", ""), ("INSERT", ""), ("UPDATE", "attempts, takeovers"), ("DELETE", "")]);
        assert!(found.iter().all(|(_, table)| table != "*.*"), "the optional privilege is a comment");
    }

    #[test]
    fn privileges_beyond_the_tables_are_excessive_and_no_hash_is_shown() {
        let command = |grant: &str| excessive(grant, "'relay'@'%'").and_then(|it| it.command);
        for sound in [
            "GRANT USAGE ON *.* TO `relay`@`%` IDENTIFIED BY PASSWORD '*S3CRET'",
            "GRANT PROCESS, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `relay`@`%`",
            "GRANT SELECT, DELETE ON `shop`.`outbox_messages` TO `relay`@`%`",
            "GRANT `role`@`%` TO `relay`@`%`",
        ] {
            assert_eq!(command(sound), None);
        }
        let all =
            excessive("GRANT ALL PRIVILEGES ON *.* TO `relay`@`%` IDENTIFIED BY PASSWORD '*S3CRET'", "'relay'@'%'")
                .unwrap();
        assert!(!format!("{all:?}").contains("S3CRET"));
        assert_eq!(all.command.as_deref(), Some("REVOKE ALL PRIVILEGES ON *.* FROM 'relay'@'%';"));
        let administrator =
            excessive("GRANT SELECT, SUPER ON *.* TO `root`@`%` WITH GRANT OPTION", "'root'@'%'").unwrap();
        assert!(administrator.command.is_none() && administrator.fix.contains("an account of its own"));
        assert_eq!(
            command("GRANT SELECT ON `shop`.* TO `relay`@`%` WITH GRANT OPTION").as_deref(),
            Some("REVOKE SELECT, GRANT OPTION ON `shop`.* FROM 'relay'@'%';")
        );
        assert_eq!(
            command("GRANT SELECT, UPDATE ON `shop`.* TO `relay`@`%`").as_deref(),
            Some("REVOKE SELECT, UPDATE ON `shop`.* FROM 'relay'@'%';")
        );
    }

    #[test]
    fn an_account_is_quoted() {
        assert_eq!(account("relay@10.0.0.%"), "'relay'@'10.0.0.%'");
        assert_eq!(account("it's@me@%"), "'it''s@me'@'%'");
    }

    #[test]
    fn roles_are_read_as_the_server_quotes_them() {
        assert_eq!(roles("GRANT `a`@`%`,`b,c`@`10.%` TO `relay`@`%`"), ["`a`@`%`", "`b,c`@`10.%`"]);
        assert_eq!(roles("GRANT `a` TO `relay`@`%` WITH ADMIN OPTION"), ["`a`"]);
        assert_eq!(roles("GRANT SELECT ON `shop`.* TO `relay`@`%`"), [""; 0]);
    }

    #[test]
    fn privileges_of_a_role_are_reported_with_the_role() {
        let own = ["GRANT SELECT ON `shop`.* TO `relay`@`%`".to_owned()];
        let with = |grant: &str| excessive_role("`r`", &[own[0].clone(), grant.to_owned()], &own, "'relay'@'%'");
        assert_eq!(with("GRANT SELECT ON `shop`.* TO `r`"), None);
        assert_eq!(with("GRANT SELECT ON `shop`.`outbox_sent` TO `r`"), None);
        let found = with("GRANT SELECT, UPDATE ON `shop`.* TO `relay`@`%`").unwrap();
        assert_eq!(found.evidence, "The account 'relay'@'%' has UPDATE on `shop`.* through the role `r`.");
        assert_eq!(found.command.as_deref(), Some("REVOKE `r` FROM 'relay'@'%';"));
    }
}
