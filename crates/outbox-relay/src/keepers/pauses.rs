//! Reads the pauses of operators, and the number of their newest job.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_core::{sqlx, store::operate::controls};

use crate::state::{context::Context, controls::PauseTarget, session::Session};

/// Pause between two looks for pauses. With the time of a look it is below the second within which a pause holds.
const PAUSES: Duration = Duration::from_millis(500);

/// Follows pauses until the relay is stopped. Nothing else is done here: a call that waits for a lock would delay a
/// pause.
pub(crate) async fn run(context: Arc<Context>) {
    let mut session = Session::new(&context);
    let mut pause = Duration::ZERO;
    while context.sleep(pause).await {
        if read_pauses(&context, &mut session).await.is_err() {
            session.pause().await;
        }
        context.alive("pauses");
        pause = PAUSES;
    }
}

/// Reads the pauses. Before the first read that succeeds, no lane runs: a refusal does not mean that there is no pause.
/// Messages in flight are finished.
async fn read_pauses(context: &Context, session: &mut Session) -> Result<(), sqlx::Error> {
    let (rows, newest) = session.run("controls", async |db| controls::orders(db).await).await?;
    context.controls.set_newest_job(newest);
    let (begun, ended) = context.controls.set(&rows, Instant::now());
    for (targets, is_paused) in [(begun, true), (ended, false)] {
        for (kind, name) in targets.iter().map(PauseTarget::names) {
            tracing::warn!(kind, name, "{}", if is_paused { "paused by an operator" } else { "not paused any more" });
            context.metrics.paused.with_label_values(&[kind, name.as_str()]).set(i64::from(is_paused));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use outbox_core::store::operate::jobs::{self, Actor, NewJob};
    use testkit::{database::Database, on_both_databases, servers::Flavor};

    use super::*;

    on_both_databases!(
        pauses_and_the_newest_job_reach_the_relay,
        a_relay_whose_first_read_of_the_pauses_is_refused_does_not_know_them,
    );

    async fn a_relay_whose_first_read_of_the_pauses_is_refused_does_not_know_them(
        flavor: Flavor,
    ) -> anyhow::Result<()> {
        let database = Database::create(flavor).await?;
        // The server refuses the login: 1045.
        let (scheme, rest) = database.url().split_once("://").context("no scheme")?;
        let (_, address) = rest.split_once('@').context("no account")?;
        let context = Context::with_database(&format!("{scheme}://outbox_relay:wrong@{address}"));
        let refused = read_pauses(&context, &mut Session::new(&context)).await;
        assert!(refused.is_err_and(|error| error.as_database_error().is_some()));
        assert!(!context.controls.are_known(), "its lanes run");
        Ok(())
    }

    async fn pauses_and_the_newest_job_reach_the_relay(flavor: Flavor) -> anyhow::Result<()> {
        let database = Database::create(flavor).await?;
        let mut db = database.connect().await?;
        let actor = Actor { name: "alice", via: "test", reason: "x" };
        let order = NewJob { action: "hurry", filter: "{}", per_second: 1, messages: 0 };
        let job = jobs::order(&mut db, &order, &actor).await?;
        controls::pause(&mut db, ("lane", "3"), None, &actor).await?;
        let context = Context::with_database(database.url());
        let now = Instant::now();
        assert!(!context.controls.are_known() && !context.controls.are_fresh(now));
        read_pauses(&context, &mut Session::new(&context)).await?;
        assert_eq!(context.controls.newest_job(), job);
        assert!(context.controls.are_known() && context.controls.are_fresh(now));
        assert_eq!(context.metrics.paused.with_label_values(&["lane", "3"]).get(), 1);
        Ok(())
    }
}
