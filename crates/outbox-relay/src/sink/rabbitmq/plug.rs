//! A handle on the socket of a connection, to end it for good.
//!
//! lapin ends a connection by a request to the broker, and waits for the answer for ever. With a blocked or vanished
//! broker its thread and its buffers (8 MiB) would stay.

use std::{
    io,
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties,
    runtime::default_runtime,
    tcp::{RustlsConnector, RustlsConnectorConfig},
    uri::{AMQPScheme, AMQPUri},
};
use parking_lot::Mutex;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::task::spawn_blocking;

use crate::settings::RabbitMqConfig;

/// A handle on a socket; see the module.
#[derive(Default, Clone)]
pub(super) struct Plug(Arc<Mutex<PlugState>>);

#[derive(Default)]
struct PlugState {
    socket: Option<TcpStream>,
    pulled: bool,
}

impl Plug {
    /// Ends the socket now, or as soon as there is one.
    pub(super) fn pull(&self) {
        let mut state = self.0.lock();
        state.pulled = true;
        end(state.socket.take());
    }

    /// Leaves the socket to lapin, which ends it after the broker has confirmed the end of the connection. It would
    /// report an end before that as an error.
    pub(super) fn let_go(&self) {
        self.0.lock().socket = None;
    }

    fn hold(&self, socket: &impl AsFd) {
        let mut state = self.0.lock();
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

/// The TLS files of a sink. They are read at every connect, so that they can be changed.
#[derive(Clone)]
pub(super) struct Tls {
    authorities: Option<PathBuf>,
    own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    pub(super) fn of(config: &RabbitMqConfig) -> Self {
        Self { authorities: config.ca_file.clone(), own: config.certificate_file.clone().zip(config.key_file.clone()) }
    }

    fn connector(&self) -> io::Result<RustlsConnector> {
        let config = match &self.authorities {
            Some(file) => RustlsConnectorConfig::default().with_parsable_certificates(certificates(file)?),
            None => RustlsConnectorConfig::new_with_native_certs()?,
        };
        match &self.own {
            Some((certificate, key)) => {
                let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
                config.connector_with_single_cert(certificates(certificate)?, key_der)
            }
            None => config.connector_with_no_client_auth(),
        }
    }
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    certificates.map_err(|error| unusable(file, &error))
}

fn unusable(file: &Path, error: &rustls_pki_types::pem::Error) -> io::Error {
    io::Error::other(format!("the file {} cannot be used ({error}): correct it", file.display()))
}

/// Connects, and gives the socket to `plug` before lapin's handshake, which may never end.
///
/// lapin gets an open stream. If it fails to open one itself just before its first frame, it waits for ever.
pub(super) async fn connect(
    uri: AMQPUri,
    tls: Tls,
    properties: ConnectionProperties,
    plug: Plug,
) -> lapin::Result<Connection> {
    let runtime = default_runtime()?;
    let address = (uri.authority.host.clone(), uri.authority.port);
    let stream = AsyncTcpStream::connect(&runtime, runtime.to_socket_addrs(address)).await?;
    if let AsyncTcpStream::Plain(socket) = &stream {
        plug.hold(socket.get_ref());
    }
    let stream = match uri.scheme {
        AMQPScheme::AMQP => stream,
        AMQPScheme::AMQPS => {
            let connector = spawn_blocking(move || tls.connector()).await.map_err(io::Error::other)??;
            stream.into_rustls(&connector, &uri.authority.host).await?
        }
    };
    let stream = Mutex::new(Some(stream));
    let once = async move |_, _| {
        let stream = stream.lock().take();
        stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    };
    Connection::connector(uri, runtime, once, properties).await
}
