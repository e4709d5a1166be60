//! `relay console`: the answers of the API as pages for a browser, and its orders as forms.
//!
//! A page asks the commands of operators, and shows their answers: nothing is decided here. Every page and order works
//! without JavaScript.

mod guard;
mod orders;
mod pages;
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

use self::{
    guard::Guard,
    pages::MENU,
    view::{Block, View},
};
use super::{
    api::{Api, ApiRefusal, Caller},
    operate::Role,
};
pub(super) use crate::cli::api::Request;

/// Most bytes of a form.
const FORM: usize = 64 * 1024;
/// The answer to a request without a known token.
const LOGIN: &str = "/login";

static GUARD: LazyLock<Guard> = LazyLock::new(Guard::new);

/// Adds the pages.
pub(super) fn pages(router: Router<Arc<Api>>) -> Router<Arc<Api>> {
    let style = ("text/css; charset=utf-8", include_str!("static/console.css"));
    let script = ("text/javascript; charset=utf-8", include_str!("static/console.js"));
    let file = |(kind, text): (&'static str, &'static str)| {
        get(async move || {
            let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=300")];
            secured((headers, text).into_response())
        })
    };
    router.route("/static/console.css", file(style)).route("/static/console.js", file(script)).fallback(handle)
}

async fn handle(State(api): State<Arc<Api>>, request: extract::Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let response = match answer(&api, &head, body).await {
        Ok(response) => response,
        Err((StatusCode::UNAUTHORIZED, _)) if head.method == Method::GET && head.uri.path() != LOGIN => {
            Redirect::to(&view::href(LOGIN, [("next", path.as_str())])).into_response()
        }
        Err((status, text)) => {
            let page = Shell { view: &View { title: title(status), ..View::default() }, user: None, form: "", problem: &text };
            (status, html(&page)).into_response()
        }
    };
    secured(response)
}

fn title(status: StatusCode) -> String {
    match status {
        StatusCode::NOT_FOUND => "There is no such page".to_owned(),
        StatusCode::FORBIDDEN => "Not allowed".to_owned(),
        StatusCode::TOO_MANY_REQUESTS => "Too many requests".to_owned(),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => "The database does not answer".to_owned(),
        _ => "The request was refused".to_owned(),
    }
}

async fn answer(api: &Api, head: &Parts, body: Body) -> Result<Response, ApiRefusal> {
    let path = head.uri.path();
    let is_post = match head.method {
        Method::GET => false,
        Method::POST => true,
        _ => return Err((StatusCode::METHOD_NOT_ALLOWED, "use GET or POST".to_owned())),
    };
    let form = if is_post {
        guard::check_origin(&head.headers)?;
        posted(&head.headers, body).await?
    } else {
        Query::of(head.uri.query().unwrap_or_default())
    };
    match (path, is_post) {
        (LOGIN, false) => return Ok(html(&Login { next: own_path(form.get("next")), problem: "" }).into_response()),
        (LOGIN, true) => return log_in(api, &head.headers, &form),
        _ => {}
    }
    let (caller, form_token) = GUARD.caller(api, &head.headers)?;
    if is_post && form.get("form_token") != form_token {
        return Err((StatusCode::FORBIDDEN, "the form is of an earlier start of the console: load its page again".to_owned()));
    }
    if path == "/logout" && is_post {
        let cookie = guard::forget(&head.headers)?;
        return Ok(([(header::SET_COOKIE, cookie)], Redirect::to(LOGIN)).into_response());
    }
    let visit = Visit { api, caller, query: form };
    if is_post {
        let to = orders::give(&visit, path).await?;
        return Ok(Redirect::to(&to).into_response());
    }
    let view = pages::view(&visit, path).await?;
    let user = api.has_tokens().then_some(visit.caller.name.as_str());
    Ok(html(&Shell { view: &view, user, form: &form_token, problem: "" }).into_response())
}

fn log_in(api: &Api, headers: &HeaderMap, form: &Query) -> Result<Response, ApiRefusal> {
    let next = own_path(form.get("next"));
    match guard::remember(api, headers, form.get("token")) {
        Ok(cookie) => Ok(([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response()),
        Err((StatusCode::UNAUTHORIZED, problem)) => {
            Ok((StatusCode::UNAUTHORIZED, html(&Login { next, problem: &problem })).into_response())
        }
        Err(error) => Err(error),
    }
}

/// A path of the console, so that a login leads to no other site.
fn own_path(next: &str) -> &str {
    let is_own = next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n']);
    if is_own { next } else { "/" }
}

/// A visit of a person to a page.
struct Visit<'a> {
    api: &'a Api,
    caller: Caller,
    /// The parameters in the address or the form.
    query: Query,
}

impl Visit<'_> {
    /// Returns the reason why an order cannot be given, if there is one.
    fn no_orders(&self) -> Option<String> {
        let name = &self.caller.name;
        (self.caller.role < Role::Operator).then(|| format!("{name} is no operator: orders need a token of that role"))
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
    /// `None`: there are no tokens.
    user: Option<&'a str>,
    form: &'a str,
    problem: &'a str,
}

impl Shell<'_> {
    fn menu(&self) -> &'static [(&'static str, &'static str)] {
        MENU
    }
}

#[derive(askama::Template)]
#[template(path = "login.html")]
struct Login<'a> {
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
        ("referrer-policy", "no-referrer"),
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
            ("/dead?reason=x", "/dead?reason=x"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\\evil.example", "/"),
            ("", "/"),
        ] {
            assert_eq!(own_path(next), expected, "{next}");
        }
    }
}
