//! A small shop on the outbox: an order service, two relays of which one is killed, and a consumer with an inbox on
//! each broker. Ends with a ledger; exit status 1 if it does not add up.
//!
//! A service's own code is in `orders.rs` (`place`: an order and its messages in one transaction) and in
//! `consumers.rs` (`Clerk`: a message and its effect in one transaction). The rest is the show around them, and the
//! tests' judge.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

mod consumers;
mod events;
mod history;
mod ledger;
mod lines;
mod options;
mod orders;
mod relays;
mod screen;
mod shop;
mod show;
mod sight;
mod style;
mod tables;
mod tally;

use std::{process::ExitCode, sync::Arc};

use anyhow::{Result, bail};
use clap::Parser as _;
use testkit::servers::{Alertmanager, Prometheus, serve};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    consumers::Role,
    ledger::Ledger,
    options::{Options, place, relay_settings},
    relays::Relays,
    shop::{CONNECTIONS, Shop},
    tally::Intake,
};

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let quit = CancellationToken::new();
    let ended = tokio::select! {
        ended = demo(&options, &quit) => ended,
        ended = signals(&quit) => ended,
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The first Ctrl-C or SIGTERM ends the orders; what was ordered is still delivered. The second ends it all.
async fn signals(quit: &CancellationToken) -> Result<bool> {
    let [mut interrupt, mut terminate, mut hangup] =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    for _ in 0..2 {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hangup.recv() => {} }
        if quit.is_cancelled() {
            break;
        }
        quit.cancel();
    }
    bail!("interrupted")
}

/// Starts Prometheus, which reads the relays and the consumers, and Alertmanager.
async fn observe(relays: &Relays, intakes: &[Arc<Intake>]) -> Result<(Prometheus, Option<Alertmanager>)> {
    let ports: Vec<_> = relays.ports().into_iter().map(|(_, port)| port).collect();
    let mut pages = Vec::new();
    for intake in intakes {
        pages.push(serve(intake.registry.clone()).await?);
    }
    let prometheus = Prometheus::start(&[("outbox", &ports), ("consumers", &pages)]).await?;
    let alertmanager = Alertmanager::start().await;
    match &alertmanager {
        Ok(alertmanager) => prometheus.alert_to(alertmanager)?,
        Err(error) => println!("without Alertmanager: {error:#}"),
    }
    Ok((prometheus, alertmanager.ok()))
}

async fn demo(options: &Options, quit: &CancellationToken) -> Result<bool> {
    let topics = options.topics().await?;
    let name = format!("outbox_demo_{:08x}", rand::random::<u32>());
    let database = tables::Database::create(&options.mysql, &name).await?;
    let settings = relay_settings(&database.for_relays(), &topics);
    let operator = relay_settings(&database.for_operator(), &topics);
    let mut relays = Relays::start(options.relay.as_deref(), &settings, &operator).await?;
    let console = format!("console: {}", relays.console());
    println!("{console}");
    let intakes = topics.iter().map(|topic| Ok(Arc::new(Intake::new(Role::at(topic.broker()))?)));
    let intakes: Vec<_> = intakes.collect::<Result<_>>()?;
    let observers = if options.observe { Some(observe(&relays, &intakes).await?) } else { None };
    let mut observed = Vec::new();
    if let Some((prometheus, alertmanager)) = &observers {
        observed.push(format!("alerts: {0}/alerts, targets: {0}/targets", prometheus.url()));
        observed.extend(alertmanager.iter().map(|it| format!("notified alerts: {}/api/v2/alerts", it.url())));
    }
    for line in &observed {
        println!("{line}");
    }
    let pool = database.open(CONNECTIONS).await?;
    let total = options.total();
    let shop = Shop { pool, topics, intakes, board: Arc::default(), rate: options.rate, total };
    let ledger = Box::pin(play(options, &shop, &mut relays, quit)).await?;
    println!("\n{ledger}");
    if options.keep || options.observe {
        let topics = shop.topics.iter().map(|topic| place(&format!("topic {}", topic.name()), topic.address()));
        let place_of_database = place(&format!("database {name}"), &options.mysql);
        let operator = format!("for an operator: RELAY__DATABASE__URL='{}' relay status", database.for_operator());
        keep(topics.chain([place_of_database, operator, console]).chain(observed).collect(), &mut relays).await?;
    }
    relays.stop().await?;
    for topic in shop.topics {
        topic.remove().await?;
    }
    let adds_up = ledger.adds_up().is_ok();
    if adds_up {
        database.remove().await?;
    } else {
        println!("The database {name} is kept for a look.");
    }
    Ok(adds_up)
}

/// Lets the shop run and kills a relay on the way.
async fn play(options: &Options, shop: &Shop, relays: &mut Relays, quit: &CancellationToken) -> Result<Ledger> {
    let ports = relays.ports();
    let kill = async {
        sleep(options.kill_after()).await;
        relays.kill_one(&shop.pool, &shop.board).await?;
        shop.repeat().await
    };
    let run = shop.run(ports, quit);
    tokio::pin!(kill, run);
    tokio::select! {
        ledger = &mut run => ledger,
        killed = &mut kill => {
            killed?;
            run.await
        }
    }
}

/// Leaves everything up until Ctrl-C.
async fn keep(places: Vec<String>, relays: &mut Relays) -> Result<()> {
    println!("\nStill up until Ctrl-C:");
    for place in places.into_iter().chain(relays.running()) {
        println!("  {place}");
    }
    Ok(tokio::signal::ctrl_c().await?)
}
