//! The W3C trace context of the span in which a message is enqueued.

use crate::Message;

#[cfg(not(feature = "trace"))]
pub(crate) fn capture(_: &mut Message) {}

/// Adds the current span's context as headers, unless there is none or the message has its own.
///
/// The current span is that of OpenTelemetry; `tracing-opentelemetry` makes it the one of `tracing`.
#[cfg(feature = "trace")]
pub(crate) fn capture(message: &mut Message) {
    use opentelemetry::{Context, trace::TraceContextExt as _};

    const TRACEPARENT: &str = "traceparent";
    const TRACESTATE: &str = "tracestate";

    if message.contents.headers.iter().any(|(name, _)| name == TRACEPARENT || name == TRACESTATE) {
        return;
    }
    let context = Context::current();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return;
    }
    // Version 00 knows one flag.
    let sampled = u8::from(span.is_sampled());
    let parent = format!("00-{}-{}-{sampled:02x}", span.trace_id(), span.span_id());
    message.contents.headers.push((TRACEPARENT.to_owned(), parent));
    let state = span.trace_state().header();
    if !state.is_empty() {
        message.contents.headers.push((TRACESTATE.to_owned(), state));
    }
}
