//! Requests that a browser would not send by itself, and those that another site makes it send.

use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use testkit::consume::Broker;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    browser::browse,
    stage::{Answer, Console, Stage},
};

const ORDER: &str = "/order/pause";
const PLAN: &str = "/order/pause?lane=1";
const FORM: &str = "lane=1&because=x&once=01a22b86-9e69-74df-9e01-9b8a9c5fd923";

/// A console, the cookie of a person, and a form that gives an order.
struct Target {
    stage: Stage,
    console: Console,
    cookie: String,
    form: String,
}

impl Target {
    async fn new(name: &str) -> Result<Self> {
        let stage = Stage::new(Broker::Kafka).await?;
        let console = stage.console().await?;
        let cookie = console.cookie(name).await?;
        let token = console.form_token(PLAN, &cookie).await?;
        let form = format!("{FORM}&form_token={token}");
        Ok(Self { stage, console, cookie, form })
    }

    /// Sends the form with other headers than a browser's; returns the status.
    async fn post(&self, headers: &str, form: &str) -> Result<u16> {
        Ok(self.console.post(ORDER, headers, form).await?.status)
    }

    async fn nothing_was_ordered(&self) -> Result<()> {
        let sql = "SELECT (SELECT COUNT(*) FROM outbox_audit) + (SELECT COUNT(*) FROM outbox_controls)";
        ensure!(self.stage.database.number(sql).await? == 0, "something was ordered");
        Ok(())
    }

    /// Checks that the same order is carried out if everything about it is right.
    async fn the_right_one_is_given(&self) -> Result<()> {
        self.nothing_was_ordered().await?;
        let right = self.post(&[&self.cookie, self.console.same_origin().as_str()].concat(), &self.form).await?;
        ensure!(right == 303, "{right}");
        let audit = "SELECT COUNT(*) FROM outbox_audit WHERE actor = 'alice' AND action = 'pause'";
        ensure!(self.stage.database.number(audit).await? == 1, "it is not in the audit");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_of_another_site_orders_nothing() -> Result<()> {
    let target = Target::new("alice").await?;
    let own = target.console.url("");
    for headers in [
        "Sec-Fetch-Site: cross-site\r\nOrigin: http://evil.example\r\n".to_owned(),
        format!("Sec-Fetch-Site: cross-site\r\nOrigin: {own}\r\n"),
        format!("Sec-Fetch-Site: same-site\r\nOrigin: {own}\r\n"),
        format!("Sec-Fetch-Site: none\r\nOrigin: {own}\r\n"),
        "Origin: http://evil.example\r\n".to_owned(),
        "Origin: http://127.0.0.1\r\n".to_owned(),
        "Origin: null\r\n".to_owned(),
        String::new(),
    ] {
        let status = target.post(&[target.cookie.as_str(), &headers].concat(), &target.form).await?;
        ensure!(status == 403, "{headers}: {status}");
    }
    target.the_right_one_is_given().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_without_its_token_orders_nothing() -> Result<()> {
    let target = Target::new("alice").await?;
    let bob = target.console.cookie("bob").await?;
    let others = target.console.form_token(PLAN, &bob).await?;
    let headers = [target.cookie.as_str(), &target.console.same_origin()].concat();
    for form in [FORM.to_owned(), format!("{FORM}&form_token=")] {
        ensure!(target.post(&headers, &form).await? == 403, "{form}");
    }
    let form = format!("{FORM}&form_token={others}");
    ensure!(target.post(&headers, &form).await? == 403, "a token of another person");
    // A foreign form can send this, and no JSON.
    let plain = [headers.as_str(), "Content-Type: text/plain\r\n"].concat();
    let status = target.console.send(&format!("POST {ORDER}"), &plain, &target.form).await?.status;
    ensure!(status == 415, "{status}");
    target.the_right_one_is_given().await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_name_of_this_address_is_refused() -> Result<()> {
    let target = Target::new("alice").await?;
    let console = &target.console;
    for host in ["evil.example", "127.0.0.1.evil.example", ""] {
        let headers = format!("Host: {host}\r\n{}", target.cookie);
        for path in ["/", PLAN] {
            let status = console.get(path, &headers).await?.status;
            ensure!(status == 421, "GET {path} of {host}: {status}");
        }
        let headers = format!("{headers}Sec-Fetch-Site: same-origin\r\n");
        for (path, form) in [(ORDER, target.form.as_str()), ("/login", "token=alice")] {
            let answer = console.post(path, &headers, form).await?;
            ensure!(answer.status == 421 && answer.header("set-cookie").is_empty(), "{path} {host}: {}", answer.status);
        }
    }
    target.the_right_one_is_given().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_forbids_what_pages_do_not_need() -> Result<()> {
    let Target { console, cookie, .. } = Target::new("alice").await?;
    let own = console.same_origin();
    let answers: Vec<(&str, u16, Answer)> = vec![
        ("a page", 200, console.get("/", &cookie).await?),
        ("no page", 404, console.get("/nothing", &cookie).await?),
        ("a redirect to the login", 303, console.get("/", "").await?),
        ("the login", 200, console.get("/login", "").await?),
        ("a wrong token", 401, console.post("/login", &own, "token=mallory").await?),
        ("a right token", 303, console.post("/login", &own, "token=alice").await?),
        ("a foreign form", 403, console.post(ORDER, &cookie, "lane=1").await?),
        ("no order", 404, console.get("/order/nothing", &cookie).await?),
        ("another method", 405, console.send("DELETE /", &cookie, "").await?),
        ("a form that is too long", 413, console.post("/login", &own, &"x".repeat(65_537)).await?),
        ("another host", 421, console.get("/", "Host: evil.example\r\n").await?),
        ("a style", 200, console.get("/static/console.css", "").await?),
        ("a script", 200, console.get("/static/console.js", "").await?),
    ];
    for (what, status, answer) in answers {
        ensure!(answer.status == status, "{what}: {}", answer.status);
        let policy = answer.header("content-security-policy");
        for part in ["default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"] {
            ensure!(policy.contains(part), "{what}: {part} is not in {policy:?}");
        }
        ensure!(!policy.contains("unsafe") && !policy.contains('*'), "{what}: {policy}");
        ensure!(answer.header("x-content-type-options") == "nosniff", "{what}: {}", answer.headers);
        ensure!(answer.header("x-frame-options") == "DENY", "{what}: {}", answer.headers);
        ensure!(answer.header("referrer-policy") == "same-origin", "{what}: {}", answer.headers);
        // The files of the console are the same for everybody.
        let is_file = what.starts_with("a s");
        ensure!(is_file || answer.header("cache-control") == "no-store", "{what}: {}", answer.headers);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_gives_no_order_and_sees_why() -> Result<()> {
    let target = Target::new("bob").await?;
    let headers = [target.cookie.as_str(), &target.console.same_origin()].concat();
    ensure!(target.post(&headers, &target.form).await? == 403, "a viewer's order");
    let reveal = target.console.post("/message/1/reveal", &headers, &target.form).await?.status;
    ensure!(reveal == 403, "a viewer's reveal: {reveal}");
    target.nothing_was_ordered().await?;
    browse(&target.console, "bob", async |browser| {
        browser.go(PLAN).await?;
        ensure!(browser.count("form.confirm button").await? == 1, "no button is shown");
        ensure!(!browser.find("form.confirm button").await?.is_enabled().await?, "the button can be pressed");
        let why = browser.text("form.confirm").await?;
        ensure!(why.contains("bob") && why.contains("operator"), "{why}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_paths_are_no_pages() -> Result<()> {
    let Target { console, cookie, .. } = Target::new("alice").await?;
    for path in [
        "/message/../../etc/passwd",
        "/message/..%2f..%2fetc/passwd",
        "/message/",
        "/message/%00",
        "/message/%ff",
        "//evil.example",
        "//evil.example/%2f..",
        "/o/",
        "/o/nowhere/",
        "/o/..%2f/",
        "/static/",
        "/static/../page.html",
        "/static/%2e%2e/page.html",
        "/order/",
        "/order/dead",
        "/order/run",
        "/order/messages/show",
        "/order/..%2fpause",
        "/.env",
        "/%",
        "/\\evil.example",
    ] {
        let answer = console.get(path, &cookie).await?;
        // The page of a message says that there is none of this name.
        let is_told = path.starts_with("/message/") && answer.status == 200 && answer.body.contains("role=\"alert\"");
        ensure!(is_told || [400, 404].contains(&answer.status), "{path}: {} {}", answer.status, answer.body);
    }
    // No redirect leads away.
    for path in ["//evil.example", "/login?next=//evil.example", "/login?next=https://evil.example"] {
        let answer = console.get(path, "").await?;
        let to = answer.header("location");
        ensure!(answer.status == 200 || to.starts_with("/login?") || to == "/login", "{path}: {} {to}", answer.status);
    }
    for next in ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x"] {
        let form = format!("token=alice&next={next}");
        let answer = console.post("/login", &console.same_origin(), &form).await?;
        ensure!(answer.status == 303 && answer.header("location") == "/", "{next}: {}", answer.header("location"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_known_token_opens_a_session_and_it_ends_with_the_token() -> Result<()> {
    let target = Target::new("alice").await?;
    let Target { console, cookie, form, .. } = &target;
    let name = cookie.split(['=', ' ']).nth(1).context("no cookie")?;
    let own = console.same_origin();
    let known = cookie.trim().trim_start_matches("Cookie: ");
    for foreign in [
        format!("Cookie: {name}=bWFsbG9yeQ\r\n"),
        format!("Cookie: {name}=alice\r\n"),
        format!("Cookie: {name}=\r\n"),
        format!("Cookie: {name}=%00%ff\r\n"),
        // A neighbour of this host may set a second one.
        format!("Cookie: {known}; {known}\r\n"),
        "Cookie: session=1\r\n".to_owned(),
    ] {
        let page = console.get("/", &foreign).await?;
        ensure!(page.status == 303 && page.header("location").starts_with("/login"), "{foreign}: {}", page.status);
        let order = console.post(ORDER, &[foreign.as_str(), &own].concat(), form).await?;
        ensure!(order.status == 401, "{foreign}: {}", order.status);
    }
    target.the_right_one_is_given().await?;
    console.remove("alice")?;
    let page = console.get("/audit", cookie).await?;
    ensure!(page.status == 303 && page.header("location").starts_with("/login"), "{}", page.status);
    let order = console.post("/order/resume", &[cookie.as_str(), &own].concat(), form).await?;
    ensure!(order.status == 401, "{}", order.status);
    ensure!(console.post("/login", &own, "token=alice").await?.status == 401, "the token is still taken");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_is_for_this_host_alone_and_a_logout_forgets_it() -> Result<()> {
    let Target { console, cookie, form, .. } = Target::new("alice").await?;
    let own = console.same_origin();
    let set = console.post("/login", &own, "token=alice").await?.header("set-cookie").to_owned();
    for part in ["; Path=/", "; HttpOnly", "; SameSite=Strict"] {
        ensure!(set.contains(part), "{part}: {set}");
    }
    ensure!(!set.contains("Domain"), "{set}");
    let out = console.post("/logout", &[cookie.as_str(), &own].concat(), &form).await?;
    ensure!(out.status == 303 && out.header("set-cookie").contains("Max-Age=0"), "{}", out.headers);
    browse(&console, "alice", async |browser| {
        browser.click("form.who button").await?;
        browser.go("/audit").await?;
        ensure!(browser.count("form.confirm input[name=token]").await? == 1, "{}", browser.text("body").await?);
        // After the login the wanted page is shown.
        browser.fill("token", "alice").await?;
        browser.press().await?;
        ensure!(browser.path().await? == "/audit", "{}", browser.path().await?);
        Ok(())
    })
    .await
}

/// The begin of a form whose end does not come.
const BODY: &str = "POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n\
    Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 99\r\n\r\ntoken=";

#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_keeps_no_other_out() -> Result<()> {
    let Target { console, cookie, .. } = Target::new("alice").await?;
    let port = console.port();
    let half = |number: usize| async move {
        let begun = match number {
            ..8 => BODY,
            _ => "GET / HTTP/1.1\r\nHost: lo",
        };
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(begun.as_bytes()).await?;
        anyhow::Ok(stream)
    };
    // More than the listener has connections.
    let slow = join_all((0..100).map(half)).await.into_iter().collect::<Result<Vec<_>>>()?;
    for page in ["/", "/audit", "/login"] {
        let status = console.get(page, &cookie).await?.status;
        ensure!(status == 200, "{page}: {status} beside {} others", slow.len());
    }
    Ok(())
}
