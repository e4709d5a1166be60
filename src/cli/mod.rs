//! The command line.

mod check;
mod healthcheck;
mod log;
mod migrate;
mod run;
mod settings;
mod status;
mod table;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::{
    Config,
    load::{Loaded, load},
};

/// Publishes the messages of a transactional outbox in MySQL or MariaDB to Kafka or RabbitMQ.
///
/// Run two or more: they share the work and take over from each other.
#[derive(Debug, Parser)]
#[command(
    name = "relay",
    version,
    after_help = "Exit status: 0 ok, 1 failed, 2 usage or configuration, 3 a checked condition does not hold."
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct Global {
    /// The configuration file; `relay.toml` here if there is one.
    #[arg(long, global = true, env = "RELAY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// `database.url`.
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// `relay.owner`.
    #[arg(long, global = true, value_name = "NAME")]
    owner: Option<String>,
    /// `http.listen`.
    #[arg(long, global = true, value_name = "ADDRESS")]
    listen: Option<String>,
    /// `log.level`.
    #[arg(long, global = true, value_name = "FILTER")]
    log_level: Option<String>,
    /// The form of data on standard output.
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// The form of data on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Claim and publish until stopped (the default).
    Run,
    /// Create or upgrade the tables.
    #[command(subcommand)]
    Migrate(migrate::Migrate),
    /// Check the configuration, and with --connect also what it names.
    Check {
        /// Also reach the database, its tables and the brokers.
        #[arg(long)]
        connect: bool,
    },
    /// What is in the queue.
    Status,
    /// Show settings.
    #[command(subcommand)]
    Config(settings::Settings),
    /// Ask the relay on this machine whether it lives.
    Healthcheck,
}

/// How a command ended.
enum End {
    /// It did what it should.
    Ok,
    /// A checked condition does not hold.
    No,
}

/// Runs the command line and returns the exit status.
#[must_use]
pub async fn main(cli: Cli) -> ExitCode {
    match command(cli).await {
        Ok(End::Ok) => ExitCode::SUCCESS,
        Ok(End::No) => ExitCode::from(3),
        Err(Failure::Config(problems)) => {
            for problem in problems {
                eprintln!("error: {problem}");
            }
            ExitCode::from(2)
        }
        Err(Failure::Other(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Why a command failed.
enum Failure {
    /// The configuration cannot be used.
    Config(Vec<String>),
    /// Anything else.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

async fn command(cli: Cli) -> Result<End, Failure> {
    let global = &cli.global;
    match cli.command.unwrap_or(Command::Run) {
        Command::Run => run::run(global.load()?.config).await?,
        Command::Migrate(migrate::Migrate::Sql) => migrate::sql()?,
        Command::Migrate(what) => return Ok(migrate::migrate(&what, &global.database()?, global.format).await?),
        Command::Check { connect } => return Ok(check::check(&global.load()?.config, connect).await?),
        Command::Status => status::status(&global.database()?, global.format).await?,
        Command::Config(settings::Settings::Example) => settings::example()?,
        Command::Config(settings::Settings::Show) => settings::show(&global.load()?.settings, global.format)?,
        Command::Healthcheck => return Ok(healthcheck::healthcheck(global.lenient()).await),
    }
    Ok(End::Ok)
}

impl Global {
    fn load(&self) -> Result<Loaded, Failure> {
        let here = PathBuf::from("relay.toml");
        let file = self.config.clone().or_else(|| here.exists().then_some(here));
        load(file.as_deref(), std::env::vars(), self.flags()).map_err(Failure::Config)
    }

    fn flags(&self) -> Vec<(String, String, String)> {
        let flags = [
            ("database.url", "--database-url", &self.database_url),
            ("relay.owner", "--owner", &self.owner),
            ("http.listen", "--listen", &self.listen),
            ("log.level", "--log-level", &self.log_level),
        ];
        let flag = |(place, name, value): (&str, &str, &Option<String>)| {
            value.clone().map(|text| (place.to_owned(), text, name.to_owned()))
        };
        flags.into_iter().filter_map(flag).collect()
    }

    /// For commands that need the database and no sinks.
    fn database(&self) -> Result<Config, Failure> {
        let quiet = |place: &str, text: &str| (place.to_owned(), text.to_owned(), "default".to_owned());
        let missing =
            |problem: &String| !problem.starts_with("there is no sink") && !problem.starts_with("there is no route");
        match self.load() {
            Err(Failure::Config(problems)) if !problems.iter().any(missing) => {
                let mut flags = self.flags();
                flags.extend([
                    quiet("sinks.none.type", "null"),
                    quiet("routes.0.topics", "*"),
                    quiet("routes.0.sink", "none"),
                ]);
                let here = PathBuf::from("relay.toml");
                let file = self.config.clone().or_else(|| here.exists().then_some(here));
                Ok(load(file.as_deref(), std::env::vars(), flags).map_err(Failure::Config)?.config)
            }
            loaded => Ok(loaded?.config),
        }
    }

    /// The address alone: a health check must not fail on what it does not need.
    fn lenient(&self) -> Option<std::net::SocketAddr> {
        self.database().ok()?.http.listen
    }
}
