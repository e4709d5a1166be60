//! One connection through a proxy. Both directions run in one task, so that a change seen by one applies to the other.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Shared,
    faults::{Direction, Limit},
};

/// The largest packet in bytes.
const PACKET: usize = 64 * 1024;
/// The largest number of packets in flight in one direction: further ones stay with their sender.
const ON_THE_WAY: usize = 64;

pub(super) struct Connection {
    shared: Arc<Shared>,
    number: u64,
    /// Resets before the connection was opened do not affect it.
    resets: u64,
    /// Whether a request went through that has no reply yet.
    waiting: AtomicBool,
    /// Whether the next reply is to be cut.
    doomed: AtomicBool,
}

/// A packet in flight.
struct Packet {
    due: Instant,
    content: Content,
}

enum Content {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// The reason of a connection's end by reset.
enum Torn {
    Fault,
    Reply,
    Peer,
}

impl Connection {
    pub(super) fn new(shared: &Arc<Shared>, number: u64) -> Self {
        let waiting = AtomicBool::new(false);
        let doomed = AtomicBool::new(false);
        Self { shared: Arc::clone(shared), number, resets: shared.faults.borrow().resets, waiting, doomed }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) async fn serve(&self, mut client: TcpStream) {
        let mut server = None;
        let torn = tokio::select! {
            outcome = self.relay(&mut client, &mut server) => outcome.err(),
            () = self.reset() => Some(Torn::Fault),
        };
        let Some(torn) = torn else { return };
        for stream in server.iter().chain([&client]) {
            // Without it a plain end would be sent. It fails only if the connection is closed.
            stream.set_zero_linger().ok();
        }
        self.shared.count(|counts| {
            let fault = !matches!(torn, Torn::Peer);
            counts.cut += u64::from(fault);
            counts.cut_in_flight += u64::from(fault && self.waiting.load(Relaxed));
            counts.replies_cut += u64::from(matches!(torn, Torn::Reply));
        });
    }

    async fn relay(&self, client: &mut TcpStream, server: &mut Option<TcpStream>) -> Result<(), Torn> {
        for direction in Direction::BOTH {
            self.free(direction).await;
        }
        let target = self.shared.target().clone();
        let server = server.insert(TcpStream::connect(target).await.map_err(|_gone| Torn::Peer)?);
        for stream in [&*client, &*server] {
            stream.set_nodelay(true).ok();
        }
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::try_join!(
            self.pump(Direction::ToServer, from_client, to_server),
            self.pump(Direction::ToClient, from_server, to_client),
        )
        .map(drop)
    }

    async fn pump(&self, direction: Direction, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), Torn> {
        let (sender, receiver) = mpsc::channel(ON_THE_WAY);
        tokio::try_join!(self.take(direction, from, sender), self.give(direction, receiver, to)).map(drop)
    }

    /// Reads packets and puts them in flight.
    async fn take(&self, direction: Direction, mut from: ReadHalf<'_>, way: mpsc::Sender<Packet>) -> Result<(), Torn> {
        let mut buffer = vec![0; PACKET];
        loop {
            let content = match from.read(&mut buffer).await {
                Ok(0) => Content::End,
                Ok(count) => Content::Bytes(buffer.iter().take(count).copied().collect()),
                Err(_) => Content::Reset,
            };
            let last = !matches!(content, Content::Bytes(_));
            if direction == Direction::ToClient && !last && self.doomed.load(Relaxed) {
                return Err(Torn::Reply);
            }
            let latency = self.shared.faults.borrow().way(direction).latency;
            if way.send(Packet { due: Instant::now() + latency, content }).await.is_err() || last {
                return Ok(());
            }
        }
    }

    /// Hands packets over when they are due and the way is open.
    async fn give(
        &self,
        direction: Direction,
        mut way: mpsc::Receiver<Packet>,
        mut to: WriteHalf<'_>,
    ) -> Result<(), Torn> {
        let mut limit = Limit::default();
        while let Some(packet) = way.recv().await {
            sleep_until(packet.due).await;
            self.free(direction).await;
            match packet.content {
                Content::Bytes(bytes) => self.hand_over(direction, &bytes, &mut limit, &mut to).await?,
                Content::Reset => return Err(Torn::Peer),
                Content::End => {
                    // The other side has already ended: there is nothing to end.
                    to.shutdown().await.ok();
                }
            }
        }
        Ok(())
    }

    async fn hand_over(
        &self,
        direction: Direction,
        bytes: &[u8],
        limit: &mut Limit,
        to: &mut WriteHalf<'_>,
    ) -> Result<(), Torn> {
        let slow = self.shared.faults.borrow().way(direction).time_of(bytes.len());
        sleep(slow).await;
        let strike = limit.strike(self.shared.faults.borrow().way(direction), self.number, bytes.len());
        let through = bytes.get(..strike.unwrap_or(bytes.len())).unwrap_or(bytes);
        if to.write_all(through).await.is_err() {
            // The receiver's end is known only when the way back is open.
            self.free(direction.opposite()).await;
            return Err(Torn::Peer);
        }
        let to_server = direction == Direction::ToServer;
        let was_waiting = self.waiting.swap(to_server, Relaxed);
        self.shared.count(|counts| {
            counts.round_trips += u64::from(to_server && !was_waiting);
            let counter = if to_server { &mut counts.to_server } else { &mut counts.to_client };
            *counter += through.len() as u64;
        });
        if strike.is_some() {
            return Err(Torn::Fault);
        }
        if to_server {
            self.strike_reply_of(bytes);
        }
        Ok(())
    }

    fn strike_reply_of(&self, request: &[u8]) {
        // No task waits for these changes.
        self.shared.faults.send_if_modified(|faults| {
            let is_doomed = self.doomed.load(Relaxed) || faults.takes_reply_of(request);
            self.doomed.store(is_doomed, Relaxed);
            faults.close_if_last(request);
            false
        });
    }

    /// Waits until this way is open.
    async fn free(&self, direction: Direction) {
        let closed = self.shared.faults.borrow().way(direction).closed;
        if closed {
            self.shared.count(|counts| counts.held += 1);
            // Without a sender, the proxy has ended, and this task with it.
            self.shared.faults.subscribe().wait_for(|faults| !faults.way(direction).closed).await.ok();
        }
    }

    /// Waits until all connections are reset.
    async fn reset(&self) {
        self.shared.faults.subscribe().wait_for(|faults| faults.resets != self.resets).await.ok();
    }
}
