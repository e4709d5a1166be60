//! Prometheus with the project's rules.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use axum::{Router, routing::get};
use prometheus::{Registry, TextEncoder};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use url::form_urlencoded::byte_serialize;

use super::host::{Host, blocking, folder};
use super::{Alertmanager, cache, packages, ports};
use crate::relay::send;

/// The files of the targets, and of the Alertmanagers.
const TARGETS: &str = "targets.json";
const ALERTMANAGERS: &str = "alertmanagers.json";

/// A running Prometheus. Drop kills it and removes its data.
#[derive(Debug)]
pub struct Prometheus {
    host: Host,
    folder: PathBuf,
    port: u16,
}

impl Prometheus {
    /// Starts one that reads the metrics of these jobs, each at ports of 127.0.0.1, every second, and evaluates the
    /// rules of `dashboards` as often.
    ///
    /// # Errors
    /// When it is not installed and cannot be downloaded, or does not answer; then with the end of its log.
    pub async fn start(jobs: &[(&str, &[u16])]) -> Result<Self> {
        Self::faster(jobs, 1).await
    }

    /// Does the same with rules whose times are divided by `factor`.
    ///
    /// # Errors
    /// As [`Prometheus::start`].
    pub async fn faster(jobs: &[(&str, &[u16])], factor: u32) -> Result<Self> {
        let mut server = blocking(move || launch(factor)).await?;
        server.read_from(jobs)?;
        let port = server.port;
        server.host.ready(|| async move { body(port, "/-/ready").await.map(drop) }).await?;
        Ok(server)
    }

    /// Reads the metrics of these jobs instead.
    ///
    /// # Errors
    /// When the file of the targets cannot be written.
    pub fn read_from(&self, jobs: &[(&str, &[u16])]) -> Result<()> {
        let group = |(job, ports): &(&str, &[u16])| {
            let targets: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
            json!({ "targets": targets, "labels": { "job": job } })
        };
        self.replace(TARGETS, &Value::Array(jobs.iter().map(group).collect()))
    }

    /// Tells this Alertmanager of its alerts.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub fn alert_to(&self, alertmanager: &Alertmanager) -> Result<()> {
        let target = format!("127.0.0.1:{}", alertmanager.port());
        self.replace(ALERTMANAGERS, &json!([{ "targets": [target] }]))
    }

    /// Replaces a file in one step: Prometheus reads it when it changes.
    fn replace(&self, file: &str, groups: &Value) -> Result<()> {
        let new = self.folder.join("new");
        fs::write(&new, groups.to_string())?;
        Ok(fs::rename(new, self.folder.join(file))?)
    }

    /// The names of the alerts that fire now.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn firing(&self) -> Result<BTreeSet<String>> {
        self.alerts("ALERTS{alertstate=\"firing\"}").await
    }

    /// The names of the alerts that have fired within this time, once it had read a relay.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn fired(&self, within: Duration) -> Result<BTreeSet<String>> {
        let firing = "ALERTS{alertstate=\"firing\"} and on () last_over_time(outbox_relay_build_info[1d] offset 5s)";
        self.alerts(&format!("max_over_time(({firing})[{}s:1s])", within.as_secs().max(1))).await
    }

    async fn alerts(&self, series: &str) -> Result<BTreeSet<String>> {
        let found = self.query(&format!("group by (alertname) ({series})")).await?;
        let name = |series: &Value| Some(series.pointer("/metric/alertname")?.as_str()?.to_owned());
        Ok(found.iter().filter_map(name).collect())
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
        let value: Value = serde_json::from_str(&body(self.port, &format!("/api/v1/{path}")).await?)?;
        ensure!(value.get("status").is_some_and(|status| status == "success"), "{value}");
        Ok(value)
    }
}

/// The body of a page. With HTTP 1.0 it comes in one piece.
pub(super) async fn body(port: u16, path: &str) -> Result<String> {
    let (status, text) = send(port, &format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")).await?;
    ensure!(status == 200, "{path} answered {status}: {text}");
    Ok(text)
}

/// Serves the metrics of a registry at a free port of 127.0.0.1 until the runtime ends. Returns the port.
///
/// # Errors
/// When there is no free port.
pub async fn serve(registry: Registry) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let page = async move || TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_default();
    let pages = Router::new().route("/metrics", get(page));
    tokio::spawn(async move { axum::serve(listener, pages).await });
    Ok(port)
}

/// Divides all times of rules: durations, and numbers from 60 on, which are seconds. An error: a time that it cannot
/// divide.
fn faster(rules: &str, factor: u32) -> Result<String> {
    let mut faster = String::new();
    for line in rules.split_inclusive('\n') {
        if line.trim_start().starts_with('#') {
            continue;
        }
        let mut rest = line;
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            let (before, number) = rest.split_at(start);
            let (digits, after) =
                number.split_at(number.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(number.len()));
            faster += before;
            let is_of_a_name = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
            rest = after;
            if is_of_a_name {
                faster += digits;
                continue;
            }
            let (time, has_unit) = milliseconds(digits).with_context(|| format!("a time in {line}"))?;
            let divided = time / u64::from(factor);
            match (has_unit, time) {
                (true, _) => write!(faster, "{divided}ms")?,
                (false, 60_000..) => {
                    ensure!(divided >= 1000, "{digits} divided by {factor} is 0");
                    faster += &(divided / 1000).to_string();
                }
                (false, _) => faster += digits,
            }
        }
        faster += rest;
    }
    Ok(faster)
}

/// A number with its unit, in milliseconds, and whether it has one. Without a unit it has seconds.
fn milliseconds(text: &str) -> Result<(u64, bool)> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let each = match unit {
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => bail!("{unit} is no unit that is known here"),
    };
    Ok((number.parse::<u64>()? * each, !unit.is_empty()))
}

fn launch(factor: u32) -> Result<Prometheus> {
    let folder = folder("prometheus")?;
    let port = ports::free_port()?;
    let rules = fs::read_to_string(cache::repository().join("dashboards/alerts.rules.yml"))?;
    fs::write(folder.path().join("rules.yml"), faster(&rules, factor)?)?;
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [rules.yml]\n\
         alerting: {{ alertmanagers: [{{ file_sd_configs: [{{ files: [{ALERTMANAGERS}] }}] }}] }}\nscrape_configs:\n\
         - job_name: all\n  file_sd_configs: [{{ files: [{TARGETS}] }}]\n"
    );
    let file = folder.path().join("prometheus.yml");
    fs::write(&file, config)?;
    let call = packages::of_prometheus("prometheus")?
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let path = folder.path().to_owned();
    Ok(Prometheus { host: Host::start(call, folder)?, folder: path, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_divided_and_other_numbers_are_not() {
        let rules = "for: 10m\nexpr: rate(x_2m:ratio5m{le=\"5\"}[1d]) > 14.4 * 0.001 and y > 6 * 3600 or z > 60\n";
        let expected =
            "for: 60000ms\nexpr: rate(x_2m:ratio5m{le=\"5\"}[8640000ms]) > 14.4 * 0.001 and y > 6 * 360 or z > 6\n";
        assert_eq!(faster(rules, 10).unwrap(), expected);
        assert_eq!(faster("# after 5m\n", 10).unwrap(), "");
        for (rules, factor) in [("for: 1h30m\n", 10), ("expr: x > 60\n", 61)] {
            assert!(faster(rules, factor).is_err(), "{rules}");
        }
    }
}
