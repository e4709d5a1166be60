//! Asks a `relay api`, for people without an account of the database.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value};
use ureq::{Agent, tls::RootCerts};
use url::Url;

use super::problem;
pub(crate) use super::request::Request;
use crate::{config::is_local, operate::shown::lines, state::http};

/// The time that an answer may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A client of one process.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    url: Url,
    token: Option<String>,
}

impl Client {
    /// Makes one for this address, with the token in a file.
    pub(crate) fn new(url: &str, token: Option<&Path>) -> anyhow::Result<Self> {
        let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = url.ok_or_else(|| {
            problem("--via", "it must be an address such as https://outbox.example or http://127.0.0.1:9465")
        })?;
        if url.scheme() == "http" && !url.host_str().is_some_and(is_local) {
            return Err(problem("--via", "the token would go to another machine without TLS: use https://").into());
        }
        let token = token.map(|file| {
            let text = fs::read_to_string(file);
            text.with_context(|| format!("the token's file {} cannot be read", file.display()))
        });
        let token = token.transpose()?.map(|text| text.trim().to_owned());
        let agent = http::agent(&url, RootCerts::PlatformVerifier, DEADLINE);
        Ok(Self { agent, url, token })
    }

    /// Sends a request, and returns the answer.
    pub(crate) fn ask(&self, request: &Request) -> anyhow::Result<Value> {
        let mut url = self.url.clone();
        url.set_path(&format!("{}/api/v1/{}", url.path().trim_end_matches('/'), request.path));
        let pair = |(name, value): &(String, String)| (name.clone(), Value::from(value.as_str()));
        // In the body even of a question: proxies log URLs, and a key may be among the parameters.
        let body: Map<_, _> = request.parameters.iter().map(pair).collect();
        let mut post = self.agent.post(url.as_str()).header("content-type", "application/json");
        if let Some(token) = &self.token {
            post = post.header("authorization", format!("Bearer {token}"));
        }
        let host = self.url.host_str().unwrap_or_default();
        let sent = post.send(Value::Object(body).to_string());
        let mut answer = sent.with_context(|| format!("nobody answers at {host}"))?;
        let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string();
        let text = text.with_context(|| format!("the answer of {host} has no end"))?;
        let value: Option<Value> = serde_json::from_str(&text).ok();
        match (answer.status().as_u16(), value) {
            (200, Some(value)) => Ok(value),
            (status, value) => {
                let error = value.as_ref().and_then(|value| value.get("error")?.as_str());
                bail!("{host} answers {status}: {}", error.map_or("and this is no `relay api`".to_owned(), lines))
            }
        }
    }
}
