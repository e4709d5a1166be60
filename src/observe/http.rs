//! `/metrics`, `/livez` and `/readyz`, on a listener of their own.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::observe::{health::Health, metrics::Metrics};

/// The time that a connection may take for a request that needs no database: a slow client cannot hold descriptors.
const CONNECTION: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// Most connections at the same time.
const CONNECTIONS: usize = 64;
/// Pause after a failed accept, for example without free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The sources of the answers.
#[derive(Clone)]
pub struct Sources {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/livez` and `/readyz`.
    pub health: Arc<Health>,
}

/// Opens the listener.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    bind_as(address, "http.listen").await
}

/// Opens the listener whose address has this key in the configuration.
pub(crate) async fn bind_as(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}: change `{key}`, or stop what listens there"))
}

/// Answers until `shutdown` is done.
pub async fn serve(listener: TcpListener, sources: Sources, shutdown: impl Future<Output = ()>) {
    serve_router(listener, router(sources), CONNECTION, shutdown).await;
}

/// Answers until `shutdown` is done. A connection serves one request within `time`.
pub(crate) async fn serve_router(
    listener: TcpListener,
    router: Router,
    time: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let service = TowerToHyperService::new(router);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let accept = async {
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let service = service.clone();
            tokio::spawn(async move {
                answer(stream, service, time).await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = shutdown => {}
    }
}

async fn answer(stream: TcpStream, service: TowerToHyperService<Router>, time: Duration) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(time, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a HTTP connection failed"),
        Err(_) => tracing::debug!("a HTTP connection took too long"),
    }
}

fn router(sources: Sources) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(sources)
}

async fn metrics(State(sources): State<Sources>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], sources.metrics.render())
}

/// Shows the relay's own loops only: a restart does not repair a database or a broker.
async fn livez(State(sources): State<Sources>) -> impl IntoResponse {
    state(&sources.health.stuck())
}

async fn readyz(State(sources): State<Sources>) -> impl IntoResponse {
    state(&sources.health.reasons())
}

fn state(reasons: &[String]) -> (StatusCode, String) {
    if reasons.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct Server(SocketAddr, Arc<Health>);

    async fn server() -> Server {
        let metrics = Metrics::new().unwrap();
        let health = Health::new(Arc::clone(&metrics));
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let sources = Sources { metrics, health: Arc::clone(&health) };
        tokio::spawn(serve(listener, sources, std::future::pending()));
        Server(address, health)
    }

    impl Server {
        async fn send(&self, request: &str) -> String {
            let mut stream = TcpStream::connect(self.0).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        }

        async fn get(&self, path: &str) -> String {
            self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
        }
    }

    #[tokio::test]
    async fn a_relay_is_ready_when_all_it_depends_on_is_and_says_why_it_is_not() {
        let server = server().await;
        let unready = server.get("/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503") && unready.ends_with("database: not reached yet\n"), "{unready}");
        server.1.dependency("database", Ok(()));
        server.1.dependency("mail", Err("broker_blocked".to_owned()));
        assert!(server.get("/readyz").await.ends_with("\r\n\r\nmail: broker_blocked\n"));
        server.1.dependency("mail", Ok(()));
        assert!(server.get("/readyz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_relay_lives_while_its_database_does_not() {
        let server = server().await;
        assert!(server.get("/livez").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn metrics_are_served_as_prometheus_reads_them() {
        let answer = server().await.get("/metrics").await;
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.contains("outbox_relay_build_info{"), "{answer}");
    }

    #[tokio::test]
    async fn what_is_not_served_is_refused() {
        let server = server().await;
        assert!(server.get("/").await.starts_with("HTTP/1.1 404"));
        assert!(server.send("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        assert!(server.send("not HTTP\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    }

    /// No request that is served has one.
    #[tokio::test]
    async fn a_body_is_not_waited_for_however_long_it_is_to_be() {
        let server = server().await;
        for (request, expected) in [
            ("GET /livez", "HTTP/1.1 200 OK\r\n"),
            ("POST /livez", "HTTP/1.1 405 Method Not Allowed\r\n"),
            ("PUT /", "HTTP/1.1 404 Not Found\r\n"),
        ] {
            for length in ["Content-Length: 1000000000000", "Transfer-Encoding: chunked"] {
                let answer = server.send(&format!("{request} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n")).await;
                assert!(answer.starts_with(expected), "{request}, {length}: {answer}");
            }
        }
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let server = server().await;
        let answer = server.send(&format!("GET /livez HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101))).await;
        assert!(answer.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{answer}");
        let path = "x".repeat(70_000);
        assert!(server.get(&format!("/{path}")).await.starts_with("HTTP/1.1 414 URI Too Long\r\n"));
    }

    #[tokio::test]
    async fn slow_clients_do_not_keep_others_out_for_ever() {
        let server = server().await;
        let mut slow = Vec::new();
        for _ in 0..CONNECTIONS {
            slow.push(TcpStream::connect(server.0).await.unwrap());
        }
        assert!(server.get("/livez").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_what_to_change() {
        let address = server().await.0;
        let error = bind(address).await.unwrap_err();
        let expected = format!("cannot listen on {address}: change `http.listen`, or stop what listens there");
        assert_eq!(error.to_string(), expected);
    }
}
