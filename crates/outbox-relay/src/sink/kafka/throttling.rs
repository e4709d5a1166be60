//! The throttling of this client by the brokers, as librdkafka's figures show it.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::Deserialize;

/// The time from one set of figures to the next.
pub(super) const FIGURES: Duration = Duration::from_secs(5);

/// The end of the present throttling, and its longest pause.
#[derive(Debug, Default)]
pub(super) struct Throttling(Mutex<Option<(Instant, Duration)>>);

#[derive(Deserialize)]
struct Figures {
    brokers: HashMap<String, BrokerStatistics>,
}

#[derive(Deserialize)]
struct BrokerStatistics {
    throttle: Option<Pauses>,
}

/// Milliseconds.
#[derive(Deserialize)]
struct Pauses {
    max: u64,
}

impl Throttling {
    /// Notes the figures of the last seconds.
    pub(super) fn note(&self, figures: &[u8], now: Instant) {
        let Ok(Figures { brokers }) = serde_json::from_slice(figures) else { return };
        let longest = brokers.values().filter_map(|broker| broker.throttle.as_ref()).map(|it| it.max).max();
        let pause = Duration::from_millis(longest.unwrap_or_default());
        let mut throttling = self.0.lock();
        if !pause.is_zero() {
            if throttling.replace((now + pause + FIGURES, pause)).is_none() {
                tracing::warn!("{}", explain(pause));
            }
        } else if throttling.take_if(|(end, _)| *end <= now).is_some() {
            tracing::info!("Kafka throttles this client no longer");
        }
    }

    /// Returns the cause and the remedy, while the client is throttled.
    pub(super) fn explain(&self) -> Option<String> {
        self.0.lock().map(|(_, pause)| explain(pause))
    }
}

fn explain(pause: Duration) -> String {
    format!(
        "Kafka throttles this client, for up to {} ms at a time: raise the quota of its user or client id \
         (producer_byte_rate)",
        pause.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_counts_as_throttled_until_its_pause_is_over() {
        let throttling = Throttling::default();
        let start = Instant::now();
        let after = |seconds: u64, pause: u64| {
            let figures = format!(
                r#"{{"brokers": {{"b:1/1": {{"throttle": {{"min": 0, "max": {pause}}}}}, "b:1/bootstrap": {{}}}}}}"#
            );
            throttling.note(figures.as_bytes(), start + Duration::from_secs(seconds));
            throttling.explain().is_some()
        };
        assert_eq!(
            [after(0, 0), after(5, 9000), after(10, 0), after(15, 0), after(20, 0)],
            [false, true, true, true, false]
        );
        throttling.note(b"[]", start);
        assert!(throttling.explain().is_none());
    }
}
