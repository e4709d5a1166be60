//! `mysql`, `topic` and `queue`: for trying something with the servers of `up`.

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use anyhow::{Context, Result};
use clap::Args;
use testkit::servers::{self, Kind};

use crate::holder::State;

#[derive(Debug, Args)]
pub(crate) struct Mysql {
    /// Arguments of the client `mysql`: a database, or --execute and a statement.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Topic {
    name: String,
    #[arg(long, default_value_t = 6)]
    partitions: i32,
}

#[derive(Debug, Args)]
pub(crate) struct Queue {
    name: String,
}

impl Mysql {
    /// Becomes the client.
    pub(crate) fn run(self) -> Result<()> {
        let address = address(Kind::MySql)?;
        let place = address.rsplit(['@', '/']).find(|part| part.contains(':')).context("the address has no port")?;
        let (host, port) = place.split_once(':').context("the address has no port")?;
        let login = ["--user=root".to_owned(), format!("--host={host}"), format!("--port={port}")];
        let arguments: Vec<_> = login.iter().chain(&self.arguments).map(String::as_str).collect();
        let mut client = servers::mysql_client(&arguments)?;
        Err(client.stdin(Stdio::inherit()).exec()).context("cannot run mysql")
    }
}

impl Topic {
    pub(crate) async fn run(self) -> Result<()> {
        servers::create_topic(&address(Kind::Kafka)?, &self.name, self.partitions).await?;
        println!("The topic {} has {} partitions.", self.name, self.partitions);
        Ok(())
    }
}

impl Queue {
    pub(crate) async fn run(self) -> Result<()> {
        servers::create_queue(&address(Kind::RabbitMq)?, &self.name).await?;
        println!(
            "The queue {0} gets the messages of a route with exchange = \"\" and routing_key = \"{0}\".",
            self.name
        );
        Ok(())
    }
}

/// The address of a server that `up` has started, or that the environment names.
fn address(kind: Kind) -> Result<String> {
    let state = State::read();
    let mut servers = state.iter().flat_map(|state| &state.servers);
    let running = servers.find(|it| it.variable == kind.variable()).map(|it| it.address.clone());
    running
        .or_else(|| kind.given())
        .with_context(|| format!("no {} runs: start the servers with ./dev up", kind.name()))
}
