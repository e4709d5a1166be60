//! RabbitMQ's management API.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use lapin::uri::AMQPUri;
use outbox_relay::{
    driver_errors::{Trouble, explain},
    observe::client,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde::de::DeserializeOwned;
use ureq::{
    Agent,
    tls::{Certificate, RootCerts},
};
use url::Url;

use super::{Finding, tables::quoted};
use crate::config::{RabbitMqConfig, Secret};

/// Most bytes of an answer: about 20,000 bindings.
const LARGEST: u64 = 4 << 20;
const UNCHECKED: &str = "The bindings of exchanges, the types of queues and their limits are not checked";

/// The API of a sink's broker.
pub(super) struct ManagementApi {
    agent: Agent,
    url: Url,
    user: String,
    authorization: String,
    until: Instant,
    /// The sink.
    pub(super) sink: String,
    /// The virtual host that the sink publishes to.
    pub(super) vhost: String,
}

impl ManagementApi {
    /// Makes a client, whose requests together may take this time. An error is the note that nothing is checked.
    pub(super) fn new(sink: &str, config: &RabbitMqConfig, time: Duration) -> Result<Self, Finding> {
        let unusable = |why: String| unchecked(sink, &why);
        let Some(given) = &config.management else {
            let key = format!("sinks.{sink}.management_url");
            return Err(
                unusable("it has no management_url".to_owned()).fix(format!("Set `{key}` to its management API."))
            );
        };
        let not_read = || unusable("its URLs cannot be read".to_owned());
        let mut url = Url::parse(&given.url.current()).ok().ok_or_else(not_read)?;
        let login = login(config, &url, given.password.as_ref()).ok_or_else(not_read)?;
        let bare = url.set_username("").and_then(|()| url.set_password(None));
        bare.map_err(|()| not_read())?;
        let authorities = config.ca_file.as_deref().filter(|_| url.scheme() == "https").map(authorities).transpose();
        let authorities = authorities.map_err(unusable)?.unwrap_or(RootCerts::PlatformVerifier);
        let user = login.authority.userinfo;
        let pair = BASE64_STANDARD.encode(format!("{}:{}", user.username, user.password));
        Ok(Self {
            agent: client::agent(&url, authorities, time),
            url,
            user: user.username,
            authorization: format!("Basic {pair}"),
            until: Instant::now() + time,
            sink: sink.to_owned(),
            vhost: login.vhost,
        })
    }

    /// Returns the object at this path, with these attributes alone. An error is the note that it is not checked.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &[&str], attributes: &str) -> Result<T, Finding> {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("api").extend(path);
        }
        url.set_query(Some(&format!("columns={attributes}")));
        let left = self.until.saturating_duration_since(Instant::now());
        let request = self.agent.get(url.as_str()).config().timeout_global(Some(left)).build();
        let sent = request.header("authorization", &self.authorization).call();
        let mut answer = sent.map_err(|error| self.unreached(&error))?;
        let text = answer.body_mut().with_config().limit(LARGEST).read_to_string();
        let text = text.map_err(|error| self.unreached(&error))?;
        match (answer.status().as_u16(), serde_json::from_str(&text)) {
            (200, Ok(value)) => Ok(value),
            (status, _) => Err(self.refused(status, path)),
        }
    }

    fn unreached(&self, error: &ureq::Error) -> Finding {
        let words = explain(Trouble::Management(&error.to_string()));
        let note = unchecked(&self.sink, &words);
        if !words.contains("refused") {
            return note;
        }
        note.fix("Enable the API on each node, or correct `management_url`:")
            .shell("rabbitmq-plugins enable rabbitmq_management")
    }

    fn refused(&self, status: u16, path: &[&str]) -> Finding {
        let user = quoted(&self.user);
        let vhost = quoted(&self.vhost);
        let note = |why: &str| unchecked(&self.sink, &format!("the management API {why} ({status})"));
        match (status, path) {
            // The commands that set tags and permissions replace those that the user has, and it may be the relay's:
            // none is printed to be pasted.
            (401 | 403, _) => note(&format!("refuses the user {}", self.user)).fix(format!(
                "Correct its password, or make a user for `management_url` with the tag monitoring. `rabbitmqctl \
                 set_user_tags {user}` replaces its tags."
            )),
            (404, [_, _, name, ..]) => note(&format!("does not show {name} to the user {}", self.user)).fix(format!(
                "Correct `management_url`, or let a user of its own see the virtual host {vhost}. `rabbitmqctl \
                 set_permissions` replaces the permissions that a user has."
            )),
            _ => unchecked(&self.sink, &format!("what answers there ({status}) is not the management API"))
                .fix("Correct `management_url`: its port is 15672, or 15671 with TLS."),
        }
    }
}

fn unchecked(sink: &str, why: &str) -> Finding {
    Finding::note("not_checked", format!("{UNCHECKED}: the sink {sink}: {why}."))
}

/// The virtual host of the sink, with the user of this URL, or the sink's own if it has none. The driver decodes them.
fn login(config: &RabbitMqConfig, url: &Url, password: Option<&Secret>) -> Option<AMQPUri> {
    let mut address = config.address()?;
    if !url.username().is_empty() {
        let password = password.map(Secret::for_url);
        address.set_username(url.username()).ok()?;
        address.set_password(password.as_deref().or(url.password())).ok()?;
    }
    address.as_str().parse().ok()
}

fn authorities(file: &Path) -> Result<RootCerts, String> {
    let pem = fs::read(file).map_err(|error| format!("the file {} cannot be read ({error})", file.display()))?;
    let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
    Ok(certificates.map(|certificate| Certificate::from_der(&certificate).to_owned()).collect::<Vec<_>>().into())
}
