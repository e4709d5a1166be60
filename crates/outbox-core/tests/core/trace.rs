//! The context of the request's span is stored with the message.

use anyhow::Result;
use opentelemetry::{
    Context, SpanId, TraceFlags, TraceId,
    trace::{FutureExt as _, SpanContext, TraceContextExt as _, TraceState, TracerProvider as _},
};
use opentelemetry_sdk::trace::SdkTracerProvider;
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection},
};
use testkit::{database::Database, servers::Flavor};
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;

/// What the row of a message has as headers after it was enqueued in the current span.
async fn stored(connection: &mut MySqlConnection, message: Message) -> Result<Option<String>> {
    let mut tx = connection.begin().await?;
    let id = Outbox::new().enqueue(&mut tx, message).await?;
    tx.commit().await?;
    let sql = "SELECT headers FROM outbox_messages WHERE message_id = ?";
    Ok(sqlx::query_scalar(sql).bind(id.as_bytes().as_slice()).fetch_one(connection).await?)
}

fn remote(flags: TraceFlags, state: &str) -> Result<Context> {
    let trace = TraceId::from(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
    let span = SpanId::from(0xb7ad_6b71_6920_3331);
    let state: TraceState = state.parse()?;
    Ok(Context::new().with_remote_span_context(SpanContext::new(trace, span, flags, true, state)))
}

#[tokio::test]
async fn the_current_span_is_stored_as_w3c_headers() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut connection = database.connect().await?;
    let context = remote(TraceFlags::SAMPLED, "vendor=1,other=2")?;
    let headers = stored(&mut connection, Message::new("t", "").header("a", "b")).with_context(context).await?;
    let expected = "{\"a\":\"b\",\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\",\
                    \"tracestate\":\"vendor=1,other=2\"}";
    assert_eq!(headers.as_deref(), Some(expected));
    let context = remote(TraceFlags::default(), "")?;
    let headers = stored(&mut connection, Message::new("t", "")).with_context(context).await?;
    let expected = "{\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\"}";
    assert_eq!(headers.as_deref(), Some(expected));
    Ok(())
}

#[tokio::test]
async fn a_context_of_ones_own_stays_and_without_a_span_there_is_none() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut connection = database.connect().await?;
    assert_eq!(stored(&mut connection, Message::new("t", "")).await?, None);
    let own = Message::new("t", "").header("traceparent", "mine");
    let headers = stored(&mut connection, own).with_context(remote(TraceFlags::SAMPLED, "")?).await?;
    assert_eq!(headers.as_deref(), Some("{\"traceparent\":\"mine\"}"));
    Ok(())
}

#[tokio::test]
async fn a_span_of_tracing_is_the_current_one() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut connection = database.connect().await?;
    let tracer = SdkTracerProvider::builder().build().tracer("service");
    let subscriber = tracing_subscriber::registry().with(tracing_opentelemetry::layer().with_tracer(tracer));
    let guard = tracing::subscriber::set_default(subscriber);
    let request = async {
        let span = Context::current().span().span_context().clone();
        anyhow::Ok((span, stored(&mut connection, Message::new("t", "")).await?))
    };
    let (span, headers) = request.instrument(tracing::info_span!("request")).await?;
    drop(guard);
    assert!(span.is_valid(), "the span is not known to OpenTelemetry");
    let expected = format!("{{\"traceparent\":\"00-{}-{}-01\"}}", span.trace_id(), span.span_id());
    assert_eq!(headers, Some(expected));
    Ok(())
}
