//! A lane belongs to workers or to relays.

use std::sync::Arc;

use anyhow::{Result, ensure};
use mysql_outbox::config::{self, Inputs, Route};
use outbox_core::{Message, Outbox};
use outbox_relay::{
    observe::{health::Health, metrics::Metrics},
    run::Relay,
    sink::{Feed, null::Null},
    worker::{RunError, Worker},
};
use testkit::{accounts::Account, on_both_databases, servers::Flavor};
use tokio_util::sync::CancellationToken;

use crate::stage::{Does, PATIENCE, Stage, start, tasks};

on_both_databases!(a_relay_of_all_lanes_leaves_a_workers_lane_alone, a_worker_does_not_start_on_a_lane_of_relays);

/// Starts a relay that serves all lanes.
fn relay(stage: &Stage) -> Result<CancellationToken> {
    let mut inputs = Inputs::default();
    inputs.variables = vec![("RELAY__DATABASE__URL".to_owned(), stage.database.url_as(Account::Relay)?)];
    let mut config = config::load_for_database(&inputs)?.config;
    (config.routes, config.http.listen) = (vec![Route::new("*", "null")], None);
    let metrics = Metrics::new()?;
    let stop = CancellationToken::new();
    let health = Health::new(Arc::clone(&metrics));
    let relay = Relay::with_sinks(config, vec![Feed::new("null", Arc::new(Null), 4, 100)], metrics, health)?;
    tokio::spawn(relay.run(stop.clone().cancelled_owned()));
    Ok(stop)
}

async fn commit(stage: &Stage, lane: u16) -> Result<()> {
    let mut tx = stage.pool.begin().await?;
    Outbox::new().enqueue(&mut tx, Message::new("orders", "ok").lane(lane)).await?;
    Ok(tx.commit().await?)
}

async fn a_relay_of_all_lanes_leaves_a_workers_lane_alone(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker(), &does)?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_head WHERE kind = 'worker'").await?;
    worker.stop().await?;
    // No worker runs while these messages come.
    let sent = tasks(20, 4, "ok");
    stage.commit(&sent).await?;
    let relay = relay(&stage)?;
    for lane in [0, 9] {
        commit(&stage, lane).await?;
    }
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 2 FROM outbox_sent_messages").await?;
    let kinds = "SELECT GROUP_CONCAT(lane, kind ORDER BY lane) = '0relay,7worker,9relay' FROM outbox_head";
    ensure!(stage.database.number(kinds).await? == 1, "the kinds of the lanes are wrong");
    let worker = start(stage.worker(), &does)?;
    stage.wait_until_drained().await?;
    worker.stop().await?;
    relay.cancel();
    stage.assert_done_once(&sent).await
}

async fn a_worker_does_not_start_on_a_lane_of_relays(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    commit(&stage, 3).await?;
    let relay = relay(&stage)?;
    stage.wait_until_drained().await?;
    relay.cancel();
    let handler = outbox_relay::worker::handler_fn(|_, _| Box::pin(async { Ok(()) }));
    let run = Worker::new(stage.pool.connect_options(), 3).run(handler, std::future::pending());
    let ended = tokio::time::timeout(PATIENCE, run).await?;
    let refused = |error: &RunError| error.to_string().contains("lane 3 belongs to relays");
    ensure!(matches!(&ended, Err(error @ RunError::Configuration(_)) if refused(error)), "{ended:?}");
    Ok(())
}
