//! `relay console`: the answers of the API as pages for a browser, and its orders as forms.
//!
//! A page asks the commands of operators, and shows their answers: nothing is decided here. Every page and order works
//! without JavaScript.

mod guard;
mod orders;
mod pages;
mod rates;
mod view;

use std::sync::{Arc, LazyLock};

use axum::{
    Router,
    body::Body,
    extract::{self, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    response::{IntoResponse as _, Redirect, Response},
    routing::get,
};

pub(super) use self::rates::Rates;
use outbox_relay::operate::shown::shown;
use serde_json::Value;

use self::{
    guard::Guard,
    pages::MENU,
    view::{Block, View, href, sentence},
};
use super::{
    api::{Api, ApiRefusal, Caller, Site},
    operate::Role,
};
use crate::cli::api::Request;

/// Most bytes of a form.
const FORM: usize = 64 * 1024;
const LOGIN: &str = "/login";

static GUARD: LazyLock<Guard> = LazyLock::new(Guard::new);

/// Adds the files that all pages need.
pub(super) fn files(router: Router) -> Router {
    let file = |kind: &'static str, text: &'static str| {
        get(async move || {
            let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=300")];
            secured((headers, text).into_response())
        })
    };
    router
        .route("/static/console.css", file("text/css; charset=utf-8", include_str!("static/console.css")))
        .route("/static/console.js", file("text/javascript; charset=utf-8", include_str!("static/console.js")))
        .route("/static/icon.svg", file("image/svg+xml", include_str!("static/icon.svg")))
}

/// Answers a request for a page of an outbox.
pub(super) async fn handle(State(api): State<Arc<Api>>, request: extract::Request) -> Response {
    respond(&api.site, &Place::Outbox(&api), request).await
}

/// Returns the page of several outboxes.
pub(super) fn fleet(site: &Arc<Site>, apis: &[Arc<Api>]) -> Router {
    let fleet = Fleet { site: Arc::clone(site), apis: Arc::from(apis) };
    let answer = async |State(fleet): State<Fleet>, request: extract::Request| {
        respond(&fleet.site, &Place::Fleet(&fleet.apis), request).await
    };
    Router::new().fallback(answer).with_state(fleet)
}

/// Several outboxes.
#[derive(Clone)]
struct Fleet {
    site: Arc<Site>,
    apis: Arc<[Arc<Api>]>,
}

/// The subject of a page.
enum Place<'a> {
    Outbox(&'a Api),
    Fleet(&'a [Arc<Api>]),
}

impl Place<'_> {
    /// The path of its first page, without a slash at the end, and the name of the outbox.
    fn base<'a>(&'a self, site: &'a Site) -> (&'a str, &'a str) {
        match self {
            Self::Outbox(api) => (&api.base, &api.name),
            Self::Fleet(_) => (&site.root, ""),
        }
    }
}

async fn respond(site: &Site, place: &Place<'_>, request: extract::Request) -> Response {
    let (head, body) = request.into_parts();
    let response = match answer(site, place, &head, body).await {
        Ok(response) => response,
        Err((StatusCode::UNAUTHORIZED, _)) if head.method == Method::GET && head.uri.path() != LOGIN => {
            let (base, _) = place.base(site);
            let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
            let next = format!("{base}{path}");
            Redirect::to(&href(&format!("{}{LOGIN}", site.root), [("next", next.as_str())])).into_response()
        }
        Err((status, problem)) => {
            let view = View { title: title(status).to_owned(), ..View::default() };
            (status, html(&Shell { problem: &problem, ..Shell::new(site, place, &view) })).into_response()
        }
    };
    secured(response)
}

fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "There is no such page",
        StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests",
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => "The database does not answer",
        _ => "The request was refused",
    }
}

async fn answer(site: &Site, place: &Place<'_>, head: &Parts, body: Body) -> Result<Response, ApiRefusal> {
    let path = head.uri.path();
    let is_post = match head.method {
        Method::GET => false,
        Method::POST => true,
        _ => return Err((StatusCode::METHOD_NOT_ALLOWED, "use GET or POST".to_owned())),
    };
    let query = if is_post {
        guard::check_origin(&head.headers)?;
        posted(&head.headers, body).await?
    } else {
        Query::of(head.uri.query().unwrap_or_default())
    };
    if path == LOGIN {
        return log_in(site, &head.headers, is_post.then_some(&query), query.get("next"));
    }
    let (caller, form) = GUARD.caller(&site.access, &head.headers)?;
    let _open = site.access.open(&caller.name)?;
    if is_post && query.get("form_token") != form {
        return Err((
            StatusCode::FORBIDDEN,
            "the form is of an earlier start of the console: load its page again".to_owned(),
        ));
    }
    if path == "/logout" && is_post {
        let cookie = guard::forget(&head.headers)?;
        let to = format!("{}{LOGIN}", site.root);
        return Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&to)).into_response());
    }
    let user = site.access.has_tokens().then(|| caller.name.clone());
    let (status, view, problem) = match visited(place, caller, query, (path, is_post)).await {
        Ok(Shown::Page(status, view)) => (status, view.safe(), String::new()),
        Ok(Shown::Elsewhere(to)) => {
            let (base, _) = place.base(site);
            return Ok(Redirect::to(&format!("{base}{to}")).into_response());
        }
        Err((status, problem)) => {
            (status, View { title: title(status).to_owned(), ..View::default() }, shown(&sentence(&problem)))
        }
    };
    let shell = Shell { user: user.as_deref(), form: &form, problem: &problem, ..Shell::new(site, place, &view) };
    Ok((status, html(&shell)).into_response())
}

/// The answer to a request: a page, or the path of another.
enum Shown {
    Page(StatusCode, View),
    Elsewhere(String),
}

/// Answers a request of a known caller.
async fn visited(
    place: &Place<'_>,
    caller: Caller,
    query: Query,
    (path, is_post): (&str, bool),
) -> Result<Shown, ApiRefusal> {
    let api = match place {
        Place::Outbox(api) => api,
        Place::Fleet(apis) if path == "/" && !is_post => {
            return Ok(Shown::Page(StatusCode::OK, pages::fleet(apis, &caller).await));
        }
        Place::Fleet(_) => return Err(pages::missing(path)),
    };
    let visit = Visit { api, caller, query };
    let Some(order) = path.strip_prefix("/order/") else {
        return Ok(Shown::Page(StatusCode::OK, pages::view(&visit, path, is_post).await?));
    };
    if !is_post {
        return Ok(Shown::Page(StatusCode::OK, orders::view(&visit, order).await?));
    }
    match orders::give(&visit, order).await {
        Ok(to) => Ok(Shown::Elsewhere(to)),
        // The plan again, with what is wrong.
        Err((status @ (StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY), problem)) => {
            let mut view = orders::view(&visit, order).await?;
            view.blocks.insert(0, Block::Problem(sentence(&problem)));
            Ok(Shown::Page(status, view))
        }
        Err(error) => Err(error),
    }
}

/// Shows the form of the login, or takes what was typed in.
fn log_in(site: &Site, headers: &HeaderMap, given: Option<&Query>, next: &str) -> Result<Response, ApiRefusal> {
    let root = site.root.as_str();
    let next = if is_own(next) { next.to_owned() } else { format!("{root}/") };
    let Some(given) = given else { return Ok(html(&Login { root, next: &next, problem: "" }).into_response()) };
    match guard::remember(&site.access, headers, given.get("token")) {
        Ok(cookie) => Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response()),
        Err((StatusCode::UNAUTHORIZED, problem)) => {
            Ok((StatusCode::UNAUTHORIZED, html(&Login { root, next: &next, problem: &problem })).into_response())
        }
        Err(error) => Err(error),
    }
}

/// Whether it is a path, so that a login leads to no other site.
fn is_own(next: &str) -> bool {
    next.starts_with('/') && !next.starts_with("//") && next.chars().all(|c| c.is_ascii_graphic() && c != '\\')
}

/// A visit of a person to a page.
struct Visit<'a> {
    api: &'a Api,
    caller: Caller,
    /// The parameters in the address or the form.
    query: Query,
}

impl Visit<'_> {
    /// Asks one question.
    async fn ask_one(&self, request: &Request) -> Result<Value, ApiRefusal> {
        let mut answers = self.api.ask(&self.caller, std::slice::from_ref(request), false).await?;
        Ok(answers.pop().transpose()?.unwrap_or_default())
    }

    /// Returns the reason why the person cannot do what needs this role, if there is one.
    fn lacks(&self, role: Role, word: &str) -> Option<String> {
        let name = &self.caller.name;
        (self.caller.role < role).then(|| format!("{name} is no {word}: it needs a token of that role"))
    }
}

/// Names and values.
#[derive(Debug, Clone, Default)]
struct Query(Vec<(String, String)>);

impl Query {
    fn of(text: &str) -> Self {
        Self(url::form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    /// The first value of this name, or an empty text.
    fn get(&self, name: &str) -> &str {
        let value = self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.trim());
        value.unwrap_or_default()
    }
}

async fn posted(headers: &HeaderMap, body: Body) -> Result<Query, ApiRefusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/x-www-form-urlencoded") {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "this is no form".to_owned()));
    }
    let body = super::api::body_of(body, FORM).await?;
    Ok(Query::of(&String::from_utf8_lossy(&body)))
}

/// A whole page.
#[derive(askama::Template)]
#[template(path = "page.html")]
struct Shell<'a> {
    view: &'a View,
    root: &'a str,
    base: &'a str,
    /// The name of the outbox; empty if there is only one, and of the first page of several.
    name: &'a str,
    menu: &'static [(&'static str, &'static str)],
    /// `None`: there are no tokens.
    user: Option<&'a str>,
    form: &'a str,
    problem: &'a str,
}

impl<'a> Shell<'a> {
    fn new(site: &'a Site, place: &'a Place<'_>, view: &'a View) -> Self {
        let (base, name) = place.base(site);
        let menu = if matches!(place, Place::Outbox(_)) { MENU } else { &[] };
        Self { view, root: &site.root, base, name, menu, user: None, form: "", problem: "" }
    }
}

#[derive(askama::Template)]
#[template(path = "login.html")]
struct Login<'a> {
    root: &'a str,
    next: &'a str,
    problem: &'a str,
}

fn html(template: &impl askama::Template) -> Response {
    match template.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Adds what forbids a browser everything that the pages do not need.
fn secured(mut response: Response) -> Response {
    const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                          form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
    const HEADERS: [(&str, &str); 6] = [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        // With less, a browser would call its own forms those of `null`.
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ];
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_a_page_of_the_console() {
        for (next, expected) in [
            ("/dead?reason=x", true),
            ("/outbox/o/shop/", true),
            ("//evil.example", false),
            ("https://evil.example", false),
            ("/\\evil.example", false),
            ("/\t/evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_own(next), expected, "{next}");
        }
    }
}
