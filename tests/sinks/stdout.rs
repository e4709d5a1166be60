//! The sink for standard output: the conformance suite, and the form of a line.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
    time::Instant,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use outbox_relay::sink::{
    Destination, Outgoing, Sink,
    conformance::{self, Arrived, ConformanceError, Control, DEADLINE, Draft, Harness},
    stdout::Stdout,
};
use serde_json::Value;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct StdoutHarness {
    sink: Stdout,
    lines: Lines,
}

impl StdoutHarness {
    fn new() -> Self {
        let lines = Lines::default();
        Self { sink: Stdout::to(lines.clone()), lines }
    }

    fn lines(&self) -> Vec<Value> {
        let bytes = self.lines.0.lock().unwrap();
        String::from_utf8(bytes.clone()).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[async_trait]
impl Harness for StdoutHarness {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    async fn destination(&self) -> Result<Arc<Destination>, ConformanceError> {
        self.lines.0.lock().unwrap().clear();
        Ok(destination())
    }

    async fn arrived(&self, _: &Destination, _: usize) -> Result<Vec<Arrived>, ConformanceError> {
        self.lines().iter().map(arrived).collect::<Result<_>>().map_err(ConformanceError::new)
    }

    fn missing(&self) -> Option<Arc<Destination>> {
        None
    }

    fn rejected(&self, _: &Arc<Destination>) -> Option<Outgoing> {
        None
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        None
    }

    async fn control(&self, _: Control) -> Result<bool, ConformanceError> {
        Ok(false)
    }
}

fn destination() -> Arc<Destination> {
    Arc::new(Destination::new("out", "lines", ""))
}

fn arrived(line: &Value) -> Result<Arrived> {
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    let bytes = |name: &str| match line[format!("{name}_hex")].as_str() {
        Some(hex) => Some((0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()),
        None => text(name).map(String::into_bytes),
    };
    Ok(Arrived {
        message_id: text("id").context("no id")?.parse()?,
        key: bytes("key"),
        event_type: text("type"),
        content_type: text("content_type"),
        headers: serde_json::from_value(line["headers"].clone())?,
        payload: bytes("payload"),
    })
}

#[tokio::test]
async fn stdout_conforms() -> Result<()> {
    Ok(conformance::run(&StdoutHarness::new()).await?)
}

#[tokio::test]
async fn bytes_that_are_no_text_are_marked_as_hexadecimal() {
    let harness = StdoutHarness::new();
    let message = Draft::new(&destination(), [0xff, 0x0a]).key(b"text").build();
    harness.sink.publish(&[message], Instant::now() + DEADLINE).await;
    let line = &harness.lines()[0];
    assert_eq!((&line["payload_hex"], line.get("payload"), &line["key"]), (&"ff0a".into(), None, &"text".into()));
}

#[tokio::test]
async fn a_closed_pipe_confirms_nothing() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let message = Draft::new(&destination(), "1").build();
    assert!(Stdout::to(Closed).publish(&[message], Instant::now() + DEADLINE).await[0].is_err());
}
