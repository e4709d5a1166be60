//! `relay api`: answers the commands of operators over HTTP, for programs and for people without an account of the
//! database.

mod access;
pub(super) mod client;
mod listen;
mod outboxes;
mod request;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{self, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::{any, get},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
    time::timeout,
};

pub(super) use self::request::paths;
use self::{access::AT_ONCE, listen::Listening, outboxes::OutboxSource};
pub(super) use self::{
    access::{Access, ApiRefusal, Caller, host_name},
    request::Request,
};
use super::{
    Arguments, console, database, log,
    operate::{Answering, Operate, Role, told},
};
use crate::{
    config::{ApiConfig, ConfigError, Loaded, Problem},
    doctor,
};

/// The time that a request may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// The time after which a failed command is one that has waited, for a locked table or for the database. The commands
/// behind it would wait, too, and get its error.
const IN_VAIN: Duration = Duration::from_secs(2);
/// The time that a connection has beside that, and a stop for the requests that run.
const MARGIN: Duration = Duration::from_secs(10);
/// Most connections to the database at the same time: of two callers, none keeps the other out.
const CONNECTIONS: usize = 2 * AT_ONCE;
/// The time in which a body must come. Without it, clients that send none would take all connections.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// Most bytes of a body.
const BODY: usize = 64 * 1024;

/// The path of the doctor's findings. It is no command, because it connects by itself.
const DOCTOR: &str = "doctor";

/// Answers until a signal stops it, with the pages of the console if these are wanted.
pub(super) async fn run(options: &Arguments, has_pages: bool) -> anyhow::Result<bool> {
    if options.listen.is_some() {
        return Err(problem("--listen", "it is for `relay run`: give --set api.listen=ADDRESS").into());
    }
    let loaded = options.load_for_database()?;
    let _log = log::init(&loaded.config.log)?;
    let root = outboxes::prefix(&loaded.config.console.prefix)?;
    let (listener, access) = open(&loaded.config.api).await?;
    let is_fleet = loaded.config.console.outboxes.is_some();
    let site = Arc::new(Site { access, root, is_fleet });
    let apis = outboxes::open(&site, loaded)?;
    if let ([api], false) = (apis.as_slice(), is_fleet) {
        // It is better to find out now that the database cannot be used.
        api.source.check().await?;
    }
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be handled")?;
    tracing::info!(address = %listener, "serving {}", if has_pages { "pages and /api/v1" } else { "/api/v1" });
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    listener.serve(router(&site, &apis, has_pages), DEADLINE + MARGIN, stop).await;
    // Those that are being answered.
    let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
    for api in &apis {
        timeout(MARGIN, api.places.acquire_many(all)).await.ok();
    }
    Ok(true)
}

fn problem(at: &str, text: &str) -> ConfigError {
    ConfigError(vec![Problem { at: at.to_owned(), text: text.to_owned() }])
}

/// Opens the listener, if the rules allow it.
async fn open(config: &ApiConfig) -> anyhow::Result<(Listening, Access)> {
    let address = config.listen.filter(|_| config.socket.is_none());
    let tokens = config.tokens_file.clone();
    match &tokens {
        Some(file) => access::check(file).map_err(|error| {
            problem("api.tokens_file", &format!("the file {} cannot be used: {error}", file.display()))
        })?,
        None if address.is_none_or(|address| address.ip().is_loopback()) => {}
        None => {
            let text = "elsewhere than on loopback, callers need tokens: set `api.tokens_file`";
            return Err(problem("api.listen", text).into());
        }
    }
    let own = match address {
        Some(address) => vec![address.ip().to_string(), format!("[{}]", address.ip())],
        None => vec!["localhost".to_owned()],
    };
    let hosts = config.hosts.split(',').map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
    let access = Access {
        tokens,
        anonymous: config.anonymous,
        hosts: hosts.chain(own).collect(),
        per_second: config.requests_per_second,
        counts: Mutex::default(),
    };
    Ok((Listening::open(address, config.socket.as_deref()).await?, access))
}

/// The access rules and the path of a process, for all its outboxes.
pub(super) struct Site {
    pub(super) access: Access,
    /// The path of the first page, without a slash at its end.
    pub(super) root: String,
    /// Whether the first page shows several outboxes.
    pub(super) is_fleet: bool,
}

/// The answers about one outbox.
pub(super) struct Api {
    pub(super) site: Arc<Site>,
    /// Its name; empty if there is only one.
    pub(super) name: String,
    /// The path of its first page, without a slash at its end.
    pub(super) base: String,
    /// `console.trace_url`
    pub(super) trace_url: String,
    pub(super) rates: console::Rates,
    source: OutboxSource,
    places: Semaphore,
}

fn router(site: &Arc<Site>, apis: &[Arc<Api>], has_pages: bool) -> Router {
    let of_one = |api: &Arc<Api>| {
        let router = Router::new().route("/api/v1/{*path}", any(handle));
        let router = if has_pages { router.fallback(console::handle) } else { router.fallback(handle) };
        router.with_state(Arc::clone(api))
    };
    let mut router = Router::new().route("/livez", get(async || "ok\n"));
    if has_pages {
        router = console::files(router);
    }
    match apis {
        [api] if !site.is_fleet => router = router.merge(of_one(api)),
        all => {
            for api in all {
                router = router.nest_service(&format!("/o/{}", api.name), of_one(api));
            }
            if has_pages {
                router = router.merge(console::fleet(site, all));
            }
        }
    }
    // A proxy may leave the prefix in the path, or not.
    if site.root.is_empty() { router } else { router.clone().nest_service(&site.root, router) }
}

async fn handle(State(api): State<Arc<Api>>, request: extract::Request) -> Response {
    let (status, value) = match api.answer(request).await {
        Ok(value) => (StatusCode::OK, value),
        Err((status, error)) => (status, json!({"error": error})),
    };
    let kind = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, kind, value.to_string()).into_response()
}

impl Api {
    async fn answer(&self, request: extract::Request) -> Result<Value, ApiRefusal> {
        let (head, body) = request.into_parts();
        let caller = self.site.access.caller(&head.headers)?;
        let Some(path) = head.uri.path().strip_prefix("/api/v1/").map(str::to_owned) else {
            return Err((StatusCode::NOT_FOUND, "there is only /api/v1".to_owned()));
        };
        let is_post = head.method == Method::POST;
        let parameters = match head.method {
            Method::GET => queried(&head.uri),
            Method::POST => posted(&head.headers, body).await?,
            _ => return Err((StatusCode::METHOD_NOT_ALLOWED, "use GET or POST".to_owned())),
        };
        let request = Request { path, parameters };
        let _open = self.site.access.open(&caller.name)?;
        let mut answers = self.ask(&caller, &[request], is_post).await?;
        answers.pop().unwrap_or_else(|| Err((StatusCode::INTERNAL_SERVER_ERROR, "there is no answer".to_owned())))
    }

    /// Carries out commands within [`DEADLINE`], see [`Api::ask_within`].
    pub(super) async fn ask(
        &self,
        caller: &Caller,
        requests: &[Request],
        is_post: bool,
    ) -> Result<Vec<Result<Value, ApiRefusal>>, ApiRefusal> {
        self.ask_within(caller, requests, is_post, DEADLINE).await
    }

    /// Carries out commands on one connection. An answer is an error if its command failed.
    ///
    /// # Errors
    ///
    /// If the caller may not have one of them, or the database cannot be used.
    pub(super) async fn ask_within(
        &self,
        caller: &Caller,
        requests: &[Request],
        is_post: bool,
        within: Duration,
    ) -> Result<Vec<Result<Value, ApiRefusal>>, ApiRefusal> {
        let commands: Vec<_> =
            requests.iter().map(|request| command(request, caller, is_post)).collect::<Result<_, _>>()?;
        // Of several outboxes, one that does not answer keeps its callers from no other.
        let places = self.site.access.places(&format!("{}/{}", self.name, caller.name))?;
        let answering = async {
            let _own = places.acquire().await.ok();
            let _place = self.places.acquire().await.ok();
            match &self.source {
                OutboxSource::Database(loaded) => answers(loaded, &commands).await,
                OutboxSource::Api(client) => {
                    let mut answers = Vec::new();
                    for request in requests {
                        answers.push(outboxes::forward(client, request, caller, within).await);
                    }
                    Ok(answers)
                }
            }
        };
        let late = |_| (StatusCode::GATEWAY_TIMEOUT, "the database did not answer in time".to_owned());
        timeout(within, answering).await.map_err(late)?
    }
}

/// Reads a request as a command, if the caller may give it; `None`: it is the doctor's.
fn command(request: &Request, caller: &Caller, is_post: bool) -> Result<Option<Operate>, ApiRefusal> {
    if request.path == DOCTOR && request.parameters.is_empty() {
        return Ok(None);
    }
    let command = request.command(&caller.name).map_err(|error| (StatusCode::BAD_REQUEST, error))?;
    let role = command.operation().role();
    if role > caller.role {
        return Err((StatusCode::FORBIDDEN, format!("{} has not the role for it: {role:?}", caller.name)));
    }
    if role > Role::Viewer {
        if !is_post {
            let text = "it is recorded or changes something: use POST".to_owned();
            return Err((StatusCode::METHOD_NOT_ALLOWED, text));
        }
        tracing::info!(caller = caller.name, request.path, "an order, or a reveal");
    }
    Ok(Some(command))
}

async fn answers(loaded: &Loaded, commands: &[Option<Operate>]) -> Result<Vec<Result<Value, ApiRefusal>>, ApiRefusal> {
    let config = &loaded.config;
    let mut answers = Vec::new();
    let mut db = None;
    for command in commands {
        let Some(command) = command else {
            answers.push(Ok(json!(doctor::examine_as_operator(loaded).await)));
            continue;
        };
        let mut connection = match db.take() {
            Some(connection) => connection,
            None => database::connect_to_read(config).await.map_err(|error| {
                tracing::error!(error = format!("{error:#}"), "the database cannot be used");
                let text = "the database cannot be used: see the log of this process".to_owned();
                (StatusCode::SERVICE_UNAVAILABLE, text)
            })?,
        };
        let process = Answering { via: "api", config };
        let operation = command.operation();
        let begin = Instant::now();
        let answer = database::within(&mut connection, async |db| operation.answer(db, &process).await).await;
        // After an error a transaction may be open.
        db = answer.is_ok().then_some(connection);
        answers.push(answer.map_err(|error| (StatusCode::UNPROCESSABLE_ENTITY, told(&error).to_string())));
        if let Some(Err(error)) = answers.last()
            && begin.elapsed() >= IN_VAIN
        {
            let error = error.clone();
            answers.resize(commands.len(), Err(error));
            break;
        }
    }
    Ok(answers)
}

/// Returns the parameters in a query.
fn queried(uri: &Uri) -> Vec<(String, String)> {
    url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect()
}

/// Returns the parameters in a body: a JSON object. No form of a foreign page can send this type.
async fn posted(headers: &HeaderMap, body: Body) -> Result<Vec<(String, String)>, ApiRefusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json".to_owned()));
    }
    let wrong =
        || (StatusCode::BAD_REQUEST, "the body must be a JSON object of texts, numbers and booleans".to_owned());
    let body = body_of(body, BODY).await?;
    let object: Option<serde_json::Map<String, Value>> = serde_json::from_slice(&body).ok();
    let parameter = |(name, value): (String, Value)| match value {
        Value::String(text) => Ok((name, text)),
        Value::Number(_) | Value::Bool(_) => Ok((name, value.to_string())),
        _ => Err(wrong()),
    };
    object.ok_or_else(wrong)?.into_iter().map(parameter).collect()
}

/// Reads a body of at most this many bytes.
pub(super) async fn body_of(body: Body, most: usize) -> Result<Bytes, ApiRefusal> {
    let too_long =
        |_| (StatusCode::PAYLOAD_TOO_LARGE, format!("the body must come whole, and have at most {most} bytes"));
    let late = |_| (StatusCode::REQUEST_TIMEOUT, "the body must come within five seconds".to_owned());
    timeout(BODY_WITHIN, to_bytes(body, most)).await.map_err(late)?.map_err(too_long)
}

/// Returns the page docs/api.md.
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(include_str!("api.md"));
    let doctor = (format!("/{DOCTOR}"), Vec::new());
    for (path, parameters) in paths().into_iter().chain([doctor]) {
        let parameters: Vec<_> = parameters.iter().map(|name| format!("`{name}`")).collect();
        text.extend(["| `", &path, "` | ", &parameters.join(", "), " |\n"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tempfile::NamedTempFile;

    use super::*;
    use crate::config::Config;

    fn config(listen: &str, tokens: Option<&NamedTempFile>) -> ApiConfig {
        let tokens_file = tokens.map(|file| file.path().to_owned());
        let mut api = Config::default().api;
        api.listen = listen.parse().ok();
        api.tokens_file = tokens_file;
        api
    }

    #[tokio::test]
    async fn elsewhere_than_on_loopback_nobody_is_let_in_without_a_token() {
        let (_, access) = open(&config("127.0.0.1:0", None)).await.unwrap();
        assert_eq!(access.anonymous, Some(Role::Viewer));
        let error = open(&config("0.0.0.0:0", None)).await.err().unwrap();
        assert!(error.is::<ConfigError>() && error.to_string().contains("set `api.tokens_file`"), "{error}");
        let mut file = NamedTempFile::new().unwrap();
        let (_, access) = open(&config("0.0.0.0:0", Some(&file))).await.unwrap();
        assert!(access.tokens.is_some());
        file.write_all(b"alice root x\n").unwrap();
        let error = open(&config("127.0.0.1:0", Some(&file))).await.err().unwrap();
        assert!(error.is::<ConfigError>() && error.to_string().contains("line 1 must be"), "{error}");
    }
}
