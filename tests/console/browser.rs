//! A browser of one person.

use std::{env, fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use fantoccini::{Client, ClientBuilder, Locator, elements::Element, wd::WebDriverCompatibleCommand};
use hyper::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Map, Value, json};
use testkit::servers::{chromedriver_url, until};
use url::{ParseError, Url};

use crate::stage::Console;

/// The time for a step of a browser on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A command of chromedriver beyond the standard.
#[derive(Debug)]
struct Extension(&'static str, Value);

impl WebDriverCompatibleCommand for Extension {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.1.to_string()))
    }
}

pub(crate) struct Browser<'a> {
    pub(crate) client: Client,
    pub(crate) console: &'a Console,
}

/// Runs a test with a browser in which this person has logged in. The browser is closed even if the test fails.
pub(crate) async fn browse(
    console: &Console,
    name: &str,
    test: impl AsyncFnOnce(&Browser<'_>) -> Result<()>,
) -> Result<()> {
    let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
    let wanted = json!({ "goog:chromeOptions": { "args": arguments }, "goog:loggingPrefs": { "browser": "ALL" } });
    let wanted: Map<String, Value> = wanted.as_object().cloned().unwrap_or_default();
    let driver = chromedriver_url().await?;
    let client = ClientBuilder::new(HttpConnector::new()).capabilities(wanted).connect(&driver).await?;
    let browser = Browser { client, console };
    let outcome = async {
        browser.log_in(name).await?;
        test(&browser).await
    };
    let outcome = outcome.await;
    let at = browser.client.current_url().await.map(|url| url.to_string()).unwrap_or_default();
    browser.client.close().await?;
    outcome.with_context(|| format!("the browser is at {at}"))
}

impl Browser<'_> {
    pub(crate) async fn log_in(&self, name: &str) -> Result<()> {
        self.go("/").await?;
        self.fill("token", name).await?;
        self.press().await?;
        ensure!(!self.path().await?.contains("login"), "the login leads to {}", self.path().await?);
        Ok(())
    }

    pub(crate) async fn go(&self, path: &str) -> Result<()> {
        self.client.goto(&self.console.url(path)).await.with_context(|| path.to_owned())
    }

    /// The path in the address, with the query.
    pub(crate) async fn path(&self) -> Result<String> {
        let url = self.client.current_url().await?;
        Ok(url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path())))
    }

    pub(crate) async fn find(&self, selector: &str) -> Result<Element> {
        let text = async { self.client.find(Locator::Css("main")).await?.text().await };
        match self.client.find(Locator::Css(selector)).await {
            Ok(element) => Ok(element),
            Err(error) => Err(error).with_context(|| selector.to_owned()).context(text.await.unwrap_or_default()),
        }
    }

    pub(crate) async fn count(&self, selector: &str) -> Result<usize> {
        Ok(self.client.find_all(Locator::Css(selector)).await?.len())
    }

    pub(crate) async fn text(&self, selector: &str) -> Result<String> {
        Ok(self.find(selector).await?.text().await?)
    }

    pub(crate) async fn fill(&self, field: &str, value: &str) -> Result<()> {
        self.write(&format!("form.confirm input[name={field}]"), value).await
    }

    /// A page that is alive replaces its elements, also between the look for one and its use.
    async fn write(&self, selector: &str, keys: &str) -> Result<()> {
        until(SOON, selector, async || Ok(self.find(selector).await?.send_keys(keys).await?)).await
    }

    /// Types into a field, and sends its form with the key at the end of a line.
    pub(crate) async fn enter(&self, selector: &str, value: &str) -> Result<()> {
        self.leave(self.write(selector, &format!("{value}\u{e007}"))).await
    }

    pub(crate) async fn click(&self, selector: &str) -> Result<()> {
        self.leave(until(SOON, selector, async || Ok(self.find(selector).await?.click().await?))).await
    }

    /// Presses the button of an order, or that of the login.
    pub(crate) async fn press(&self) -> Result<()> {
        self.click("form.confirm button.order").await
    }

    /// Does what leads to another page, and waits for that page.
    pub(crate) async fn leave(&self, action: impl Future<Output = Result<()>>) -> Result<()> {
        let begun = "return document.readyState === 'complete' ? performance.timeOrigin : null";
        let before = self.run(begun).await?;
        action.await?;
        until(SOON, "the next page", async || {
            let now = self.run(begun).await?;
            ensure!(!now.is_null() && now != before, "the page is the same");
            Ok(())
        })
        .await
    }

    /// Gives the order on this page: its reason, and the number of messages.
    pub(crate) async fn order(&self, page: &str, because: &str, count: Option<&str>) -> Result<()> {
        self.go(page).await?;
        self.fill("because", because).await?;
        if let Some(count) = count {
            self.fill("count", count).await?;
        }
        self.press().await
    }

    /// Runs a script in the page, which may have none of its own.
    pub(crate) async fn run(&self, script: &str) -> Result<Value> {
        Ok(self.client.execute(script, Vec::new()).await?)
    }

    /// A command of the protocol of Chromium's developer tools.
    pub(crate) async fn tool(&self, command: &str, parameters: Value) -> Result<Value> {
        let body = json!({ "cmd": command, "params": parameters });
        self.client.issue_cmd(Extension("goog/cdp/execute", body)).await.with_context(|| command.to_owned())
    }

    /// The errors and warnings in the browser's console since the last call.
    pub(crate) async fn complaints(&self) -> Result<Vec<Value>> {
        let lines = self.client.issue_cmd(Extension("se/log", json!({ "type": "browser" }))).await?;
        let is_told =
            |line: &&Value| ["SEVERE", "WARNING"].iter().any(|level| line.get("level") == Some(&(*level).into()));
        Ok(lines.as_array().into_iter().flatten().filter(is_told).cloned().collect())
    }

    pub(crate) async fn scheme(&self, scheme: &str) -> Result<()> {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.tool("Emulation.setEmulatedMedia", json!({ "features": features })).await.map(drop)
    }

    pub(crate) async fn width(&self, width: u32) -> Result<()> {
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.tool("Emulation.setDeviceMetricsOverride", metrics).await.map(drop)
    }

    /// Writes a picture of the whole page to the folder in `OUTBOX_SHOTS`, if it names one.
    pub(crate) async fn shoot(&self, name: &str) -> Result<()> {
        let Some(folder) = env::var_os("OUTBOX_SHOTS").map(PathBuf::from) else { return Ok(()) };
        let height = self.run("return document.documentElement.scrollHeight").await?;
        let width = self.run("return innerWidth").await?;
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let wanted = json!({ "captureBeyondViewport": true, "clip": clip });
        let picture = self.tool("Page.captureScreenshot", wanted).await?;
        let data = picture.get("data").and_then(Value::as_str).context("no picture")?;
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join(format!("{name}.png")), decoded(data)?)?)
    }
}

fn decoded(data: &str) -> Result<Vec<u8>> {
    use base64::Engine as _;
    Ok(base64::engine::general_purpose::STANDARD.decode(data)?)
}
