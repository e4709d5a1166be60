//! The access rules: tokens, roles, hosts and rates.

use std::{
    collections::HashMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::cli::operate::Role;

/// The time in which requests are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// Most requests of a caller that are answered at the same time: half of the connections to the database.
pub(super) const AT_ONCE: usize = 2;
/// Most requests of a caller that are being answered or wait for it: of one outbox, and of all. Three callers leave the
/// listener connections for others.
const WAITING: usize = 16;
const WAITING_OF_ALL: usize = 20;

/// A refused request: the status, and a sentence.
pub(in crate::cli) type ApiRefusal = (StatusCode, String);

/// The one who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Caller {
    pub(in crate::cli) name: String,
    pub(in crate::cli) role: Role,
}

/// The rules.
pub(in crate::cli) struct Access {
    /// A file of tokens.
    pub(super) tokens: Option<PathBuf>,
    /// The role where there are no tokens; `None`: nobody is let in.
    pub(super) anonymous: Option<Role>,
    /// The names under which this process may be called.
    pub(super) hosts: Vec<String>,
    /// Most requests of one caller in a second.
    pub(super) per_second: usize,
    /// The requests of each caller.
    pub(super) counts: Mutex<HashMap<String, RequestCount>>,
}

/// The requests of a caller.
pub(super) struct RequestCount {
    /// When its second began.
    begin: Instant,
    /// The requests since then.
    requests: usize,
    /// The places of those that are being answered.
    places: Arc<Semaphore>,
    /// The requests that are being answered or wait, of all outboxes.
    open: Arc<Semaphore>,
}

impl Default for RequestCount {
    fn default() -> Self {
        let [places, open] = [AT_ONCE, WAITING_OF_ALL].map(|most| Arc::new(Semaphore::new(most)));
        Self { begin: Instant::now(), requests: 0, places, open }
    }
}

impl Access {
    /// Returns the caller of a request.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub(in crate::cli) fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiRefusal> {
        self.check_host(headers)?;
        let caller = self.authenticate(headers);
        // Those without a known token have one count together.
        let name = caller.as_ref().map_or("", |caller| &caller.name);
        self.count(name, Instant::now())?;
        caller
    }

    /// Whether callers need tokens.
    pub(in crate::cli) fn has_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Refuses other names than those of this process: a page that a browser on this machine shows could have made its
    /// own name lead here (DNS rebinding).
    fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiRefusal> {
        let name = host_name(headers);
        if self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        Err((StatusCode::MISDIRECTED_REQUEST, "this host is not one of `api.hosts`".to_owned()))
    }

    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, ApiRefusal> {
        let refuse = |why: &str| Err((StatusCode::UNAUTHORIZED, why.to_owned()));
        let Some(file) = &self.tokens else {
            return match self.anonymous {
                Some(role) => Ok(Caller { name: "anonymous".to_owned(), role }),
                None => refuse("nobody is let in: set `api.tokens_file`"),
            };
        };
        let token = text(headers, header::AUTHORIZATION.as_str()).and_then(|token| token.strip_prefix("Bearer "));
        let Some(token) = token else { return refuse("a token is needed: Authorization: Bearer …") };
        // Its file system may hang: other requests go on.
        let lines = match tokio::task::block_in_place(|| read(file)) {
            Ok(lines) => lines,
            Err(problem) => {
                tracing::error!(file = %file.display(), problem, "the tokens cannot be read");
                return Err((StatusCode::SERVICE_UNAVAILABLE, "the tokens cannot be read: see the log".to_owned()));
            }
        };
        let hash = hash(token.trim());
        match lines.into_iter().find(|line| line.hash == hash) {
            Some(Token { name, role: Some(role), .. }) => Ok(Caller { name, role }),
            Some(Token { role: None, .. }) => forwarded(headers),
            None => refuse("this token is not known"),
        }
    }

    /// Refuses a caller with too many requests.
    fn count(&self, name: &str, now: Instant) -> Result<(), ApiRefusal> {
        let mut counts = self.counts.lock();
        let is_past = |count: &RequestCount| now.duration_since(count.begin) >= WINDOW;
        let is_open = |count: &RequestCount| [&count.places, &count.open].iter().any(|it| Arc::strong_count(it) > 1);
        counts.retain(|_, count| !is_past(count) || is_open(count));
        let count =
            counts.entry(name.to_owned()).or_insert_with(|| RequestCount { begin: now, ..RequestCount::default() });
        if is_past(count) {
            (count.begin, count.requests) = (now, 0);
        }
        count.requests += 1;
        if count.requests > self.per_second {
            return Err((StatusCode::TOO_MANY_REQUESTS, "too many requests: try again in a second".to_owned()));
        }
        Ok(())
    }

    /// Notes that a request of a caller is being answered, until the permit is dropped.
    ///
    /// # Errors
    ///
    /// If there are many.
    pub(in crate::cli) fn open(&self, name: &str) -> Result<OwnedSemaphorePermit, ApiRefusal> {
        let open = Arc::clone(&self.counts.lock().entry(name.to_owned()).or_default().open);
        open.try_acquire_owned()
            .map_err(|_full| (StatusCode::TOO_MANY_REQUESTS, "too many requests wait for their answers".to_owned()))
    }

    /// Returns the places of a caller. More requests of it wait, so that others find a connection to the database.
    ///
    /// # Errors
    ///
    /// If many wait: they would take all connections of the listener.
    pub(super) fn places(&self, name: &str) -> Result<Arc<Semaphore>, ApiRefusal> {
        let places = Arc::clone(&self.counts.lock().entry(name.to_owned()).or_default().places);
        // Beside the table, each request has one.
        if Arc::strong_count(&places) > 1 + WAITING {
            return Err((StatusCode::TOO_MANY_REQUESTS, "too many requests wait for their answers".to_owned()));
        }
        Ok(places)
    }
}

/// The name of the host that is asked, without its port.
pub(in crate::cli) fn host_name(headers: &HeaderMap) -> &str {
    let host = text(headers, header::HOST.as_str()).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    name.map_or(host, |(name, _)| name)
}

/// The caller that a proxy names. The proxy has authenticated itself by its token.
fn forwarded(headers: &HeaderMap) -> Result<Caller, ApiRefusal> {
    let name = text(headers, "x-relay-user").filter(|name| (1..=100).contains(&name.chars().count()));
    match (name, text(headers, "x-relay-role").and_then(role)) {
        (Some(name), Some(role)) => Ok(Caller { name: name.to_owned(), role }),
        _ => Err((StatusCode::UNAUTHORIZED, "a proxy must send X-Relay-User and X-Relay-Role, each once".to_owned())),
    }
}

/// The value of a header that comes once. Of two, one could be the caller's own, which a proxy has not removed.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

const ROLES: [(&str, Role); 3] = [("viewer", Role::Viewer), ("revealer", Role::Revealer), ("operator", Role::Operator)];

fn role(word: &str) -> Option<Role> {
    ROLES.iter().find(|(known, _)| *known == word).map(|(_, role)| *role)
}

impl Caller {
    /// The word of its role.
    pub(in crate::cli) fn role_word(&self) -> &'static str {
        ROLES.iter().find(|(_, role)| *role == self.role).map_or("viewer", |(word, _)| word)
    }
}

/// A line of the file.
struct Token {
    name: String,
    /// `None`: of a proxy, which says whom it asks for.
    role: Option<Role>,
    hash: String,
}

/// Reads the tokens: a line each, with a name, a role and the SHA-256 of the token. Reads them for each request, so
/// that a token that is taken out is refused from then on.
///
/// # Errors
///
/// A sentence that says what is wrong with the file.
pub(super) fn check(file: &Path) -> Result<(), String> {
    read(file).map(drop)
}

fn read(file: &Path) -> Result<Vec<Token>, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let token = |(number, line): (usize, &str)| {
        let wrong =
            || format!("line {number} must be a name, viewer, revealer, operator or proxy, and the SHA-256 of a token");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, word, hash] = words.as_slice() else { return Err(wrong()) };
        let role = role(word);
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash || role.is_none() && *word != "proxy" || name.chars().count() > 100 {
            return Err(wrong());
        }
        Ok(Token { name: (*name).to_owned(), role, hash: hash.to_ascii_lowercase() })
    };
    lines.map(token).collect()
}

fn hash(token: &str) -> String {
    Sha256::digest(token).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tempfile::NamedTempFile;

    use super::*;

    fn access(file: &NamedTempFile, anonymous: Option<Role>) -> Access {
        Access {
            tokens: Some(file.path().to_owned()),
            anonymous,
            hosts: vec!["localhost".to_owned(), "[::1]".to_owned()],
            per_second: 3,
            counts: Mutex::default(),
        }
    }

    fn file(lines: &str) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(lines.as_bytes()).unwrap();
        file
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let host = pairs.iter().all(|(name, _)| *name != "host").then_some(("host", "localhost:9465"));
        pairs.iter().copied().chain(host).map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn tokens() -> NamedTempFile {
        file(&format!(
            "# people\nalice operator {}\nbob viewer {}\n\nfront proxy {}\n",
            hash("a"),
            hash("b"),
            hash("p").to_uppercase()
        ))
    }

    fn status(access: &Access, pairs: &[(&'static str, &str)]) -> u16 {
        access.counts.lock().clear();
        access.caller(&headers(pairs)).unwrap_err().0.as_u16()
    }

    #[test]
    fn a_token_has_a_name_and_a_role() {
        let file = tokens();
        let access = access(&file, None);
        let caller = |name: &str, role| Ok(Caller { name: name.to_owned(), role });
        assert_eq!(access.caller(&headers(&[("authorization", "Bearer a")])), caller("alice", Role::Operator));
        assert_eq!(access.caller(&headers(&[("authorization", "Bearer b")])), caller("bob", Role::Viewer));
        let proxied = [("authorization", "Bearer p"), ("x-relay-user", "carol"), ("x-relay-role", "operator")];
        assert_eq!(access.caller(&headers(&proxied)), caller("carol", Role::Operator));
        let claims = [("authorization", "Bearer b"), ("x-relay-user", "carol"), ("x-relay-role", "operator")];
        assert_eq!(access.caller(&headers(&claims)), caller("bob", Role::Viewer), "only a proxy names others");
    }

    #[test]
    fn others_are_refused() {
        let file = tokens();
        let closed = access(&file, None);
        for pairs in [
            &[][..],
            &[("authorization", "Bearer c")],
            &[("authorization", "Basic a")],
            &[("authorization", "Bearer p")],
            &[("authorization", "Bearer p"), ("x-relay-user", "x"), ("x-relay-role", "root")],
            &[("x-relay-user", "x"), ("x-relay-role", "operator")],
        ] {
            assert_eq!(status(&closed, pairs), 401, "{pairs:?}");
        }
        let with_tokens = access(&file, Some(Role::Viewer));
        assert_eq!(status(&with_tokens, &[]), 401, "where there are tokens, they are needed");
        let open = Access { tokens: None, ..with_tokens };
        assert_eq!(open.caller(&headers(&[])).unwrap().role, Role::Viewer);
        let proxied = [("authorization", "Bearer p"), ("x-relay-user", "carol"), ("x-relay-role", "operator")];
        let mut twice = headers(&proxied);
        twice.append("x-relay-role", "viewer".parse().unwrap());
        assert_eq!(closed.caller(&twice).unwrap_err().0, StatusCode::UNAUTHORIZED, "a role of the caller's own");
    }

    #[test]
    fn another_host_is_refused_before_anything_else() {
        let file = tokens();
        let access = access(&file, None);
        for host in ["evil.example", "evil.example:9465", "localhost.evil.example", "", "localhost:evil"] {
            assert_eq!(status(&access, &[("host", host), ("authorization", "Bearer a")]), 421, "{host}");
        }
        for host in ["localhost", "LOCALHOST:1", "[::1]:9465"] {
            assert!(access.caller(&headers(&[("host", host), ("authorization", "Bearer a")])).is_ok(), "{host}");
        }
    }

    #[test]
    fn a_caller_with_too_many_requests_waits_and_others_do_not() {
        let file = tokens();
        let access = access(&file, None);
        let now = Instant::now();
        for _ in 0..3 {
            access.count("alice", now).unwrap();
        }
        assert_eq!(access.count("alice", now).unwrap_err().0, StatusCode::TOO_MANY_REQUESTS);
        access.count("bob", now).unwrap();
        let places = access.places("alice").unwrap();
        access.count("alice", now + WINDOW).unwrap();
        assert!(Arc::ptr_eq(&places, &access.places("alice").unwrap()), "a request holds them longer than a second");
        let held = vec![places; WAITING];
        assert_eq!(access.places("alice").unwrap_err().0, StatusCode::TOO_MANY_REQUESTS);
        access.places("bob").unwrap();
        drop(held);
        for _ in 0..3 {
            assert_eq!(access.caller(&headers(&[])).unwrap_err().0, StatusCode::UNAUTHORIZED);
        }
        assert_eq!(
            access.caller(&headers(&[])).unwrap_err().0,
            StatusCode::TOO_MANY_REQUESTS,
            "those without a token are counted"
        );
    }

    #[test]
    fn a_file_is_read_again_and_its_mistakes_are_named() {
        let mut file = tokens();
        let access = access(&file, None);
        file.as_file_mut().set_len(0).unwrap();
        assert_eq!(status(&access, &[("authorization", "Bearer a")]), 401, "it was taken out");
        file.write_all(b"alice root 0\n").unwrap();
        assert_eq!(status(&access, &[("authorization", "Bearer a")]), 503);
        assert!(check(file.path()).unwrap_err().starts_with("line 1 must be"), "{:?}", check(file.path()));
        assert!(check(Path::new("nowhere")).is_err());
    }
}
