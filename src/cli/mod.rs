//! The command line. Data goes to standard output, logs and problems to standard error.
//!
//! Exit codes: 0 ok; 1 failed; 2 wrong arguments or configuration; 3 a checked condition does not hold.

mod by;
mod check;
mod config;
mod controls;
mod database;
mod doctor;
mod healthcheck;
mod jobs;
mod log;
mod migrate;
mod output;
mod pages;
mod plan;
mod recover;
mod replay;
mod run;
mod status;
mod unsent;
mod why;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, CommandFactory as _, Parser, Subcommand};

use self::output::Format;
use crate::config::{Config, ConfigError, Inputs, Loaded, default_file, listen_address, load, load_for_database};

/// Publishes the messages of a transactional outbox in MySQL to Kafka and RabbitMQ.
#[derive(Debug, Parser)]
#[command(name = "relay", version, max_term_width = 100, after_help = AFTER)]
struct Cli {
    #[command(flatten)]
    options: Arguments,
    #[command(subcommand)]
    command: Option<Command>,
}

const AFTER: &str =
    "Exit codes: 0 ok, 1 failed, 2 wrong arguments or configuration, 3 a checked condition does not hold.";

#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration")]
struct Arguments {
    /// TOML file; `relay.toml` if there is one
    #[arg(long, global = true, env = "RELAY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any key but a secret: relay.lease=30s
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
    /// The name under which this process holds claims (relay.owner)
    #[arg(long, global = true)]
    owner: Option<String>,
    /// The lanes that this relay serves, separated by commas (relay.lanes)
    #[arg(long, global = true)]
    lanes: Option<String>,
    /// Address of /metrics, /livez and /readyz, or off (http.listen)
    #[arg(long, global = true, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Level or filter of the log (log.level)
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// text or json (log.format)
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Claim, publish and settle until stopped (the default)
    Run,
    /// Create and upgrade the tables
    #[command(subcommand)]
    Migrate(migrate::Migrate),
    /// Check the configuration, and with --connect also database and brokers
    Check(check::Check),
    /// Find what is wrong or may go wrong with database, account, tables, rows and brokers, each with its fix
    Doctor(doctor::Doctor),
    /// What is in the queue, and the state of each lane in one sentence
    Status(status::Status),
    /// Say why a message is not sent, or where it went
    Why(why::WhyMessage),
    /// List dead messages, and retry, release or discard them
    #[command(subcommand)]
    Dead(unsent::Dead),
    /// List messages that wait for a time or their key, and publish them now
    #[command(subcommand)]
    Delayed(unsent::Delayed),
    /// List messages that are due and not sent
    #[command(subcommand)]
    Pending(unsent::Pending),
    /// Send sent messages again, such as for a consumer that has lost its data
    Replay(replay::Replay),
    /// List the keys whose messages wait
    #[command(subcommand)]
    Keys(unsent::Keys),
    /// List the running relays and workers, with their lanes, sinks and messages in flight
    Instances(Format),
    /// Stop publishing of a lane, sink, destination or relay for a while
    Pause(controls::Pause),
    /// End a pause
    Resume(controls::Resume),
    /// List the pauses
    Controls(Format),
    /// List the jobs that operators ordered, with their progress, or stop one
    Jobs(jobs::Jobs),
    /// List the actions of operators, with their reasons
    Audit(jobs::Audit),
    /// After a restore or a failover: show what goes out again, and with --yes keep numbers from coming again
    Recover(recover::Recover),
    /// Show or make a configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Ask the relay that runs with this configuration whether it lives
    Healthcheck,
    /// Print the completions for a shell
    Completions(pages::Completions),
    /// Write the manual pages into a folder
    Man(pages::Man),
}

/// Most time for Kafka's producers to end.
#[cfg(feature = "kafka")]
const ENDING: std::time::Duration = std::time::Duration::from_secs(2);

/// Runs the command that the arguments name.
pub async fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = dispatch(cli.command.unwrap_or(Command::Run), &cli.options).await;
    #[cfg(feature = "kafka")]
    crate::sink::kafka::wait_until_ended(ENDING);
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => complain(&error),
    }
}

/// Runs a command; returns false if a checked condition does not hold.
async fn dispatch(command: Command, options: &Arguments) -> anyhow::Result<bool> {
    match command {
        Command::Run => run::run(options).await,
        Command::Migrate(migrate) => migrate.run(options).await,
        Command::Check(check) => check.run(&options.load()?).await,
        Command::Doctor(doctor) => doctor.run(&options.load()?).await,
        Command::Status(status) => status.run(&options.database()?).await,
        Command::Dead(dead) => dead.run(&options.database()?).await,
        Command::Delayed(delayed) => delayed.run(&options.database()?).await,
        Command::Pending(pending) => pending.run(&options.database()?).await,
        Command::Replay(replay) => replay.run(&options.database()?).await,
        Command::Keys(keys) => keys.run(&options.database()?).await,
        Command::Pause(pause) => pause.run(&options.database()?).await,
        Command::Resume(resume) => resume.run(&options.database()?).await,
        Command::Instances(format) => controls::instances(format, &options.database()?).await,
        Command::Controls(format) => controls::run(format, &options.database()?).await,
        Command::Jobs(jobs) => jobs.run(&options.database()?).await,
        Command::Audit(audit) => audit.run(&options.database()?).await,
        Command::Why(why) => why.run(&options.database()?).await,
        Command::Recover(recover) => recover.run(&options.database()?).await,
        Command::Config(config) => config.run(options),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::Healthcheck => healthcheck::run(listen_address(&options.inputs())).await,
    }
}

fn complain(error: &anyhow::Error) -> ExitCode {
    // A reader that has closed standard output wants no more.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let code = if error.is::<ConfigError>() { 2 } else { 1 };
    match writeln!(io::stderr(), "{error:#}") {
        Ok(()) => ExitCode::from(code),
        Err(_) => ExitCode::from(1),
    }
}

impl Arguments {
    /// Loads the configuration of a relay.
    fn load(&self) -> Result<Loaded, ConfigError> {
        load(&self.inputs())
    }

    /// Loads the configuration of a command that needs only the database.
    fn database(&self) -> Result<Config, ConfigError> {
        Ok(load_for_database(&self.inputs())?.config)
    }

    fn inputs(&self) -> Inputs {
        Inputs { file: default_file(self.config.as_deref()), variables: variables(), flags: self.flags() }
    }

    fn flags(&self) -> Vec<(String, String, String)> {
        let short = [
            ("--owner", "relay.owner", &self.owner),
            ("--lanes", "relay.lanes", &self.lanes),
            ("--listen", "http.listen", &self.listen),
            ("--log-level", "log.level", &self.log_level),
            ("--log-format", "log.format", &self.log_format),
        ];
        let short = short.into_iter().filter_map(|(flag, key, value)| Some((flag, key, value.as_deref()?)));
        let set = self.set.iter().map(|(key, value)| ("--set", key.as_str(), value.as_str()));
        set.chain(short).map(|(flag, key, value)| (flag.to_owned(), key.to_owned(), value.to_owned())).collect()
    }
}

/// Returns the environment. A name or a value that is not UTF-8 is kept as far as possible, so that it is reported.
fn variables() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    };
    std::env::vars_os().map(text).collect()
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as relay.lease=30s")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Returns the page docs/cli.md.
#[must_use]
pub fn reference() -> String {
    let mut command = Cli::command().term_width(100).version("");
    command.build();
    let mut text = String::from(include_str!("cli.md"));
    describe(&mut command, "relay", &mut text);
    text
}

fn describe(command: &mut clap::Command, name: &str, text: &mut String) {
    let help = command.render_help().to_string();
    let help: Vec<_> = help.lines().map(str::trim_end).collect();
    text.extend(["\n## `", name, "`\n\n```text\n", &help.join("\n"), "\n```\n"]);
    for inner in command.get_subcommands_mut().filter(|inner| inner.get_name() != "help") {
        let name = format!("{name} {}", inner.get_name());
        describe(inner, &name, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
