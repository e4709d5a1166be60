//! Free ports on the loopback address.

use std::net::TcpListener;

use anyhow::{Context, Result};

/// Below the range from which systems take the ports of outgoing connections: while a server is down between a kill and
/// its restart, no client can be given its port by chance.
const RANGE: std::ops::Range<u16> = 18_000..32_000;

const TRIES: usize = 1_000;

/// A port nobody listens on.
///
/// # Errors
/// When no port of the range is free.
pub fn free_port() -> Result<u16> {
    (0..TRIES)
        .map(|_| rand::random_range(RANGE))
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .context("no free port on 127.0.0.1")
}
