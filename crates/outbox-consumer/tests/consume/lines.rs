//! A consumer on a thread of its own, whose lines of the log a test reads.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context as _, Result};
use outbox_consumer::ConsumerError;
use tokio::sync::oneshot;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::stage::PATIENCE;

/// The lines of one thread.
#[derive(Clone, Default)]
pub(crate) struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    /// A line with this text panics, as each line does on a closed pipe.
    closed_at: Option<&'static str>,
}

impl Lines {
    pub(crate) fn closed_at(text: &'static str) -> Self {
        Self { closed_at: Some(text), ..Self::default() }
    }

    /// The lines with this text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// Runs a consumer on a thread of its own, and returns its end.
    pub(crate) async fn end_of(
        &self,
        run: impl Future<Output = Result<(), ConsumerError>> + Send + 'static,
    ) -> Result<Result<(), ConsumerError>> {
        let (lines, (ended, end)) = (self.clone(), oneshot::channel());
        // Without a subscriber of its own, a thread of another test that comes first to a line would turn it off for
        // all threads.
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).ok();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let subscriber = tracing_subscriber::registry().with(lines);
            let result = tracing::subscriber::with_default(subscriber, || runtime.block_on(run));
            ended.send(result).ok();
            Ok::<_, std::io::Error>(())
        });
        tokio::time::timeout(PATIENCE, end).await.context("it does not end")?.context("it panics")
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        assert!(self.closed_at.is_none_or(|text| !line.0.contains(text)), "the pipe is closed, on purpose");
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }
}

/// All fields of a line.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.extend([format!("{}={value:?} ", field.name())]);
    }
}
