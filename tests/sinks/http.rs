//! The HTTP sink: the conformance suite against a server with TLS, and the classes of answers.

use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use outbox_relay::{
    settings::Secret,
    sink::{
        Destination, Outcome, Outgoing, PublishError, Sink,
        conformance::{self, Arrived, ConformanceError, Control, DEADLINE, Draft, Harness},
        http::{Http, HttpConfig},
    },
};
use percent_encoding::percent_decode_str;
use tempfile::TempDir;
use tokio::{io::AsyncReadExt as _, net::TcpListener};

use crate::http_receiver::{Receiver, SECRET, Taken, private_authority};

struct HttpHarness {
    receiver: Receiver,
    sink: Http,
    targets: AtomicUsize,
}

impl HttpHarness {
    async fn start() -> Result<Self> {
        let receiver = Receiver::start(None).await?;
        let sink = Http::new("hooks", &signing(&receiver.url()))?;
        Ok(Self { receiver, sink, targets: AtomicUsize::new(0) })
    }

    /// The same with TLS, and an authority of its own.
    async fn start_with_tls() -> Result<(Self, TempDir)> {
        let (tls, folder) = private_authority()?;
        let receiver = Receiver::start(Some(tls)).await?;
        let mut config = signing(&receiver.url());
        config.ca_file = Some(folder.path().join("ca.pem"));
        let sink = Http::new("hooks", &config)?;
        Ok((Self { receiver, sink, targets: AtomicUsize::new(0) }, folder))
    }

    /// Publishes a message to this target and returns its outcome.
    async fn publish_to(&self, target: &str, within: Duration) -> Result<Outcome> {
        publish(&self.sink, &Draft::new(&destination(target), "{}").build(), within).await
    }
}

#[async_trait]
impl Harness for HttpHarness {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    async fn destination(&self) -> Result<Arc<Destination>, ConformanceError> {
        Ok(destination(&format!("target-{}", self.targets.fetch_add(1, Ordering::Relaxed))))
    }

    /// The receiver takes a message before it answers, so this does not wait.
    async fn arrived(&self, destination: &Destination, _: usize) -> Result<Vec<Arrived>, ConformanceError> {
        let taken = self.receiver.taken(&destination.target).await;
        taken.iter().map(arrived).collect::<Result<_>>().map_err(ConformanceError::new)
    }

    fn missing(&self) -> Option<Arc<Destination>> {
        Some(destination("missing"))
    }

    fn rejected(&self, destination: &Arc<Destination>) -> Option<Outgoing> {
        Some(Draft::new(destination, "{}").described("refused", "application/json").build())
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(Http::new("hooks", &HttpConfig::new("http://127.0.0.1:1/hooks")).ok()?))
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
    Arc::new(Destination::new("hooks", target, ""))
}

fn signing(url: &str) -> HttpConfig {
    let mut config = HttpConfig::new(url);
    config.secret = Some(Secret::new(SECRET));
    config
}

async fn publish(sink: &Http, message: &Outgoing, within: Duration) -> Result<Outcome> {
    let outcomes = sink.publish(slice::from_ref(message), Instant::now() + within).await;
    outcomes.into_iter().next().context("no outcome")
}

/// Reads a request as docs/envelopes.md describes it.
fn arrived(taken: &Taken) -> Result<Arrived> {
    let bytes = |name: &str| -> Result<Option<Vec<u8>>> {
        let value = taken.headers.get(name).map(|value| value.to_str()).transpose()?;
        Ok(value.map(|value| percent_decode_str(value).collect()))
    };
    let text = |name: &str| -> Result<Option<String>> { Ok(bytes(name)?.map(String::from_utf8).transpose()?) };
    let plain = |text: &str| -> Result<String> { Ok(percent_decode_str(text).decode_utf8()?.into_owned()) };
    let mut headers = Vec::new();
    for (name, value) in &taken.headers {
        let name = name.as_str();
        let value = value.to_str()?;
        match name {
            "outbox-header" => {
                let (name, value) = value.split_once('=').context("no pair")?;
                headers.push((plain(name)?, plain(value)?));
            }
            "content-length" | "content-type" | "host" => {}
            _ if name.starts_with("webhook-") || name.starts_with("outbox-") => {}
            _ => headers.push((name.to_owned(), plain(value)?)),
        }
    }
    Ok(Arrived {
        message_id: text("webhook-id")?.context("no id")?.parse()?,
        key: bytes("outbox-key")?,
        event_type: text("outbox-type")?,
        content_type: taken.headers.get("content-type").map(|it| it.to_str().map(str::to_owned)).transpose()?,
        headers,
        payload: (!taken.headers.contains_key("outbox-tombstone")).then(|| taken.body.to_vec()),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn http_conforms_with_tls_and_signatures() -> Result<()> {
    let (harness, _folder) = HttpHarness::start_with_tls().await?;
    Ok(conformance::run(&harness).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_of_another_authority_gets_nothing() -> Result<()> {
    let (harness, _folder) = HttpHarness::start_with_tls().await?;
    let (_, stranger) = private_authority()?;
    let mut config = signing(&harness.receiver.url());
    config.ca_file = Some(stranger.path().join("ca.pem"));
    let sink = Http::new("hooks", &config)?;
    let message = Draft::new(&destination("orders"), "{}").build();
    for outcome in [publish(&sink, &message, DEADLINE).await?.map(drop), sink.check(Instant::now() + DEADLINE).await] {
        let Err(PublishError::Unavailable(text)) = outcome else { panic!("{outcome:?}") };
        assert!(text.contains("name its file in `ca_file`"), "{text}");
    }
    assert!(harness.receiver.taken("orders").await.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_has_its_class() -> Result<()> {
    let harness = HttpHarness::start().await?;
    for (class, statuses) in [
        ("sent", &[200, 201, 202, 204][..]),
        ("unavailable", &[425, 429]),
        ("unroutable", &[301, 307, 404, 405, 410]),
        ("refused (it may pass)", &[401, 403]),
        ("refused", &[400, 415, 422]),
        ("too_large", &[413, 431]),
        ("unconfirmed", &[408, 409, 500, 502, 503, 504]),
    ] {
        for status in statuses {
            let outcome = harness.publish_to(&format!("status-{status}"), DEADLINE).await?;
            let found = match &outcome {
                Ok(_) => "sent",
                Err(PublishError::Unroutable { reason: "refused", .. }) => "refused (it may pass)",
                Err(error) => error.reason(),
            };
            assert_eq!(found, class, "{status}: {outcome:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() -> Result<()> {
    let harness = HttpHarness::start().await?;
    let outcome = harness.publish_to("moved", DEADLINE).await?;
    ensure!(matches!(outcome, Err(PublishError::Unroutable { reason: "unroutable", .. })), "{outcome:?}");
    assert!(harness.receiver.taken("elsewhere").await.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_an_answer_may_have_arrived() -> Result<()> {
    let harness = HttpHarness::start().await?;
    let outcome = harness.publish_to("silent", Duration::from_secs(1)).await?;
    ensure!(matches!(outcome, Err(PublishError::Unconfirmed(_))), "{outcome:?}");
    // The next message does not wait behind it.
    let outcome = harness.publish_to("status-204", DEADLINE).await?;
    ensure!(outcome.is_ok(), "{outcome:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_connection_is_lost_may_have_arrived() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let sink = Http::new("hooks", &signing(&format!("http://{}", listener.local_addr()?)))?;
    let message = Draft::new(&destination("orders"), "{}").build();
    let hang_up = async {
        let (mut stream, _) = listener.accept().await?;
        stream.read_u8().await
    };
    let (outcome, read) = tokio::join!(publish(&sink, &message, DEADLINE), hang_up);
    ensure!(read? == b'P', "the request did not go out");
    ensure!(matches!(outcome?, Err(PublishError::Unconfirmed(_))));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_of_the_service_changes_nothing_but_itself() -> Result<()> {
    let harness = HttpHarness::start().await?;
    let hostile = [
        ("line", "break\r\nwebhook-id: 1\r\n\r\n"),
        ("x\r\ny", "in a name"),
        ("größe", "ü%41 \"☃\""),
        ("user_id", "7"),
        ("Host", "elsewhere"),
        ("content-length", "0"),
        ("transfer-encoding", "chunked"),
        ("webhook-id", "another"),
        ("outbox-topic", "another"),
        ("outbox-header", "a=b,c=d"),
    ];
    let draft = Draft::new(&destination("orders"), "{}").described("a\nb", "text/plain; charset=utf-8");
    let message = hostile.iter().fold(draft, |draft, (name, value)| draft.header(name, value)).build();
    publish(&harness.sink, &message, DEADLINE).await??;
    let [taken] = &harness.receiver.taken("orders").await[..] else { panic!("one message arrives") };
    for (name, own) in [("webhook-id", message.message_id.to_string()), ("outbox-topic", "conformance".to_owned())] {
        let values: Vec<_> = taken.headers.get_all(name).iter().collect();
        assert_eq!(values, [own.as_str()]);
    }
    let arrived = arrived(taken)?;
    assert_eq!(
        (arrived.event_type, arrived.content_type),
        (message.contents.event_type, message.contents.content_type)
    );
    let mut sent = message.contents.headers;
    let mut found = arrived.headers;
    sent.sort();
    found.sort();
    assert_eq!(found, sent);

    let unfit = Draft::new(&destination("orders"), "{}").described("", "text/plain\r\nx: y").build();
    let outcome = publish(&harness.sink, &unfit, DEADLINE).await?;
    ensure!(matches!(outcome, Err(PublishError::Rejected { reason: "invalid", .. })), "{outcome:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_is_below_that_of_the_url() -> Result<()> {
    let harness = HttpHarness::start().await?;
    for (target, path) in [("a/b", "a/b"), ("a b?c#d%2e", "a%20b%3Fc%23d%252e"), ("ü\r\n", "%C3%BC%0D%0A")] {
        let outcome = harness.publish_to(target, DEADLINE).await?;
        assert_eq!((outcome.is_ok(), harness.receiver.taken(path).await.len()), (true, 1), "{target}: {outcome:?}");
    }
    let one = Http::new("hooks", &signing(&format!("{}/one/", harness.receiver.url())))?;
    publish(&one, &Draft::new(&destination(""), "{}").build(), DEADLINE).await??;
    assert_eq!(harness.receiver.taken("one/").await.len(), 1);
    for target in ["..", "../admin", "a/./b"] {
        let outcome = harness.publish_to(target, DEADLINE).await?;
        assert!(matches!(outcome, Err(PublishError::Rejected { reason: "invalid", .. })), "{target}: {outcome:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_signs_the_next_request() -> Result<()> {
    let harness = HttpHarness::start().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("secret");
    std::fs::write(&file, format!("whsec_{}", "A".repeat(32)))?;
    let mut config = HttpConfig::new(harness.receiver.url());
    config.secret = Some(Secret::of_file(file.clone()).map_err(anyhow::Error::msg)?);
    let sink = Http::new("hooks", &config)?;
    let message = Draft::new(&destination("orders"), "{}").build();
    let refused = publish(&sink, &message, DEADLINE).await?;
    ensure!(matches!(refused, Err(PublishError::Unroutable { reason: "refused", .. })), "{refused:?}");
    // Both sign, so the receiver may change when it likes.
    std::fs::write(&file, format!("whsec_{} {SECRET}\n", "A".repeat(32)))?;
    publish(&sink, &message, DEADLINE).await??;
    Ok(())
}

/// Servers may refuse a request that does not say how long it is.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_body_has_a_length() -> Result<()> {
    let harness = HttpHarness::start().await?;
    let message = Draft::new(&destination("orders"), "").build();
    publish(&harness.sink, &message, DEADLINE).await??;
    let [taken] = &harness.receiver.taken("orders").await[..] else { panic!("one message arrives") };
    assert_eq!(taken.headers.get("content-length").and_then(|it| it.to_str().ok()), Some("0"));
    Ok(())
}

/// The receiver answers with a body, in parts.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_used_again() -> Result<()> {
    let harness = HttpHarness::start().await?;
    for _ in 0..20 {
        let outcome = harness.publish_to("chatty", DEADLINE).await?;
        ensure!(outcome.is_ok(), "{outcome:?}");
        // The rest of the answer is read beside the next message.
        tokio::task::yield_now().await;
    }
    let opened = harness.receiver.opened();
    ensure!(opened < 15, "{opened} connections for 20 messages");
    Ok(())
}

/// Behind a proxy. After a message that was taken, the answer is about this one: it may be what ends the receiver.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_behind_a_proxy_spends_no_attempt() -> Result<()> {
    let harness = HttpHarness::start().await?;
    for target in ["status-502", "status-503"] {
        let outcome = harness.publish_to(target, DEADLINE).await?;
        ensure!(matches!(outcome, Err(PublishError::Unavailable(_))), "{target}: {outcome:?}");
    }
    ensure!(harness.publish_to("status-204", DEADLINE).await?.is_ok(), "it is up");
    let outcome = harness.publish_to("status-503", DEADLINE).await?;
    ensure!(matches!(outcome, Err(PublishError::Unconfirmed(_))), "{outcome:?}");
    Ok(())
}
