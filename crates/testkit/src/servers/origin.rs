//! The origin of a server.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, anyhow};

use super::{call, docker, packages};

/// The kinds of server that the tests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// MySQL.
    MySql,
    /// MariaDB.
    MariaDb,
    /// Apache Kafka.
    Kafka,
    /// RabbitMQ.
    RabbitMq,
}

impl Kind {
    /// All four, in the order in which they are reported.
    pub const ALL: [Self; 4] = [Self::MySql, Self::MariaDb, Self::Kafka, Self::RabbitMq];

    /// The name of its service in `docker-compose.yml`, also used for folders and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
            Self::Kafka => "kafka",
            Self::RabbitMq => "rabbitmq",
        }
    }

    /// The environment variable with the address of a running one.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::MySql => "OUTBOX_TEST_MYSQL_URL",
            Self::MariaDb => "OUTBOX_TEST_MARIADB_URL",
            Self::Kafka => "OUTBOX_TEST_KAFKA",
            Self::RabbitMq => "OUTBOX_TEST_AMQP",
        }
    }

    /// The programs to look for on the PATH.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::MySql => &["mysqld"],
            Self::MariaDb => &["mariadbd"],
            Self::Kafka => &["kafka-server-start.sh", "kafka-server-start"],
            Self::RabbitMq => &["rabbitmq-server"],
        }
    }

    /// The address given by the user, if any.
    #[must_use]
    pub fn given(self) -> Option<String> {
        std::env::var(self.variable()).ok().filter(|address| !address.is_empty())
    }
}

/// How a server is started, in the order of preference. An address given by the user comes before all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A program installed on this machine.
    Path(PathBuf),
    /// The project's `docker-compose.yml`.
    Docker,
    /// Packages unpacked into the project's cache folder.
    Packages,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(program) => write!(f, "installed: {}", program.display()),
            Self::Docker => f.write_str("Docker, docker-compose.yml"),
            Self::Packages => f.write_str("packages unpacked in .cache/servers"),
        }
    }
}

/// The first way that works on this machine. `OUTBOX_TEST_SERVERS_FROM=path|docker|packages` restricts the choice.
pub(super) fn origin(kind: Kind) -> Result<Origin> {
    found(kind, docker::answers)
}

/// The first way that works on this machine and takes any argument and environment.
pub(super) fn own_process(kind: Kind) -> Result<Origin> {
    found(kind, || false)
}

fn found(kind: Kind, docker: impl FnOnce() -> bool) -> Result<Origin> {
    let only = std::env::var("OUTBOX_TEST_SERVERS_FROM").ok();
    let allowed = |way: &str| only.as_deref().is_none_or(|only| only == way);
    let installed =
        || kind.programs().iter().find_map(|name| call::on_path(name)).filter(|program| packages::is(kind, program));
    first(
        || installed().filter(|_| allowed("path")),
        || allowed("docker") && docker(),
        || allowed("packages") && packages::available(kind),
    )
    .ok_or_else(|| no_way(kind))
}

/// Finds out how a server would be started and makes all downloads for that, so that the start itself is quick.
/// Blocking.
///
/// # Errors
/// When there is no way, or the download fails.
pub fn prepare(kind: Kind) -> Result<Origin> {
    let origin = origin(kind)?;
    if origin == Origin::Packages {
        packages::root(kind)?;
    }
    Ok(origin)
}

/// The order itself. A later way is not checked if an earlier one works: asking Docker takes time.
fn first(
    path: impl FnOnce() -> Option<PathBuf>,
    docker: impl FnOnce() -> bool,
    packages: impl FnOnce() -> bool,
) -> Option<Origin> {
    path()
        .map(Origin::Path)
        .or_else(|| docker().then_some(Origin::Docker))
        .or_else(|| packages().then_some(Origin::Packages))
}

fn no_way(kind: Kind) -> anyhow::Error {
    anyhow!(
        "no {name} to test with. Three ways out: set {variable} to the address of one; install it, so that \
         {programs} is on the PATH; or start Docker, with its compose plugin. On Debian and Ubuntu its packages are \
         unpacked into .cache/servers by themselves",
        name = kind.name(),
        variable = kind.variable(),
        programs = kind.programs().join(" or "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_wins_and_docker_is_not_asked() {
        let found = first(|| Some("/usr/sbin/mysqld".into()), || panic!("asked docker"), || panic!("asked apt"));
        assert_eq!(found, Some(Origin::Path("/usr/sbin/mysqld".into())));
    }

    #[test]
    fn docker_wins_over_packages() {
        assert_eq!(first(|| None, || true, || panic!("asked apt")), Some(Origin::Docker));
    }

    #[test]
    fn packages_are_the_last_way() {
        assert_eq!(first(|| None, || false, || true), Some(Origin::Packages));
        assert_eq!(first(|| None, || false, || false), None);
    }

    #[test]
    fn the_error_names_three_ways_out() {
        let text = no_way(Kind::MySql).to_string();
        for way in ["OUTBOX_TEST_MYSQL_URL", "mysqld", "Docker"] {
            assert!(text.contains(way), "{text}");
        }
    }
}
