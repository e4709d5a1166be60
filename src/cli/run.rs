use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::log;
use crate::{config::Config, health::Health, http, metrics::Metrics, run::Relay};

pub(super) async fn run(config: Config) -> anyhow::Result<()> {
    log::start(&config.log)?;
    end_with_any_panic();
    let metrics = Metrics::new()?;
    let health = Health::new(metrics.clone());
    if let Some(address) = config.http.listen {
        let listener = http::listen(address).await?;
        tokio::spawn(http::serve(listener, metrics.clone(), health.clone()));
    }
    Relay::new(config, metrics, health)?.run(stop_signal()?).await
}

/// Half a relay must not go on: a panic anywhere ends the process, and others take its claims over.
fn end_with_any_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// The first SIGTERM or Ctrl-C; a second one ends the process at once.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut term = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let (first, stop) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let mut first = Some(first);
        loop {
            tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
            match first.take() {
                // No receiver: the relay is ending already.
                Some(first) => first.send(()).unwrap_or_default(),
                None => {
                    tracing::warn!("a second signal: ending at once; claims end with their leases");
                    std::process::exit(1);
                }
            }
        }
    });
    Ok(async move { stop.await.unwrap_or_default() })
}
