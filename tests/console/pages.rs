//! Every page: what it must have, and what it must not.

use anyhow::{Result, ensure};
use serde_json::Value;
use testkit::{consume::Broker, servers::axe};
use url::form_urlencoded::byte_serialize;

use crate::{
    browser::{Browser, browse},
    seed::{BIDI, MARKUP, seed},
    stage::Stage,
};

const PAGES: [&str; 17] = [
    "/",
    "/messages",
    "/message/1",
    "/keys",
    "/key?message=1",
    "/dead",
    "/delayed",
    "/pending",
    "/replay",
    "/jobs",
    "/controls",
    "/destinations",
    "/doctor",
    "/relays",
    "/consumers",
    "/audit",
    "/order/dead/retry?all=true",
];

/// Addresses with a text that pages show again.
const REFLECTED: [&str; 14] = [
    "/messages?topic=",
    "/messages?key=",
    "/messages?message=",
    "/message/",
    "/key?message=",
    "/keys?topic=",
    "/dead?error=",
    "/delayed?reason=",
    "/replay?topic=",
    "/jobs?ordered=",
    "/order/pause?sink=",
    "/order/dead/retry?topic=",
    "/order/",
    "/",
];

/// The width of a phone, as in the success criterion 1.4.10 of WCAG.
const NARROW: u32 = 320;
const PHONE: u32 = 390;
const WIDE: u32 = 1280;

/// Returns what is wrong with the page: the status, the heading, and requests to others.
const LOOK: &str = "
    const loaded = performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'));
    const wrong = loaded.filter(it => !it.name.startsWith(location.origin + '/')).map(it => 'asked ' + it.name);
    const status = performance.getEntriesByType('navigation')[0].responseStatus;
    if (status !== 200) wrong.push('status ' + status);
    if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
    if (!document.title) wrong.push('no title');
    if (loaded.length < 3) wrong.push('it lacks its style or its script');
    return wrong;";

/// Returns what is wider than the page.
const OVERFLOW: &str = "
    const root = document.documentElement;
    if (root.scrollWidth <= innerWidth) return [];
    const wide = [...document.querySelectorAll('body *')].filter(it => it.getBoundingClientRect().right > innerWidth);
    return ['wider than ' + innerWidth].concat(wide.map(it => it.outerHTML.slice(0, 120)));";

/// Ends with the violations of all rules.
const CHECK: &str = "
    const [done] = arguments;
    const told = it => it.id + ': ' + it.nodes.map(node => node.target + ' ' + node.failureSummary).join('; ');
    axe.run(document, { resultTypes: ['violations'] })
        .then(found => done(found.violations.map(told)), error => done([String(error)]));";

/// The parts of a page that its state decides, in the order of its visit.
async fn visit(browser: &Browser<'_>, (name, path): &(String, String), axe: &str) -> Result<()> {
    browser.go(path).await?;
    let mut wrong = vec![browser.run(LOOK).await?];
    browser.run(axe).await?;
    for scheme in ["light", "dark"] {
        browser.scheme(scheme).await?;
        wrong.push(browser.client.execute_async(CHECK, vec![]).await?);
        browser.shoot(&format!("{name}-{scheme}")).await?;
    }
    browser.scheme("light").await?;
    browser.width(NARROW).await?;
    wrong.push(browser.run(OVERFLOW).await?);
    browser.width(PHONE).await?;
    browser.shoot(&format!("{name}-phone")).await?;
    browser.width(WIDE).await?;
    wrong.push(Value::Array(browser.complaints().await?));
    let wrong: Vec<_> = wrong.iter().filter_map(Value::as_array).flatten().collect();
    ensure!(wrong.is_empty(), "{path}: {wrong:#?}");
    Ok(())
}

/// The pages that every outbox has, each with a name.
fn pages(prefix: &str) -> Vec<(String, String)> {
    let name =
        |path: &str| prefix.chars().chain(path.chars().map(|c| if c.is_alphanumeric() { c } else { '-' })).collect();
    PAGES.iter().map(|path| (name(path), (*path).to_owned())).collect()
}

/// Visits these pages, and tells all that is wrong.
pub(crate) async fn visit_all(browser: &Browser<'_>, pages: &[(String, String)]) -> Result<()> {
    let axe = tokio::task::spawn_blocking(axe).await??;
    browser.width(WIDE).await?;
    let mut wrong = Vec::new();
    for page in pages {
        wrong.extend(visit(browser, page, &axe).await.err().map(|error| format!("{error:#}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_of_an_empty_outbox_and_of_one_message_is_sound() -> Result<()> {
    let mut stage = Stage::new(Broker::Kafka).await?;
    let console = stage.console().await?;
    let _relay = stage.relay()?;
    browse(&console, "alice", async |browser| visit_all(browser, &pages("empty")).await).await?;
    let draft = &stage.drafts(1)[0];
    stage.commit(std::slice::from_ref(draft)).await?;
    ensure!(stage.arrivals(draft).await? == 1);
    browse(&console, "alice", async |browser| visit_all(browser, &pages("one")).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_of_an_outbox_with_faults_is_sound() -> Result<()> {
    let seed = seed().await?;
    let pages = [pages("seed"), seed.pages().await?].concat();
    browse(&seed.console, "alice", async |browser| visit_all(browser, &pages).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_from_outside_are_shown_as_texts() -> Result<()> {
    const LOOK: &str = "
        return { made: document.querySelectorAll('main script, main img').length, ran: document.title === 'run',
                 text: document.querySelector('main').textContent };";
    let seed = seed().await?;
    let pages = [pages(""), seed.pages().await?].concat();
    let (mut shown, mut wrong) = ((0, 0), Vec::new());
    let mut note = |page: &str, found: &Value| {
        let text = found["text"].as_str().unwrap_or_default();
        let raw = text.lines().find(|line| line.contains(['\u{202e}', '\u{2066}', '\u{7}']));
        wrong.extend(raw.map(|line| format!("{page} reverses a text: {line:?}")));
        wrong.extend((found["made"] != 0 || found["ran"] != false).then(|| format!("{page} has markup: {found:#}")));
        shown = (shown.0 + usize::from(text.contains(MARKUP)), shown.1 + usize::from(text.contains("gnp.exe")));
    };
    let hostile: String = byte_serialize(format!("{MARKUP}{BIDI}").as_bytes()).collect();
    let mut revealed = 0;
    let reflected = REFLECTED.map(|begin| format!("{begin}{hostile}"));
    browse(&seed.console, "alice", async |browser| {
        for page in pages.iter().map(|(_, page)| page).chain(&reflected) {
            browser.go(page).await?;
            note(page, &browser.run(LOOK).await?);
        }
        for (_, message) in seed.messages {
            browser.order(&format!("/message/{message}"), MARKUP, None).await?;
            let found = browser.run(LOOK).await?;
            note("a reveal", &found);
            revealed += usize::from(found["text"].as_str().is_some_and(|text| text.contains("gnp.exe")));
        }
        Ok(())
    })
    .await?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The reasons of a pause and a job, types of events, errors of a sink and a consumer; keys are only revealed.
    ensure!(shown.0 >= 20 && shown.1 >= 4, "{shown:?} pages show {MARKUP} and {BIDI:?}");
    // The keys of two messages, and the error of one.
    ensure!(revealed == 3, "{revealed} reveals show {BIDI:?}");
    let audit = "SELECT COUNT(*) FROM outbox_audit WHERE actor = 'alice' AND action = 'reveal'";
    let reveals = seed.database.number(audit).await?;
    ensure!(reveals == 7, "the audit has {reveals} reveals");
    Ok(())
}
