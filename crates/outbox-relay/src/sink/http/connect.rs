//! Connections to the receiver, with or without TLS.

use std::{io, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring},
};
use url::Url;

use crate::driver_errors::told;

/// The time of each address of a host, but the last.
const EACH: Duration = Duration::from_secs(2);

/// A connection that takes one request at a time.
pub(super) type Connection = SendRequest<Full<Bytes>>;

/// How to connect to the receiver.
pub(super) struct Connector {
    host: String,
    port: u16,
    /// The server's name in its certificate; `None`: no TLS.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Connector {
    /// Reads the certificates of authorities: those of the file, or else those of the system.
    pub(super) fn new(url: &Url, ca_file: Option<&Path>) -> io::Result<Self> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = url.port_or_known_default().unwrap_or_default();
        let tls = if url.scheme() == "https" {
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            Some((TlsConnector::from(Arc::new(tls(ca_file)?)), name))
        } else {
            None
        };
        Ok(Self { host, port, tls })
    }

    /// Opens a connection. Nothing of a message is sent. An error says what to change.
    pub(super) async fn connect(&self) -> Result<Connection, String> {
        self.open().await.map_err(|error| told(REMEDIES, &error.to_string()))
    }

    async fn open(&self) -> io::Result<Connection> {
        let stream = self.reach().await?;
        // A request would wait for the answer to its first packet.
        stream.set_nodelay(true)?;
        match &self.tls {
            Some((tls, name)) => speak(tls.connect(name.clone(), stream).await?).await,
            None => speak(stream).await,
        }
    }
}

impl Connector {
    /// Connects to one of the host's addresses. One that does not answer leaves time for the others.
    async fn reach(&self) -> io::Result<TcpStream> {
        let addresses: Vec<_> = lookup_host((self.host.as_str(), self.port)).await?.collect();
        let mut failed = io::Error::other("the host's name has no address");
        for (index, address) in addresses.iter().enumerate() {
            let connecting = TcpStream::connect(address);
            let is_last = index + 1 == addresses.len();
            let within = if is_last { Duration::MAX } else { EACH };
            match timeout(within, connecting).await.unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Connection> {
    let (connection, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the connection. The request in flight gets its error.
    tokio::spawn(driver);
    Ok(connection)
}

fn tls(ca_file: Option<&Path>) -> io::Result<ClientConfig> {
    let certificates = match ca_file {
        Some(file) => CertificateDer::pem_file_iter(file).and_then(Iterator::collect).map_err(io::Error::other)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(certificates).0 == 0 {
        return Err(io::Error::other("no authority is known: set `ca_file`, or install the system's certificates"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

const STRANGER: &str =
    "the receiver's certificate is of an authority that is not trusted here: name its file in `ca_file` of the sink";

const REMEDIES: &[(&str, &str)] = &[
    ("Connection refused", "nothing listens there: start the receiver, or correct `url` of the sink"),
    ("failed to lookup address", "the host's name is not known here: correct `url` of the sink"),
    (
        "InvalidContentType",
        "what answers there does not speak TLS: correct the port, or use http:// where the network is trusted",
    ),
    ("UnknownIssuer", STRANGER),
    // An authority of the same name, such as one that was made again.
    ("BadSignature", STRANGER),
    (
        "not valid for name",
        "the receiver's certificate is for another name: use that name in `url`, or give it one for this name",
    ),
    ("certificate expired", "the receiver's certificate has expired: renew it"),
];
