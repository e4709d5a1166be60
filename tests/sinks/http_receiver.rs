//! A receiver of requests: an HTTP server, with or without TLS, that can be stopped, and started again on its port. It
//! takes a request only if its signature is right.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use futures_util::stream;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use testkit::servers::free_port;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Mutex, OwnedMutexGuard, oneshot},
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

/// The secret of all requests, in the form of Standard Webhooks.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that was taken.
#[derive(Clone)]
pub(crate) struct Taken {
    path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) struct Receiver {
    address: String,
    tls: Option<TlsAcceptor>,
    taken: Arc<Mutex<Vec<Taken>>>,
    opened: Arc<AtomicUsize>,
    /// While this is held, no request is answered.
    frozen: Mutex<Option<OwnedMutexGuard<Vec<Taken>>>>,
    server: Mutex<Option<Server>>,
}

struct Server {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Receiver {
    /// Starts on a port of its own.
    pub(crate) async fn start(tls: Option<TlsAcceptor>) -> Result<Self> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let server = Mutex::default();
        let opened = Arc::default();
        let receiver = Self { address, tls, taken: Arc::default(), opened, frozen: Mutex::default(), server };
        receiver.open().await?;
        Ok(receiver)
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/hooks", self.address)
    }

    /// Listens, for the first time or again.
    pub(crate) async fn open(&self) -> Result<()> {
        let listener = TcpListener::bind(&self.address).await?;
        let (stop, stopped) = oneshot::channel();
        let taken = Arc::clone(&self.taken);
        let ended = tokio::spawn(serve(listener, self.tls.clone(), (taken, Arc::clone(&self.opened)), stopped));
        *self.server.lock().await = Some(Server { stop, ended });
        Ok(())
    }

    /// Returns the number of connections that were made.
    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }

    /// Closes all connections and refuses new ones.
    pub(crate) async fn close(&self) -> Result<()> {
        let server = self.server.lock().await.take().context("it is closed already")?;
        server.stop.send(()).ok();
        Ok(server.ended.await?)
    }

    /// Answers no request until [`Self::thaw`]. Connections stay open.
    pub(crate) async fn freeze(&self) {
        *self.frozen.lock().await = Some(Arc::clone(&self.taken).lock_owned().await);
    }

    pub(crate) async fn thaw(&self) {
        *self.frozen.lock().await = None;
    }

    /// Returns the requests to a path, in order of arrival.
    pub(crate) async fn taken(&self, target: &str) -> Vec<Taken> {
        let path = format!("/hooks/{target}");
        self.taken.lock().await.iter().filter(|taken| taken.path == path).cloned().collect()
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    (taken, opened): (Arc<Mutex<Vec<Taken>>>, Arc<AtomicUsize>),
    stopped: oneshot::Receiver<()>,
) {
    let router: Router = Router::new().route("/hooks/{*target}", post(take)).with_state(taken);
    let mut connections = JoinSet::new();
    let accept = async {
        while let Ok((stream, _)) = listener.accept().await {
            opened.fetch_add(1, Ordering::Relaxed);
            let tls = tls.clone();
            let router = router.clone();
            connections.spawn(async move {
                match tls {
                    Some(tls) => answer(tls.accept(stream).await?, router).await,
                    None => answer(stream, router).await,
                }
            });
        }
    };
    tokio::select! {
        () = accept => {}
        _ = stopped => {}
    }
    drop(listener);
    connections.shutdown().await;
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) -> Result<()> {
    // A message of the suite has 200 headers, and hyper takes 100.
    let mut server = http1::Builder::new();
    Ok(server.max_headers(1000).serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await?)
}

/// Takes a message, unless its target asks for another answer (`status-503`, `chatty`, `moved`, `missing`) or none (`silent`).
/// The type `refused` is never taken.
async fn take(State(taken): State<Arc<Mutex<Vec<Taken>>>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    match uri.path().strip_prefix("/hooks/") {
        Some("silent") => std::future::pending::<()>().await,
        Some("chatty") => {
            let parts =
                stream::iter(["a", "b", "c"].map(|part| Ok::<_, io::Error>(Bytes::from_static(part.as_bytes()))));
            return Body::from_stream(parts).into_response();
        }
        Some("moved") => return Redirect::temporary("/hooks/elsewhere").into_response(),
        Some("missing") => return StatusCode::NOT_FOUND.into_response(),
        _ => {}
    }
    if let Some(status) = uri.path().strip_prefix("/hooks/status-") {
        let status = status.parse().unwrap_or(StatusCode::BAD_REQUEST);
        return status.into_response();
    }
    if !is_signed(&headers, &body) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if headers.get("outbox-type").is_some_and(|it| it == "refused") {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    }
    taken.lock().await.push(Taken { path: uri.path().to_owned(), headers, body });
    StatusCode::NO_CONTENT.into_response()
}

/// Whether one of the signatures is right. Computes it from the definitions of Standard Webhooks and of HMAC.
fn is_signed(headers: &HeaderMap, body: &[u8]) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = BASE64.decode(SECRET.trim_start_matches("whsec_")).unwrap_or_default();
    let pad = |with: u8| (0..64).map(|n| key.get(n).copied().unwrap_or_default() ^ with).collect::<Vec<_>>();
    let signed = [text("webhook-id").as_bytes(), b".", text("webhook-timestamp").as_bytes(), b".", body].concat();
    let inner = Sha256::digest([pad(0x36), signed].concat());
    let expected = format!("v1,{}", BASE64.encode(Sha256::digest([pad(0x5c), inner.to_vec()].concat())));
    text("webhook-signature").split(' ').any(|signature| signature == expected)
}

/// Returns the acceptor of a server at 127.0.0.1, and the certificate of its authority in `ca.pem` of a folder.
pub(crate) fn private_authority() -> Result<(TlsAcceptor, TempDir)> {
    let folder = tempfile::tempdir()?;
    let key = KeyPair::generate()?;
    let own = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(folder.path().join("ca.pem"), params.self_signed(&key)?.pem())?;
    let server = CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&own, &Issuer::new(params, key))?;
    let private = PrivateKeyDer::try_from(own.serialize_der()).map_err(anyhow::Error::msg)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok((TlsAcceptor::from(Arc::new(config.with_single_cert(vec![server.der().clone()], private)?)), folder))
}
