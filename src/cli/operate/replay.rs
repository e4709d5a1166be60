//! `relay replay`.

use anyhow::{Context as _, bail, ensure};
use async_trait::async_trait;
use clap::{ArgGroup, Args};
use outbox_core::{sqlx::MySqlConnection, store::operate::find};
use outbox_relay::{
    operate::{
        replay::{SentFilter, lacks_sink, order, plan},
        why::Reference,
    },
    state::controls::PauseTarget,
};
use serde_json::Value;

use super::{
    Answering, Operation, Role,
    by::refused,
    controls::{destination, known},
    moment::{Moment, micros, moment},
    plan::{self, Ordered},
};
use crate::{config::Problem, doctor::look_up};

const EXAMPLES: &str = "The messages keep their ids, so consumers whose inbox still knows them do nothing. They have the header
outbox-replay. They go out in the order of their keys, but behind newer messages, and hold up no new ones. Lanes of workers are left
out unless --lane names one: workers have no inbox, so each effect would happen again. Without --yes the plan is shown, and nothing
changes. --to names another destination than the route's: a sink and a topic of Kafka, or a sink, an exchange of RabbitMQ and a routing
key. Its broker is asked for it if the configuration of this command has the sink. Route and envelope stay those of the topic. Examples:
  relay replay --topic orders --since 2h                                   # the plan
  relay replay --topic orders --since 2026-11-26T08:00:00Z --until 2026-11-26T09:30:00Z
  relay replay --topic orders --since 2h --yes --because 'the search index was lost'
  relay replay --topic orders --since 2h --to kafka/orders-repair          # the plan, to another topic
  relay replay --topic orders --since 2h --to rabbitmq/repair/orders --confirm-destination rabbitmq/repair/orders \
    --yes --because 'a new index is filled'
  relay replay 1523 --yes --because 'asked for by billing'                 # one message
  relay jobs                                                               # how far the relays are";

/// At least one of these, so that nobody replays all by mistake.
fn which() -> ArgGroup {
    ArgGroup::new("which").args(["message", "all", "topic", "lane", "since", "until"]).required(true).multiple(true)
}

/// Which ones, and why.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = which())]
pub(crate) struct Replay {
    /// One message: its UUID, or its number in the tables
    message: Option<Reference>,
    /// All that are kept
    #[arg(long, conflicts_with_all = ["message", "topic", "lane", "since", "until"])]
    all: bool,
    /// Only those of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only those of this lane
    #[arg(long)]
    lane: Option<u16>,
    /// Only those that were sent at this time or later, such as 2026-11-26T08:00:00Z, or 2h (ago)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Moment>,
    /// Only those that were sent before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Moment>,
    /// Send them there instead of to the destination of their route, such as kafka/orders-repair or
    /// rabbitmq/exchange/routing-key
    #[arg(long, value_name = "SINK/NAME", value_parser = elsewhere)]
    to: Option<PauseTarget>,
    /// The text of --to again, needed with --yes
    #[arg(long, value_name = "SINK/NAME", requires = "to")]
    confirm_destination: Option<String>,
    #[command(flatten)]
    order: Ordered,
}

fn elsewhere(text: &str) -> Result<PauseTarget, &'static str> {
    let is_whole =
        |to: &PauseTarget| matches!(to, PauseTarget::Destination(sink, name) if !sink.is_empty() && !name.is_empty());
    destination(text).ok().filter(is_whole).ok_or(
        "give a sink and a topic, such as kafka/orders-repair, or a sink, an exchange and a routing key, such as \
         rabbitmq/repair/orders",
    )
}

#[async_trait]
impl Operation for Replay {
    fn role(&self) -> Role {
        self.order.role()
    }

    fn problem(&self) -> Option<Problem> {
        let (_, to) = self.to.as_ref()?.names();
        let is_plan = self.role() == Role::Viewer && self.confirm_destination.is_none();
        let is_right = is_plan || self.confirm_destination.as_ref() == Some(&to);
        let text = || format!("to send messages elsewhere, repeat the text of --to: --confirm-destination {to}");
        (!is_right).then(|| Problem { at: "--confirm-destination".to_owned(), text: text() })
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        let failed = "the messages cannot be read";
        let [since, until] = micros(db, [self.since, self.until]).await.context(failed)?;
        let id = match self.message {
            Some(Reference::Number(id)) => Some(id),
            Some(Reference::Uuid(id)) => {
                Some(find::number(db, id).await.context(failed)?.context("no message has this id")?)
            }
            None => None,
        };
        if let Some(to) = &self.to {
            known(db, process.config, to).await?;
        }
        let topic = self.topic.clone();
        let to = self.to.as_ref().map(|to| to.names().1);
        let mut filter = SentFilter { topic, lane: self.lane, since, until, id, to, ..SentFilter::default() };
        let is_sent = filter.find_claims(db).await.context(failed)?;
        ensure!(is_sent, "the message was not sent: see `relay why`");
        let kept = process.config.retention.sent;
        let mut plan = plan(db, &filter, kept, self.order.rate).await.context(failed)?;
        if let Some(PauseTarget::Destination(sink, _)) = &self.to
            && let Some(other) = lacks_sink(db, &plan, sink).await.context(failed)?
        {
            let name = other.instance;
            bail!(
                "{name} serves lanes of these messages and has no sink `{sink}`: they would wait. Give each relay of \
                 their lanes the sink, or choose other lanes with --lane (a worker has no sinks)"
            );
        }
        if let Some(PauseTarget::Destination(sink, name)) = &self.to
            && let Some(config) = process.config.sinks.get(sink)
        {
            plan.is_looked_up = look_up(sink, config, name).await.map_err(anyhow::Error::msg)?;
        }
        let job = match self.order.actor(process) {
            Some(actor) if plan.messages > 0 => {
                let ordered = order(db, &plan, &filter, self.order.rate, &actor).await;
                Some(ordered.map_err(|error| refused(&error))?)
            }
            _ => None,
        };
        plan::answer(&plan, job)
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        self.order.show(answer, ["id", "lane", "topic", "event_type", "sent_at", "message_id"])
    }
}
