//! The sink passes the conformance suite, classifies failures, and works in its program.

mod receiver;

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use custom_sink::Webhook;
use outbox_core::{Message, Outbox, sqlx::Connection as _};
use outbox_relay::sink::{
    Destination, Outcome, Outgoing, PublishError, Sink,
    conformance::{self, Arrived, ConformanceError, Control, DEADLINE, Draft, Harness},
};
use receiver::Receiver;
use serde_json::Value;
use testkit::{
    accounts::Account,
    database::Database,
    program::Program,
    servers::{Flavor, PATIENCE, until},
};
use tokio::{io::AsyncReadExt as _, net::TcpListener};

struct WebhookHarness {
    receiver: Receiver,
    sink: Webhook,
    targets: AtomicUsize,
}

impl WebhookHarness {
    async fn start() -> Result<Self> {
        let receiver = Receiver::start().await?;
        let sink = Webhook::new(&receiver.url())?;
        Ok(Self { receiver, sink, targets: AtomicUsize::new(0) })
    }

    /// Publishes a message to this target and returns its outcome.
    async fn publish_to(&self, target: &str, within: Duration) -> Result<Outcome> {
        let message = Draft::new(&destination(target), "{}").build();
        let outcomes = self.sink.publish(&[message], Instant::now() + within).await;
        outcomes.into_iter().next().context("no outcome")
    }
}

#[async_trait]
impl Harness for WebhookHarness {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    async fn destination(&self) -> Result<Arc<Destination>, ConformanceError> {
        Ok(destination(&format!("target-{}", self.targets.fetch_add(1, Ordering::Relaxed))))
    }

    /// The receiver takes a message before it answers, so this does not wait.
    async fn arrived(&self, destination: &Destination, _: usize) -> Result<Vec<Arrived>, ConformanceError> {
        let requests = self.receiver.taken(&destination.target).await;
        requests.iter().map(arrived).collect::<Result<_>>().map_err(ConformanceError::new)
    }

    /// The receiver takes every path.
    fn missing(&self) -> Option<Arc<Destination>> {
        None
    }

    fn rejected(&self, destination: &Arc<Destination>) -> Option<Outgoing> {
        Some(Draft::new(destination, "{}").described("refused", "application/json").build())
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(Webhook::new("http://127.0.0.1:1/hooks").ok()?))
    }

    async fn control(&self, control: Control) -> Result<bool, ConformanceError> {
        match control {
            Control::Kill => self.receiver.close().await.map_err(ConformanceError::new)?,
            Control::Restart => self.receiver.open().await.map_err(ConformanceError::new)?,
            Control::Freeze => self.receiver.freeze().await,
            Control::Thaw => self.receiver.thaw().await,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn destination(target: &str) -> Arc<Destination> {
    Arc::new(Destination::new("webhook", target, ""))
}

fn arrived(message: &Value) -> Result<Arrived> {
    let text = |name: &str| message[name].as_str().map(str::to_owned);
    Ok(Arrived {
        message_id: text("id").context("no id")?.parse()?,
        key: bytes(&message["key"])?,
        event_type: text("type"),
        content_type: text("content_type"),
        headers: serde_json::from_value(message["headers"].clone())?,
        payload: bytes(&message["payload"])?,
    })
}

fn bytes(value: &Value) -> Result<Option<Vec<u8>>> {
    match value["base64"].as_str() {
        Some(base64) => Ok(Some(BASE64.decode(base64)?)),
        None => Ok(value.as_str().map(|text| text.as_bytes().to_vec())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_conforms() -> Result<()> {
    Ok(conformance::run(&WebhookHarness::start().await?).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_has_its_class() -> Result<()> {
    let harness = WebhookHarness::start().await?;
    for (class, statuses) in [
        ("sent", &[200, 201, 202, 204][..]),
        ("unavailable", &[301, 307, 425, 429]),
        ("refused", &[400, 401, 404, 410, 413, 422]),
        ("unconfirmed", &[408, 409, 500, 502, 503, 504]),
    ] {
        for status in statuses {
            let outcome = harness.publish_to(&format!("status-{status}"), DEADLINE).await?;
            let found = outcome.as_ref().map_or_else(PublishError::reason, |_| "sent");
            assert_eq!(found, class, "{status}: {outcome:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_an_answer_may_have_arrived() -> Result<()> {
    let harness = WebhookHarness::start().await?;
    let outcome = harness.publish_to("silent", Duration::from_secs(3)).await?;
    ensure!(matches!(outcome, Err(PublishError::Unconfirmed(_))), "{outcome:?}");
    // The next message does not wait behind it.
    let outcome = harness.publish_to("status-204", DEADLINE).await?;
    ensure!(outcome.is_ok(), "{outcome:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_connection_is_lost_may_have_arrived() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let sink = Webhook::new(&format!("http://{}", listener.local_addr()?))?;
    let message = Draft::new(&destination("orders"), "{}").build();
    let hang_up = async {
        let (mut stream, _) = listener.accept().await?;
        stream.read_u8().await
    };
    let messages = [message];
    let (outcomes, read) = tokio::join!(sink.publish(&messages, Instant::now() + DEADLINE), hang_up);
    ensure!(read? == b'P', "the request did not go out");
    ensure!(matches!(outcomes.as_slice(), [Err(PublishError::Unconfirmed(_))]), "{outcomes:?}");
    Ok(())
}

#[test]
fn a_url_that_cannot_be_used_is_refused() {
    for url in ["", "127.0.0.1:80", "/hooks", "https://example.org/hooks", "http://user:secret@example.org/"] {
        assert!(Webhook::new(url).is_err(), "{url}");
    }
}

/// Commits orders of seven customers, and one message that the receiver refuses.
async fn commit(database: &Database, numbers: Range<u64>) -> Result<()> {
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let order = |number: u64| Message::new("orders", number.to_string()).key((number % 7).to_string());
    let refused = Message::new("orders", "no order").event_type("refused");
    Outbox::new().enqueue_all(&mut tx, numbers.map(order).chain([refused])).await?;
    Ok(tx.commit().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_posts_what_is_committed_and_waits_while_the_receiver_is_away() -> Result<()> {
    let (database, receiver) = (Database::create(Flavor::MySql).await?, Receiver::start().await?);
    let url = receiver.url();
    let login = database.url_as(Account::Relay)?;
    let environment = [("DATABASE_URL", login.as_str()), ("WEBHOOK_URL", url.as_str())];
    let mut program = Program::start(env!("CARGO_BIN_EXE_custom-sink"), &environment)?;
    commit(&database, 0..200).await?;
    database.wait_until_drained(PATIENCE).await.context(program.log()?)?;

    receiver.close().await?;
    commit(&database, 200..400).await?;
    until(PATIENCE, "the outage to be seen", || async {
        let log = program.log()?;
        ensure!(log.contains("the sink is unavailable"), "{log}");
        Ok(())
    })
    .await?;
    receiver.open().await?;
    database.wait_until_drained(PATIENCE).await.context(program.log()?)?;

    let (mut orders, mut last) = (BTreeSet::new(), HashMap::new());
    for message in receiver.taken("orders").await {
        let number: u64 = message["payload"].as_str().context("no payload")?.parse()?;
        // A message may arrive twice. First arrivals are in the order of their key.
        if orders.insert(number) {
            let before = last.insert(message["key"].to_string(), number);
            ensure!(before.is_none_or(|before| before < number), "{number} came after {before:?}");
        }
    }
    ensure!(orders.iter().copied().eq(0..400), "{} of 400 orders came", orders.len());
    let dead = "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'refused' AND error LIKE '%orders: 422%'";
    assert_eq!(database.number(dead).await?, 2);
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_dead").await?, 2);
    program.stop(PATIENCE).await
}
