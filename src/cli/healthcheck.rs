//! `relay healthcheck`: for containers, which have no other HTTP client.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The time that the answer may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// Most bytes of an answer, which has a few lines.
const LONGEST: u64 = 64 * 1024;

/// Asks `/livez` of the relay that listens at the configured address.
pub(super) async fn run(listen: Option<SocketAddr>) -> anyhow::Result<bool> {
    let address = listen.context("`http.listen` is off: there is nobody to ask")?;
    let answer = tokio::time::timeout(DEADLINE, ask(reachable(address))).await;
    let answer = answer.context("the relay did not answer in time")?;
    let answer = answer.with_context(|| format!("no relay answers at {address}"))?;
    anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "the relay is not alive: {}", body(&answer));
    Ok(true)
}

/// Returns the address to ask: loopback, if the relay listens on all addresses.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    address
}

async fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer).await?;
    Ok(answer)
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or(answer, |(_, body)| body.trim_end())
}
