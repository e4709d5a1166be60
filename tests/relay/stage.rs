//! The equipment of every test: a database, a topic, a ledger, relays, and the judge at the end.

use anyhow::{Context as _, Result, ensure};
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    inbox,
    judge::{Expectations, Report, judge},
    ledger::{Draft, Ledger},
    load,
    relay::{Client, Relay, Settings},
    servers::{Flavor, until},
};
use url::Url;

pub(crate) use testkit::servers::PATIENCE;

pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) topic: Topic,
    pub(crate) ledger: Ledger,
    pub(crate) settings: Settings,
}

impl Stage {
    pub(crate) async fn new(flavor: Flavor, broker: Broker) -> Result<Self> {
        Self::with(Database::create(flavor).await?, Topic::create(broker).await?)
    }

    pub(crate) fn with(database: Database, topic: Topic) -> Result<Self> {
        let settings = Settings::new(&database.url_as(Account::Relay)?).with_broker_of(&topic);
        Ok(Self { database, topic, ledger: Ledger::new(), settings })
    }

    /// Does the same as [`Settings::patient`].
    pub(crate) fn patient(mut self) -> Self {
        self.settings = self.settings.patient();
        self
    }

    pub(crate) fn relay(&self) -> Result<Relay> {
        start(&self.settings)
    }

    /// The command line, with the account of an operator.
    pub(crate) fn operator(&self) -> Result<Client> {
        Ok(client(self.database.url_as(Account::Operator)?))
    }

    /// Commits messages and their business rows in one transaction.
    pub(crate) async fn commit(&self, drafts: &[Draft]) -> Result<()> {
        load::commit(&self.database, &self.ledger, drafts, |message| message).await
    }

    pub(crate) fn draft(&self, number: usize) -> Draft {
        Draft::new(self.topic.name(), format!("payload {number}"))
    }

    /// Waits until no work is left, consumes all messages through the inbox, and judges.
    pub(crate) async fn drain_and_judge(&mut self, expected: &Expectations) -> Result<()> {
        self.database.wait_until_drained(PATIENCE).await?;
        self.judge(expected).await
    }

    pub(crate) async fn judge(&mut self, expected: &Expectations) -> Result<()> {
        self.report().await?.assert_ok(expected)
    }

    /// Consumes all messages through the inbox, and returns the judge's report.
    pub(crate) async fn report(&mut self) -> Result<Report> {
        let arrivals = self.topic.read().await?;
        inbox::process(&self.database, "test", arrivals).await?;
        Ok(judge(&self.ledger.entries(), arrivals, &self.database.tables().await?))
    }
}

pub(crate) fn client(url: impl Into<String>) -> Client {
    Client::new(env!("CARGO_BIN_EXE_relay"), url)
}

pub(crate) fn start(settings: &Settings) -> Result<Relay> {
    Relay::start(env!("CARGO_BIN_EXE_relay"), settings)
}

/// Both brokers, one after the other.
pub(crate) const BROKERS: [Broker; 2] = [Broker::Kafka, Broker::RabbitMq];

/// Waits until the relays together have published this many more messages.
pub(crate) async fn work(relays: &[Relay], more: f64) -> Result<()> {
    let before = published(relays).await.unwrap_or(0.0);
    let outcome = until(PATIENCE, "work", || async {
        let now = published(relays).await?;
        ensure!(now >= before + more, "{now} messages");
        Ok(())
    });
    outcome.await.with_context(|| relays.iter().filter_map(|relay| relay.log().ok()).collect::<Vec<_>>().join("\n\n"))
}

async fn published(relays: &[Relay]) -> Result<f64> {
    let mut sum = 0.0;
    for relay in relays {
        sum += relay.metrics().await?.sum("outbox_relay_published_messages_total");
    }
    Ok(sum)
}

/// Returns a page's block of SQL that contains this text.
pub(crate) fn sql_block(page: &'static str, text: &str) -> Result<&'static str> {
    let mut blocks = page.split("```sql\n").skip(1).filter_map(|block| block.split("```").next());
    blocks.find(|block| block.contains(text)).with_context(|| format!("no block with {text:?} on the page"))
}

/// Makes an account of this database only, with a password and these grants to `{user}`; returns the address with it.
pub(crate) async fn account(database: &Database, grants: &str) -> Result<Url> {
    let mut url = Url::parse(database.url())?;
    let user = format!("u{}", url.path().chars().rev().take(24).collect::<String>());
    let create = format!("CREATE USER '{user}'@'%' IDENTIFIED BY '{user}'; {}", grants.replace("{user}", &user));
    database.execute(&create).await?;
    let taken = url.set_username(&user).and_then(|()| url.set_password(Some(&user)));
    taken.map_err(|()| anyhow::anyhow!("the address takes no user"))?;
    Ok(url)
}
