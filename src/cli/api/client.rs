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

use super::problem;
pub(crate) use super::request::Request;

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
    pub(crate) fn new(url: &str, token: Option<&Path>) -> anyhow::Result<Self> {
        let token = token.map(|file| {
            let text = fs::read_to_string(file);
            text.with_context(|| format!("the token's file {} cannot be read", file.display()))
        });
        let token = token.transpose()?.map(|text| text.trim().to_owned());
        Ok(Self { place: ApiPlace::new(url)?, token })
    }

    /// Sends a request, and returns the answer.
    pub(crate) async fn ask(&self, request: &Request) -> anyhow::Result<Value> {
        let pair = |(name, value): &(String, String)| (name.clone(), Value::from(value.as_str()));
        // In the body even of a question: proxies log URLs, and a key may be among the parameters.
        let body: Map<_, _> = request.parameters.iter().map(pair).collect();
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let path = format!("/api/v1/{}", request.path);
        let body = Value::Object(body).to_string();
        let host = self.place.host();
        let answer = self.place.post(&path, bearer, body).await;
        let (status, text) = answer.with_context(|| format!("nobody answers at {host}"))?;
        let value: Option<Value> = serde_json::from_str(&text).ok();
        match (status, value) {
            (200, Some(value)) => Ok(value),
            (status, value) => {
                let error = value.as_ref().and_then(|value| value.get("error")?.as_str());
                bail!("{host} answers {status}: {}", error.map_or("and this is no `relay api`".to_owned(), lines))
            }
        }
    }
}

impl ApiPlace {
    fn new(url: &str) -> anyhow::Result<Self> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self::Socket(path.into()));
        }
        let known = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = known.ok_or_else(|| {
            let examples = "https://outbox.example, http://127.0.0.1:9465 or unix:/run/outbox-relay/api.sock";
            problem("--via", &format!("it must be an address such as {examples}"))
        })?;
        if url.scheme() == "http" && !url.host_str().is_some_and(is_local) {
            return Err(problem("--via", "the token would go to another machine without TLS: use https://").into());
        }
        Ok(Self::Address(client::agent(&url, RootCerts::PlatformVerifier, DEADLINE), url))
    }

    fn host(&self) -> String {
        match self {
            Self::Address(_, url) => url.host_str().unwrap_or_default().to_owned(),
            Self::Socket(path) => path.display().to_string(),
        }
    }

    async fn post(&self, path: &str, bearer: Option<String>, body: String) -> anyhow::Result<(u16, String)> {
        match self {
            Self::Address(agent, url) => post(agent, url, path, bearer, body),
            Self::Socket(socket) => timeout(DEADLINE, post_to_socket(socket, path, bearer, body)).await?,
        }
    }
}

/// Returns status and text of the answer.
fn post(agent: &Agent, url: &Url, path: &str, bearer: Option<String>, body: String) -> anyhow::Result<(u16, String)> {
    let mut url = url.clone();
    url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
    let request = agent.post(url.as_str()).header("content-type", JSON);
    let request = bearer.into_iter().fold(request, |request, bearer| request.header("authorization", bearer));
    let mut answer = request.send(body)?;
    let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string()?;
    Ok((answer.status().as_u16(), text))
}

/// Does the same over a unix socket, which `ureq` cannot.
async fn post_to_socket(
    socket: &Path,
    path: &str,
    bearer: Option<String>,
    body: String,
) -> anyhow::Result<(u16, String)> {
    let stream = TokioIo::new(UnixStream::connect(socket).await?);
    let (mut sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(connection);
    let request = Http::post(path).header("host", "localhost").header("content-type", JSON);
    let request = bearer.into_iter().fold(request, |request, bearer| request.header("authorization", bearer));
    let answer = sender.send_request(request.body(Body::from(body))?).await?;
    let status = answer.status().as_u16();
    let text = to_bytes(Body::new(answer.into_body()), usize::MAX).await?;
    Ok((status, String::from_utf8(text.into())?))
}
