//! Reads `/metrics` and the other pages of a relay.

use std::{fmt, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The time limit for a relay to answer: it may be paused.
const PATIENCE: Duration = Duration::from_secs(15);

/// Asks 127.0.0.1; returns the status and the body.
///
/// # Errors
/// When there is no answer.
pub async fn get(port: u16, path: &str) -> Result<(u16, String)> {
    send(port, &format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")).await
}

/// Sends a request as it is to 127.0.0.1; returns the status and the body.
///
/// # Errors
/// When there is no answer.
pub async fn send(port: u16, request: &str) -> Result<(u16, String)> {
    let (status, _, body) = ask(port, request).await?;
    Ok((status, body))
}

/// Does the same as [`send`]; returns the status, the headers and the body.
///
/// # Errors
/// When there is no answer.
pub async fn ask(port: u16, request: &str) -> Result<(u16, String, String)> {
    tokio::time::timeout(PATIENCE, exchange(port, request)).await.context("the relay does not answer")?
}

async fn exchange(port: u16, request: &str) -> Result<(u16, String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let (line, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    let status = line.split(' ').nth(1).context("no HTTP status")?.parse()?;
    Ok((status, headers.to_owned(), body.to_owned()))
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

    /// The sum of a metric over all its labels; 0 if it is missing.
    #[must_use]
    pub fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, "")
    }

    /// The sum over the series whose labels contain a text, for example `result="claimed"`.
    #[must_use]
    pub fn sum_where(&self, name: &str, labels: &str) -> f64 {
        let series = self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name));
        series.filter(|(series, _)| series.contains(labels)).map(|(_, value)| value).sum()
    }

    /// A quantile of the one histogram whose labels contain a text, with each bucket's values spread evenly; 0 without
    /// observations. Values above the last bound count as that bound.
    #[must_use]
    pub fn quantile(&self, name: &str, labels: &str, share: f64) -> f64 {
        let name = format!("{name}_bucket");
        let series = self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name.as_str()));
        let series = series.filter(|(series, _)| series.contains(labels));
        let buckets: Vec<(f64, f64)> = series.filter_map(|(series, count)| Some((bound(series)?, *count))).collect();
        let total = buckets.last().map_or(0.0, |(_, count)| *count);
        if total <= 0.0 {
            return 0.0;
        }
        let mut lower = 0.0;
        let mut below = 0.0;
        let rank = share * total;
        for (bound, count) in buckets.into_iter().filter(|(bound, _)| bound.is_finite()) {
            if count >= rank && count > below {
                return lower + (bound - lower) * (rank - below) / (count - below);
            }
            (lower, below) = (bound, count);
        }
        lower
    }

    /// The metrics of which a series is not 0.
    pub fn moved(&self) -> impl Iterator<Item = &str> {
        let moved = self.0.iter().filter(|(series, value)| *value != 0.0 && !series.contains("_bucket{"));
        moved.map(|(series, _)| {
            let name = series.split('{').next().unwrap_or_default();
            name.strip_suffix("_count").or(name.strip_suffix("_sum")).unwrap_or(name)
        })
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

/// The upper bound of a bucket: `le` is its last label.
fn bound(series: &str) -> Option<f64> {
    series.rsplit_once("le=\"")?.1.split_once('"')?.0.parse().ok()
}

/// Only informative series: no zeros, no buckets.
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

    #[test]
    fn a_histogram_moves_by_its_own_name() {
        let text = "a 0\nb{x=\"1\"} 2\nt_bucket{le=\"1\"} 3\nt_sum 0\nt_count 3\nu_count 0\n";
        assert_eq!(Metrics::parse(text).moved().collect::<Vec<_>>(), ["b", "t"]);
    }

    #[test]
    fn quantiles_lie_within_their_buckets() {
        let counts = [("0.1", 0), ("0.2", 10), ("0.4", 20), ("+Inf", 40)];
        let line = |(le, count): (&str, u32)| format!("t_bucket{{operation=\"claim\",le=\"{le}\"}} {count}\n");
        let text = counts.map(line).concat() + "t_bucket{operation=\"look\",le=\"0.1\"} 7\n";
        let quantile = |share: f64| Metrics::parse(&text).quantile("t", "operation=\"claim\"", share);
        for (share, expected) in [(0.125, 0.15), (0.25, 0.2), (0.375, 0.3), (0.99, 0.4)] {
            assert!((quantile(share) - expected).abs() < 1e-9, "{share}: {}", quantile(share));
        }
        assert!(Metrics::default().quantile("t", "", 0.5).abs() < 1e-9);
    }
}
