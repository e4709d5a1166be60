//! A client of HTTP that shows a password or token to nobody else.

use std::time::Duration;

use ureq::{
    Agent, Proxy,
    tls::{RootCerts, TlsConfig},
};
use url::Url;

/// Returns a client for this address that trusts these authorities. It follows no redirect, and each request has this
/// deadline. A status of failure is an answer, since its body says why.
#[must_use]
pub fn agent(url: &Url, authorities: RootCerts, deadline: Duration) -> Agent {
    Agent::config_builder()
        // No proxy may see a secret without TLS.
        .proxy(if url.scheme() == "http" { None } else { Proxy::try_from_env() })
        .timeout_global(Some(deadline))
        .http_status_as_error(false)
        .max_redirects(0)
        .tls_config(TlsConfig::builder().root_certs(authorities).build())
        .build()
        .into()
}
