//! Prints the plan of an order, and whether it was ordered.

use clap::{Args, value_parser};
use outbox_core::store::jobs::Actor;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    by::By,
    output::{self, Format, pick},
};

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
    pub(super) fn actor(&self) -> Option<Actor<'_>> {
        self.by.actor().filter(|_| self.yes)
    }
}

/// Prints a plan, with these columns of its samples.
pub(super) fn show<const N: usize>(
    format: Format,
    job: Option<u64>,
    plan: &impl Serialize,
    columns: [&str; N],
) -> anyhow::Result<()> {
    let plan = serde_json::to_value(plan)?;
    let is_empty = plan.get("messages").is_some_and(|messages| *messages == 0);
    if !format.json(&json!({"job": job, "plan": plan}))? {
        table(format, &plan, columns)?;
    }
    output::note(&match job {
        Some(job) => format!("Job {job} is ordered. Relays carry it out: relay jobs"),
        None if is_empty => "There is nothing to do.".to_owned(),
        None => "Nothing was changed. With --yes and --because it is ordered.".to_owned(),
    })?;
    Ok(())
}

fn table<const N: usize>(format: Format, plan: &Value, columns: [&str; N]) -> anyhow::Result<()> {
    let mut pairs = Vec::new();
    for (name, value) in plan.as_object().into_iter().flatten() {
        match value {
            Value::Null | Value::Array(_) => {}
            Value::Object(numbers) => {
                let label = |of: &String| format!("{}: {of}", name.replace('_', " "));
                pairs.extend(numbers.iter().map(|(of, number)| (label(of), number.clone())));
            }
            value => pairs.push((name.clone(), value.clone())),
        }
    }
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let samples = plan.get("samples").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if samples.is_empty() {
        return Ok(format.object(&pairs)?);
    }
    let rows: Vec<_> = samples.iter().map(|row| pick(row, columns)).collect();
    Ok(format.object_with_rows(&pairs, "samples", columns, &rows)?)
}
