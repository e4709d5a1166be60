//! The commands of operators. Each is a question or an order with an answer as JSON, so that the command line and
//! `relay api` give the same one.

mod by;
mod controls;
mod inbox;
mod jobs;
mod keys;
mod messages;
mod moment;
mod plan;
mod purge;
mod replay;
mod status;
mod unsent;
mod why;

use std::time::Duration;

use anyhow::anyhow;
use async_trait::async_trait;
use clap::{
    Subcommand,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use outbox_core::sqlx::{self, MySqlConnection};
use outbox_relay::state::session::describe;
use serde_json::Value;

use super::{
    Arguments,
    api::client::{ApiClient, Request},
    database,
};
use crate::config::{Config, ConfigError, Problem};
pub(crate) use outbox_relay::settings::Role;

/// A word of an argument, its help, and its meaning.
pub(crate) type Word<T> = (&'static str, &'static str, T);

/// Returns a parser of one of these words.
fn words<T: Copy + Send + Sync>(words: &'static [Word<T>]) -> impl TypedValueParser<Value = T> {
    let shown = words.iter().map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(shown).try_map(|given| {
        let found = words.iter().find(|(word, ..)| *word == given);
        found.map(|(_, _, meaning)| *meaning).ok_or("unknown")
    })
}

/// The process that answers.
pub(crate) struct Answering<'a> {
    /// The program, for the audit: `cli` or `api`.
    pub(crate) via: &'static str,
    /// Its configuration.
    pub(crate) config: &'a Config,
}

/// A question or an order.
#[async_trait]
pub(crate) trait Operation: Sync {
    /// Returns the rights that it needs. Whatever needs more than a viewer's changes something.
    fn role(&self) -> Role {
        Role::Viewer
    }

    /// Returns what is wrong with its arguments, if they do not fit together.
    fn problem(&self) -> Option<Problem> {
        None
    }

    /// Answers the question, or gives the order. The names in the answer are stable.
    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value>;

    /// Prints the answer.
    fn show(&self, answer: &Value) -> anyhow::Result<()>;

    /// Returns the pause until it is asked again; `None`: it is asked once.
    fn repeats(&self) -> Option<Duration> {
        None
    }
}

/// The commands of operators.
#[derive(Debug, Subcommand)]
pub(crate) enum Operate {
    /// Count the messages in the queue, and tell the state of each lane in one sentence
    Status(status::Status),
    /// Say why a message is not sent, or where it went
    Why(why::WhyMessage),
    /// List messages of all states, or show one
    #[command(subcommand)]
    Messages(messages::Messages),
    /// List dead messages, and retry, release or discard them
    #[command(subcommand)]
    Dead(unsent::DeadCommand),
    /// List messages that wait for a time or their key, and publish them now
    #[command(subcommand)]
    Delayed(unsent::DelayedCommand),
    /// List messages that are due and not sent
    #[command(subcommand)]
    Pending(unsent::PendingCommand),
    /// Send sent messages again, such as for a consumer that has lost its data
    Replay(replay::Replay),
    /// List the keys whose messages wait, or the messages of one
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// List the consumers of the inbox in this database, or their outcomes of a message
    #[command(subcommand)]
    Inbox(inbox::InboxCommand),
    /// Count the rows that the purge would delete now, and tell which relay purges
    Purge(purge::Purge),
    /// List the running relays and workers, with their lanes, sinks and messages in flight
    Instances(controls::Instances),
    /// Stop publishing of a lane, sink, destination or relay for a while
    Pause(controls::PauseCommand),
    /// End a pause
    Resume(controls::Resume),
    /// List the pauses
    Controls(controls::ControlsCommand),
    /// List the jobs that operators ordered, with their progress, or stop one
    Jobs(jobs::Jobs),
    /// List the actions of operators, with their reasons
    Audit(jobs::Audit),
}

impl Operate {
    /// Returns the operation of the command.
    pub(crate) fn operation(&self) -> &dyn Operation {
        match self {
            Self::Status(it) => it,
            Self::Why(it) => it,
            Self::Messages(it) => it,
            Self::Dead(it) => it,
            Self::Delayed(it) => it,
            Self::Pending(it) => it,
            Self::Replay(it) => it,
            Self::Keys(it) => it,
            Self::Inbox(it) => it,
            Self::Purge(it) => it,
            Self::Instances(it) => it,
            Self::Pause(it) => it,
            Self::Resume(it) => it,
            Self::Controls(it) => it,
            Self::Jobs(it) => it,
            Self::Audit(it) => it,
        }
    }

    /// Asks the database, or the process at `--via`, and prints the answer.
    pub(super) async fn run(&self, options: &Arguments, request: &Request) -> anyhow::Result<bool> {
        let operation = self.operation();
        if let Some(problem) = operation.problem() {
            return Err(ConfigError(vec![problem]).into());
        }
        let mut source = match options.client()? {
            Some(client) => AnswerSource::Api(client),
            None => {
                let config = options.database()?;
                AnswerSource::Database(database::connect_to_read(&config).await?, Box::new(config))
            }
        };
        loop {
            let answer = match &mut source {
                AnswerSource::Api(client) => client.ask(request).await?,
                AnswerSource::Database(db, config) => {
                    let process = Answering { via: "cli", config };
                    let answer = database::within(db, async |db| operation.answer(db, &process).await).await;
                    answer.map_err(|error| told(&error))?
                }
            };
            operation.show(&answer)?;
            let Some(pause) = operation.repeats() else { return Ok(true) };
            tokio::time::sleep(pause).await;
        }
    }
}

/// Tells an error of the database with its remedy.
pub(super) fn told(error: &anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<sqlx::Error>() {
        Some(cause) => anyhow!("{error}: {}", describe(cause)),
        None => anyhow!("{error:#}"),
    }
}

/// The source of the answers.
enum AnswerSource {
    Database(MySqlConnection, Box<Config>),
    Api(ApiClient),
}
