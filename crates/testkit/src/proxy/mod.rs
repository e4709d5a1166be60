//! A TCP proxy in this process with faults: latency, black holes, resets, cuts, lost replies.
//!
//! It is in front of one server, and each fault is switched on and off while connections are open. A held byte is
//! delivered once the way is open again, as TCP would do it: no byte in the middle of a stream is ever lost.

mod connection;
mod faults;
#[cfg(test)]
mod tests;

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

pub use self::faults::{Cut, Direction};
use self::{connection::Connection, faults::Faults};

/// A running proxy. Drop ends it with all its connections. It works only while the runtime that started it keeps
/// running.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: String,
    accepting: AbortHandle,
}

/// The traffic and the faults since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that clients have opened.
    pub accepted: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Connections ended by a fault.
    pub cut: u64,
    /// Of these, those with a request that had no reply yet.
    pub cut_in_flight: u64,
    /// Of these, those whose reply was cut after the request had gone through.
    pub replies_cut: u64,
    /// Packets held in a black hole.
    pub held: u64,
    /// Requests: everything that clients sent until a reply came.
    pub round_trips: u64,
    /// Bytes handed to the server.
    pub to_server: u64,
    /// Bytes handed to clients.
    pub to_client: u64,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<String>,
    faults: watch::Sender<Faults>,
    counts: Mutex<Counts>,
}

impl Proxy {
    /// Starts a proxy on a free port before the server with this address: a URL, or `host:port`.
    ///
    /// # Errors
    /// When the address names no port, or no port is free.
    pub async fn start(server: &str) -> Result<Self> {
        Self::on_port(0, server).await
    }

    /// [`Proxy::start`] on this port of 127.0.0.1: for a server that needs its proxy's address before it starts.
    ///
    /// # Errors
    /// As [`Proxy::start`].
    pub async fn on_port(port: u16, server: &str) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let own = listener.local_addr()?.to_string();
        let target = authority(server).with_context(|| format!("no port in {server:?}"))?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target.to_owned()),
            faults: watch::Sender::new(Faults::default()),
            counts: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self { address: server.replacen(target, &own, 1), shared, accepting })
    }

    /// The address of the server, but with the proxy's host and port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Delays each byte in this direction. Bandwidth stays as it is.
    pub fn latency(&self, direction: Direction, latency: Duration) {
        self.shared.faults.send_modify(|faults| faults.way_mut(direction).latency = latency);
    }

    /// Lets each connection send this many bytes a second in this direction.
    pub fn rate(&self, direction: Direction, bytes: u32) {
        self.shared.faults.send_modify(|faults| faults.way_mut(direction).rate = Some(bytes));
    }

    /// Lets nothing through in this direction, not even the end of a connection, until [`Proxy::heal`].
    pub fn black_hole(&self, direction: Direction) {
        self.shared.faults.send_modify(|faults| faults.way_mut(direction).closed = true);
    }

    /// [`Proxy::black_hole`] for all replies from the next request on that is `meant`, see [`Proxy::cut_replies`]. The
    /// server does that request's work.
    pub fn black_hole_after(&self, meant: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.shared.faults.send_modify(|faults| faults.close_after(Arc::new(meant)));
    }

    /// Resets all open connections (RST, to both sides).
    pub fn reset(&self) {
        self.shared.faults.send_modify(|faults| faults.resets += 1);
    }

    /// Resets each connection, open now or later, at a place in this direction's bytes, counted from now.
    pub fn cut(&self, direction: Direction, cut: Cut) {
        self.shared.faults.send_modify(|faults| faults.cut(direction, Some(cut)));
    }

    /// Lets the next requests that are `meant` reach the server, one on each of this number of connections. Resets
    /// these at the first byte of the reply: the server has done the work and the client does not know. `meant` sees
    /// packets of at most 64 KiB, as they come.
    pub fn cut_replies(&self, times: u64, meant: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.shared.faults.send_modify(|faults| faults.cut_replies(times, Arc::new(meant)));
    }

    /// Sends new connections to another server: its address as for [`Proxy::start`]. Open connections keep theirs, see
    /// [`Proxy::reset`].
    ///
    /// # Errors
    /// When the address names no port.
    pub fn retarget(&self, server: &str) -> Result<()> {
        let target = authority(server).with_context(|| format!("no port in {server:?}"))?;
        target.clone_into(&mut self.shared.target());
        Ok(())
    }

    /// Ends all faults: held bytes are delivered.
    pub fn heal(&self) {
        self.shared.faults.send_modify(Faults::heal);
    }

    /// The traffic and the faults so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.count(|counts| *counts)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn target(&self) -> MutexGuard<'_, String> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    for number in 0.. {
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        shared.count(|counts| (counts.accepted, counts.open) = (counts.accepted + 1, counts.open + 1));
        let connection = Connection::new(&shared, number);
        connections.spawn(serve(client, connection));
    }
}

async fn serve(client: TcpStream, connection: Connection) {
    let shared = Arc::clone(connection.shared());
    connection.serve(client).await;
    shared.count(|counts| counts.open -= 1);
}

/// `host:port` of a URL, or of an address that has no other part.
fn authority(address: &str) -> Option<&str> {
    let after = address.split_once("://").map_or(address, |(_, rest)| rest);
    let before = after.split(['/', '?']).next()?;
    let authority = before.rsplit_once('@').map_or(before, |(_, authority)| authority);
    authority.rsplit_once(':')?.1.parse::<u16>().ok()?;
    Some(authority)
}
