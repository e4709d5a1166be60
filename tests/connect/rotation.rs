//! Passwords that change while relays run: files with secrets are read again at every connect.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{Message, Outbox, sqlx::Connection as _};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    judge::{Expectations, judge},
    ledger::{Draft, Ledger},
    load,
    relay::{Relay, Settings},
    servers::{Flavor, Kafka, RabbitMq},
};

use crate::{
    check,
    login::{PASSWORD, PATIENCE, Stock},
};

/// Commits messages one after the other, on connections of a service.
async fn enqueue(database: &Database, messages: usize) -> Result<()> {
    let mut service = database.connect_as(Account::Service).await?;
    for _ in 0..messages {
        let mut tx = service.begin().await?;
        Outbox::new().enqueue(&mut tx, Message::new("orders", "{}")).await?;
        tx.commit().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_of_the_database_that_is_changed_is_read_again() -> Result<()> {
    let stock = Stock::start(&[]).await?;
    let database = &stock.database;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    std::fs::write(&file, PASSWORD)?;
    let settings = Settings::new(&stock.url().replace(&format!(":{PASSWORD}"), ""));
    let settings = settings.set("database", "password_file", file.display().to_string());
    let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings.null().route([("topics", "*"), ("sink", "null")]))?;
    let rotate = async {
        database.wait_for(PATIENCE, "SELECT COUNT(*) > 0 FROM outbox_sent").await?;
        database.execute("ALTER USER stock@'%' IDENTIFIED BY 'second'").await?;
        std::fs::write(&file, "second\n")?;
        let theirs = "SELECT CAST(COALESCE(MIN(processlist_id), 0) AS SIGNED) FROM performance_schema.threads \
                      WHERE processlist_user = 'stock'";
        let most =
            database.number("SELECT COUNT(*) FROM performance_schema.threads WHERE processlist_user = 'stock'").await?;
        for _ in 0..most {
            let id = database.number(theirs).await?;
            // A connection that has just ended cannot be killed.
            database.execute(&format!("KILL {id}")).await.unwrap_or_default();
        }
        let pid = Pid::from_raw(relay.pid().try_into()?).context("no id")?;
        kill_process(pid, Signal::HUP)?;
        relay.wait_for_log(PATIENCE, "SIGHUP: the log's level was read again").await
    };
    tokio::try_join!(enqueue(database, 500), rotate)?;
    enqueue(database, 1).await?;
    database.wait_until_drained(PATIENCE).await.with_context(|| relay.log().unwrap_or_default())?;
    ensure!(database.number("SELECT COUNT(*) FROM outbox_sent_messages").await? == 501, "messages are lost");
    ensure!(database.number("SELECT COUNT(*) FROM outbox_dead").await? == 0, "messages are dead");
    Ok(())
}

/// The state that the tests of both brokers share.
pub(crate) struct Rotation {
    pub(crate) database: Database,
    ledger: Ledger,
    pub(crate) topic: Topic,
    folder: tempfile::TempDir,
}

impl Rotation {
    pub(crate) async fn new(topic: Topic) -> Result<Self> {
        let database = Database::create(Flavor::MySql).await?;
        let folder = tempfile::tempdir()?;
        let rotation = Self { database, ledger: Ledger::new(), topic, folder };
        rotation.write("first")?;
        Ok(rotation)
    }

    pub(crate) fn file(&self) -> String {
        self.folder.path().join("password").display().to_string()
    }

    pub(crate) fn write(&self, password: &str) -> Result<()> {
        Ok(fs::write(self.file(), password)?)
    }

    pub(crate) fn settings(&self) -> Result<Settings> {
        Ok(Settings::new(&self.database.url_as(Account::Relay)?).patient())
    }

    /// Checks that messages of one key arrive before, during and after `rotate`.
    pub(crate) async fn survives(
        self,
        settings: Settings,
        rotate: impl AsyncFnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings)?;
        let change = async {
            self.database.wait_for(PATIENCE, "SELECT COUNT(*) > 0 FROM outbox_sent").await?;
            rotate(&self).await?;
            self.write("second\n")
        };
        let load = async {
            for _ in 0..5 {
                self.commit().await?;
            }
            Ok(())
        };
        tokio::try_join!(load, change)?;
        self.commit().await?;
        self.has_lost_nothing(&relay).await
    }

    /// Checks that all messages have arrived in order, and that none is dead.
    pub(crate) async fn has_lost_nothing(mut self, relay: &Relay) -> Result<()> {
        self.database.wait_until_drained(PATIENCE).await.with_context(|| relay.log().unwrap_or_default())?;
        let tables = self.database.tables().await?;
        let expected = Expectations::new().at_least(600).duplicates(500);
        judge(&self.ledger.entries(), self.topic.read().await?, &tables).assert_ok(&expected)
    }

    pub(crate) async fn commit(&self) -> Result<()> {
        for number in 0..100 {
            let draft = [Draft::new(self.topic.name(), format!("payload {number}"))];
            load::commit(&self.database, &self.ledger, &draft, |message| message).await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_of_rabbitmq_that_is_changed_is_read_again() -> Result<()> {
    let server = RabbitMq::start().await?;
    for command in [["add_user", "relay", "first"].as_slice(), &["set_permissions", "relay", ".*", ".*", ".*"]] {
        server.ctl(command).await?;
    }
    let rotation = Rotation::new(Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?).await?;
    let (_, place) =
        server.amqp_url().rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).context("no login")?;
    let settings = rotation.settings()?.with_broker_of(&rotation.topic).rabbitmq(&format!("amqp://relay@{place}"));
    let settings = settings.sink_key("rabbitmq", "password_file", rotation.file());
    for (name, command, sentence) in [
        ("nowhere", ["list_vhosts"].as_slice(), "no such virtual host"),
        ("%2f", &["set_user_limits", "relay", r#"{"max-connections": 0}"#], "no connection left for this user"),
    ] {
        server.ctl(command).await?;
        let vhost = place.replace("%2f", name);
        let found = check::rabbitmq(&format!("amqp://relay:first@{vhost}"), None)?;
        ensure!(!found.ok && found.detail.contains(sentence), "{}", found.detail);
    }
    server.ctl(&["clear_user_limits", "relay", "all"]).await?;
    let rotate = async |_: &Rotation| {
        server.ctl(&["change_password", "relay", "second"]).await?;
        server.ctl(&["close_all_user_connections", "relay", "rotated"]).await.map(drop)
    };
    Box::pin(rotation.survives(settings, rotate)).await
}

/// The password differs from the broker's.
const SASL: &str = "\"security.protocol\" = \"sasl_plaintext\", \"sasl.mechanism\" = \"PLAIN\", \"sasl.username\" \
                    = \"relay\", \"sasl.password\" = \"wrong\"";

/// Returns the users of the listener behind the proxy.
fn users(password: &str) -> String {
    format!("org.apache.kafka.common.security.plain.PlainLoginModule required user_relay=\"{password}\";")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_of_kafka_that_is_changed_is_read_again() -> Result<()> {
    const USERS: &str = "listener.name.proxied.plain.sasl.jaas.config";
    let protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT";
    let mut server = Kafka::with(&[
        ("listener.security.protocol.map", protocols),
        ("sasl.enabled.mechanisms", "PLAIN"),
        (USERS, &users("first")),
    ])
    .await?;
    let proxy = server.proxy().await?;
    let rotation = Rotation::new(Topic::create_on(Broker::Kafka, &server.bootstrap()).await?).await?;
    let mut settings = rotation.settings()?.with_broker_of(&rotation.topic).kafka(proxy.address());
    for (name, value) in [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "relay"),
        ("sasl.password_file", &rotation.file()),
    ] {
        settings = settings.kafka_property(name, value);
    }
    let found = check::kafka(proxy.address(), SASL)?;
    ensure!(!found.ok && found.detail.contains("user or password is wrong"), "{}", found.detail);
    let found = check::kafka(proxy.address(), &SASL.replace("PLAIN\"", "SCRAM-SHA-256\""))?;
    ensure!(!found.ok && found.detail.contains("the broker has no such SASL mechanism"), "{}", found.detail);
    let file = server.folder().context("no folder")?.join("server.properties");
    let rotate = async |_: &Rotation| {
        server.stop().await?;
        fs::write(&file, fs::read_to_string(&file)?.replace(&users("first"), &users("second")))?;
        server.restart().await?;
        let old = check::kafka(proxy.address(), &SASL.replace("wrong", "first"))?;
        ensure!(!old.ok && old.detail.contains("user or password is wrong"), "{}", old.detail);
        Ok(())
    };
    Box::pin(rotation.survives(settings, rotate)).await
}
