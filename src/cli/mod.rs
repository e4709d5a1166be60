//! The command line. Data goes to standard output, logs and problems to standard error.
//!
//! Exit codes: 0 ok; 1 failed; 2 wrong arguments or configuration; 3 a checked condition does not hold.

mod api;
mod check;
mod config;
mod console;
mod database;
mod doctor;
mod healthcheck;
mod log;
mod migrate;
mod notify;
mod operate;
mod output;
mod pages;
mod recover;
mod run;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, builder::Resettable, error::ErrorKind,
    parser::ValueSource,
};
use outbox_relay::operate::shown::lines;

use self::api::client::{ApiClient, Request};
pub use self::api::reference as api_reference;
use crate::config::{Config, ConfigError, Inputs, Loaded, default_file, listen_address, load, load_for_database};

/// Publishes the messages of a transactional outbox in MySQL to Kafka, RabbitMQ and receivers of HTTP requests.
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
    /// Ask the `relay api` at this address instead of the database
    #[arg(long, global = true, env = "RELAY_VIA", value_name = "URL", help_heading = "API")]
    via: Option<String>,
    /// A file with the token for it
    #[arg(long, global = true, env = "RELAY_TOKEN_FILE", value_name = "FILE", help_heading = "API")]
    token_file: Option<PathBuf>,
}

const CONSOLE: &str = "It listens as `relay api` does, by the section [api], and answers /api/v1 as well. Example:
  relay console --config /etc/outbox-relay/api.toml";

const API: &str = "It has a section [api] in the configuration, and needs no sink and no route. Examples:
  relay api --config /etc/outbox-relay/api.toml
  curl http://127.0.0.1:9465/api/v1/status";

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
    #[command(flatten)]
    Operate(operate::Operate),
    /// Answer the commands from `status` to `audit` over HTTP, for programs and for people without an account of the
    /// database
    #[command(after_help = API)]
    Api,
    /// Serve pages for a browser: what the outbox does, why a message is not sent, and orders
    #[command(after_help = CONSOLE)]
    Console,
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
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os()).unwrap_or_else(|error| refuse(&error));
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.format(&mut command).exit(),
    };
    let given = cli.command.unwrap_or(Command::Run);
    if matches.value_source("via") == Some(ValueSource::CommandLine) && !matches!(given, Command::Operate(_)) {
        command
            .error(ErrorKind::ArgumentConflict, "this command cannot be asked of a `relay api`: leave --via out")
            .exit();
    }
    let outcome = dispatch(given, &cli.options, &Request::of(&command, &matches)).await;
    #[cfg(feature = "kafka")]
    outbox_relay::sink::kafka::wait_until_ended(ENDING);
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => complain(&error),
    }
}

/// Ends the program for wrong arguments. The usage of the error names arguments that a variable gives as if they were
/// missing: so the arguments are read once more without variables.
fn refuse(error: &clap::Error) -> ! {
    if error.use_stderr() {
        Cli::command().mut_args(|argument| argument.env(Resettable::Reset)).get_matches();
    }
    error.exit()
}

/// Runs a command; returns false if a checked condition does not hold.
async fn dispatch(command: Command, options: &Arguments, request: &Request) -> anyhow::Result<bool> {
    match command {
        Command::Run => run::run(options).await,
        Command::Migrate(migrate) => migrate.run(options).await,
        Command::Check(check) => check.run(&options.load()?).await,
        Command::Doctor(doctor) => doctor.run(&options.load()?).await,
        Command::Operate(operate) => operate.run(options, request).await,
        Command::Api => api::run(options, false).await,
        Command::Console => api::run(options, true).await,
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
    match writeln!(io::stderr(), "{}", lines(&format!("{error:#}"))) {
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
        Ok(self.load_for_database()?.config)
    }

    fn load_for_database(&self) -> Result<Loaded, ConfigError> {
        load_for_database(&self.inputs())
    }

    /// Makes the client of `--via`, if that is given.
    fn client(&self) -> anyhow::Result<Option<ApiClient>> {
        self.via
            .as_ref()
            .filter(|url| !url.is_empty())
            .map(|url| ApiClient::new("--via", url, self.token_file.as_deref()))
            .transpose()
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
    // Every command has the same ones.
    let is_shown =
        |part: &&str| name == "relay" || !part.starts_with("Configuration:\n") && !part.starts_with("API:\n");
    let parts: Vec<_> = help.trim_end().split("\n\n").filter(is_shown).collect();
    let help = parts.join("\n\n");
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
