//! Alertmanager with the project's routes and inhibitions.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{Host, blocking, folder};
use super::prometheus::body;
use super::{cache, packages, ports};
use crate::relay::send;

/// A running Alertmanager. Drop kills it and removes its data.
#[derive(Debug)]
pub struct Alertmanager {
    host: Host,
    port: u16,
}

impl Alertmanager {
    /// Starts one with the configuration of `dashboards`.
    ///
    /// # Errors
    /// When it is not installed and cannot be downloaded, or does not answer; then with the end of its log. The
    /// unpacked program needs a mount namespace of its own, which some containers forbid.
    pub async fn start() -> Result<Self> {
        let mut server = blocking(launch).await?;
        let port = server.port;
        server.host.ready(|| async move { body(port, "/-/ready").await.map(drop) }).await?;
        Ok(server)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Finds out whether it has ended on its own.
    ///
    /// # Errors
    /// When it has; with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        self.host.check()
    }

    /// Tells it of alerts, as Prometheus does.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub async fn tell(&self, alerts: &Value) -> Result<()> {
        let alerts = alerts.to_string();
        let head = format!(
            "POST /api/v2/alerts HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}",
            alerts.len()
        );
        let (status, text) = send(self.port, &format!("{head}\r\n\r\n{alerts}")).await?;
        ensure!(status == 200, "it answered {status}: {text}");
        Ok(())
    }

    /// The names of the alerts that it would send: those that no other inhibits.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn active(&self) -> Result<BTreeSet<String>> {
        let text = |alert: &Value, path: &str| Some(alert.pointer(path)?.as_str()?.to_owned());
        let alerts = self.alerts().await?;
        let active = alerts.iter().filter(|alert| text(alert, "/status/state").is_some_and(|state| state == "active"));
        Ok(active.filter_map(|alert| text(alert, "/labels/alertname")).collect())
    }

    /// Its alerts, each with `labels` and `status`.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn alerts(&self) -> Result<Vec<Value>> {
        serde_json::from_str(&body(self.port, "/api/v2/alerts").await?).context("no list of alerts")
    }
}

/// The configuration that it has.
pub(super) fn config() -> PathBuf {
    cache::repository().join("dashboards/alertmanager.yml")
}

fn launch() -> Result<Alertmanager> {
    let folder = folder("alertmanager")?;
    let port = ports::free_port()?;
    let call = packages::alertmanager()?
        .option("config.file", config())
        .option("storage.path", folder.path().join("data"))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        // No cluster, and no port for one.
        .arg("--cluster.listen-address=");
    Ok(Alertmanager { host: Host::start(call, folder)?, port })
}
