//! A relay that posts each message to a URL. It reads the relay's configuration and adds its own sink.

use std::{ffi::OsString, path::Path, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use custom_sink::{CONNECTIONS, Webhook};
use outbox_relay::{
    config::{self, Config, Inputs, Route},
    observe::{
        health::Health,
        http::{self, Sources},
        metrics::Metrics,
    },
    run::Relay,
    sink::Feed,
};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Reads the file and variables of the program `relay`. They cannot name this sink, so its one route is set here.
fn configuration() -> Result<Config> {
    let mut inputs = Inputs::default();
    inputs.file = config::default_file(std::env::var_os("RELAY_CONFIG").as_deref().map(Path::new));
    let text = |text: OsString| text.to_string_lossy().into_owned();
    inputs.variables = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    let mut config = config::load_for_database(&inputs)?.config;
    ensure!(config.sinks.is_empty(), "remove [sinks] and [[routes]]: this relay has one sink, the webhook");
    config.routes = vec![Route::new("*", "webhook")];
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
    let filter = EnvFilter::builder().parse(&config.log.level).context("`log.level` cannot be used")?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();

    let sink = Webhook::new(&std::env::var("WEBHOOK_URL").context("set WEBHOOK_URL")?).context("WEBHOOK_URL")?;
    // A request carries one message, so none should wait in the sink for the answers to others.
    let feed = Feed::new("webhook", Arc::new(sink), CONNECTIONS, 1);
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
