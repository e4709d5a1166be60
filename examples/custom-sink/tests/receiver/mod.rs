//! A receiver of webhooks: an HTTP server that can be stopped, and started again on its port.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    routing::post,
};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use serde_json::Value;
use testkit::servers::free_port;
use tokio::{
    net::TcpListener,
    sync::{Mutex, OwnedMutexGuard, oneshot},
    task::{JoinHandle, JoinSet},
};

/// The path and the body of each message taken, in order of arrival.
type Taken = Vec<(String, Value)>;

pub(crate) struct Receiver {
    address: String,
    taken: Arc<Mutex<Taken>>,
    /// While this is held, no request is answered.
    frozen: Mutex<Option<OwnedMutexGuard<Taken>>>,
    server: Mutex<Option<Server>>,
}

struct Server {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Receiver {
    /// Starts on a port of its own.
    pub(crate) async fn start() -> Result<Self> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let receiver = Self { address, taken: Arc::default(), frozen: Mutex::default(), server: Mutex::default() };
        receiver.open().await?;
        Ok(receiver)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks", self.address)
    }

    /// Listens, for the first time or again.
    pub(crate) async fn open(&self) -> Result<()> {
        let listener = TcpListener::bind(&self.address).await?;
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(serve(listener, Arc::clone(&self.taken), stopped));
        *self.server.lock().await = Some(Server { stop, ended });
        Ok(())
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

    /// Returns the messages of a target, in order of arrival.
    pub(crate) async fn taken(&self, target: &str) -> Vec<Value> {
        let path = format!("/hooks/{target}");
        let taken = self.taken.lock().await;
        taken.iter().filter(|(to, _)| *to == path).map(|(_, message)| message.clone()).collect()
    }
}

async fn serve(listener: TcpListener, taken: Arc<Mutex<Taken>>, stopped: oneshot::Receiver<()>) {
    let router: Router = Router::new().route("/hooks/{target}", post(take)).with_state(taken);
    let service = TowerToHyperService::new(router);
    let mut connections = JoinSet::new();
    let accept = async {
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone()));
        }
    };
    tokio::select! {
        () = accept => {}
        _ = stopped => {}
    }
    drop(listener);
    connections.shutdown().await;
}

/// Takes a message, unless its target asks for another answer (`status-503`) or none (`silent`). The type `refused` is
/// never taken.
async fn take(State(taken): State<Arc<Mutex<Taken>>>, uri: Uri, headers: HeaderMap, body: String) -> StatusCode {
    if uri.path() == "/hooks/silent" {
        std::future::pending::<()>().await;
    }
    if let Some(status) = uri.path().strip_prefix("/hooks/status-") {
        return status.parse().unwrap_or(StatusCode::BAD_REQUEST);
    }
    let Ok(message) = serde_json::from_str::<Value>(&body) else { return StatusCode::BAD_REQUEST };
    let id = headers.get("webhook-id").and_then(|id| id.to_str().ok());
    if id.is_none() || id != message.get("id").and_then(Value::as_str) {
        return StatusCode::BAD_REQUEST;
    }
    if message.get("type").is_some_and(|it| it == "refused") {
        return StatusCode::UNPROCESSABLE_ENTITY;
    }
    taken.lock().await.push((uri.path().to_owned(), message));
    StatusCode::NO_CONTENT
}
