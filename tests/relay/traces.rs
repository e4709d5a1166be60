//! Spans over OTLP: what a collector gets, and a collector that never answers.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use parking_lot::Mutex;
use prost::Message as _;
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    ledger::Draft,
    servers::{Flavor, until},
};
use tokio::net::TcpListener;

use crate::stage::{BROKERS, PATIENCE, Stage};

pub(crate) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub(crate) const SPAN: &str = "b7ad6b7169203331";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

/// A collector in this process.
pub(crate) struct Collector {
    pub(crate) url: String,
    pub(crate) spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let store = Arc::clone(&spans);
        let take = async move |body: Bytes| {
            let Ok(request) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
            let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            store.lock().extend(scopes.flat_map(|scope| scope.spans));
            StatusCode::OK
        };
        let pages = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, pages).await });
        Ok(Self { url, spans })
    }
}

pub(crate) fn named<'a>(spans: &'a [Span], name: &str) -> Result<&'a Span> {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().with_context(|| format!("no span {name}: {spans:#?}"))?;
    ensure!(found.next().is_none(), "two spans {name}: {spans:#?}");
    Ok(span)
}

fn text<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let value = attributes.iter().find(|it| it.key == name)?.value.as_ref()?.value.as_ref()?;
    if let Value::StringValue(text) = value { Some(text) } else { None }
}

#[tokio::test]
async fn a_claim_is_a_trace_that_names_the_spans_in_which_its_messages_were_enqueued() -> Result<()> {
    for (broker, system) in BROKERS.into_iter().zip(["kafka", "rabbitmq"]) {
        let mut stage = Stage::new(Flavor::MySql, broker).await?;
        let collector = Collector::start().await?;
        stage.settings = stage.settings.clone().set("tracing", "otlp_endpoint", collector.url.clone());
        let drafts = [
            stage.draft(0),
            stage.draft(1).header("traceparent", &parent("01")),
            stage.draft(2).header("traceparent", &parent("00")),
            stage.draft(3).header("traceparent", "no context"),
        ];
        stage.commit(&drafts).await?;
        let number =
            stage.database.number("SELECT CAST(MIN(id) + 1 AS SIGNED) FROM outbox_messages").await?.to_string();
        let mut relay = stage.relay()?;
        stage.drain_and_judge(&Expectations::new().at_least(4)).await?;
        // A claim of which no trace is sampled.
        stage.commit(&[stage.draft(4)]).await?;
        stage.drain_and_judge(&Expectations::new().at_least(5)).await?;
        relay.stop(PATIENCE).await?;
        let spans = collector.spans.lock().clone();
        let root = named(&spans, "relay")?;
        let send = spans.iter().find(|span| span.name.starts_with("send ")).context("no span of the broker")?;
        let children = [named(&spans, "claim")?, named(&spans, "read")?, send, named(&spans, "settle")?];
        ensure!(spans.len() == 5, "{spans:#?}");
        for span in children {
            ensure!(span.trace_id == root.trace_id && span.parent_span_id == root.span_id, "{span:#?} of {root:#?}");
            let is_within = root.start_time_unix_nano <= span.start_time_unix_nano
                && span.start_time_unix_nano <= span.end_time_unix_nano
                && span.end_time_unix_nano <= root.end_time_unix_nano;
            ensure!(is_within, "{span:#?} outside {root:#?}");
        }
        ensure!(children.is_sorted_by_key(|span| span.start_time_unix_nano), "{children:#?}");
        ensure!(text(&root.attributes, "outbox.claim.outcome") == Some("settled"), "{root:#?}");
        let [link] = &*send.links else { anyhow::bail!("not one link: {send:#?}") };
        ensure!(link.trace_id == u128::from_str_radix(TRACE, 16)?.to_be_bytes(), "{link:#?}");
        ensure!(link.span_id == u64::from_str_radix(SPAN, 16)?.to_be_bytes(), "{link:#?}");
        ensure!(text(&link.attributes, "outbox.message.number") == Some(number.as_str()), "{link:#?}");
        ensure!(text(&send.attributes, "messaging.system") == Some(system), "{send:#?}");
        let name = text(&send.attributes, "messaging.destination.name").context("no destination")?;
        ensure!(send.name == format!("send {name}"), "{send:#?}");
        ensure!(send.status.as_ref().is_none_or(|status| status.code == 0), "{send:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_message_that_is_refused_is_an_error_of_its_span() -> Result<()> {
    let mut stage = Stage::with(Database::create(Flavor::MySql).await?, Topic::create_narrow(20_000).await?)?;
    let collector = Collector::start().await?;
    stage.settings = stage.settings.clone().set("tracing", "otlp_endpoint", collector.url.clone());
    let large = Draft::new(stage.topic.name(), vec![0; 30_000]).header("traceparent", &parent("01"));
    stage.commit(std::slice::from_ref(&large)).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().dead([large.id])).await?;
    until(PATIENCE, "the span", async || {
        let spans = collector.spans.lock().clone();
        let send = spans.iter().find(|span| span.name.starts_with("send ")).context("it is not there")?;
        ensure!(text(&send.attributes, "error.type") == Some("too_large"), "{send:#?}");
        ensure!(send.status.as_ref().is_some_and(|status| status.code == 2), "{send:#?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn no_key_and_no_state_of_a_trace_goes_to_the_collector() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?;
    let collector = Collector::start().await?;
    let settings = stage.settings.clone().first_route([
        ("topics", "*"),
        ("sink", "rabbitmq"),
        ("exchange", stage.topic.name()),
        ("routing_key", "{key}"),
    ]);
    stage.settings = settings.set("tracing", "otlp_endpoint", collector.url.clone());
    let secret = "canary-4711";
    let draft = stage.draft(0).unordered_key(secret).header("traceparent", &parent("01"));
    stage.commit(&[draft.header("tracestate", "vendor=canary-4711").header("h", secret)]).await?;
    let _relay = stage.relay()?;
    until(PATIENCE, "the span", async || {
        let spans = collector.spans.lock().clone();
        ensure!(spans.iter().any(|span| span.name.starts_with("send ")), "it is not there");
        ensure!(!format!("{spans:?}").contains(secret), "{spans:#?}");
        Ok(())
    })
    .await
}

/// Were a settler to wait for the collector, each claim would take as long as an export may: 10 s.
#[tokio::test]
async fn a_collector_that_never_answers_delays_no_message_and_no_stop() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let silent = TcpListener::bind(("127.0.0.1", 0)).await?;
    let endpoint = format!("http://{}", silent.local_addr()?);
    stage.settings = stage.settings.clone().set("tracing", "otlp_endpoint", endpoint);
    let mut relay = stage.relay()?;
    let messages = async {
        for number in 1..=20 {
            stage.commit(&[stage.draft(number).header("traceparent", &parent("01"))]).await?;
            let sent = format!("SELECT COUNT(*) = {number} FROM outbox_sent_messages");
            stage.database.wait_for(PATIENCE, &sent).await?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(60), messages).await.context("the messages wait for the collector")??;
    let (_connection, _) = silent.accept().await?;
    relay.stop(Duration::from_secs(20)).await?;
    ensure!(relay.log()?.contains("the last spans were not sent"), "{}", relay.log()?);
    stage.judge(&Expectations::new().at_least(20)).await
}
