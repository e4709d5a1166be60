//! A handle on the socket of a connection, to end it for good.
//!
//! lapin ends a connection by asking the broker, and waits for the answer for ever: with a blocked or a vanished broker its
//! thread and its buffers (8 MiB) would stay.

use std::{
    io,
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties, runtime::default_runtime, tcp::OwnedTLSConfig, uri::AMQPScheme,
    uri::AMQPUri,
};
use tokio::time::timeout;

/// How long reaching the address may take, on a thread that nobody else can end.
const DIAL: Duration = Duration::from_secs(5);

/// A handle on a socket; see the module.
#[derive(Default, Clone)]
pub(super) struct Plug(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    socket: Option<TcpStream>,
    pulled: bool,
}

impl Plug {
    /// Ends the socket now, or as soon as there is one.
    pub(super) fn pull(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.pulled = true;
        end(state.socket.take());
    }

    fn hold(&self, socket: &impl AsFd) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.socket = socket.as_fd().try_clone_to_owned().ok().map(TcpStream::from);
        if state.pulled {
            end(state.socket.take());
        }
    }
}

fn end(socket: Option<TcpStream>) {
    if let Some(Err(error)) = socket.map(|socket| socket.shutdown(Shutdown::Both)) {
        tracing::debug!(%error, "the socket to RabbitMQ had ended already");
    }
}

/// Ends the socket when it goes out of scope.
pub(super) struct Guard(pub(super) Plug);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.pull();
    }
}

/// Connects, and gives the socket to `plug` before the handshake, which may never end.
pub(super) async fn connect(uri: AMQPUri, properties: ConnectionProperties, plug: Plug) -> lapin::Result<Connection> {
    Connection::connector(
        uri,
        default_runtime()?,
        async move |uri, runtime| {
            let address = (uri.authority.host.clone(), uri.authority.port);
            let stream = AsyncTcpStream::connect(&runtime, runtime.to_socket_addrs(address));
            let stream = timeout(DIAL, stream).await.map_err(io::Error::from)??;
            if let AsyncTcpStream::Plain(socket) = &stream {
                plug.hold(socket.get_ref());
            }
            match uri.scheme {
                AMQPScheme::AMQP => Ok(stream),
                AMQPScheme::AMQPS => {
                    Ok(stream.into_tls(&uri.authority.host, OwnedTLSConfig::default().as_ref()).await?)
                }
            }
        },
        properties,
    )
    .await
}
