//! A TCP proxy in this process that breaks what goes through it: latency, black holes, resets, cuts, lost replies.
//!
//! It stands before one server, and each fault is switched on and off while connections are open. A byte that is held back is
//! delivered once the way is free again, as TCP would do it: nothing in the middle of a stream is ever lost.

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

/// A proxy that runs. Drop ends it with all its connections. It needs the runtime it was started on to go on turning.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: String,
    accepting: AbortHandle,
}

/// What went through and what was struck, since the start.
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
    /// Of these, those whose reply was cut while the request had gone through.
    pub replies_cut: u64,
    /// Packets that had to wait in a black hole.
    pub held: u64,
    /// Requests: what clients sent, until something came back.
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

    /// [`Proxy::start`] on this port of 127.0.0.1: for a server that has to be told its proxy's address before it starts.
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

    /// The address of the server, with the proxy's host and port in the place of its own.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Delays each byte that goes this way. Bandwidth stays as it is.
    pub fn latency(&self, direction: Direction, latency: Duration) {
        self.shared.faults.send_modify(|faults| faults.way_mut(direction).latency = latency);
    }

    /// Nothing gets through this way any more, not even that a connection has ended, until [`Proxy::heal`].
    pub fn black_hole(&self, direction: Direction) {
        self.shared.faults.send_modify(|faults| faults.way_mut(direction).closed = true);
    }

    /// Resets all connections that are open (RST, to both sides).
    pub fn reset(&self) {
        self.shared.faults.send_modify(|faults| faults.resets += 1);
    }

    /// Resets each connection, those that are open and those to come, at a place in what goes this way, counted from now.
    pub fn cut(&self, direction: Direction, cut: Cut) {
        self.shared.faults.send_modify(|faults| faults.cut(direction, Some(cut)));
    }

    /// Lets the next requests that are `meant` reach the server, one on each of so many connections, and resets these at the first byte that comes back: the server has done the work and the client does not know. A request is seen in packets of at most
    /// 64 KiB, as they come.
    pub fn cut_replies(&self, times: u64, meant: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.shared.faults.send_modify(|faults| faults.cut_replies(times, Arc::new(meant)));
    }

    /// Stands before another server from now on: its address as for [`Proxy::start`]. Connections that are open keep theirs, see [`Proxy::reset`].
    ///
    /// # Errors
    /// When the address names no port.
    pub fn retarget(&self, server: &str) -> Result<()> {
        let target = authority(server).with_context(|| format!("no port in {server:?}"))?;
        target.clone_into(&mut self.shared.target());
        Ok(())
    }

    /// Ends all faults: what was held back goes on its way.
    pub fn heal(&self) {
        self.shared.faults.send_modify(Faults::heal);
    }

    /// What went through and what was struck.
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

/// `host:port` of a URL, or of an address that is nothing else.
fn authority(address: &str) -> Option<&str> {
    let after = address.split_once("://").map_or(address, |(_, rest)| rest);
    let before = after.split(['/', '?']).next()?;
    let authority = before.rsplit_once('@').map_or(before, |(_, authority)| authority);
    authority.rsplit_once(':')?.1.parse::<u16>().ok()?;
    Some(authority)
}
