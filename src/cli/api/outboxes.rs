//! The outboxes that a process answers about: its own, or one for each file of a folder.

use std::{fs, path::Path, sync::Arc, time::Duration};

use axum::http::StatusCode;
use outbox_relay::operate::shown::lines;
use serde_json::Value;

use super::{Api, ApiRefusal, CONNECTIONS, Caller, Request, Semaphore, Site, client::ApiClient, problem};
use crate::{
    cli::{console::Rates, database},
    config::{Config, ConfigError, Inputs, Loaded, load_for_database},
};

/// The source of the answers about an outbox.
pub(super) enum OutboxSource {
    Database(Box<Loaded>),
    Api(ApiClient),
}

impl OutboxSource {
    fn new(loaded: Loaded) -> anyhow::Result<Self> {
        let Config { console, .. } = &loaded.config;
        if console.via.is_empty() {
            return Ok(Self::Database(Box::new(loaded)));
        }
        Ok(Self::Api(ApiClient::new("console.via", &console.via, console.token_file.as_deref())?))
    }

    /// Checks that the database can be used. Another API says so in its answers.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        match self {
            Self::Database(loaded) => database::connect_to_read(&loaded.config).await.map(drop),
            Self::Api(_) => Ok(()),
        }
    }
}

/// Asks another API, for a caller of this one. Its refusals are passed on.
pub(super) async fn forward(
    client: &ApiClient,
    request: &Request,
    caller: &Caller,
    within: Duration,
) -> Result<Value, ApiRefusal> {
    let gone = |error: anyhow::Error| (StatusCode::BAD_GATEWAY, format!("{error:#}"));
    let (status, value) = client.send(request, Some(caller), within).await.map_err(gone)?;
    let error = || value.get("error").and_then(Value::as_str).map(lines);
    match (status, StatusCode::from_u16(status)) {
        (200, _) => Ok(value),
        (400 | 403 | 422 | 429 | 504, Ok(status)) => Err((status, error().unwrap_or_default())),
        _ => {
            let why = error().unwrap_or_else(|| "and this is no `relay api`".to_owned());
            Err((StatusCode::BAD_GATEWAY, format!("the other API answers {status}: {why}")))
        }
    }
}

/// Checks `console.prefix`. Returns it without a slash at its end.
pub(super) fn prefix(prefix: &str) -> Result<String, ConfigError> {
    let prefix = prefix.trim_end_matches('/');
    let is_path = |text: &str| text.strip_prefix('/').is_some_and(|text| text.split('/').all(is_name));
    let first = prefix.split('/').nth(1).unwrap_or_default();
    if prefix.is_empty() || is_path(prefix) && !OWN.contains(&first) {
        return Ok(prefix.to_owned());
    }
    let own = OWN.join(", ");
    let text = format!(
        "it must be a path of letters, digits, `-`, `_` and `/`, such as /outbox, that begins with none of {own}"
    );
    Err(problem("console.prefix", &text))
}

/// The first parts of paths that the process has itself.
const OWN: [&str; 4] = ["api", "livez", "o", "static"];

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

/// Returns the outboxes of this configuration.
pub(super) fn open(site: &Arc<Site>, loaded: Loaded) -> anyhow::Result<Vec<Arc<Api>>> {
    let trace_url = loaded.config.console.trace_url.clone();
    let api = |name: String, loaded: Loaded| {
        let base = if name.is_empty() { site.root.clone() } else { format!("{}/o/{name}", site.root) };
        let own = loaded.config.console.trace_url.clone();
        let trace_url = if own.is_empty() { trace_url.clone() } else { own };
        let source = OutboxSource::new(loaded)?;
        let site = Arc::clone(site);
        let places = Semaphore::new(CONNECTIONS);
        Ok(Arc::new(Api { site, name, base, trace_url, rates: Rates::default(), source, places }))
    };
    match loaded.config.console.outboxes.clone() {
        Some(folder) => files(&folder)?.into_iter().map(|(name, loaded)| api(name, loaded)).collect(),
        None => Ok(vec![api(String::new(), loaded)?]),
    }
}

/// Loads the files of a folder, by their names. Variables and flags are of the process itself.
fn files(folder: &Path) -> anyhow::Result<Vec<(String, Loaded)>> {
    let wrong = |text: String| problem("console.outboxes", &text);
    let cannot = |error| wrong(format!("the folder {} cannot be read: {error}", folder.display()));
    let entries = fs::read_dir(folder).map_err(cannot)?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(cannot)?;
    let mut outboxes = Vec::new();
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "toml")) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !is_name(&name) {
            return Err(wrong(format!("rename {}: letters, digits, `-` and `_` alone", path.display())).into());
        }
        outboxes.push((name, load_for_database(&Inputs { file: Some(path), ..Inputs::default() })?));
    }
    if outboxes.is_empty() {
        return Err(wrong(format!("the folder {} has no file NAME.toml", folder.display())).into());
    }
    outboxes.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(outboxes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_plain_path() {
        for (given, expected) in
            [("", Some("")), ("/", Some("")), ("/outbox/", Some("/outbox")), ("/a/b-1", Some("/a/b-1"))]
        {
            assert_eq!(prefix(given).ok().as_deref(), expected, "{given}");
        }
        for given in ["outbox", "/a//b", "/{x}", "/a b", "//evil.example", "/..", "/api/v1", "/o"] {
            assert!(prefix(given).is_err(), "{given}");
        }
    }

    #[test]
    fn each_file_of_the_folder_is_an_outbox() {
        let folder = tempfile::tempdir().unwrap();
        assert!(files(folder.path()).err().unwrap().to_string().contains("has no file NAME.toml"));
        fs::write(folder.path().join("shop.toml"), "[database]\nurl = \"mysql://a@127.0.0.1/shop\"\n").unwrap();
        fs::write(folder.path().join("mail.toml"), "[console]\nvia = \"https://mail.example\"\n").unwrap();
        fs::write(folder.path().join("README"), "").unwrap();
        let names: Vec<_> = files(folder.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["mail", "shop"]);
        fs::write(folder.path().join("a b.toml"), "").unwrap();
        assert!(files(folder.path()).err().unwrap().to_string().contains("rename"));
    }
}
