//! `relay recover`.

use anyhow::{anyhow, bail};
use clap::{Args, value_parser};
use outbox_core::{
    check_schema,
    sqlx::{self, MySqlConnection},
    store::{
        error_number,
        schema::recover::{self, Holder, RecoverPlan},
    },
};
use outbox_relay::state::session::describe;
use serde_json::Value;

use super::{
    database,
    output::{self, Format},
};
use crate::config::Config;

/// The server's number for "lock wait time-out exceeded".
const LOCK_WAIT: u16 = 1205;

/// How to recover.
#[derive(Debug, Args)]
pub(super) struct Recover {
    /// By how much counters are raised: more than was given out since the snapshot
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=1_000_000_000_000))]
    margin: u64,
    /// Do it; without this only the plan is shown
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    format: Format,
}

impl Recover {
    /// Shows the plan. Carries it out if that is wanted and no process is in the way.
    pub(super) async fn run(self, config: &Config) -> anyhow::Result<bool> {
        let mut connection = database::connect(config).await?;
        database::within(&mut connection, async |db| Ok(check_schema(db).await?)).await?;
        let plan = async |db: &mut MySqlConnection| recover::plan(db).await.map_err(|error| failed(&error));
        let plan = database::within(&mut connection, plan).await?;
        self.show(&plan)?;
        database::within(&mut connection, refuse_beside_others).await?;
        if self.yes {
            recover::recover(&mut connection, &plan, self.margin).await.map_err(|error| failed(&error))?;
            output::note(&format!("Epoch {} has begun. Start relays, workers and services.", plan.new_epoch))?;
        } else {
            output::note("Nothing was changed. With --yes the counters are raised and the epoch begins.")?;
        }
        Ok(true)
    }

    fn show(&self, plan: &RecoverPlan) -> anyhow::Result<()> {
        let raised = |number: u64| Value::from(number.saturating_add(self.margin));
        let fence = plan.highest_fence.saturating_add(self.margin).max(plan.lowest_fence());
        let oldest = plan.unsent.iter().map(|unsent| unsent.oldest.as_str()).min();
        let pairs = [
            ("epoch", plan.epoch.into()),
            ("new_epoch", plan.new_epoch.into()),
            ("margin", self.margin.into()),
            ("next_message_id", plan.next_message.into()),
            ("new_next_message_id", raised(plan.next_message)),
            ("next_claim_id", plan.next_claim.into()),
            ("new_next_claim_id", raised(plan.next_claim)),
            ("next_receipt_id", plan.next_receipt.into()),
            ("new_next_receipt_id", raised(plan.next_receipt)),
            ("sequenced_keys", plan.keys.into()),
            ("highest_number", plan.highest_number.into()),
            ("new_highest_number", raised(plan.highest_number)),
            ("named_leases", plan.leases.into()),
            ("highest_fence", plan.highest_fence.into()),
            ("new_highest_fence", fence.into()),
            ("unsent_messages", plan.unsent().into()),
            ("oldest_unsent", oldest.into()),
        ];
        let row = |unsent: &recover::Unsent| {
            [unsent.lane.into(), unsent.topic.as_str().into(), unsent.messages.into(), unsent.oldest.as_str().into()]
        };
        let rows: Vec<[Value; 4]> = plan.unsent.iter().map(row).collect();
        Ok(self.format.object_with_rows(&pairs, "unsent", ["lane", "topic", "messages", "oldest"], &rows)?)
    }
}

/// Refuses beside a running process, which would give numbers out while they are raised.
async fn refuse_beside_others(connection: &mut MySqlConnection) -> anyhow::Result<()> {
    let Some(Holder { owner, lease, seconds }) = recover::holder(connection).await.map_err(|error| failed(&error))?
    else {
        return Ok(());
    };
    let held = lease.map_or_else(|| "messages".to_owned(), |name| format!("the lease `{name}`"));
    bail!(
        "`{owner}` holds {held} for {seconds} s more: stop all relays, workers and services, wait until what they held \
         has ended, and run this again"
    )
}

fn failed(error: &sqlx::Error) -> anyhow::Error {
    let remedy = match error_number(error) {
        Some(LOCK_WAIT) => "a transaction is open on the tables: stop the services, and run this again",
        _ => "the recovery has stopped, and can be run again",
    };
    anyhow!("{remedy}: {}", describe(error))
}
