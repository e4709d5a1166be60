//! `relay pause`, `relay resume`, `relay controls` and `relay instances`.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use outbox_core::sqlx::MySqlConnection;
use serde_json::Value;

use super::{
    by::{By, refused},
    database,
    output::{self, Format},
};
use crate::{
    config::{Config, duration},
    operate::{
        controls::{list, pause, resume},
        instances,
    },
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
    /// A relay or worker, by its name in `relay instances`: it finishes what is in flight, and claims no more
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
}

fn destination(text: &str) -> Result<Target, &'static str> {
    Target::of("destination", text).ok_or("give a sink and a topic or exchange, such as kafka/orders")
}

impl What {
    fn target(self) -> Option<Target> {
        let instance = self.instance.map(Target::Instance);
        self.lane.map(Target::Lane).or(self.sink.map(Target::Sink)).or(self.destination).or(instance)
    }
}

const EXAMPLES: &str = "Relays follow within a second, and finish what is in flight. Examples:
  relay pause --lane 3 --because 'the consumer is being repaired'
  relay pause --sink kafka --for 2h --because 'upgrade of the brokers'
  relay pause --instance relay-1/0a1b2c3d --because 'its machine goes away'
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

/// Refuses a process or a sink that there is not. Where neither the configuration nor a live relay has a sink, any name is taken.
async fn known(db: &mut MySqlConnection, config: &Config, target: &Target) -> anyhow::Result<()> {
    let live: Vec<_> = instances::list(db).await?.into_iter().filter(|it| it.state != "gone").collect();
    let (what, name, names): (_, _, BTreeSet<&str>) = match target {
        Target::Lane(_) => return Ok(()),
        Target::Instance(name) => ("live relay", name, live.iter().map(|it| it.instance.as_str()).collect()),
        Target::Sink(name) | Target::Destination(name, _) => {
            let sinks = live.iter().flat_map(|it| it.sinks.keys()).chain(config.sinks.keys());
            ("sink", name, sinks.map(String::as_str).collect())
        }
    };
    if names.contains(name.as_str()) || names.is_empty() && what == "sink" {
        return Ok(());
    }
    let names: Vec<_> = names.into_iter().collect();
    bail!(
        "there is no {what} `{name}`: there is {}",
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    )
}

impl Pause {
    /// Pauses it.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        let (target, actor) = (
            self.what.target().context("give a lane, a sink or a destination")?,
            self.by.actor().context("give --because")?,
        );
        known(&mut connection, config, &target).await?;
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

/// Prints the running relays and workers.
pub(super) async fn instances(format: Format, config: &Config) -> anyhow::Result<bool> {
    let mut connection = database::connect_to_read(config).await?;
    let instances = instances::list(&mut connection).await.context("the instances cannot be read")?;
    if format.json(&instances)? {
        return Ok(true);
    }
    let lane = |lanes: &[u16]| match lanes {
        [] => "all".to_owned(),
        lanes => lanes.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
    };
    let sink = |(name, why): (&String, &Option<String>)| match why {
        Some(why) => format!("{name}: {why}"),
        None => format!("{name}: ok"),
    };
    let rows: Vec<[Value; 9]> = instances
        .iter()
        .map(|it| {
            let sinks: Vec<_> = it.sinks.iter().map(sink).collect();
            let texts =
                [&it.instance, &it.role, it.state, &it.version, &lane(&it.lanes), &sinks.join(", ")].map(Value::from);
            let [instance, role, state, version, lanes, sinks] = texts;
            let (started, seen) = (it.started_at.as_str().into(), it.seen_at.as_str().into());
            [instance, role, state, it.in_flight.into(), lanes, sinks, version, started, seen]
        })
        .collect();
    let columns = ["instance", "role", "state", "in_flight", "lanes", "sinks", "version", "started_at", "seen_at"];
    format.rows(columns, &rows)?;
    Ok(true)
}
