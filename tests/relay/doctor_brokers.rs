//! `relay doctor` on brokers that are broken on purpose: each fault adds exactly its finding.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{
        BasicPublishOptions, ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
};
use serde_json::Value;
use testkit::{
    accounts::Account,
    database::Database,
    relay::Settings,
    servers::{Flavor, KafkaCluster, RabbitMq, create_topic_with, until},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    process::Command,
};

use crate::{doctor::examine, stage::PATIENCE};

const DURABLE: QueueDeclareOptions =
    QueueDeclareOptions { passive: false, durable: true, exclusive: false, auto_delete: false, nowait: false };

const GOOD: [(&str, &str); 2] = [("x-queue-type", "quorum"), ("x-dead-letter-exchange", "amq.fanout")];

/// Findings beside those of a sound broker.
struct Ward {
    settings: Settings,
    sound: Vec<String>,
}

impl Ward {
    /// These settings are sound.
    async fn open(settings: Settings) -> Result<Self> {
        let sound = examine(&settings).await?.into_keys().collect();
        Ok(Self { settings, sound })
    }

    async fn expect(&self, settings: &Settings, codes: &[&str]) -> Result<BTreeMap<String, Value>> {
        let mut found = examine(settings).await?;
        found.retain(|code, _| !self.sound.contains(code));
        ensure!(found.keys().eq(codes.iter()), "{codes:?} are not {found:#?}");
        Ok(found)
    }
}

/// A node with its management API.
struct Rabbit {
    node: RabbitMq,
    _connection: Connection,
    channel: Channel,
    ward: Ward,
}

impl Rabbit {
    async fn open() -> Result<Self> {
        let node = RabbitMq::with_management().await?;
        let connection = Connection::connect(&node.amqp_url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let url = Database::create(Flavor::MariaDb).await?.url_as(Account::Relay)?;
        let settings = Settings::new(&url).rabbitmq(&node.amqp_url());
        let settings = settings.sink_key("rabbitmq", "management_url", node.management_url()?);
        let rabbit = Self {
            node,
            _connection: connection,
            channel,
            ward: Ward { settings: settings.clone(), sound: Vec::new() },
        };
        rabbit.queue("good", DURABLE, text(&GOOD)).await?;
        rabbit.exchange("sound", ExchangeKind::Topic, FieldTable::default()).await?;
        rabbit.bind("good", "sound", "orders.#").await?;
        let ward = Ward::open(to(&settings, "sound", "orders.created")).await?;
        ensure!(ward.sound == ["no_tail", "table_sizes", "transactions_unseen"], "{:?}", ward.sound);
        Ok(Self { ward, ..rabbit })
    }

    async fn queue(&self, name: &str, options: QueueDeclareOptions, arguments: FieldTable) -> Result<()> {
        Ok(self.channel.queue_declare(name.into(), options, arguments).await.map(drop)?)
    }

    async fn exchange(&self, name: &str, kind: ExchangeKind, arguments: FieldTable) -> Result<()> {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        Ok(self.channel.exchange_declare(name.into(), kind, options, arguments).await?)
    }

    async fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let options = QueueBindOptions::default();
        let none = FieldTable::default();
        Ok(self.channel.queue_bind(queue.into(), exchange.into(), key.into(), options, none).await?)
    }

    /// Runs a printed command.
    async fn run(&self, found: &Value) -> Result<()> {
        let command = found["command"].as_str().context("no command")?;
        let words = format!("rabbitmqctl() {{ printf '%s\\n' \"$@\"; }}; {command}");
        let words = String::from_utf8(Command::new("sh").args(["-c", &words]).output().await?.stdout)?;
        self.node.ctl(&words.lines().collect::<Vec<_>>()).await.map(drop)
    }

    /// Expects these findings for an exchange.
    async fn case(&self, exchange: &str, key: &str, codes: &[&str]) -> Result<BTreeMap<String, Value>> {
        self.ward.expect(&to(&self.ward.settings, exchange, key), codes).await
    }

    async fn exchanges(&self) -> Result<()> {
        self.exchange("narrow", ExchangeKind::Direct, FieldTable::default()).await?;
        let found = self.case("narrow", "orders", &["exchange_unbound"]).await?;
        let evidence = found["exchange_unbound"]["evidence"].as_str().unwrap_or_default();
        ensure!(evidence == "The exchange narrow of the sink rabbitmq leads to no queue.", "{evidence}");
        self.bind("good", "narrow", "refunds").await?;
        let found = self.case("narrow", "orders", &["exchange_unbound"]).await?;
        let evidence = found["exchange_unbound"]["evidence"].as_str().unwrap_or_default();
        ensure!(evidence.ends_with("leads to no queue for the routing key orders."), "{evidence}");
        self.case("narrow", "{key}", &[]).await?;
        self.bind("good", "narrow", "orders").await?;
        self.case("narrow", "orders", &[]).await?;
        self.case("sound", "refunds", &["exchange_unbound"]).await?;

        self.exchange("alternate", ExchangeKind::Direct, text(&[("alternate-exchange", "sound")])).await?;
        self.case("alternate", "orders", &[]).await?;
        self.exchange("front", ExchangeKind::Fanout, FieldTable::default()).await?;
        self.case("front", "orders", &["exchange_unbound"]).await?;
        let options = ExchangeBindOptions::default();
        let none = FieldTable::default();
        self.channel.exchange_bind("sound".into(), "front".into(), "".into(), options, none).await?;
        self.case("front", "orders", &[]).await?;
        self.case("front", "refunds", &["exchange_unbound"]).await.map(drop)
    }

    /// A login of its own, which may write to some exchanges alone, and open two channels.
    async fn rights(&self) -> Result<()> {
        let internal = ExchangeDeclareOptions { durable: true, internal: true, ..Default::default() };
        self.channel.exchange_declare("inside".into(), ExchangeKind::Fanout, internal, FieldTable::default()).await?;
        self.bind("good", "inside", "").await?;
        let found = self.case("inside", "orders", &["exchange_refuses"]).await?;
        let evidence = found["exchange_refuses"]["evidence"].as_str().unwrap_or_default();
        ensure!(evidence.contains("the exchange is internal"), "{evidence}");

        self.node.ctl(&["add_user", "narrow", "x"]).await?;
        self.node.ctl(&["set_permissions", "narrow", ".*", "^sound$", ".*"]).await?;
        let own = |url: &str| url.replace("guest:guest@", "narrow:x@");
        let api = self.node.management_url()?.replace("http://", "http://guest:guest@");
        let settings = self.ward.settings.clone().rabbitmq(&own(&self.node.amqp_url()));
        let settings = settings.sink_key("rabbitmq", "management_url", api);
        self.ward.expect(&to(&settings, "sound", "orders"), &[]).await?;
        for (exchange, key) in [("", "good"), ("", "{key}"), ("narrow", "orders")] {
            let found = self.ward.expect(&to(&settings, exchange, key), &["exchange_refuses"]).await?;
            let evidence = found["exchange_refuses"]["evidence"].as_str().unwrap_or_default();
            ensure!(evidence.contains("the relay may not write to this exchange"), "{evidence}");
        }
        self.node.ctl(&["set_user_limits", "narrow", "{\"max-channels\":2}"]).await?;
        let found = self.ward.expect(&to(&settings, "sound", "orders"), &["fewer_channels"]).await?;
        let evidence = found["fewer_channels"]["evidence"].as_str().unwrap_or_default();
        ensure!(evidence == "The sink rabbitmq gets 2 of its 4 channels.", "{evidence}");
        // The message by which the rights are tried has reached no queue.
        let queue = self.channel.queue_declare("good".into(), DURABLE, text(&GOOD)).await?;
        ensure!(queue.message_count() == 0, "the doctor has sent {} messages", queue.message_count());
        Ok(())
    }

    /// Declares the queue for dead letters that the fix names, and runs the printed command.
    async fn cure(&self, queue: &str, code: &str) -> Result<()> {
        let found = self.case("", queue, &[code]).await?;
        let dead = format!("{queue}.dead");
        ensure!(found[code]["fix"].as_str().is_some_and(|fix| fix.contains(&dead)), "{found:#?}");
        self.queue(&dead, DURABLE, text(&[("x-queue-type", "quorum")])).await?;
        self.run(&found[code]).await?;
        // The API shows a policy a moment later.
        until(PATIENCE, "the policy", || async { self.case("", queue, &[]).await.map(drop) }).await
    }

    async fn queues(&self) -> Result<()> {
        self.queue("limited.1", DURABLE, text(&[("x-queue-type", "quorum")])).await?;
        self.cure("limited.1", "delivery_limit").await?;
        let mut short = FieldTable::default();
        short.insert("x-max-length".into(), AMQPValue::LongInt(5));
        self.queue("it's short", DURABLE, short).await?;
        self.cure("it's short", "queue_drops").await?;
        let mut stale = FieldTable::default();
        stale.insert("x-message-ttl".into(), AMQPValue::LongInt(60_000));
        self.queue("stale", DURABLE, stale).await?;
        self.cure("stale", "queue_drops").await?;
        let deleted = QueueDeclareOptions { auto_delete: true, ..DURABLE };
        self.queue("deleted", deleted, FieldTable::default()).await?;
        self.case("", "deleted", &["queue_not_durable"]).await?;
        let own = QueueDeclareOptions { exclusive: true, durable: false, ..DURABLE };
        self.queue("own", own, FieldTable::default()).await?;
        self.case("", "own", &["queue_not_durable"]).await?;
        self.queue("unread", DURABLE, text(&GOOD)).await?;
        let options = BasicPublishOptions::default();
        let properties = BasicProperties::default();
        self.channel.basic_publish("".into(), "unread".into(), options, b"x", properties).await?.await?;
        // The node counts messages every five seconds.
        until(PATIENCE, "a message", || async { self.case("", "unread", &["queue_unread"]).await.map(drop) }).await
    }

    /// Expects one note with these words, and returns it.
    async fn note(&self, settings: &Settings, words: &str) -> Result<Value> {
        let found = self.ward.expect(settings, &["not_checked"]).await?.remove("not_checked").context("none")?;
        ensure!(found["evidence"].as_str().unwrap_or_default().contains(words), "{words:?} is not in {found:#}");
        Ok(found)
    }

    async fn access(&self) -> Result<()> {
        let settings = to(&self.ward.settings, "sound", "orders");
        let at = |url: &str| settings.clone().sink_key("rabbitmq", "management_url", url);
        let without = settings.clone().rabbitmq(&self.node.amqp_url());
        let found = self.note(&without, "it has no management_url").await?;
        ensure!(found["fix"].as_str().is_some_and(|fix| fix.contains("`sinks.rabbitmq.management_url`")), "{found:#}");
        let address = self.node.management_url()?.replace("http://", "");
        self.note(&at(&format!("http://guest:wrong@{address}")), "refuses the user guest (401)").await?;
        let found = self.note(&at("http://127.0.0.1:1"), "nothing listens there").await?;
        ensure!(found["command"] == "rabbitmq-plugins enable rabbitmq_management", "{found:#}");
        for (answer, words) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "what answers there (200) is not the management API"),
            (
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
                "what answers there (404) is not the management API",
            ),
            ("HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", "what answers there (302)"),
            ("AMQP", "protocol"),
            ("", "did not answer in time"),
        ] {
            self.note(&at(&answering(answer.to_owned()).await?), words).await?;
        }
        let endless = format!("HTTP/1.1 200 OK\r\ncontent-length: 5000000\r\n\r\n{}", " ".repeat(5_000_000));
        self.note(&at(&answering(endless).await?), "too many bindings").await?;

        self.node.ctl(&["add_user", "eye", "c%41d"]).await?;
        let eye = at(&format!("http://eye@{address}")).sink_key("rabbitmq", "management_password", "c%41d");
        // No command is printed: it would replace the rights that a user has.
        for (words, cure) in [
            ("refuses the user eye (401)", &["set_user_tags", "eye", "monitoring"][..]),
            ("does not show sound to the user eye (404)", &["set_permissions", "eye", "", "", ""]),
        ] {
            let found = self.note(&eye, words).await?;
            ensure!(found["command"].is_null(), "{found:#}");
            self.node.ctl(cure).await?;
        }
        self.ward.expect(&eye, &[]).await.map(drop)
    }
}

fn text(arguments: &[(&str, &str)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), AMQPValue::LongString((*value).into()));
    }
    table
}

fn to(settings: &Settings, exchange: &str, routing_key: &str) -> Settings {
    let route = [("topics", "orders"), ("sink", "rabbitmq"), ("exchange", exchange), ("routing_key", routing_key)];
    settings.clone().first_route(route)
}

/// Answers each request so, and nothing at all if the answer is empty. It ends with the test.
async fn answering(answer: String) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(1..) = client.read(&mut [0; 4096]).await else { continue };
            client.write_all(answer.as_bytes()).await.ok();
            open.push(client);
        }
    });
    Ok(url)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_broken_exchange_or_queue_is_found_by_the_management_api() -> Result<()> {
    let rabbit = Rabbit::open().await?;
    rabbit.exchanges().await?;
    rabbit.rights().await?;
    rabbit.queues().await?;
    rabbit.access().await
}

/// Creates a topic whose partitions have one replica each, on one node each.
async fn create_scattered(bootstrap: &str, name: &str) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    let topic = NewTopic::new(name, 3, TopicReplication::Fixed(1)).set("min.insync.replicas", "1");
    for created in admin.create_topics([&topic], &AdminOptions::new()).await? {
        created.map_err(|(_, code)| code)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_of_a_cluster_that_lacks_a_node_or_an_in_sync_replica_are_found() -> Result<()> {
    let mut cluster = KafkaCluster::start().await?;
    let brokers = cluster.bootstrap();
    for (topic, in_sync) in [("sound", "2"), ("lonely", "1")] {
        create_topic_with(&brokers, topic, 3, &[("min.insync.replicas", in_sync)]).await?;
    }
    create_scattered(&brokers, "scattered").await?;
    let url = Database::create(Flavor::MariaDb).await?.url_as(Account::Relay)?;
    let settings = Settings::new(&url).kafka(&brokers);
    let to = |topic: &str| settings.clone().route([("topics", topic), ("sink", "kafka"), ("topic", topic)]);
    let ward = Ward::open(to("sound")).await?;
    ensure!(ward.sound == ["no_tail", "table_sizes", "transactions_unseen"], "{:?}", ward.sound);
    let found = ward.expect(&to("lonely"), &["one_in_sync_replica"]).await?;
    let command = found["one_in_sync_replica"]["command"].as_str().unwrap_or_default();
    ensure!(command.ends_with("--alter --topic lonely --add-config min.insync.replicas=2"), "{command}");

    let scattered = to("scattered");
    until(PATIENCE, "leaders", || async { ward.expect(&scattered, &["one_replica"]).await.map(drop) }).await?;
    cluster.kill()?;
    let leaderless = || async { ward.expect(&scattered, &["no_leader", "one_replica"]).await };
    let found = until(PATIENCE, "a partition without a leader", leaderless).await?;
    let evidence = found["no_leader"]["evidence"].as_str().unwrap_or_default();
    ensure!(evidence.starts_with("1 of 3 partitions have no leader"), "{evidence}");
    cluster.restart().await?;
    until(PATIENCE, "leaders", || async { ward.expect(&scattered, &["one_replica"]).await.map(drop) }).await
}
