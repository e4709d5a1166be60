//! Messages that are due later, or have expired.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::{on_both_databases, servers::Flavor};

use crate::stage::{Does, PATIENCE, Stage, start, task};

on_both_databases!(a_delayed_message_is_worked_on_when_it_is_due_and_an_expired_one_never);

async fn a_delayed_message_is_worked_on_when_it_is_due_and_an_expired_one_never(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let later = task("a", "ok").with(|message| message.delay(Duration::from_secs(1)));
    let late = task("b", "ok").with(|message| message.expires_after(Duration::from_millis(1)));
    let soon = task("c", "ok");
    stage.commit(&[later.clone(), late, soon.clone()]).await?;
    let expired = "SELECT COUNT(*) FROM outbox_messages WHERE expires_at <= UTC_TIMESTAMP(6)";
    stage.database.wait_for(PATIENCE, expired).await?;
    let worker = start(stage.worker(), &Does::new(&stage))?;
    stage.wait_until_drained().await?;
    worker.stop().await?;
    stage.assert_done_once(&[soon, later]).await?;
    let early = "SELECT COUNT(*) FROM outbox_sent_messages JOIN outbox_messages USING (id) \
                 WHERE message_key = 'a' AND sent_at < created_at + INTERVAL 1 SECOND";
    ensure!(stage.database.number(early).await? == 0, "the delayed message was worked on too early");
    let dead = "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'expired'";
    ensure!(stage.database.number(dead).await? == 1, "the expired message is not dead");
    Ok(())
}
