//! Prometheus with the project's rules.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use url::form_urlencoded::byte_serialize;

use super::host::{Host, blocking, folder};
use super::{cache, packages, ports};
use crate::relay::send;

/// A running Prometheus. Drop kills it and removes its data.
#[derive(Debug)]
pub struct Prometheus {
    host: Host,
    port: u16,
}

impl Prometheus {
    /// Starts one that reads the metrics at these ports of 127.0.0.1 every second, as those of one outbox, and evaluates the rules of
    /// `dashboards` as often.
    ///
    /// # Errors
    /// When it is not installed and cannot be downloaded, or does not answer; then with the end of its log.
    pub async fn start(targets: &[u16]) -> Result<Self> {
        let targets = targets.to_vec();
        let mut server = blocking(move || launch(&targets)).await?;
        let port = server.port;
        server.host.ready(|| async move { get(port, "/-/ready").await.map(drop) }).await?;
        Ok(server)
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

    /// Evaluates an expression now. Returns its series, each with `metric` (its labels) and `value`.
    ///
    /// # Errors
    /// When it does not answer, or the expression is wrong.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let text: String = byte_serialize(expression.as_bytes()).collect();
        let answer = self.read(&format!("query?query={text}")).await.with_context(|| expression.to_owned())?;
        Ok(answer.pointer("/data/result").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// Reads a path of `/api/v1`.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub async fn read(&self, path: &str) -> Result<Value> {
        let value: Value = serde_json::from_str(&get(self.port, &format!("/api/v1/{path}")).await?)?;
        ensure!(value.get("status").is_some_and(|status| status == "success"), "{value}");
        Ok(value)
    }
}

/// The body of a page. With HTTP 1.0 it comes in one piece.
async fn get(port: u16, path: &str) -> Result<String> {
    let (status, body) = send(port, &format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")).await?;
    ensure!(status == 200, "{path} answered {status}: {body}");
    Ok(body)
}

fn launch(targets: &[u16]) -> Result<Prometheus> {
    let (folder, port) = (folder("prometheus")?, ports::free_port()?);
    let rules = cache::repository().join("dashboards/alerts.rules.yml");
    let mut config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\nscrape_configs:\n- job_name: outbox\n  \
        static_configs:\n  - targets:\n",
        rules.display()
    );
    for target in targets {
        writeln!(config, "    - 127.0.0.1:{target}")?;
    }
    let file = folder.path().join("prometheus.yml");
    fs::write(&file, config)?;
    let call = packages::of_prometheus("prometheus")?
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"));
    Ok(Prometheus { host: Host::start(call, folder)?, port })
}
