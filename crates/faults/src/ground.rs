//! The servers of a case: shared ones, or its own, which it may kill and freeze.

use anyhow::{Context as _, Result, bail};
use testkit::{
    clock::Clock,
    consume::{Broker, Topic},
    database::Database,
    servers::{Flavor, Galera, Kafka, KafkaCluster, MySql, MySqlOptions, RabbitMq},
};

use crate::row::{Case, OwnBroker};

/// The case's own servers; `None` if shared.
#[derive(Debug)]
pub struct Ground {
    /// The database server.
    pub mysql: Option<MySql>,
    /// The clock of the database server.
    pub clock: Option<Clock>,
    /// A cluster that the case has started in place of the database server.
    pub galera: Option<Galera>,
    /// The broker.
    pub broker: Option<BrokerServer>,
}

/// A case's own broker.
#[derive(Debug)]
pub enum BrokerServer {
    /// Kafka.
    Kafka(Box<Kafka>),
    /// Kafka with several nodes: each action hits one of them, in turn.
    KafkaCluster(KafkaCluster),
    /// RabbitMQ.
    RabbitMq(Box<RabbitMq>),
}

impl Ground {
    /// Starts the case's own servers.
    pub async fn new(case: &Case) -> Result<Self> {
        let clock = case.own.clock.then(Clock::new).transpose()?;
        let mysql = async {
            let Some(arguments) = case.own.database else { return Ok(None) };
            let options = clock.iter().fold(MySqlOptions::new(case.flavor), MySqlOptions::clock);
            arguments.iter().fold(options, |options, argument| options.arg(argument)).start().await.map(Some)
        };
        let (mysql, broker) = tokio::try_join!(mysql, BrokerServer::start(case))?;
        Ok(Self { mysql, clock, galera: None, broker })
    }

    /// A database with the tables.
    pub async fn database(&self, flavor: Flavor) -> Result<Database> {
        match &self.mysql {
            Some(server) => Database::create_on(&server.url()).await,
            None => Database::create(flavor).await,
        }
    }

    /// A topic.
    pub async fn topic(&self, broker: Broker) -> Result<Topic> {
        match &self.broker {
            Some(server) => Topic::create_on(broker, &server.address()).await,
            None => Topic::create(broker).await,
        }
    }

    /// The case's own database server.
    pub fn mysql(&mut self) -> Result<&mut MySql> {
        self.mysql.as_mut().context("this case has no database server of its own")
    }

    /// The clock of the case's own database server.
    pub fn clock(&self) -> Result<&Clock> {
        self.clock.as_ref().context("this case has no clock of its own")
    }

    /// The case's own broker.
    pub fn broker(&mut self) -> Result<&mut BrokerServer> {
        self.broker.as_mut().context("this case has no broker of its own")
    }
}

impl BrokerServer {
    async fn start(case: &Case) -> Result<Option<Self>> {
        Ok(Some(match (case.own.broker, case.broker) {
            (OwnBroker::None, _) => return Ok(None),
            (OwnBroker::One, Broker::Kafka) => Self::Kafka(Box::new(Kafka::start().await?)),
            (OwnBroker::One, Broker::RabbitMq) => Self::RabbitMq(Box::new(RabbitMq::start().await?)),
            (OwnBroker::Three, Broker::Kafka) => Self::KafkaCluster(KafkaCluster::start().await?),
            (OwnBroker::Three, Broker::RabbitMq) => bail!("a cluster of RabbitMQ is not made here"),
        }))
    }

    /// Its address for clients.
    #[must_use]
    pub fn address(&self) -> String {
        match self {
            Self::Kafka(server) => server.bootstrap(),
            Self::KafkaCluster(servers) => servers.bootstrap(),
            Self::RabbitMq(server) => server.amqp_url(),
        }
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) -> Result<()> {
        match self {
            Self::Kafka(server) => server.kill(),
            Self::KafkaCluster(servers) => servers.kill(),
            Self::RabbitMq(server) => server.kill(),
        }
    }

    /// Stops it in order.
    pub async fn stop(&mut self) -> Result<()> {
        match self {
            Self::Kafka(server) => server.stop().await,
            Self::KafkaCluster(servers) => servers.stop().await,
            Self::RabbitMq(server) => server.stop().await,
        }
    }

    /// Starts it again with its data, and waits until it answers.
    pub async fn restart(&mut self) -> Result<()> {
        match self {
            Self::Kafka(server) => server.restart().await,
            Self::KafkaCluster(servers) => servers.restart().await,
            Self::RabbitMq(server) => server.restart().await,
        }
    }

    /// Freezes it (SIGSTOP).
    pub fn pause(&mut self) -> Result<()> {
        match self {
            Self::Kafka(server) => server.pause(),
            Self::KafkaCluster(servers) => servers.pause(),
            Self::RabbitMq(server) => server.pause(),
        }
    }

    /// Resumes it.
    pub async fn resume(&mut self) -> Result<()> {
        match self {
            Self::Kafka(server) => server.resume(),
            Self::KafkaCluster(servers) => servers.resume().await,
            Self::RabbitMq(server) => server.resume(),
        }
    }

    /// Waits until the other nodes of a cluster have taken over from the one that is away.
    pub async fn others_lead(&self) -> Result<()> {
        match self {
            Self::KafkaCluster(servers) => servers.led_by_others().await,
            Self::Kafka(_) | Self::RabbitMq(_) => bail!("there are no others"),
        }
    }

    /// Runs `rabbitmqctl` against it.
    pub async fn rabbitmqctl(&self, args: &[&str]) -> Result<String> {
        match self {
            Self::Kafka(_) | Self::KafkaCluster(_) => bail!("Kafka has no rabbitmqctl"),
            Self::RabbitMq(server) => server.ctl(args).await,
        }
    }
}
