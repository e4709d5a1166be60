//! Reading `/metrics` and the other pages of a relay.

use std::{fmt, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// How long a relay may take to answer: it may be paused.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks 127.0.0.1; returns the status and the body.
pub(super) async fn get(port: u16, path: &str) -> Result<(u16, String)> {
    tokio::time::timeout(PATIENCE, ask(port, path)).await.context("the relay does not answer")?
}

async fn ask(port: u16, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).context("no HTTP status")?.parse()?;
    Ok((status, body.to_owned()))
}

/// The values of all metrics at one time.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Reads Prometheus' text format.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.filter_map(|line| line.rsplit_once(' '));
        Self(series.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    }

    /// The sum of a metric over all its labels; 0 where it is not there.
    #[must_use]
    pub fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, "")
    }

    /// The sum over those whose labels contain a text, for example `result="claimed"`.
    #[must_use]
    pub fn sum_where(&self, name: &str, labels: &str) -> f64 {
        let series = self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name));
        series.filter(|(series, _)| series.contains(labels)).map(|(_, value)| value).sum()
    }

    /// The values of a metric, each with the value of a label.
    #[must_use]
    pub fn by(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let label = format!("{label}=\"");
        let series = self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name));
        let value = |series: &str| Some(series.split_once(&label)?.1.split_once('"')?.0.to_owned());
        series
            .filter_map(|(series, amount)| Some((value(series)?, *amount)))
            .filter(|(_, amount)| *amount > 0.0)
            .collect()
    }
}

/// What tells something: no zeros, no buckets.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut telling = self.0.iter().filter(|(series, value)| *value > 0.0 && !series.contains("_bucket{"));
        telling.try_for_each(|(series, value)| writeln!(f, "{series} {value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn sums_are_over_the_labels_that_are_asked_for() {
        let metrics = Metrics::parse("# HELP a\na{x=\"1\"} 2\na{x=\"2\"} 3\nab 7\n");
        assert!((metrics.sum("a") - 5.0).abs() < 1e-9);
        assert!((metrics.sum_where("a", "x=\"2\"") - 3.0).abs() < 1e-9);
        assert!(metrics.sum("none").abs() < 1e-9);
        assert_eq!(metrics.by("a", "x"), [("1".to_owned(), 2.0), ("2".to_owned(), 3.0)]);
    }
}
