//! Asks a `relay api`, for people without an account of the database.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use axum::body::{Body, to_bytes};
use hyper::{Request as Http, client::conn::http1};
use hyper_util::rt::TokioIo;
use outbox_relay::{observe::client, operate::shown::lines, settings::is_local};
use serde_json::{Map, Value};
use tokio::{net::UnixStream, time::timeout};
use ureq::{Agent, tls::RootCerts};
use url::Url;

pub(crate) use super::request::Request;
use super::{Caller, problem};

/// The time that an answer may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// The type of a request's body.
const JSON: &str = "application/json";

/// A client of one process.
#[derive(Debug)]
pub(crate) struct ApiClient {
    place: ApiPlace,
    token: Option<String>,
}

#[derive(Debug)]
enum ApiPlace {
    Address(Agent, Url),
    Socket(PathBuf),
}

impl ApiClient {
    /// Makes one for this address, with the token in a file.
    ///
    /// # Errors
    ///
    /// If the address, which has this flag or key, is none, or the token cannot be read.
    pub(crate) fn new(at: &str, url: &str, token: Option<&Path>) -> anyhow::Result<Self> {
        let token = token.map(|file| {
            let text = fs::read_to_string(file);
            text.with_context(|| format!("the token's file {} cannot be read", file.display()))
        });
        let token = token.transpose()?.map(|text| text.trim().to_owned());
        Ok(Self { place: ApiPlace::new(at, url)?, token })
    }

    /// Sends a request, and returns the answer.
    pub(crate) async fn ask(&self, request: &Request) -> anyhow::Result<Value> {
        let (status, value) = self.send(request, None, DEADLINE).await?;
        if status == 200 && !value.is_null() {
            return Ok(value);
        }
        let error = value.get("error").and_then(Value::as_str);
        let host = self.place.host();
        bail!("{host} answers {status}: {}", error.map_or("and this is no `relay api`".to_owned(), lines))
    }

    /// Sends a request, for a caller of this process or for itself. Returns the status and the answer, which is null if
    /// it is no JSON.
    pub(crate) async fn send(
        &self,
        request: &Request,
        caller: Option<&Caller>,
        within: Duration,
    ) -> anyhow::Result<(u16, Value)> {
        let pair = |(name, value): &(String, String)| (name.clone(), Value::from(value.as_str()));
        // In the body even of a question: proxies log URLs, and a key may be among the parameters.
        let body: Map<_, _> = request.parameters.iter().map(pair).collect();
        let mut headers = vec![("content-type", JSON.to_owned())];
        headers.extend(self.token.as_ref().map(|token| ("authorization", format!("Bearer {token}"))));
        if let Some(caller) = caller {
            headers.extend([("x-relay-user", caller.name.clone()), ("x-relay-role", caller.role_word().to_owned())]);
        }
        let path = format!("/api/v1/{}", request.path);
        let body = Value::Object(body).to_string();
        let answer = self.place.post(&path, headers, body, within).await;
        let (status, text) = answer.with_context(|| format!("nobody answers at {}", self.place.host()))?;
        Ok((status, serde_json::from_str(&text).unwrap_or_default()))
    }
}

impl ApiPlace {
    fn new(at: &str, url: &str) -> anyhow::Result<Self> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self::Socket(path.into()));
        }
        let known = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = known.ok_or_else(|| {
            let examples = "https://outbox.example, http://127.0.0.1:9465 or unix:/run/outbox-relay/api.sock";
            problem(at, &format!("it must be an address such as {examples}"))
        })?;
        if url.scheme() == "http" && !url.host_str().is_some_and(is_local) {
            return Err(problem(at, "the token would go to another machine without TLS: use https://").into());
        }
        Ok(Self::Address(client::agent(&url, RootCerts::PlatformVerifier, DEADLINE), url))
    }

    fn host(&self) -> String {
        match self {
            Self::Address(_, url) => url.host_str().unwrap_or_default().to_owned(),
            Self::Socket(path) => path.display().to_string(),
        }
    }

    async fn post(
        &self,
        path: &str,
        headers: Headers,
        body: String,
        within: Duration,
    ) -> anyhow::Result<(u16, String)> {
        match self {
            Self::Address(agent, url) => {
                let mut url = url.clone();
                url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
                let agent = agent.clone();
                tokio::task::spawn_blocking(move || post(&agent, &url, headers, body, within)).await?
            }
            Self::Socket(socket) => timeout(within, post_to_socket(socket, path, headers, body)).await?,
        }
    }
}

type Headers = Vec<(&'static str, String)>;

/// Returns status and text of the answer.
fn post(agent: &Agent, url: &Url, headers: Headers, body: String, within: Duration) -> anyhow::Result<(u16, String)> {
    // The thread is free at the latest when nobody waits for it any more.
    let request = agent.post(url.as_str()).config().timeout_global(Some(within)).build();
    let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
    let mut answer = request.send(body)?;
    let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string()?;
    Ok((answer.status().as_u16(), text))
}

/// Does the same over a unix socket, which `ureq` cannot.
async fn post_to_socket(socket: &Path, path: &str, headers: Headers, body: String) -> anyhow::Result<(u16, String)> {
    let stream = TokioIo::new(UnixStream::connect(socket).await?);
    let (mut sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(connection);
    let request = Http::post(path).header("host", "localhost");
    let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
    let answer = sender.send_request(request.body(Body::from(body))?).await?;
    let status = answer.status().as_u16();
    let text = to_bytes(Body::new(answer.into_body()), usize::MAX).await?;
    Ok((status, String::from_utf8(text.into())?))
}
