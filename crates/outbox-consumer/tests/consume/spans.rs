//! The handler's span continues the trace that the message carries.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use opentelemetry::{
    propagation::TextMapPropagator as _,
    trace::{Status, TracerProvider as _},
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{InMemorySpanExporter, SdkTracerProvider},
};
use outbox_consumer::{Handler, in_span};
use testkit::consume::{Broker, Sending};
use tokio_util::sync::CancellationToken;
use tracing::{field::Empty, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::stage::{Does, Stage, Work};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn traced(handler: impl Handler) -> impl Handler {
    in_span(handler, |message| {
        let span = info_span!("process", message = %message.id, otel.status_code = Empty, error.type = Empty);
        let headers: HashMap<String, String> = message.contents.headers.iter().cloned().collect();
        span.set_parent(TraceContextPropagator::new().extract(&headers)).ok();
        span
    })
}

/// On one thread: the subscriber is that of the thread.
#[tokio::test]
async fn each_attempt_is_a_span_of_the_trace_that_the_message_carries() -> Result<()> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("service"));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    for broker in Broker::ALL {
        let stage = Stage::new(broker).await?;
        let mut sent = Sending::new("key", "flaky");
        sent.headers.push(("traceparent".to_owned(), format!("00-{TRACE}-{SPAN}-01")));
        stage.topic.send(std::slice::from_ref(&sent)).await?;
        let stop = CancellationToken::new();
        let handler = traced(Work(Does::work()));
        let stopped = stop.clone().cancelled_owned();
        let task = match broker {
            Broker::Kafka => tokio::spawn(stage.kafka()?.run(handler, stopped)),
            Broker::RabbitMq => tokio::spawn(stage.rabbitmq()?.run(handler, stopped)),
        };
        stage.wait_for(1).await?;
        stop.cancel();
        task.await??;
        let id = sent.id.context("no id")?.to_string();
        let spans: Vec<_> = exporter.get_finished_spans()?.into_iter().filter(|span| span.name == "process").collect();
        let attempts = spans.iter().map(|span| {
            let field =
                |name: &str| span.attributes.iter().find(|it| it.key.as_str() == name).map(|it| it.value.to_string());
            assert_eq!(field("message"), Some(id.clone()));
            assert_eq!(span.span_context.trace_id().to_string(), TRACE);
            assert_eq!(span.parent_span_id.to_string(), SPAN);
            (matches!(span.status, Status::Error { .. }), field("error.type"))
        });
        let attempts: Vec<_> = attempts.collect();
        assert_eq!(attempts, [(true, Some("retry".to_owned())), (false, None)], "{broker:?}");
        exporter.reset();
    }
    Ok(())
}
