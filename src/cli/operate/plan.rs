//! Prints the plan of an order, and whether it was ordered.

use clap::{Args, value_parser};
use outbox_core::store::operate::jobs::Actor;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Answering, Role, by::By};
use crate::cli::output::{self, Format};

/// The pace of an order, the consent, and the operator.
#[derive(Debug, Args)]
pub(super) struct Ordered {
    /// Most messages a second, for the sake of the broker
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=100_000))]
    pub(super) rate: u32,
    /// Order it; without this only the plan is shown
    #[arg(long, requires = "because")]
    yes: bool,
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    pub(super) format: Format,
}

impl Ordered {
    /// Returns the operator, if the order is to be given.
    pub(super) fn actor(&self, process: &Answering<'_>) -> Option<Actor<'_>> {
        self.by.actor(process).filter(|_| self.yes)
    }

    /// Returns the rights that it needs.
    pub(super) fn role(&self) -> Role {
        if self.yes { Role::Operator } else { Role::Viewer }
    }

    /// Prints the answer, with these columns of the samples.
    pub(super) fn show<const N: usize>(&self, answer: &Value, columns: [&str; N]) -> anyhow::Result<()> {
        let plan = answer.get("plan").unwrap_or(&Value::Null);
        if !self.format.json(answer)? {
            self.format.object_with_list(plan, "samples", columns)?;
        }
        let messages = plan.get("messages").and_then(Value::as_u64).unwrap_or_default();
        let shown = plan.get("samples").and_then(Value::as_array).map_or(0, Vec::len);
        let part = if messages > shown as u64 { format!("The first {shown} are shown. ") } else { String::new() };
        output::note(&match answer.get("job") {
            Some(Value::Number(job)) => format!("Job {job} is ordered. Relays carry it out: relay jobs"),
            _ if messages == 0 => "There is nothing to do.".to_owned(),
            _ => format!("{part}Nothing was changed. With --yes and --because it is ordered."),
        })?;
        Ok(())
    }
}

/// Returns the answer: the plan, and the number of the job if it was ordered.
pub(super) fn answer(plan: &impl Serialize, job: Option<u64>) -> anyhow::Result<Value> {
    Ok(json!({"job": job, "plan": serde_json::to_value(plan)?}))
}
