//! A database with a topic, relays, and the console.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    ledger::{Draft, Ledger},
    load,
    relay::{Relay, Settings, ask},
    servers::{Flavor, until},
    tokens::token_lines,
};

pub(crate) use testkit::servers::PATIENCE;

/// Alice gives orders, and Bob looks.
const PEOPLE: [(&str, &str); 2] = [("alice", "operator"), ("bob", "viewer")];

pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) topic: Topic,
    pub(crate) settings: Settings,
}

impl Stage {
    pub(crate) async fn new(broker: Broker) -> Result<Self> {
        let database = Database::create(Flavor::MySql).await?;
        let topic = Topic::create(broker).await?;
        let settings = Settings::new(&database.url_as(Account::Relay)?).with_broker_of(&topic).patient();
        Ok(Self { database, topic, settings })
    }

    pub(crate) fn relay(&self) -> Result<Relay> {
        Relay::start(env!("CARGO_BIN_EXE_relay"), &self.settings)
    }

    pub(crate) async fn console(&self) -> Result<Console> {
        Console::start(&self.database.url_as(Account::Operator)?).await
    }

    pub(crate) fn drafts(&self, number: usize) -> Vec<Draft> {
        (0..number).map(|number| Draft::new(self.topic.name(), format!("payload {number}"))).collect()
    }

    pub(crate) async fn commit(&self, drafts: &[Draft]) -> Result<()> {
        load::commit(&self.database, &Ledger::new(), drafts, |message| message).await
    }

    /// Waits until no work is left; returns how often this message is at the broker.
    pub(crate) async fn arrivals(&mut self, draft: &Draft) -> Result<usize> {
        self.database.wait_until_drained(PATIENCE).await?;
        Ok(self.topic.read().await?.iter().filter(|arrival| arrival.id == draft.id).count())
    }
}

/// A running console, and the file with its tokens. A token is the name of the person.
pub(crate) struct Console {
    relay: Relay,
    tokens: TempDir,
}

/// The status, the headers and the body of an answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a header; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        let lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).next().unwrap_or_default()
    }
}

impl Console {
    pub(crate) async fn start(url: &str) -> Result<Self> {
        Self::with(Settings::new(url)).await
    }

    pub(crate) async fn with(settings: Settings) -> Result<Self> {
        let tokens = tempfile::tempdir()?;
        let file = tokens.path().join("tokens");
        fs::write(&file, token_lines(&PEOPLE))?;
        let settings = settings
            .set("api", "tokens_file", file.to_string_lossy().into_owned())
            // More than a browser and a test send in a second.
            .set("api", "requests_per_second", 10_000);
        let relay = Relay::start_console(env!("CARGO_BIN_EXE_relay"), &settings)?;
        let console = Self { relay, tokens };
        let answers = until(PATIENCE, "an answer of the console", async || console.get("/login", "").await).await;
        answers.with_context(|| console.relay.log().unwrap_or_default())?;
        Ok(console)
    }

    /// Takes the token of this person out of the file.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let others: Vec<_> = PEOPLE.into_iter().filter(|(known, _)| *known != name).collect();
        Ok(fs::write(self.tokens.path().join("tokens"), token_lines(&others))?)
    }

    pub(crate) fn port(&self) -> u16 {
        self.relay.port()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    /// Sends a request: its first line without the version, and other headers than the host.
    pub(crate) async fn send(&self, head: &str, headers: &str, body: &str) -> Result<Answer> {
        let host =
            if headers.contains("Host:") { String::new() } else { format!("Host: 127.0.0.1:{}\r\n", self.port()) };
        let length = body.len();
        let request = format!("{head} HTTP/1.1\r\n{host}{headers}Content-Length: {length}\r\n\r\n{body}");
        let (status, headers, body) = ask(self.port(), &request).await?;
        Ok(Answer { status, headers, body })
    }

    pub(crate) async fn get(&self, path: &str, headers: &str) -> Result<Answer> {
        self.send(&format!("GET {path}"), headers, "").await
    }

    /// Logs in as a browser does; returns the header with the cookie.
    pub(crate) async fn cookie(&self, name: &str) -> Result<String> {
        let answer = self.post("/login", &self.same_origin(), &format!("token={name}")).await?;
        ensure!(answer.status == 303, "{} {}", answer.status, answer.body);
        let cookie = answer.header("set-cookie").split(';').next().unwrap_or_default();
        Ok(format!("Cookie: {cookie}\r\n"))
    }

    pub(crate) async fn post(&self, path: &str, headers: &str, body: &str) -> Result<Answer> {
        let headers = format!("{headers}Content-Type: application/x-www-form-urlencoded\r\n");
        self.send(&format!("POST {path}"), &headers, body).await
    }

    /// The headers that a browser sends with a form of the console.
    pub(crate) fn same_origin(&self) -> String {
        format!("Sec-Fetch-Site: same-origin\r\nOrigin: http://127.0.0.1:{}\r\n", self.port())
    }

    /// The token of the forms on the page.
    pub(crate) async fn form_token(&self, page: &str, cookie: &str) -> Result<String> {
        let page = self.get(page, cookie).await?.body;
        let field = page.split("name=\"form_token\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        field.map(str::to_owned).with_context(|| format!("no token in {page}"))
    }
}
