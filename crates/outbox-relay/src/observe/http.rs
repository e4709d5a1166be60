//! A listener of HTTP: `/metrics`, `/livez` and `/readyz`, and for the program the API.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use outbox_core::BoxError;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    task::AbortHandle,
    time::{sleep, timeout},
};

use crate::{
    error::RunError,
    observe::{health::Health, metrics::Metrics},
};

/// The time that a connection may take for a request that needs no database: a slow client cannot hold descriptors.
const CONNECTION: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// Most connections at the same time. One more ends the oldest that waits for its client.
const CONNECTIONS: usize = 64;
/// Pause while all connections are being answered, and after one could not be accepted: nothing tells when a descriptor
/// is free.
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
pub async fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    bind_as(address, "http.listen").await
}

/// Opens the listener whose address has this key in the configuration.
#[doc(hidden)]
pub async fn bind_as(address: SocketAddr, key: &'static str) -> Result<TcpListener, RunError> {
    TcpListener::bind(address).await.map_err(|source| RunError::Listen { address, key, source })
}

/// Accepts connections.
#[doc(hidden)]
pub trait Listener {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Returns the next connection.
    ///
    /// # Errors
    ///
    /// If there is none now, for example without free descriptors.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        Ok(self.accept().await?.0)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

/// Answers HTTP requests.
#[doc(hidden)]
pub trait Respond: Clone + Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data: Send, Error: Into<BoxError>> + Send + 'static;

    /// Answers a request.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Answers until `shutdown` is done.
pub async fn serve(listener: TcpListener, sources: Sources, shutdown: impl Future<Output = ()>) {
    serve_with(listener, sources, CONNECTION, shutdown).await;
}

/// Answers until `shutdown` is done. A connection serves one request within `time`.
#[doc(hidden)]
pub async fn serve_with(
    listener: impl Listener,
    answers: impl Respond,
    time: Duration,
    shutdown: impl Future<Output = ()>,
) {
    tokio::select! {
        () = accept(listener, answers, time) => {}
        () = shutdown => {}
    }
}

async fn accept(listener: impl Listener, answers: impl Respond, time: Duration) {
    let mut open = VecDeque::new();
    loop {
        let stream = match listener.next().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "no HTTP connection is accepted");
                sleep(PAUSE).await;
                continue;
            }
        };
        while !make_room(&mut open) {
            sleep(PAUSE).await;
        }
        let is_answering = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(answer(stream, answers.clone(), time, Arc::clone(&is_answering)));
        open.push_back(Connection { task: task.abort_handle(), is_answering });
    }
}

/// A connection that was accepted.
struct Connection {
    task: AbortHandle,
    /// Whether its request is being answered. Otherwise it waits for its client.
    is_answering: Arc<AtomicBool>,
}

/// Makes room for one more connection. If there are too many, it ends the oldest that waits for its client: clients
/// that send nothing or read slowly must not keep a probe out. Returns false if all are being answered.
fn make_room(open: &mut VecDeque<Connection>) -> bool {
    open.retain(|connection| !connection.task.is_finished());
    if open.len() < CONNECTIONS {
        return true;
    }
    let waits = open.iter().position(|connection| !connection.is_answering.load(Ordering::Relaxed));
    let oldest = waits.and_then(|place| open.remove(place));
    oldest.inspect(|connection| connection.task.abort()).is_some()
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    answers: impl Respond,
    time: Duration,
    is_answering: Arc<AtomicBool>,
) {
    let service = service_fn(async |request| {
        is_answering.store(true, Ordering::Relaxed);
        let answer = answers.answer(request).await;
        is_answering.store(false, Ordering::Relaxed);
        Ok::<_, Infallible>(answer)
    });
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

impl Respond for Sources {
    type Body = String;

    async fn answer(&self, request: Request<Incoming>) -> Response<String> {
        let is_known = matches!(request.uri().path(), "/metrics" | "/livez" | "/readyz");
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let (status, body) = match request.uri().path() {
            _ if is_known && !is_read => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
            "/metrics" => (StatusCode::OK, self.metrics.render()),
            "/livez" => self.livez(),
            "/readyz" => self.readyz(),
            _ => (StatusCode::NOT_FOUND, String::new()),
        };
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        let is_exposition = status == StatusCode::OK && request.uri().path() == "/metrics";
        let kind = if is_exposition { "text/plain; version=0.0.4; charset=utf-8" } else { "text/plain; charset=utf-8" };
        answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            answer.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET,HEAD"));
        }
        answer
    }
}

impl Sources {
    /// Shows the relay's own loops only: a restart does not repair a database or a broker.
    fn livez(&self) -> (StatusCode, String) {
        let stuck = self.health.stuck();
        page(stuck.is_empty(), &stuck)
    }

    /// Sinks that take nothing are shown, and the relay is ready all the same. Otherwise a roll-out that corrects the
    /// settings of a broker would wait for this broker. The last line says which lanes it tails, or why none.
    fn readyz(&self) -> (StatusCode, String) {
        let reasons = self.health.reasons();
        let (status, mut body) = page(reasons.is_empty(), &[reasons, self.health.sinks_down()].concat());
        body.extend(self.health.told().map(|tail| format!("tail: {tail}\n")));
        (status, body)
    }
}

fn page(is_ok: bool, lines: &[String]) -> (StatusCode, String) {
    let status = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, if lines.is_empty() { "ok\n".to_owned() } else { lines.join("\n") + "\n" })
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        sync::Semaphore,
    };

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
    async fn a_relay_is_ready_when_its_database_is_and_names_the_sinks_that_are_down() {
        let server = server().await;
        let unready = server.get("/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503") && unready.ends_with("database: not reached yet\n"), "{unready}");
        // Two sinks with names of other parts.
        server.1.sink("database", None);
        server.1.sink("relay", Some("broker_blocked".to_owned()));
        let unready = server.get("/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(unready.ends_with("\r\n\r\ndatabase: not reached yet\nsink relay: broker_blocked\n"), "{unready}");
        server.1.dependency("database", Ok(()));
        let ready = server.get("/readyz").await;
        assert!(
            ready.starts_with("HTTP/1.1 200") && ready.ends_with("\r\n\r\nsink relay: broker_blocked\n"),
            "{ready}"
        );
        server.1.sink("relay", None);
        assert!(server.get("/readyz").await.ends_with("\r\n\r\nok\n"));
        server.1.tail(Some("privilege: it may not read the log".to_owned()));
        assert!(server.get("/readyz").await.ends_with("\r\n\r\nok\ntail: privilege: it may not read the log\n"));
        server.1.dependency("relay", Err("stopping".to_owned()));
        assert!(server.get("/readyz").await.starts_with("HTTP/1.1 503"));
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
        // The client that waited longest was ended, the others by the deadline.
        assert!(server.get("/livez").await.starts_with("HTTP/1.1 200"));
        for mut client in slow {
            assert_eq!(client.read(&mut [0]).await.unwrap_or_default(), 0);
        }
    }

    /// More than the buffers of both ends hold.
    const LONG: usize = 16 << 20;

    #[derive(Clone)]
    struct Slow(Arc<Semaphore>);

    impl Respond for Slow {
        type Body = String;

        async fn answer(&self, request: Request<Incoming>) -> Response<String> {
            Response::new(match request.uri().path() {
                "/long" => "x".repeat(LONG),
                "/gate" => self.0.acquire().await.map(|_| "ok\n".to_owned()).unwrap_or_default(),
                _ => "ok\n".to_owned(),
            })
        }
    }

    /// A listener on which no deadline ends a connection, with an answer that is long, and one that waits for the gate.
    async fn without_deadline(gate: Arc<Semaphore>) -> Server {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_with(listener, Slow(gate), Duration::MAX, std::future::pending()));
        Server(address, Health::new(Metrics::new().unwrap()))
    }

    #[tokio::test]
    async fn a_probe_is_answered_beside_200_clients_that_send_nothing_or_read_slowly() {
        for request in ["", "GET /livez HTTP/1.1\r\n", "GET /long HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let server = without_deadline(Arc::new(Semaphore::new(0))).await;
            let mut slow = Vec::new();
            for _ in 0..200 {
                let mut client = TcpStream::connect(server.0).await.unwrap();
                client.write_all(request.as_bytes()).await.unwrap();
                slow.push(client);
            }
            assert!(server.get("/livez").await.starts_with("HTTP/1.1 200"), "{request}");
        }
    }

    /// An answer of `relay api` may take seconds of the database.
    #[tokio::test]
    async fn a_request_that_is_being_answered_is_not_ended_for_another() {
        let gate = Arc::new(Semaphore::new(0));
        let server = without_deadline(Arc::clone(&gate)).await;
        let mut answered = TcpStream::connect(server.0).await.unwrap();
        answered.write_all(b"GET /gate HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        // Once a later request was answered, this one has arrived.
        assert!(server.get("/livez").await.starts_with("HTTP/1.1 200"));
        let mut idle = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            idle.push(TcpStream::connect(server.0).await.unwrap());
        }
        assert!(server.get("/livez").await.starts_with("HTTP/1.1 200"));
        gate.add_permits(1);
        let mut answer = String::new();
        answered.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_what_to_change() {
        let address = server().await.0;
        let error = bind(address).await.unwrap_err();
        let expected = format!("cannot listen on {address}: change `http.listen`, or stop what listens there");
        assert_eq!(error.to_string(), expected);
    }
}
