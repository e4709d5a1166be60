//! A relay and the commands of operators whose sessions inherit the worst legal settings.

use anyhow::{Result, ensure};
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    ledger::Draft,
    on_both_databases,
    servers::{Flavor, MySqlOptions},
};

use crate::stage::{PATIENCE, Stage};

on_both_databases!(a_hostile_server_changes_no_order_and_no_answer);

/// The key `k` waits behind its dead message; the looks have many more rows than `sql_select_limit`, which is 0.
async fn a_hostile_server_changes_no_order_and_no_answer(flavor: Flavor) -> Result<()> {
    const BURY: &str = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, \
                        owner) \
        SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 1, 'rejected', 'test' FROM outbox_pending; \
        DELETE FROM outbox_pending";
    let server = MySqlOptions::new(flavor).buffer_pool_mib(128).hostile().start().await?;
    let mut stage = Stage::with(Database::create_on(&server.url()).await?, Topic::create(Broker::Kafka).await?)?;
    let topic = stage.topic.name().to_owned();
    let route = [("topics", &*topic), ("sink", "kafka"), ("topic", "{topic}"), ("after_dead", "block")];
    stage.settings = stage.settings.clone().first_route(route);
    let dead = stage.draft(0).key("k", 1);
    let held = stage.draft(0).key("k", 2);
    let other = |number: u64| stage.draft(0).key(format!("other {}", number % 10), 1 + number / 10);
    stage.commit(std::slice::from_ref(&dead)).await?;
    stage.database.execute(BURY).await?;
    let drafts: Vec<Draft> = (0..10).map(other).chain([held.clone()]).chain((10..50).map(other)).collect();
    stage.commit(&drafts).await?;
    let relay = stage.relay()?;
    let settled = "SELECT (SELECT COUNT(*) FROM outbox_sent_messages) = 50 AND (SELECT COUNT(*) \
                   FROM outbox_claims) = 0 \
                   AND (SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'behind') = 1";
    stage.database.wait_for(PATIENCE, settled).await?;
    stage.report().await?.assert_ok(&Expectations::new().at_least(52).dead([dead.id]).waiting([held.id]))?;
    let failed = relay.metrics().await?.sum("outbox_relay_db_errors_total");
    ensure!(failed < 0.5, "{failed} calls of the database failed\n{}", relay.log()?);

    let operator = stage.operator()?;
    let blocked = operator.json("keys blocked", &[]).await?;
    ensure!(blocked.as_array().map(Vec::len) == Some(1), "{blocked:#}");
    operator.json("dead retry --all", &["--yes", "--because", "the queue is bound"]).await?;
    stage.drain_and_judge(&Expectations::new().at_least(52)).await
}
