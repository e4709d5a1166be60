//! A worker that has lost its lease commits nothing.

use anyhow::Result;
use testkit::{on_both_databases, servers::Flavor};

use crate::stage::{Does, Stage, start, task};

on_both_databases!(a_lost_lease_refuses_the_commit);

/// The claim vanishes during the work on its message, as in a take-over: the work of that time must not stay.
async fn a_lost_lease_refuses_the_commit(flavor: Flavor) -> Result<()> {
    for batch in [1, 3] {
        let stage = Stage::new(flavor).await?;
        let sent = [task("a", "stolen"), task("a", "ok")];
        stage.commit(&sent).await?;
        let does = Does::new(&stage);
        let worker = start(stage.worker().batch(batch), &does)?;
        stage.wait_until_drained().await?;
        let lost = worker.stop().await?.leases_lost_total.get();
        assert_eq!((does.tries(&sent[0]), lost), (2, 1));
        stage.assert_done_once(&sent).await?;
    }
    Ok(())
}
