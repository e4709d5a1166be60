//! The queues of keys: one busy or blocked key holds up no other, and its messages go on by themselves, in order.

use anyhow::{Result, ensure};
use testkit::{
    consume::Broker,
    judge::Expectations,
    ledger::Draft,
    load::{self, Load},
    servers::{Flavor, until},
};

use crate::stage::{PATIENCE, Stage};

/// 18 claims of 1,000. 12 may be in flight, so without queues 7,000 of these messages would be sent before the others
/// are claimed: at most 11,000 would be left.
const BUSY: u64 = 18_000;
const UNSENT: &str = "SELECT (SELECT COUNT(*) FROM outbox_pending) + (SELECT COUNT(*) FROM outbox_delayed)";

async fn busy_key(stage: &Stage, messages: u64) -> Result<()> {
    let drafts: Vec<Draft> = (1..=messages).map(|n| stage.draft(0).key("busy", n)).collect();
    for chunk in drafts.chunks(2_000) {
        load::commit(&stage.database, &stage.ledger, chunk, |message| message).await?;
    }
    Ok(())
}

/// RabbitMQ takes the messages of a key one by one.
#[tokio::test]
async fn a_busy_key_holds_up_no_other_and_goes_on_after_its_relay_is_killed() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?;
    stage.settings = stage.settings.set("relay", "claim_messages", 1_000);
    busy_key(&stage, BUSY).await?;
    let relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) >= 500 FROM outbox_sent_messages").await?;
    let others: Vec<Draft> = (0..200).map(|n| stage.draft(0).key(format!("other-{n}"), 1)).collect();
    stage.commit(&others).await?;
    let through =
        "SELECT COUNT(*) = 200 FROM outbox_sent_messages WHERE id > (SELECT MAX(id) - 200 FROM outbox_messages)";
    stage.database.wait_for(PATIENCE, through).await?;
    let left = stage.database.number(UNSENT).await?;
    ensure!(left > 11_000, "only {left} messages of the busy key were left when the others were through");
    let _other = stage.relay()?;
    relay.kill()?;
    stage.drain_and_judge(&Expectations::new().at_least(18_200).duplicates(2_000)).await
}

/// Rows of the key fill looks until all of them have moved into its queue. Other keys do not wait for that. Small looks
/// move few rows: they take far longer than it takes to publish and settle the others.
#[tokio::test]
async fn messages_of_other_keys_go_while_those_of_a_busy_key_still_move() -> Result<()> {
    for flavor in [Flavor::MySql, Flavor::MariaDb] {
        let mut stage = Stage::new(flavor, Broker::RabbitMq).await?;
        stage.settings = stage.settings.set("relay", "claim_messages", 20);
        busy_key(&stage, 12_000).await?;
        let others: Vec<Draft> = (0..20).map(|n| stage.draft(0).key(format!("other-{n}"), 1)).collect();
        stage.commit(&others).await?;
        let last = "id > (SELECT MAX(id) - 20 FROM outbox_messages)";
        let relay = stage.relay()?;
        let pending = format!(
            "SELECT IF(COUNT(*) = 20, (SELECT COUNT(*) + 1 FROM outbox_pending), 0) FROM outbox_sent_messages \
             WHERE {last}"
        );
        let pending = until(PATIENCE, "the other keys", || async {
            let pending = stage.database.number(&pending).await?;
            ensure!(pending > 0, "they wait");
            Ok(pending)
        })
        .await?;
        ensure!(pending > 6_000, "only {pending} rows of the busy key were pending when the others were through");
        relay.kill()?;
    }
    Ok(())
}

/// The operator releases the key, and does nothing else.
#[tokio::test]
async fn a_queue_that_nothing_holds_back_any_more_goes_on_by_itself() -> Result<()> {
    let mut stage = Stage::new(Flavor::MariaDb, Broker::Kafka).await?.patient();
    let drafts: Vec<Draft> = (1..=5_000).map(|n| stage.draft(0).key("blocked", n)).collect();
    stage.commit(&drafts).await?;
    let bury = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, owner) \
                SELECT lane, 0, key_hash, 0, 1, UTC_TIMESTAMP(6), 1, 'rejected', 'test' FROM outbox_pending LIMIT 1";
    stage.database.execute(bury).await?;
    let _relay = stage.relay()?;
    let queued = "SELECT COUNT(*) = 5000 FROM outbox_delayed WHERE reason = 'behind' AND due_at = '9999-12-31'";
    stage.database.wait_for(PATIENCE, queued).await?;
    Load::new(stage.topic.name()).transactions(100).run(&stage.database, &stage.ledger).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_pending").await?;
    ensure!(stage.database.number(UNSENT).await? == 5_000, "the queue has changed");
    stage.database.execute("DELETE FROM outbox_dead WHERE id = 0").await?;
    stage.drain_and_judge(&Expectations::new().at_least(5_100)).await
}

/// A look sees a hundred keys, of which few or many are held back.
#[tokio::test]
async fn held_keys_wait_among_many_others() -> Result<()> {
    for (held, flavor) in [(2, Flavor::MySql), (30, Flavor::MySql), (2, Flavor::MariaDb)] {
        let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
        let drafts: Vec<Draft> = (0..100).map(|n| stage.draft(0).key(format!("k{n}"), 1)).collect();
        let followers: Vec<Draft> = (0..100).map(|n| stage.draft(0).key(format!("k{n}"), 2)).collect();
        stage.commit(&drafts).await?;
        for (table, remainder) in [("dead", 0), ("delayed", 1)] {
            stage.database.execute(&hold(table, remainder, held)).await?;
        }
        stage.commit(&followers).await?;
        let _relay = stage.relay()?;
        stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_pending").await?;
        let behind = stage.database.number("SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'behind'").await?;
        ensure!(behind == held, "{behind} and not {held} messages wait behind held ones");
        let back = "INSERT INTO outbox_pending (lane, id, key_hash, bytes) SELECT lane, id, key_hash, bytes \
                    FROM outbox_dead; \
                    DELETE FROM outbox_dead; UPDATE outbox_delayed SET due_at = UTC_TIMESTAMP(6) \
                    WHERE reason = 'unroutable'; \
                    UPDATE outbox_head SET version = version + 1, low = 0";
        stage.database.execute(back).await?;
        stage.drain_and_judge(&Expectations::new().at_least(200)).await?;
    }
    Ok(())
}

/// Moves half of the first messages to a table in which they hold their keys.
fn hold(table: &str, remainder: u64, held: i64) -> String {
    let columns = match table {
        "dead" => {
            "attempts, died_at, holds_key, reason, owner) \
             SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 1, 'rejected', 'test'"
        }
        _ => {
            "due_at, holds_key, reason) SELECT lane, id, key_hash, bytes, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 1, \
             'unroutable'"
        }
    };
    let chosen = format!("id <= {held} AND id % 2 = {remainder}");
    format!(
        "INSERT INTO outbox_{table} (lane, id, key_hash, bytes, {columns} FROM outbox_pending WHERE {chosen}; \
         DELETE FROM outbox_pending WHERE {chosen}"
    )
}
