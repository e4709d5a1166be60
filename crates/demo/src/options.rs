//! The command line.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use testkit::{
    consume::{Broker, Topic},
    relay::Settings,
};

/// When a relay is killed.
const KILL_AFTER: Duration = Duration::from_secs(10);

/// A small shop that shows the outbox at work.
#[derive(Debug, Clone, Parser)]
#[command(name = "demo")]
pub(crate) struct Options {
    /// How long orders are placed, in seconds.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Orders per second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: u32,
    /// The brokers that messages go to.
    #[arg(long, value_enum, default_value_t = Brokers::Both)]
    broker: Brokers,
    /// Leave everything up at the end, and print the addresses.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Start Prometheus and Alertmanager with the files of `dashboards`, print their addresses, and leave everything up
    /// at the end.
    #[arg(long)]
    pub(crate) observe: bool,
    /// A MySQL server, without a database.
    #[arg(long, env = "OUTBOX_TEST_MYSQL_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) mysql: String,
    /// Kafka's bootstrap address.
    #[arg(long, env = "OUTBOX_TEST_KAFKA", value_name = "ADDRESS")]
    kafka: Option<String>,
    /// RabbitMQ.
    #[arg(long, env = "OUTBOX_TEST_AMQP", hide_env_values = true, value_name = "URL")]
    amqp: Option<String>,
    /// The relay's program; by default the one beside this program.
    #[arg(long, value_name = "FILE")]
    pub(crate) relay: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Brokers {
    Kafka,
    Rabbitmq,
    Both,
}

impl Options {
    pub(crate) fn total(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(crate) fn kill_after(&self) -> Duration {
        KILL_AFTER.min(self.total() / 2)
    }

    /// Creates a topic on each broker that is wanted: Kafka's, or an exchange and a queue of RabbitMQ. The relay never
    /// does: a misspelt topic would swallow messages.
    pub(crate) async fn topics(&self) -> Result<Vec<Topic>> {
        let mut topics = Vec::new();
        if self.broker != Brokers::Rabbitmq {
            let address = self.kafka.as_deref().context("no address of Kafka: --kafka, or --broker rabbitmq")?;
            topics.push(Topic::create_on(Broker::Kafka, address).await?);
        }
        if self.broker != Brokers::Kafka {
            let address = self.amqp.as_deref().context("no address of RabbitMQ: --amqp, or --broker kafka")?;
            topics.push(Topic::create_on(Broker::RabbitMq, address).await?);
        }
        Ok(topics)
    }
}

/// The addresses of the servers, for people: without user and password.
pub(crate) fn place(name: &str, url: &str) -> String {
    let host = url.rsplit('@').next().unwrap_or_default().split(['/', '?']).next().unwrap_or_default();
    format!("{name} on {host}")
}

/// The configuration of the relays but for their names and listeners. The lease is short, so that the take-over can be
/// watched.
pub(crate) fn relay_settings(database: &str, topics: &[Topic]) -> Settings {
    let settings = Settings::new(database).unset("relay", "unroutable_grace");
    let settings = settings.unset("relay", "first_destination_grace").set("log", "level", "info");
    let settings = settings.set("relay", "lease", "5s").set("relay", "publish_deadline", "2s");
    let settings = settings.set("relay", "settle_deadline", "1s").set("relay", "safety", "1s");
    topics.iter().fold(settings, |settings, topic| match topic.broker() {
        Broker::Kafka => settings.kafka(topic.address()).sink_key("kafka", "plaintext", true).route([
            ("topics", "orders"),
            ("sink", "kafka"),
            ("topic", topic.name()),
        ]),
        Broker::RabbitMq => {
            let route = [("topics", "mail.*"), ("sink", "rabbitmq"), ("exchange", topic.name())];
            settings
                .rabbitmq(topic.address())
                .sink_key("rabbitmq", "plaintext", true)
                .route(route.into_iter().chain([("routing_key", topic.name())]))
        }
    })
}
