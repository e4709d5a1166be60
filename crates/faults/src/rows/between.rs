//! The common parts of rows with a proxy.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    proxy::{Counts, Proxy},
    relay::Relay,
    servers::until,
};

use crate::{
    arena::{Arena, PATIENCE},
    ground::BrokerServer,
};

/// Connections that a relay keeps to its database: two readers, each with one that tells whether the database answers,
/// two settlers, a claimer, and one for each of its nine loops.
pub(super) const SESSIONS: u64 = 16;

/// Puts a proxy between the relays and their database.
pub(super) async fn before_the_database(arena: &mut Arena) -> Result<Arc<Proxy>> {
    let proxy = Proxy::start(&arena.database.url_as(arena.account)?).await?;
    arena.settings = arena.settings.clone().set("database", "url", proxy.address());
    Ok(keep(arena, proxy))
}

/// Puts a proxy between the producers and their database.
pub(super) async fn before_the_producers(arena: &mut Arena) -> Result<Arc<Proxy>> {
    let proxy = Proxy::start(&arena.database.url_as(Account::Service)?).await?;
    arena.producers = Database::at(proxy.address());
    Ok(keep(arena, proxy))
}

/// Puts a proxy between the relays and their broker.
pub(super) async fn before_the_broker(arena: &mut Arena) -> Result<Arc<Proxy>> {
    let proxy = match (arena.topic.broker(), &arena.ground.broker) {
        (Broker::Kafka, Some(BrokerServer::Kafka(server))) => server.proxy().await?,
        (Broker::Kafka, _) => return Err(anyhow::anyhow!("a Kafka behind a proxy must be the case's own")),
        (Broker::RabbitMq, _) => Proxy::start(arena.topic.address()).await?,
    };
    arena.settings = match arena.topic.broker() {
        Broker::Kafka => arena.settings.clone().kafka(proxy.address()),
        Broker::RabbitMq => arena.settings.clone().rabbitmq(proxy.address()),
    };
    Ok(keep(arena, proxy))
}

/// Keeps a proxy until the end of the run.
pub(super) fn keep(arena: &mut Arena, proxy: Proxy) -> Arc<Proxy> {
    let proxy = Arc::new(proxy);
    arena.proxies.push(Arc::clone(&proxy));
    proxy
}

/// Waits until the proxy's counts are as wanted.
pub(super) async fn counted(proxy: &Proxy, what: &str, wanted: impl Fn(Counts) -> bool) -> Result<()> {
    until(PATIENCE, what, || async {
        ensure!(wanted(proxy.counts()), "{:?}", proxy.counts());
        Ok(())
    })
    .await
}

/// Waits until all relays together have published this number of further messages.
pub(super) async fn progress(arena: &Arena, more: f64) -> Result<()> {
    let published = || arena.metric("outbox_relay_published_messages_total", "");
    let before = published().await;
    until(PATIENCE, "work", || async {
        let now = published().await;
        ensure!(now >= before + more, "{} more messages, {more} due", now - before);
        Ok(())
    })
    .await
    .with_context(|| arena.relays.iter().filter_map(|relay| relay.log().ok()).collect::<Vec<_>>().join("\n\n"))
}

/// Waits until `/readyz` of every relay is as wanted; returns how long that took.
pub(super) async fn readiness(arena: &Arena, what: &str, wanted: impl Fn(u16, &str) -> bool) -> Result<Duration> {
    let start = Instant::now();
    for relay in &arena.relays {
        until(PATIENCE, what, || async {
            let (status, body) = relay.get("/readyz").await?;
            ensure!(wanted(status, &body), "{status} {body}");
            Ok(())
        })
        .await?;
    }
    Ok(start.elapsed())
}

/// Waits until every relay is ready again, with all its sinks, and notes how long that took.
pub(super) async fn recovery(arena: &mut Arena, bound: Duration) -> Result<()> {
    let took = readiness(arena, "readiness", |status, body| status == 200 && body.starts_with("ok\n")).await?;
    arena.counts.recovered(took);
    arena.within("readiness", took, bound);
    Ok(())
}

/// Checks that every relay lives: failures elsewhere are no reason for a restart.
pub(super) async fn alive(arena: &Arena) -> Result<()> {
    for relay in &arena.relays {
        let (status, body) = relay.get("/livez").await?;
        ensure!(status == 200, "{status} {body}");
    }
    Ok(())
}

/// Checks that no relay's log contains this text.
pub(super) fn never_said(relays: &[Relay], text: &str) -> Result<()> {
    for relay in relays {
        let log = relay.log()?;
        ensure!(!log.contains(text), "{text}:\n{log}");
    }
    Ok(())
}
