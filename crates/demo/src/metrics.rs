//! Reads what a relay's listener says.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

const DEADLINE: Duration = Duration::from_millis(500);

/// The metrics of one relay: the sum over all labels of each name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics(HashMap<String, f64>);

impl Metrics {
    /// Fetches them.
    pub(crate) async fn fetch(address: SocketAddr) -> Result<Self> {
        let answer = get(address, "/metrics").await?;
        let (_, body) = answer.split_once("\r\n\r\n").context("the answer has no body")?;
        Ok(Self::parse(body))
    }

    fn parse(text: &str) -> Self {
        let mut sums = HashMap::new();
        for (name, value) in text.lines().filter_map(sample) {
            *sums.entry(name.to_owned()).or_default() += value;
        }
        Self(sums)
    }

    /// A counter or gauge, the sum over its labels; 0 where there is none.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and not negative")]
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default().max(0.0) as u64
    }
}

/// The answer to a GET, with its head.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Result<String> {
    timeout(DEADLINE, ask(address, path)).await.context("no answer in time")?
}

/// HTTP/1.0: the answer ends with the connection and is not in chunks.
async fn ask(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn sample(line: &str) -> Option<(&str, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let name = series.split_once('{').map_or(series, |(name, _)| name);
    (!name.starts_with('#')).then_some((name, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn the_series_of_a_name_are_added() {
        let text = "# HELP a Some.\n# TYPE a counter\na{sink=\"k\"} 3\na{sink=\"r\"} 4\nb 5\n";
        let metrics = Metrics::parse(text);
        assert_eq!([metrics.count("a"), metrics.count("b"), metrics.count("c")], [7, 5, 0]);
    }
}
