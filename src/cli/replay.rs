//! `relay replay`.

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args};
use outbox_core::store::{find, replay::now};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    by::refused,
    database,
    plan::{Ordered, show},
};
use crate::{
    config::{Config, duration},
    operate::{
        replay::{SentFilter, order, plan},
        why::Reference,
    },
};

const EXAMPLES: &str = "The messages keep their ids, so consumers whose inbox still knows them do nothing. They have the header
outbox-replay. They go out in the order of their keys, but behind newer messages. Without --yes the plan is shown, and nothing
changes. Examples:
  relay replay --topic orders --since 2h                                   # the plan
  relay replay --topic orders --since 2026-11-26T08:00:00Z --until 2026-11-26T09:30:00Z
  relay replay --topic orders --since 2h --yes --because 'the search index was lost'
  relay replay 1523 --yes --because 'asked for by billing'                 # one message
  relay jobs                                                               # how far the relays are";

/// At least one of these, so that nobody replays all by mistake.
fn which() -> ArgGroup {
    ArgGroup::new("which").args(["message", "all", "topic", "lane", "since", "until"]).required(true).multiple(true)
}

/// Which ones, and why.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = which())]
pub(super) struct Replay {
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
    #[command(flatten)]
    order: Ordered,
}

/// A time in microseconds since 1970, or before now.
#[derive(Debug, Clone, Copy)]
enum Moment {
    At(i64),
    Ago(i64),
}

fn moment(text: &str) -> Result<Moment, &'static str> {
    if let Some(ago) = duration(text).and_then(|ago| i64::try_from(ago.as_micros()).ok()) {
        return Ok(Moment::Ago(ago));
    }
    let time = OffsetDateTime::parse(text, &Rfc3339).ok();
    let micros = time.and_then(|time| i64::try_from(time.unix_timestamp_nanos() / 1_000).ok());
    micros.map(Moment::At).ok_or("give a time such as 2026-11-26T08:00:00Z, or one before now such as 2h")
}

impl Moment {
    fn micros(self, now: i64) -> i64 {
        match self {
            Self::At(micros) => micros,
            Self::Ago(micros) => now - micros,
        }
    }
}

impl Replay {
    /// Shows the plan, and orders it with `--yes`.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        let failed = "the messages cannot be read";
        let now = now(&mut connection).await.context(failed)?;
        let at = |moment: Moment| moment.micros(now);
        let id = match self.message {
            Some(Reference::Number(id)) => Some(id),
            Some(Reference::Uuid(id)) => {
                Some(find::number(&mut connection, id).await.context(failed)?.context("no message has this id")?)
            }
            None => None,
        };
        let (since, until) = (self.since.map(at), self.until.map(at));
        let mut filter = SentFilter { topic: self.topic, lane: self.lane, since, until, id, ..SentFilter::default() };
        if !filter.find_claims(&mut connection).await.context(failed)? {
            bail!("the message was not sent: see `relay why`");
        }
        let kept = config.retention.sent;
        let plan = plan(&mut connection, &filter, kept, self.order.rate).await.context(failed)?;
        let job = match self.order.actor() {
            Some(actor) if plan.messages > 0 => Some(
                order(&mut connection, &plan, &filter, self.order.rate, &actor)
                    .await
                    .map_err(|error| refused(&error))?,
            ),
            _ => None,
        };
        let columns = ["id", "lane", "topic", "event_type", "sent_at", "message_id"];
        show(self.order.format, job, &plan, columns)?;
        Ok(true)
    }
}
