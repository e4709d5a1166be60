//! The command line.

use std::{fmt::Write as _, iter, path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use crate::{
    kafka::{self, Topic},
    rabbitmq::{self, EXCHANGE, Queue},
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
    /// Where messages go.
    #[arg(long, value_enum, default_value_t = Broker::Both)]
    broker: Broker,
    /// Leave everything up at the end, and print the addresses.
    #[arg(long)]
    pub(crate) keep: bool,
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
enum Broker {
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

    /// Whether there is an address for each broker that is wanted.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.broker == Broker::Rabbitmq || self.kafka.is_some(),
            "no address of Kafka: --kafka, or --broker rabbitmq"
        );
        ensure!(
            self.broker == Broker::Kafka || self.amqp.is_some(),
            "no address of RabbitMQ: --amqp, or --broker kafka"
        );
        Ok(())
    }

    fn kafka(&self) -> Option<&str> {
        self.kafka.as_deref().filter(|_| self.broker != Broker::Rabbitmq)
    }

    fn amqp(&self) -> Option<&str> {
        self.amqp.as_deref().filter(|_| self.broker != Broker::Kafka)
    }

    /// Where things are, for people: without user and password.
    pub(crate) fn places(&self, run: &str) -> Vec<String> {
        let public = |url: &str| {
            url.rsplit('@').next().unwrap_or_default().split(['/', '?']).next().unwrap_or_default().to_owned()
        };
        let mysql = format!("database {run} on {}", public(&self.mysql));
        let kafka = self.kafka().map(|brokers| format!("topic {} on {brokers}", kafka::topic(run)));
        let amqp = self.amqp().map(|url| format!("queue {} on {}", rabbitmq::queue(run), public(url)));
        iter::once(mysql).chain(kafka).chain(amqp).collect()
    }

    pub(crate) fn topic(&self, run: &str) -> Option<Topic> {
        self.kafka().map(|brokers| Topic::new(brokers, run))
    }

    pub(crate) fn queue(&self, run: &str) -> Result<Option<Queue>> {
        self.amqp().map(|url| Queue::new(url, run)).transpose()
    }

    /// The configuration of the relays but for their names and listeners. Topics of this run have its name in front.
    pub(crate) fn relay_settings(&self, database: &str, run: &str) -> String {
        let mut text = format!("database.url = {database:?}\n");
        if let Some(url) = self.amqp() {
            let route = format!(
                "[[routes]]\ntopics = \"mail.*\"\nsink = \"rabbitmq\"\nexchange = {EXCHANGE:?}\nrouting_key = \"{run}.{{topic}}\"\n"
            );
            write!(text, "[sinks.rabbitmq]\ntype = \"rabbitmq\"\nplaintext = true\nurl = {url:?}\n{route}")
                .unwrap_or_default();
        }
        if let Some(brokers) = self.kafka() {
            let route = format!("[[routes]]\ntopics = \"*\"\nsink = \"kafka\"\ntopic = \"{run}.{{topic}}\"\n");
            write!(text, "[sinks.kafka]\ntype = \"kafka\"\nplaintext = true\nbrokers = {brokers:?}\n{route}")
                .unwrap_or_default();
        }
        text
    }
}
