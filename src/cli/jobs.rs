//! `relay jobs` and `relay audit`.

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use super::{
    by::{By, refused},
    database,
    output::{self, Format},
};
use crate::{
    config::Config,
    operate::{
        audit::audit,
        jobs::{list, stop},
    },
};

/// The subcommands of `relay jobs`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Jobs {
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
    #[arg(long, default_value_t = 20)]
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

impl Jobs {
    /// Lists jobs, or stops one.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        if let Some(JobsCommand::Stop(StopJob { job, by })) = self.command {
            let actor = by.actor().context("give --because")?;
            if !stop(&mut connection, job, &actor).await.map_err(|error| refused(&error))? {
                bail!("job {job} has ended already, or there is none: see `relay jobs`");
            }
            output::note(&format!("Job {job} is stopped."))?;
            return Ok(true);
        }
        let ListJobs { limit, format } = self.list;
        let jobs = list(&mut connection, limit).await.context("the jobs cannot be read")?;
        let columns =
            ["job", "action", "state", "done", "planned", "ordered_at", "ended_at", "actor", "reason", "filter"];
        format.values(columns, &jobs)?;
        Ok(true)
    }
}

/// Which part.
#[derive(Debug, Args)]
pub(super) struct Audit {
    /// Only entries below this number
    #[arg(long, value_name = "ENTRY", default_value_t = u64::MAX, hide_default_value = true)]
    below: u64,
    /// Most entries to list, the newest first
    #[arg(long, default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    format: Format,
}

impl Audit {
    /// Lists the actions of operators.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect_to_read(config).await?;
        let entries = audit(&mut connection, self.below, self.limit).await.context("the audit cannot be read")?;
        let columns = ["entry", "at", "actor", "account", "via", "action", "job", "messages", "target", "reason"];
        self.format.values(columns, &entries)?;
        Ok(true)
    }
}
