//! The spans of one message from an HTTP request to its effect: over Kafka, over RabbitMQ, and by a worker.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use opentelemetry::{propagation::TextMapPropagator as _, trace::TracerProvider as _};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{propagation::TraceContextPropagator, trace::SdkTracerProvider};
use outbox_consumer::{Handler, handler_fn, in_span, kafka, rabbitmq};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, MySqlPool},
};
use outbox_relay::worker::Worker;
use testkit::{accounts::Account, consume::Broker, relay::send, servers::Flavor};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::{
    stage::{PATIENCE, Stage},
    traces::{Collector, SPAN, TRACE, named},
};

/// The lane of the worker.
const LANE: u16 = 7;

/// The client of the service's exporter, which has a thread of its own.
#[derive(Debug)]
struct Exports(ureq::Agent);

#[async_trait]
impl HttpClient for Exports {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let (parts, mut body) = self.0.run(Request::from_parts(parts, body.as_ref()))?.into_parts();
        Ok(Response::from_parts(parts, body.read_to_vec()?.into()))
    }
}

fn provider(collector: &Collector) -> Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Exports(ureq::Agent::new_with_defaults()))
        .with_endpoint(format!("{}/v1/traces", collector.url));
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter.build()?).build())
}

/// A service that enqueues this message for each request. Returns its port.
async fn shop(pool: MySqlPool, message: Message) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let place = async move |headers: HeaderMap| {
        let span = info_span!("POST /orders", otel.kind = "server");
        span.set_parent(TraceContextPropagator::new().extract(&HeaderExtractor(&headers))).ok();
        let enqueued = enqueue(&pool, message).instrument(span).await;
        enqueued.map_or(StatusCode::INTERNAL_SERVER_ERROR, |()| StatusCode::CREATED)
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/orders", post(place))).await });
    Ok(port)
}

async fn enqueue(pool: &MySqlPool, message: Message) -> Result<()> {
    let mut tx = pool.begin().await?;
    Outbox::new().enqueue(&mut tx, message).await?;
    Ok(tx.commit().await?)
}

/// Writes the effect of a message in a span that continues the message's trace.
fn billing() -> impl Handler {
    let bill = handler_fn(|tx, message| {
        Box::pin(async move {
            let effect = sqlx::query("INSERT INTO test_effects (message_id) VALUES (?)");
            effect.bind(message.id.as_bytes().as_slice()).execute(tx).await?;
            Ok(())
        })
    });
    in_span(bill, |message| {
        let span = info_span!("process", otel.kind = "consumer");
        let headers: HashMap<String, String> = message.contents.headers.iter().cloned().collect();
        span.set_parent(TraceContextPropagator::new().extract(&headers)).ok();
        span
    })
}

/// Consumes the topic, or works on the lane without a broker.
async fn consume(stage: &Stage, way: Option<Broker>, stop: CancellationToken) -> Result<JoinHandle<Result<()>>> {
    let address = stage.topic.address();
    let name = stage.topic.name();
    let stop = stop.cancelled_owned();
    let pool = MySqlPool::connect(&stage.database.url_as(Account::Service)?).await?;
    Ok(match way {
        Some(Broker::Kafka) => {
            let consumer = kafka::Consumer::new(address, name, pool)?.topic(name);
            tokio::spawn(async move { Ok(consumer.run(billing(), stop).await?) })
        }
        Some(Broker::RabbitMq) => {
            let consumer = rabbitmq::Consumer::new(address, name, name, pool)?;
            tokio::spawn(async move { Ok(consumer.run(billing(), stop).await?) })
        }
        None => {
            let pool = MySqlPool::connect(&stage.database.url_as(Account::Worker)?).await?;
            let worker = Worker::new(pool.connect_options(), LANE);
            tokio::spawn(async move { Ok(worker.run(billing(), stop).await?) })
        }
    })
}

/// On one thread: the subscriber is that of the thread.
#[tokio::test]
async fn the_trace_of_a_request_leads_to_the_effect_of_its_message() -> Result<()> {
    for way in [Some(Broker::Kafka), Some(Broker::RabbitMq), None] {
        let (mut stage, collector) =
            (Stage::new(Flavor::MySql, way.unwrap_or(Broker::Kafka)).await?, Collector::start().await?);
        stage.settings = stage.settings.clone().set("tracing", "otlp_endpoint", collector.url.clone());
        let provider = provider(&collector)?;
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let message = Message::new(stage.topic.name(), "order").lane(if way.is_some() { 0 } else { LANE });
        let pool = MySqlPool::connect(&stage.database.url_as(Account::Service)?).await?;
        let port = shop(pool, message).await?;
        let stop = CancellationToken::new();
        let relay = way.map(|_| stage.relay()).transpose()?;
        let consumer = consume(&stage, way, stop.clone()).await?;

        let request = format!("POST /orders HTTP/1.0\r\nHost: shop\r\ntraceparent: 00-{TRACE}-{SPAN}-01\r\n\r\n");
        let (status, answer) = send(port, &request).await?;
        ensure!(status == 201, "{status}: {answer}");
        stage.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM test_effects").await?;
        stop.cancel();
        consumer.await??;
        if let Some(mut relay) = relay {
            relay.stop(PATIENCE).await?;
        }
        drop(guard);
        tokio::task::spawn_blocking(move || provider.shutdown()).await??;

        let spans = collector.spans.lock().clone();
        let trace = u128::from_str_radix(TRACE, 16)?.to_be_bytes();
        let request = named(&spans, "POST /orders")?;
        let process = named(&spans, "process")?;
        ensure!(request.trace_id == trace && process.trace_id == trace, "{way:?}: {request:#?} {process:#?}");
        ensure!(request.parent_span_id == u64::from_str_radix(SPAN, 16)?.to_be_bytes(), "{way:?}: {request:#?}");
        ensure!(process.parent_span_id == request.span_id, "{way:?}: {process:#?} of {request:#?}");
        let links = spans.iter().filter(|span| span.name.starts_with("send ")).flat_map(|span| &span.links);
        let links: Vec<_> = links.map(|link| (&link.trace_id, &link.span_id)).collect();
        let expected = way.map(|_| (&request.trace_id, &request.span_id));
        ensure!(links == Vec::from_iter(expected), "{way:?}: {links:?} in {spans:#?}");
    }
    Ok(())
}
