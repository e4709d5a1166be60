//! Kafka: one node that is both broker and controller, without `ZooKeeper`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::metadata::Metadata;
use tokio::net::TcpStream;

use super::call::{Call, finish};
use super::docker::Compose;
use super::host::{Host, blocking, folder};
use super::origin::{Kind, Origin, origin};
use super::{cache, maven, packages, ports};
use crate::proxy::Proxy;

/// Settings of a node that has to start fast. Internal topics have one partition: fifty of them take a while.
const SETTINGS: &str = "\
process.roles=broker,controller
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
";

const LOGGING: &str = "\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
";

/// Any 22 characters of base 64 that decode to 16 bytes.
const CLUSTER: &str = "b3V0Ym94LXRlc3RraXQxMA";

/// A running Kafka node with its own data. Drop kills it and removes its data.
#[derive(Debug)]
pub struct Kafka {
    host: Host,
    port: u16,
    origin: Origin,
    proxied: Option<Proxied>,
}

/// The number of a node, and the ports of all nodes' controllers. The first port is that of number 1.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) id: usize,
    pub(super) controllers: Vec<u16>,
}

impl Node {
    fn alone() -> Result<Self> {
        Ok(Self { id: 1, controllers: vec![ports::free_port()?] })
    }

    fn settings(&self, data: &Path, port: u16, proxied: Proxied) -> Result<String> {
        let Proxied { listener, advertised } = proxied;
        let own = self.controllers.get(self.id - 1).context("a node without a controller")?;
        let voter = |(number, port): (usize, &u16)| format!("{}@127.0.0.1:{port}", number + 1);
        let voters = self.controllers.iter().enumerate().map(voter).collect::<Vec<_>>().join(",");
        Ok(format!(
            "{SETTINGS}node.id={}\nlog.dirs={}\ncontroller.quorum.voters={voters}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{own},PROXIED://127.0.0.1:{listener}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{advertised}\n",
            self.id,
            data.display()
        ))
    }
}

/// A node sends its clients to the address that it advertises. Behind a proxy it needs a listener that advertises the
/// proxy's address.
#[derive(Debug, Clone, Copy)]
pub struct Proxied {
    /// The listener's port.
    pub listener: u16,
    /// The port that clients are sent to.
    pub advertised: u16,
}

impl Kafka {
    /// Starts a node with the default settings.
    ///
    /// # Errors
    /// As [`Kafka::with`].
    pub async fn start() -> Result<Self> {
        Self::with(&[]).await
    }

    /// Starts a node with additional broker properties, for example `message.max.bytes`. They override the defaults,
    /// and do not reach a node in Docker.
    ///
    /// # Errors
    /// When there is no server to start (the error names the alternatives), or it does not answer; then with the end of
    /// its log.
    pub async fn with(properties: &[(&str, &str)]) -> Result<Self> {
        let lines = properties.iter().map(|(name, value)| format!("{name}={value}"));
        let extra = lines.collect::<Vec<_>>().join("\n");
        let mut server = blocking(move || launch(&Node::alone()?, &extra)).await?;
        server.ready().await?;
        Ok(server)
    }

    /// Starts a node among others. Its controller answers once most nodes run, so that this function does not wait.
    pub(super) fn one_of(node: &Node, extra: &str) -> Result<Self> {
        let docker = matches!(origin(Kind::Kafka)?, Origin::Docker);
        ensure!(!docker, "docker-compose.yml has one Kafka node: several need Kafka's own files");
        launch(node, extra)
    }

    /// Starts the proxy before it; only one is possible at a time. [`Kafka::bootstrap`] bypasses it.
    ///
    /// # Errors
    /// When there is one, or the node runs in Docker.
    pub async fn proxy(&self) -> Result<Proxy> {
        let ports = self.ports()?;
        Proxy::on_port(ports.advertised, &format!("127.0.0.1:{}", ports.listener)).await
    }

    /// The ports for another proxy in its place.
    ///
    /// # Errors
    /// When the node runs in Docker.
    pub fn ports(&self) -> Result<Proxied> {
        self.proxied.context("a node in Docker advertises its own address only")
    }

    /// The address for clients: `127.0.0.1:port`.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) async fn ready(&mut self) -> Result<()> {
        let bootstrap = self.bootstrap();
        self.host.ready(|| answers(bootstrap.clone())).await
    }
}

super::host_methods!(Kafka);

/// The port must be open before librdkafka connects: it would log every refused connection.
async fn answers(bootstrap: String) -> Result<()> {
    TcpStream::connect(&bootstrap).await?;
    blocking(move || has_broker(&bootstrap)).await
}

fn has_broker(bootstrap: &str) -> Result<()> {
    ensure!(!metadata(bootstrap)?.brokers().is_empty(), "no broker has registered yet");
    Ok(())
}

/// The metadata of this node about the other nodes and the topics.
pub(super) fn metadata(bootstrap: &str) -> Result<Metadata> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set_log_level(RDKafkaLogLevel::Emerg);
    let consumer: BaseConsumer = config.create()?;
    Ok(consumer.fetch_metadata(None, Duration::from_secs(2))?)
}

fn launch(node: &Node, extra: &str) -> Result<Kafka> {
    let origin = origin(Kind::Kafka)?;
    let libraries = match &origin {
        Origin::Docker => {
            let compose = Compose::up(Kind::Kafka)?;
            let port = compose.port;
            return Ok(Kafka { host: Host::Compose(compose), port, origin, proxied: None });
        }
        Origin::Path(script) => libraries(script)?,
        Origin::Packages => packages::root(Kind::Kafka)?.join("libs"),
    };
    let folder = folder("kafka")?;
    let data = folder.path().join("data");
    cache::copy(&formatted(&libraries, node.id)?, &data)?;
    let port = ports::free_port()?;
    let proxied = Proxied { listener: ports::free_port()?, advertised: ports::free_port()? };
    let settings = node.settings(&data, port, proxied)? + extra;
    let call = write(folder.path(), &settings)?;
    let host = Host::start(java(&libraries, folder.path()).args(issuer(extra)).arg("kafka.Kafka").arg(call), folder)?;
    Ok(Kafka { host, port, origin, proxied: Some(proxied) })
}

/// Java has to be told, too, whose keys for tokens it may fetch.
fn issuer(extra: &str) -> Option<String> {
    let url = extra.lines().find_map(|line| line.split_once("jwks.endpoint.url="))?.1;
    Some(format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"))
}

/// The jars next to an installed start script.
fn libraries(script: &Path) -> Result<PathBuf> {
    let home =
        fs::canonicalize(script)?.ancestors().nth(2).map(Path::to_path_buf).context("Kafka's script has no home")?;
    let folders = [home.join("libs"), home.join("libexec/libs")];
    folders.into_iter().find(|folder| folder.is_dir()).with_context(|| format!("no libs in {}", home.display()))
}

fn write(folder: &Path, settings: &str) -> Result<PathBuf> {
    let file = folder.join("server.properties");
    fs::write(&file, settings)?;
    fs::write(folder.join("log4j2.properties"), LOGGING)?;
    Ok(file)
}

fn java(libraries: &Path, folder: &Path) -> Call {
    let logging = format!("-Dlog4j2.configurationFile={}", folder.join("log4j2.properties").display());
    Call::new("java").args(["-Xmx512m", "-Djava.awt.headless=true", "-cp"]).arg(libraries.join("*")).arg(logging)
}

/// A formatted data folder, to be copied: formatting starts another JVM.
fn formatted(libraries: &Path, id: usize) -> Result<PathBuf> {
    let entry = cache::entry(&format!("data-kafka-{}-node-{id}", maven::KAFKA), |target| {
        // The tool checks the ports and does not use them.
        let node = Node { id, controllers: vec![1; id] };
        let settings = node.settings(&target.join("data"), 11, Proxied { listener: 12, advertised: 13 })?;
        let settings = write(target, &settings)?;
        let tool =
            java(libraries, target).arg("kafka.tools.StorageTool").args(["format", "-t", CLUSTER, "-c"]).arg(settings);
        finish(&mut tool.command()).map(drop)
    });
    Ok(entry?.join("data"))
}
