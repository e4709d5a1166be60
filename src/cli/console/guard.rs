//! Sessions, and the guards against requests of other sites.
//!
//! The cookie is the token itself, so that a token that is taken out of the file ends what was begun with it. A form
//! has a token of its own, which another site cannot know.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use outbox_core::Uuid;
use outbox_relay::settings::is_local;
use sha2::{Digest as _, Sha256};

use crate::cli::api::{Access, ApiRefusal, Caller, host_name};

/// The cookie where the browser may have no TLS: on this machine.
const LOCAL_COOKIE: &str = "relay-console";
/// The cookie elsewhere. Browsers take it from this host alone, over TLS.
const COOKIE: &str = "__Host-relay-console";

/// The keys of this process.
#[derive(Debug)]
pub(super) struct Guard {
    key: [u8; 32],
}

impl Guard {
    /// A key that is new at each start. A UUID of version 7 has 74 random bits.
    pub(super) fn new() -> Self {
        let mut hash = Sha256::new();
        for _ in 0..4 {
            hash.update(Uuid::now_v7().as_bytes());
        }
        Self { key: hash.finalize().into() }
    }

    /// Returns the caller, and the token of its forms.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub(super) fn caller(&self, access: &Access, headers: &HeaderMap) -> Result<(Caller, String), ApiRefusal> {
        let token = cookie(headers);
        let mut headers = headers.clone();
        if let Some(token) = token.as_deref().filter(|_| !headers.contains_key(header::AUTHORIZATION)) {
            headers.insert(header::AUTHORIZATION, bearer(token)?);
        }
        let caller = access.caller(&headers)?;
        let form = self.form_token(&caller, token.as_deref().unwrap_or_default());
        Ok((caller, form))
    }

    fn form_token(&self, caller: &Caller, token: &str) -> String {
        let mut hash = Sha256::new();
        for part in [&self.key[..], caller.name.as_bytes(), b"\0", token.as_bytes()] {
            hash.update(part);
        }
        BASE64.encode(hash.finalize())
    }
}

/// Returns a header that makes the token this browser's.
///
/// # Errors
///
/// If the token is none.
pub(super) fn remember(access: &Access, headers: &HeaderMap, token: &str) -> Result<HeaderValue, ApiRefusal> {
    let mut probe = headers.clone();
    probe.insert(header::AUTHORIZATION, bearer(token)?);
    access.caller(&probe)?;
    set_cookie(headers, &BASE64.encode(token), "")
}

/// Returns a header that forgets the token.
pub(super) fn forget(headers: &HeaderMap) -> Result<HeaderValue, ApiRefusal> {
    set_cookie(headers, "", "; Max-Age=0")
}

/// Refuses a request that another site may have made the browser send.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), ApiRefusal> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_own = |origin: &str| {
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_some() && host == text("host")
    };
    let refused = || Err((StatusCode::FORBIDDEN, "the request comes from another site".to_owned()));
    match (text("sec-fetch-site"), text("origin")) {
        (Some("same-origin"), _) => Ok(()),
        (None, Some(origin)) if is_own(origin) => Ok(()),
        _ => refused(),
    }
}

fn bearer(token: &str) -> Result<HeaderValue, ApiRefusal> {
    HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|_unfit| (StatusCode::UNAUTHORIZED, "this is no token".to_owned()))
}

/// Whether the browser may have no TLS. A proxy with TLS may pass on another host.
fn is_plain(headers: &HeaderMap) -> bool {
    let is_tls = headers.get("x-forwarded-proto").is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"https"));
    is_local(host_name(headers)) && !is_tls
}

fn set_cookie(headers: &HeaderMap, value: &str, more: &str) -> Result<HeaderValue, ApiRefusal> {
    let (name, secure) = if is_plain(headers) { (LOCAL_COOKIE, "") } else { (COOKIE, "; Secure") };
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{more}");
    HeaderValue::from_str(&text).map_err(|_unfit| (StatusCode::BAD_REQUEST, "this is no token".to_owned()))
}

/// The token in the cookie of this host. Two cookies of one name are none: a neighbour may have set one.
fn cookie(headers: &HeaderMap) -> Option<String> {
    let wanted = if is_plain(headers) { LOCAL_COOKIE } else { COOKIE };
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(name, _)| *name == wanted).map(|(_, value)| value);
    let value = values.next().filter(|_| values.next().is_none())?;
    String::from_utf8(BASE64.decode(value).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_request_of_another_site_is_refused() {
        let own = ("host", "outbox.example");
        for (pairs, is_own) in [
            (&[own, ("sec-fetch-site", "same-origin")][..], true),
            (&[own, ("sec-fetch-site", "same-site")], false),
            (&[own, ("sec-fetch-site", "cross-site"), ("origin", "https://outbox.example")], false),
            (&[own, ("origin", "https://outbox.example")], true),
            (&[own, ("origin", "https://outbox.example.evil")], false),
            (&[own, ("origin", "null")], false),
            (&[own], false),
        ] {
            assert_eq!(check_origin(&headers(pairs)).is_ok(), is_own, "{pairs:?}");
        }
    }

    #[test]
    fn the_cookie_is_bound_to_the_host_and_comes_once() {
        let set = |host| set_cookie(&headers(&[("host", host)]), "x", "").unwrap().to_str().unwrap().to_owned();
        assert_eq!(set("127.0.0.1:9465"), "relay-console=x; Path=/; HttpOnly; SameSite=Strict");
        assert_eq!(set("outbox.example"), "__Host-relay-console=x; Path=/; HttpOnly; SameSite=Strict; Secure");
        let of = |host, line: &str| cookie(&headers(&[("host", host), ("cookie", line)]));
        let value = BASE64.encode("secret");
        assert_eq!(of("[::1]:9465", &format!("a=b; relay-console={value}")).as_deref(), Some("secret"));
        assert_eq!(of("outbox.example", &format!("relay-console={value}")), None);
        assert_eq!(of("localhost", &format!("relay-console={value}; relay-console={value}")), None);
    }
}
