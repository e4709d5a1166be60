//! `relay pause`, `relay resume` and `relay controls`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use super::{
    by::{By, refused},
    database,
    output::{self, Format},
};
use crate::{
    config::{Config, duration},
    operate::controls::{list, pause, resume},
    state::controls::Target,
};

/// One of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// A lane: its messages stay pending
    #[arg(long)]
    lane: Option<u16>,
    /// A sink, by its name in the configuration: its messages wait
    #[arg(long)]
    sink: Option<String>,
    /// A topic or exchange of a sink, such as kafka/orders: its messages wait
    #[arg(long, value_name = "SINK/NAME", value_parser = destination)]
    destination: Option<Target>,
}

fn destination(text: &str) -> Result<Target, &'static str> {
    Target::of("destination", text).ok_or("give a sink and a topic or exchange, such as kafka/orders")
}

impl What {
    fn target(self) -> Option<Target> {
        self.lane.map(Target::Lane).or(self.sink.map(Target::Sink)).or(self.destination)
    }
}

const EXAMPLES: &str = "Relays follow within a second, and finish what is in flight. Examples:
  relay pause --lane 3 --because 'the consumer is being repaired'
  relay pause --sink kafka --for 2h --because 'upgrade of the brokers'
  relay controls";

/// A lane, sink or destination, and the time.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("because", |because| because.required(true)))]
pub(super) struct Pause {
    #[command(flatten)]
    what: What,
    /// The length of the pause, such as 30m; without it, the pause lasts until `relay resume`
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    time: Option<Duration>,
    #[command(flatten)]
    by: By,
}

fn time(text: &str) -> Result<Duration, &'static str> {
    duration(text).filter(|time| !time.is_zero()).ok_or("give a time such as 30m or 2h")
}

/// Refuses a sink that the configuration does not have. A configuration without sinks is one for the command line alone.
fn known(config: &Config, target: &Target) -> anyhow::Result<()> {
    let (Target::Sink(sink) | Target::Destination(sink, _)) = target else { return Ok(()) };
    let names: Vec<_> = config.sinks.keys().map(String::as_str).collect();
    if names.is_empty() || names.contains(&sink.as_str()) {
        return Ok(());
    }
    bail!("the configuration has no sink `{sink}`: give one of {}", names.join(", "))
}

impl Pause {
    /// Pauses it.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        let (target, actor) = (
            self.what.target().context("give a lane, a sink or a destination")?,
            self.by.actor().context("give --because")?,
        );
        known(config, &target)?;
        pause(&mut connection, &target, self.time, &actor).await.map_err(|error| refused(&error))?;
        let (kind, name) = target.names();
        output::note(&format!("The {kind} {name} is paused. To go on: relay resume --{kind} {name}"))?;
        Ok(true)
    }
}

/// The lane, sink or destination of the pause.
#[derive(Debug, Args)]
#[command(mut_arg("because", |because| because.required(true)))]
pub(super) struct Resume {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    by: By,
}

impl Resume {
    /// Ends the pause.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        let (target, actor) = (
            self.what.target().context("give a lane, a sink or a destination")?,
            self.by.actor().context("give --because")?,
        );
        let (kind, name) = target.names();
        if !resume(&mut connection, &target, &actor).await.map_err(|error| refused(&error))? {
            bail!("the {kind} {name} is not paused: see `relay controls`");
        }
        output::note(&format!("The {kind} {name} goes on. Messages that wait for it follow within a minute."))?;
        Ok(true)
    }
}

/// Prints the pauses.
pub(super) async fn run(format: Format, config: &Config) -> anyhow::Result<bool> {
    let mut connection = database::connect_to_read(config).await?;
    let controls = list(&mut connection).await.context("the controls cannot be read")?;
    format.values(["kind", "name", "paused_at", "ends_at", "actor", "reason"], &controls)?;
    Ok(true)
}
