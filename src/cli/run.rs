//! `relay run`.

use std::sync::Arc;

use anyhow::Context as _;
use outbox_relay::{
    observe::{
        health::Health,
        http::{self, Sources},
        metrics::Metrics,
    },
    run::{Relay, RunError},
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Arguments, log, notify::Notifier};
use crate::config::{ConfigError, Inputs, Loaded, Problem, load};

/// Runs a relay until a signal stops it.
pub(super) async fn run(options: &Arguments) -> anyhow::Result<bool> {
    // Before anything else: without a handler SIGHUP would end the process.
    let hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be handled")?;
    let Loaded { config, warnings, .. } = options.load()?;
    let set_level = log::init(&config.log)?;
    warn(&warnings);
    tokio::spawn(reload(hangup, options.inputs(), set_level));
    end_on_panic();
    let metrics = Metrics::new().context("the metrics cannot be made")?;
    let health = Health::new(Arc::clone(&metrics));
    let stop = CancellationToken::new();
    if let Some(address) = config.http.listen {
        let listener = http::bind(address).await?;
        let sources = Sources { metrics: Arc::clone(&metrics), health: Arc::clone(&health) };
        tokio::spawn(http::serve(listener, sources, stop.clone().cancelled_owned()));
        tracing::info!(%address, "serving /metrics, /livez and /readyz");
        if !address.ip().is_loopback() {
            tracing::warn!(
                "`http.listen` is not on loopback, and there is no authentication: keep it inside a trusted network"
            );
        }
    }
    let notifier = notifier(&health);
    let signal = signalled(Arc::clone(&health), notifier)?;
    let relay = Relay::new(config, metrics, health).map_err(unusable)?;
    relay.run(signal).await?;
    stop.cancel();
    Ok(true)
}

/// At each SIGHUP, sets the level of the log as it is configured now. Also checks that the files of secrets can be
/// read, as each connect does. Nothing else of the configuration changes.
async fn reload(mut hangup: Signal, inputs: Inputs, set_level: log::SetLevel) {
    while hangup.recv().await.is_some() {
        let inputs = inputs.clone();
        // Reads files, which may block. An error means that the runtime ends.
        let Ok(loaded) = tokio::task::spawn_blocking(move || load(&inputs)).await else { return };
        match loaded {
            Ok(Loaded { config, warnings, .. }) => {
                match set_level(&config.log) {
                    Ok(()) => {
                        tracing::warn!(
                            level = config.log.level,
                            "SIGHUP: the log's level was read again; nothing else changes"
                        );
                    }
                    Err(error) => tracing::error!(error = format!("{error:#}"), "SIGHUP: the log keeps its level"),
                }
                warn(&warnings);
            }
            Err(error) => tracing::error!(%error, "SIGHUP: the configuration cannot be used; nothing changes"),
        }
    }
}

/// Starts the reports to systemd, if it asks for them.
fn notifier(health: &Arc<Health>) -> Option<Arc<Notifier>> {
    let warn = |error: &std::io::Error| tracing::warn!(%error, "NOTIFY_SOCKET cannot be used: systemd gets no reports");
    let notifier = Arc::new(Notifier::from_environment().inspect_err(warn).ok()??);
    tokio::spawn(Arc::clone(&notifier).run(Arc::clone(health)));
    Some(notifier)
}

fn warn(warnings: &[Problem]) {
    for Problem { at, text } in warnings {
        tracing::warn!(at, "{text}");
    }
}

/// Makes a configuration error from the error of a sink or a driver.
pub(super) fn unusable(error: RunError) -> ConfigError {
    let text = format!("{:#}", anyhow::Error::from(error));
    ConfigError(vec![Problem { at: "configuration".to_owned(), text }])
}

/// Returns a future that is done at the first SIGTERM or SIGINT. A second signal ends the process at once.
fn signalled(health: Arc<Health>, notifier: Option<Arc<Notifier>>) -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be handled")?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    Ok(async move {
        next().await;
        health.dependency("relay", Err("stopping".to_owned()));
        notifier.inspect(|notifier| notifier.stopping());
        tokio::spawn(async move {
            next().await;
            tracing::warn!("a second signal: ending at once; the claims end with their leases");
            log::flush();
            std::process::exit(1);
        });
    })
}

/// Lets a panic end the process, because the other parts would wait for the one that panicked. Its leases pass, and
/// other relays take over.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        // Only the place: the message may quote a payload.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a part of the relay panicked: the process ends");
        log::flush();
        std::process::abort();
    }));
}
