//! A relay that appends each message to a file.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use custom_sink::Journal;
use outbox_relay::{
    observe::{
        health::Health,
        http::{self, Sources},
        metrics::Metrics,
    },
    run::Relay,
    settings::{Config, Route, Secret},
    sink::Feed,
};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// Returns the relay's defaults with the database of `DATABASE_URL`, and one route.
fn configuration() -> Result<Config> {
    let mut config = Config::default();
    config.database.url = Secret::new(std::env::var("DATABASE_URL").context("set DATABASE_URL")?);
    let address = std::env::var("HTTP_LISTEN").ok().map(|text| text.parse()).transpose();
    config.http.listen = address.context("HTTP_LISTEN must be an address with its port")?;
    config.routes = vec![Route::new("*", "journal")];
    Ok(config)
}

#[tokio::main]
async fn main() -> Result<()> {
    // After a panic the other parts would wait for ever. The process ends instead, and other relays take over.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("a panic at {:?}", panic.location());
        std::process::abort();
    }));
    let config = configuration()?;
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env()?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();

    let sink = Journal::new(std::env::var_os("JOURNAL").context("set JOURNAL to the path of a file")?);
    // One batch after the other, each written at once.
    let feed = Feed::new("journal", Arc::new(sink), 1, 1000);
    let metrics = Metrics::new()?;
    let health = Health::new(Arc::clone(&metrics));
    if let Some(address) = config.http.listen {
        let sources = Sources { metrics: Arc::clone(&metrics), health: Arc::clone(&health) };
        tokio::spawn(http::serve(http::bind(address).await?, sources, std::future::pending()));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    Ok(Relay::with_sinks(config, vec![feed], metrics, health)?.run(stop).await?)
}
