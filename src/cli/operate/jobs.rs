//! `relay jobs` and `relay audit`.

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use clap::{Args, Subcommand, value_parser};
use outbox_core::sqlx::MySqlConnection;
use outbox_relay::operate::{
    audit::audit,
    jobs::{list, stop},
};
use serde_json::{Value, json};

use super::{
    Answering, Operation, Role,
    by::{By, refused},
};
use crate::cli::output::{self, Format};

/// The subcommands of `relay jobs`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Jobs {
    #[command(subcommand)]
    command: Option<JobsCommand>,
    #[command(flatten)]
    list: ListJobs,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// Stop a job; what it has done stays done
    Stop(StopJob),
}

/// How many.
#[derive(Debug, Args)]
struct ListJobs {
    /// Most jobs to list, the newest first
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

/// Which one.
#[derive(Debug, Args)]
#[command(mut_arg("because", |because| because.required(true)))]
struct StopJob {
    /// Its number
    job: u64,
    #[command(flatten)]
    by: By,
}

#[async_trait]
impl Operation for Jobs {
    fn role(&self) -> Role {
        if self.command.is_some() { Role::Operator } else { Role::Viewer }
    }

    async fn answer(&self, db: &mut MySqlConnection, process: &Answering<'_>) -> anyhow::Result<Value> {
        if let Some(JobsCommand::Stop(StopJob { job, by })) = &self.command {
            let actor = by.actor(process).context("give --because")?;
            let is_stopped = stop(db, *job, &actor).await.map_err(|error| refused(&error))?;
            ensure!(is_stopped, "job {job} has ended already, or there is none: see `relay jobs`");
            return Ok(json!({"job": job}));
        }
        let jobs = list(db, self.list.limit).await.context("the jobs cannot be read")?;
        Ok(serde_json::to_value(jobs)?)
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        if let Some(JobsCommand::Stop(StopJob { job, .. })) = &self.command {
            output::note(&format!("Job {job} is stopped."))?;
            return Ok(());
        }
        let columns =
            ["job", "action", "state", "done", "planned", "ordered_at", "ended_at", "actor", "reason", "filter"];
        self.list.format.list(columns, answer)
    }
}

/// Which part.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Only entries below this number
    #[arg(long, value_name = "ENTRY", default_value_t = u64::MAX, hide_default_value = true)]
    below: u64,
    /// Most entries to list, the newest first
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

#[async_trait]
impl Operation for Audit {
    async fn answer(&self, db: &mut MySqlConnection, _: &Answering<'_>) -> anyhow::Result<Value> {
        let entries = audit(db, self.below, self.limit).await.context("the audit cannot be read")?;
        Ok(serde_json::to_value(entries)?)
    }

    fn show(&self, answer: &Value) -> anyhow::Result<()> {
        let columns = ["entry", "at", "actor", "account", "via", "action", "job", "messages", "target", "reason"];
        self.format.list(columns, answer)
    }
}
