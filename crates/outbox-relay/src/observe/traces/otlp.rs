//! Spans over OTLP, made when the claim has ended.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{
        self, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, TraceState, Tracer as _,
        TracerProvider as _,
    },
};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider},
};
use outbox_core::store::settle::Settlement;
use ureq::{Agent, tls::RootCerts};
use url::Url;

use super::{ClaimTrace, Systems, Traced};
use crate::{
    destination::Destination,
    error::RunError,
    observe::client::agent,
    settings::{Config, is_local},
};

/// The time that one export may take.
const EXPORT: Duration = Duration::from_secs(10);
/// The time in which the last spans must be gone when the relay ends.
const ENDING: Duration = Duration::from_secs(2);
/// Most spans that wait for a slow collector, each with [`LINKS`] at most: further ones are dropped. About 13 MB with
/// 200 bytes a link.
const QUEUE: usize = 512;
/// The number of spans after which an export begins: there is room for others meanwhile.
const EXPORTED: usize = 128;
/// Most links of a span, as many as the SDK allows by default.
const LINKS: u32 = 128;

/// The variable with headers for the collector, which the exporter reads.
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// The span in which a message was enqueued.
#[derive(Debug)]
pub(crate) struct Link(SpanContext);

/// The exporter. A thread of its own sends the spans, and no call waits for it.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    /// The sinks, with the names that the conventions have for their brokers.
    systems: Systems,
}

impl Traces {
    /// Makes the exporter; `None` if no endpoint is configured. It does not connect yet.
    pub(crate) fn new(config: &Config, owner: &str, systems: Systems) -> Result<Option<Self>, RunError> {
        let Some(endpoint) = &config.tracing.otlp_endpoint else { return Ok(None) };
        let unusable = |error: &dyn std::fmt::Display| {
            RunError::configuration(format!("`tracing.otlp_endpoint` cannot be used: {error}"))
        };
        let url = Url::parse(endpoint).map_err(|error| unusable(&error))?;
        if url.scheme() == "http"
            && !is_local(url.host_str().unwrap_or_default())
            && std::env::var_os(HEADERS).is_some()
        {
            tracing::warn!("{HEADERS} goes to `tracing.otlp_endpoint` without TLS: use https://");
        }
        let client = OtlpClient(agent(&url, RootCerts::PlatformVerifier, EXPORT));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(format!("{}/v1/traces", url.as_str().trim_end_matches('/')))
            .with_timeout(EXPORT);
        let exporter = exporter.build().map_err(|error| unusable(&error))?;
        let batches =
            BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_max_export_batch_size(EXPORTED).build();
        let resource = Resource::builder()
            .with_service_name(config.tracing.service_name.clone())
            .with_attribute(KeyValue::new("service.instance.id", owner.to_owned()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        let provider = SdkTracerProvider::builder()
            // Only claims with a sampled message have spans: the decision was that of the services.
            .with_sampler(Sampler::AlwaysOn)
            .with_max_links_per_span(LINKS)
            .with_resource(resource.build())
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
            .build();
        let tracer = provider.tracer("mysql-outbox-relay");
        Ok(Some(Self { provider, tracer, propagator: TraceContextPropagator::new(), systems }))
    }

    /// Returns the span in which a message was enqueued, if that is sampled.
    pub(crate) fn link(&self, headers: &[(String, String)]) -> Option<Link> {
        let context = self.propagator.extract_with_context(&Context::new(), &Headers(headers));
        let context = context.span().span_context().clone();
        // Without the state of the trace: that is a header's value, and long.
        let trace = context.trace_id();
        let span = context.span_id();
        let flags = context.trace_flags();
        let link = || Link(SpanContext::new(trace, span, flags, true, TraceState::NONE));
        (context.is_valid() && context.is_sampled()).then(link)
    }

    /// Makes the spans of a claim that has ended now: `settled`, `lost` or `abandoned`.
    pub(crate) fn claim(&self, claim: &ClaimTrace, settlement: &Settlement, outcome: &'static str) {
        let clock = SystemTime::now();
        let now = Instant::now();
        let time = |at: Instant| clock.checked_sub(now.saturating_duration_since(at)).unwrap_or(clock);
        let count = i64::try_from(claim.messages).unwrap_or(i64::MAX);
        let attributes = [
            KeyValue::new("outbox.lane", i64::from(claim.lane)),
            KeyValue::new("outbox.claim.id", claim.claim_id.to_string()),
            KeyValue::new("outbox.claim.outcome", outcome),
            KeyValue::new("messaging.batch.message_count", count),
        ];
        let builder = SpanBuilder::from_name("relay").with_attributes(attributes).with_start_time(time(claim.started));
        let root = Context::new().with_span(self.tracer.build_with_context(builder, &Context::new()));
        // First, so that a full queue drops parts and not the whole.
        root.span().end_with_timestamp(clock);
        let part = |builder: SpanBuilder, status: Status, (from, to): (Instant, Instant)| {
            let mut span = self.tracer.build_with_context(builder.with_start_time(time(from)), &root);
            trace::Span::set_status(&mut span, status);
            trace::Span::end_with_timestamp(&mut span, time(to));
        };
        part(SpanBuilder::from_name("claim"), Status::Unset, (claim.started, claim.claimed));
        part(SpanBuilder::from_name("read"), Status::Unset, (claim.claimed, claim.read));
        let failures = failures(claim, settlement);
        for ((sink, target), messages) in by_destination(&claim.traced) {
            let until = messages.iter().filter_map(|message| message.done).max();
            let failure = messages.iter().find_map(|message| failures.get(&message.id).copied());
            let status = failure.map_or(Status::Unset, Status::error);
            let builder = self.send(sink, target, &messages, failure);
            part(builder, status, (claim.read, until.unwrap_or(claim.finished)));
        }
        part(SpanBuilder::from_name("settle"), Status::Unset, (claim.finished, now));
    }

    /// The span of a destination, with a link to each traced message. The routing key is left out, because it may have
    /// a part of the message's key.
    fn send(&self, sink: &str, target: &str, messages: &[&Traced], failure: Option<&'static str>) -> SpanBuilder {
        let system = self.systems.get(sink).copied().unwrap_or("none");
        // The name of the default exchange in the conventions.
        let name = if target.is_empty() { "amq.default" } else { target };
        let mut attributes = vec![
            KeyValue::new("messaging.system", system),
            KeyValue::new("messaging.operation.name", "send"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", name.to_owned()),
        ];
        attributes.extend(failure.map(|reason| KeyValue::new("error.type", reason)));
        let links = messages.iter().map(|message| {
            let number = KeyValue::new("outbox.message.number", message.id.to_string());
            trace::Link::new(message.link.0.clone(), vec![number], 0)
        });
        // The span of the enqueue is the context of creation, so this one is a client's and not a producer's.
        SpanBuilder::from_name(format!("send {name}"))
            .with_kind(SpanKind::Client)
            .with_attributes(attributes)
            .with_links(links.take(LINKS as usize).collect())
    }

    /// Sends the last spans. Waits two seconds at most.
    pub(crate) async fn end(&self) {
        let provider = self.provider.clone();
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(ENDING)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// The messages of each sink and target.
fn by_destination(traced: &[Traced]) -> BTreeMap<(&str, &str), Vec<&Traced>> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for message in traced {
        let Destination { sink, target, .. } = &*message.destination;
        groups.entry((sink.as_str(), target.as_str())).or_default().push(message);
    }
    groups
}

/// The traced messages that were not sent, with the reason.
fn failures(claim: &ClaimTrace, settlement: &Settlement) -> HashMap<u64, &'static str> {
    let sent: HashSet<u64> = settlement.sent.iter().map(|(id, _)| *id).collect();
    let mut reasons: HashMap<_, _> = settlement.delayed.iter().map(|it| (it.id, it.reason.word())).collect();
    reasons.extend(settlement.dead.iter().map(|it| (it.id, it.reason)));
    let failures = claim.traced.iter().filter(|message| !sent.contains(&message.id));
    failures.map(|message| (message.id, reasons.get(&message.id).copied().unwrap_or("released"))).collect()
}

struct Headers<'a>(&'a [(String, String)]);

impl Extractor for Headers<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// A client that blocks: the exporter has a thread of its own.
#[derive(Debug)]
struct OtlpClient(Agent);

#[async_trait]
impl HttpClient for OtlpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(parts, body.as_ref()));
        let answer = answer.inspect_err(|error| tracing::warn!(%error, "the collector of traces does not answer"))?;
        let (parts, mut body) = answer.into_parts();
        Ok(Response::from_parts(parts, body.read_to_vec()?.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outbox_core::store::{reason::DelayReason, settle::Delayed};

    use super::*;

    #[test]
    fn every_traced_message_without_a_receipt_is_a_failure() {
        let destination = Arc::new(Destination::new("main", "orders", ""));
        let traced =
            |id| Traced { id, link: Link(SpanContext::NONE), destination: Arc::clone(&destination), done: None };
        let now = Instant::now();
        let claim = ClaimTrace {
            claim_id: 1,
            lane: 0,
            messages: 4,
            started: now,
            claimed: now,
            read: now,
            finished: now,
            traced: vec![traced(1), traced(2), traced(3)],
        };
        let delayed = [(2, DelayReason::Unconfirmed), (4, DelayReason::Parked)];
        let delayed = delayed.map(|(id, reason)| Delayed { reason, ..Delayed::behind(id) });
        let settlement =
            Settlement { sent: vec![(1, String::new())], delayed: delayed.into(), ..Settlement::default() };
        assert_eq!(failures(&claim, &settlement), HashMap::from([(2, "unconfirmed"), (3, "released")]));
    }
}
