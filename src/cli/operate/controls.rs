//! `relay pause`, `relay resume`, `relay controls` and `relay instances`.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, bail, ensure};
use async_trait::async_trait;
use clap::Args;
use outbox_core::sqlx::MySqlConnection;
use outbox_relay::{
    operate::{
        controls::{list, pause, resume},
        instances::{self, InstanceState},
    },
    settings::value::duration,
    state::controls::PauseTarget,
};
use serde_json::{Value, json};

use super::{
    Answering, Operation, Role,
    by::{By, refused},
};
use crate::{
    cli::output::{self, Format},
    config::Config,
};

/// One of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct PauseArgument {
    /// A lane: its messages stay pending
    #[arg(long)]
    lane: Option<u16>,
    /// A sink, by its name in the configuration: its messages wait
    #[arg(long)]
    sink: Option<String>,
    /// A topic or exchange of a sink, such as kafka/orders: its messages wait
    #[arg(long, value_name = "SINK/NAME", value_parser = destination)]
    destination: Option<PauseTarget>,
    /// A relay or worker, by its name in `relay instances`: it finishes what is in flight, and claims no more
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
}

pub(super) fn destination(text: &str) -> Result<PauseTarget, &'static str> {
    PauseTarget::of("destination", text).ok_or("give a sink and a topic or exchange, such as kafka/orders")
}

impl PauseArgument {
    fn target(&self) -> anyhow::Result<PauseTarget> {
        let instance = self.instance.clone().map(PauseTarget::Instance);
        let place =
            self.lane.map(PauseTarget::Lane).or(self.sink.clone().map(PauseTarget::Sink)).or(self.destination.clone());
        place.or(instance).context("give a lane, a sink, a destination or an instance")
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
pub(crate) struct PauseCommand {
    #[command(flatten)]
    what: PauseArgument,
    /// The length of the pause, such as 30m; without it, the pause lasts until `relay resume`
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    time: Option<Duration>,
    #[command(flatten)]
    by: By,
}

fn time(text: &str) -> Result<Duration, &'static str> {
    duration(text).filter(|time| !time.is_zero()).ok_or("give a time such as 30m or 2h")
}

/// Refuses a process or a sink that there is not. Where neither the configuration nor a live relay has a sink, any name
/// is taken.
pub(super) async fn known(db: &mut MySqlConnection, config: &Config, target: &PauseTarget) -> anyhow::Result<()> {
    let live: Vec<_> = instances::list(db).await?.into_iter().filter(|it| it.state != InstanceState::Gone).collect();
    let (what, name, names): (_, _, BTreeSet<&str>) = match target {
        PauseTarget::Lane(_) => return Ok(()),
        PauseTarget::Instance(name) => ("live relay", name, live.iter().map(|it| it.instance.as_str()).collect()),
        PauseTarget::Sink(name) | PauseTarget::Destination(name, _) => {
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

#[async_trait]
impl Operation for PauseCommand {
    fn role(&self) -> Role {
        Role::Operator
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        let target = self.what.target()?;
        let actor = self.by.actor(process).context("give --because")?;
        known(db, process.config, &target).await?;
        let replaced = pause(db, &target, self.time, &actor).await.map_err(|error| refused(&error))?;
        let (kind, name) = target.names();
        Ok(json!({"kind": kind, "name": name, "replaced": replaced}))
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        let target = self.what.target()?;
        let (kind, name) = target.names();
        if let Some(replaced) = answer.get("replaced").filter(|replaced| !replaced.is_null()) {
            let [at, actor, reason] = ["paused_at", "actor", "reason"]
                .map(|part| replaced.get(part).and_then(Value::as_str).unwrap_or_default());
            output::note(&format!(
                "The {kind} {name} was paused already, at {at} by {actor} ({reason}): this pause replaces that one."
            ))?;
        }
        Ok(output::note(&format!("The {kind} {name} is paused. To go on: relay resume --{kind} {name} --because …"))?)
    }
}

/// Returns the answer to an order about it.
fn named(target: &PauseTarget) -> Value {
    let (kind, name) = target.names();
    json!({"kind": kind, "name": name})
}

/// The lane, sink or destination of the pause.
#[derive(Debug, Args)]
#[command(mut_arg("because", |because| because.required(true)))]
pub(crate) struct Resume {
    #[command(flatten)]
    what: PauseArgument,
    #[command(flatten)]
    by: By,
}

#[async_trait]
impl Operation for Resume {
    fn role(&self) -> Role {
        Role::Operator
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        let target = self.what.target()?;
        let actor = self.by.actor(process).context("give --because")?;
        let is_resumed = resume(db, &target, &actor).await.map_err(|error| refused(&error))?;
        let (kind, name) = target.names();
        ensure!(is_resumed, "the {kind} {name} is not paused: see `relay controls`");
        Ok(named(&target))
    }

    fn show(&self, _: &Value) -> anyhow::Result<()> {
        let target = self.what.target()?;
        let (kind, name) = target.names();
        Ok(output::note(&format!("The {kind} {name} goes on. Messages that wait for it follow within a minute."))?)
    }
}

/// How to print them.
#[derive(Debug, Args)]
pub(crate) struct ControlsCommand {
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for ControlsCommand {
    async fn answer(&self, db: &mut MySqlConnection, _: &Answering<'_>) -> anyhow::Result<Value> {
        Ok(serde_json::to_value(list(db).await.context("the controls cannot be read")?)?)
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        self.format.list(["kind", "name", "paused_at", "ends_at", "actor", "reason"], answer)
    }
}

/// How to print them.
#[derive(Debug, Args)]
pub(crate) struct Instances {
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for Instances {
    async fn answer(&self, db: &mut MySqlConnection, _: &Answering<'_>) -> anyhow::Result<Value> {
        Ok(serde_json::to_value(instances::list(db).await.context("the instances cannot be read")?)?)
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        let columns =
            ["instance", "role", "state", "in_flight", "lanes", "sinks", "tail", "version", "started_at", "seen_at"];
        if self.format.json(answer)? {
            return Ok(());
        }
        let mut instances = answer.clone();
        for instance in instances.as_array_mut().into_iter().flatten() {
            if let Some(lanes @ Value::Array(_)) = instance.get_mut("lanes")
                && *lanes == json!([])
            {
                *lanes = "all".into();
            }
            if let Some(tail @ Value::String(_)) = instance.get_mut("tail") {
                // The word: the sentence is in the answer.
                *tail = tail.as_str().and_then(|tail| tail.split(':').next()).map_or(Value::Null, Value::from);
            }
            let sinks = instance.get_mut("sinks").and_then(Value::as_object_mut);
            sinks.into_iter().flatten().filter(|(_, why)| why.is_null()).for_each(|(_, why)| *why = "ok".into());
        }
        self.format.list(columns, &instances)
    }
}
