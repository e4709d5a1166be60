//! A key has one transaction at a time, and holds up no other.

use anyhow::Result;
use testkit::{on_both_databases, servers::Flavor};

use crate::stage::{Does, PATIENCE, Stage, Task, start, task, tasks};

on_both_databases!(a_key_at_work_holds_up_no_other);

async fn a_key_at_work_holds_up_no_other(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    // Far more messages of `a` and `key 0` than fit into a claim are in front of the others, and of `a` more than a
    // look sees.
    let first = [task("a", "wait")];
    let behind: Vec<Task> = (0..1_000).map(|_| task("a", "ok")).collect();
    let others = [tasks(200, 1, "ok"), vec![task("b", "ok"), task("c", "ok")]].concat();
    let all = [first.as_slice(), behind.as_slice(), others.as_slice()].concat();
    stage.commit(&all).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker().concurrency(3), &does)?;
    does.wait_for_waiting(1).await?;
    let rest = "SELECT COUNT(DISTINCT message_key) = 3 FROM outbox_messages JOIN test_effects USING (message_id)";
    // The keys `b`, `c` and `key 0`; nothing of `a` is committed.
    stage.database.wait_for(PATIENCE, rest).await?;
    does.gate.close();
    stage.wait_until_drained().await?;
    worker.stop().await?;
    stage.assert_done_once(&all).await
}
