//! One server of each kind, started together.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use testkit::servers::{self, Alertmanager, Flavor, Kafka, Kind, MySql, MySqlOptions, Prometheus, RabbitMq};
use tokio::time::sleep;

use crate::test::World;

/// The address of a server, and how the server was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) variable: String,
    pub(crate) address: String,
    pub(crate) origin: String,
}

/// The port at which a relay shows its metrics by default.
const RELAY: u16 = 9464;
/// The variables with the addresses of Alertmanager and Prometheus.
const ALERTMANAGER: &str = "ALERTMANAGER_URL";
pub(crate) const PROMETHEUS: &str = "PROMETHEUS_URL";
/// How often [`Fleet::broken`] looks.
const LOOK: Duration = Duration::from_secs(1);

/// The servers stop when this is dropped.
pub(crate) struct Fleet {
    servers: Vec<(Endpoint, Handle)>,
}

/// Keeps a server running until it is dropped, and returns an error if the server has ended on its own; `None` if the
/// user gave the address.
type Handle = Option<Box<dyn FnMut() -> Result<()>>>;

impl Fleet {
    /// Starts all four at once. If one fails, those that started are stopped.
    pub(crate) async fn start() -> Result<Self> {
        Self::start_only(&Kind::ALL).await
    }

    /// Starts these kinds at once.
    pub(crate) async fn start_only(kinds: &[Kind]) -> Result<Self> {
        let wanted = async |kind| if kinds.contains(&kind) { start(kind).await.map(Some) } else { Ok(None) };
        let [mysql, mariadb, kafka, rabbitmq] = Kind::ALL.map(|kind| Box::pin(wanted(kind)));
        let (mysql, mariadb, kafka, rabbitmq) = tokio::try_join!(mysql, mariadb, kafka, rabbitmq)?;
        let own = match &mysql {
            Some((server, _)) => Some((for_sqlx(server).await?, None)),
            None => None,
        };
        Ok(Self { servers: [mysql, mariadb, kafka, rabbitmq, own].into_iter().flatten().collect() })
    }

    /// Replaces its databases by those of another world, for which no address can be given.
    pub(crate) async fn in_world(mut self, world: World) -> Result<Self> {
        self.servers
            .retain(|(server, _)| ![Kind::MySql, Kind::MariaDb].map(Kind::variable).contains(&&*server.variable));
        self.servers.retain(|(server, _)| server.variable != DATABASE_URL);
        let database = |kind, flavor| Box::pin(database(world, kind, flavor));
        let (mysql, mariadb) =
            tokio::try_join!(database(Kind::MySql, Flavor::MySql), database(Kind::MariaDb, Flavor::MariaDb))?;
        let own = (for_sqlx(&mysql.0).await?, None);
        self.servers.extend([mysql, mariadb, own]);
        Ok(self)
    }

    /// Adds Prometheus, which reads a relay at its default address, and Alertmanager.
    pub(crate) async fn observed(mut self) -> Result<Self> {
        let mut prometheus = Prometheus::start(&[("outbox", &[RELAY])]).await.context("cannot start Prometheus")?;
        let origin = format!("reads a relay at 127.0.0.1:{RELAY}, with the rules of dashboards");
        match Alertmanager::start().await {
            Ok(mut alertmanager) => {
                prometheus.alert_to(&alertmanager)?;
                let name = "Alertmanager".to_owned();
                let variable = ALERTMANAGER.to_owned();
                let origin = "has its alerts at /api/v2/alerts, with the routes of dashboards".to_owned();
                let endpoint = Endpoint { name, variable, address: alertmanager.url(), origin };
                self.servers.push((endpoint, Some(Box::new(move || alertmanager.check()))));
            }
            Err(error) => tracing::warn!(error = format!("{error:#}"), "without Alertmanager"),
        }
        let name = "Prometheus".to_owned();
        let variable = PROMETHEUS.to_owned();
        let address = prometheus.url();
        self.servers.push((Endpoint { name, variable, address, origin }, Some(Box::new(move || prometheus.check()))));
        Ok(self)
    }

    /// Waits until a server ends on its own, and returns why: all that comes after would only blame the tests.
    pub(crate) async fn broken(&mut self) -> anyhow::Error {
        loop {
            for (endpoint, handle) in &mut self.servers {
                if let Some(Err(error)) = handle.as_mut().map(|check| check()) {
                    return error.context(format!("{} broke down during the run", endpoint.name));
                }
            }
            sleep(LOOK).await;
        }
    }

    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        self.servers.iter().map(|(address, _)| address.clone()).collect()
    }
}

async fn start(kind: Kind) -> Result<(Endpoint, Handle)> {
    let (address, origin, server) = match kind.given() {
        Some(address) => (address, format!("given in {}", kind.variable()), None),
        None => started(kind).await.with_context(|| format!("cannot start {}", kind.name()))?,
    };
    tracing::info!(server = kind.name(), address, origin, "ready");
    Ok((Endpoint { name: kind.name().into(), variable: kind.variable().into(), address, origin }, server))
}

async fn database(world: World, kind: Kind, flavor: Flavor) -> Result<(Endpoint, Handle)> {
    let options = MySqlOptions::new(flavor);
    let options = match world {
        World::Odd => options.odd(),
        World::Hostile => options.hostile(),
    };
    let server = options.start().await.with_context(|| format!("cannot start {} of this world", kind.name()))?;
    let (address, origin, server) = mysql(server);
    tracing::info!(server = kind.name(), address, origin, ?world, "ready");
    Ok((Endpoint { name: kind.name().into(), variable: kind.variable().into(), address, origin }, server))
}

const DATABASE_URL: &str = "DATABASE_URL";

/// Creates the database in which `#[sqlx::test]` keeps the list of its test databases.
async fn for_sqlx(server: &Endpoint) -> Result<Endpoint> {
    let address = servers::fresh_database(&server.address).await.context("no database for `#[sqlx::test]`")?;
    let name = "MySQL, for `#[sqlx::test]`".into();
    let variable = DATABASE_URL.into();
    Ok(Endpoint { name, variable, address, origin: server.origin.clone() })
}

async fn started(kind: Kind) -> Result<(String, String, Handle)> {
    Ok(match kind {
        Kind::MySql => mysql(MySql::start(Flavor::MySql).await?),
        Kind::MariaDb => mysql(MySql::start(Flavor::MariaDb).await?),
        Kind::Kafka => {
            let mut server = Kafka::start().await?;
            (server.bootstrap(), server.origin().to_string(), Some(Box::new(move || server.check())))
        }
        Kind::RabbitMq => {
            let mut server = RabbitMq::start().await?;
            (server.amqp_url(), server.origin().to_string(), Some(Box::new(move || server.check())))
        }
    })
}

fn mysql(mut server: MySql) -> (String, String, Handle) {
    (server.url(), server.origin().to_string(), Some(Box::new(move || server.check())))
}

/// Lines for a shell, readable for people too.
pub(crate) fn exports(endpoints: &[Endpoint]) -> String {
    let line = |server: &Endpoint| format!("export {}='{}'  # {}\n", server.variable, server.address, server.origin);
    endpoints.iter().map(line).collect::<Vec<_>>().concat()
}
