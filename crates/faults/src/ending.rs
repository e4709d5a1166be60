//! The ending of every run: the load stops, the backlog drains, the consumers catch up, the judge decides.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{Uuid, sqlx};
use testkit::{
    consume::Broker,
    inbox,
    judge::{Consumed, NothingShown, Report, Totals, Usage, judge_after_failover},
    load::CANARY,
    relay::{Metrics, Relay},
    servers::until,
    usage::cpu_seconds,
};

use crate::{
    arena::{Arena, PATIENCE, Pace, Restored},
    counts::Counts,
};

/// The limit of a relay's open descriptors: two connections a part, and the brokers'.
const DESCRIPTORS: u64 = 128;
/// The limit of a relay's resident memory in bytes, of which 32 MiB may be messages.
const MEMORY: u64 = 256 << 20;
/// How long idle relays are watched, and the milliseconds of a processor that each may use in a second.
const IDLE: Duration = Duration::from_secs(1);
const SPIN: u64 = 200;
/// In a longer watch, each window of this length counts by itself.
const WINDOW: Duration = Duration::from_secs(5);
/// The drain limit where times are not part of the verdict: a message that a slow database did not return waits for ten
/// minutes.
const UNREAD: Duration = Duration::from_mins(12);
/// The log text of a relay in which a part has panicked.
pub(crate) const PANICKED: &str = "a part of the relay panicked";

impl Arena {
    /// Ends the run.
    pub async fn finish(mut self) -> Result<Counts> {
        self.stop_load().await?;
        // If it does not drain, the judge reports the rest.
        let drained = self.drained().await?;
        let mut totals = self.gather().await?;
        let (arrived, deliveries) = self.arrived().await?;
        if self.past_consumers {
            let consumer = self.topic.name().to_owned();
            inbox::process(&self.database, &consumer, self.topic.read().await?).await?;
        }
        let caught_up = self.caught_up(arrived, deliveries).await;
        self.watch("with nothing to do", IDLE).await?;
        let stopped = self.stop_consumers(caught_up.is_ok()).await;
        let consumed = self.consumed(caught_up.is_ok() && stopped.is_ok())?;
        // Four cases run concurrently on a shared machine: a broker's answer or a renewal may be late.
        let late = if self.setup.pace == Pace::Short { totals.late() } else { 0 };
        let report = self.judged().await?;
        let effects = self.inboxes.tables().await?.effects.len();
        // No relay knows that it sends messages again after a restore.
        totals.announced.extend(self.restored.announced());
        let report = report
            .without_repeated(&self.sent_again)
            .with_orders(&self.orders)
            .with_consumed(&consumed, effects, deliveries)
            .with_totals(&totals)
            .with_usage(&self.usage)
            .with_pages(&self.pages, &[CANARY, "🦀"]);
        self.counts.messages += report.committed as u64;
        self.counts.lost_by_server += report.lost_by_server.len() as u64;
        self.counts.duplicates += (report.duplicates.len() + report.repeated) as u64;
        self.counts.takeovers += totals.takeovers;
        self.counts.fenced += totals.fenced;
        self.counts.announced.clone_from(&totals.announced);
        self.witnesses(effects);
        let expected = match self.twice.take() {
            Some(twice) => self.expected.clone().duplicates_among(twice),
            None => self.expected.clone(),
        };
        let state = || {
            let left = drained.as_ref().err().map(|left| format!(", {left:#}")).unwrap_or_default();
            let errors: Vec<&str> =
                self.pages.iter().flat_map(|page| page.lines()).filter(|line| line.contains(" ERROR ")).collect();
            let announced = &totals.announced;
            let fenced = totals.fenced;
            let overdue = &self.overdue;
            format!("announced {announced:?}, claims lost {fenced}{left}, overdue {overdue:?}, errors {errors:?}")
        };
        let judged = report.assert_ok(&expected.late(late)).with_context(state);
        // A run that shows nothing is tried again: it must hide no other failure.
        let (judged, shown) = match judged {
            Err(unshown) if unshown.is::<NothingShown>() => (Ok(()), Err(unshown)),
            judged => (judged, Ok(())),
        };
        judged?;
        drained?;
        caught_up?;
        stopped?;
        ensure!(self.panicked() <= self.panics, "{} relays panicked, {} were to", self.panicked(), self.panics);
        ensure!(self.overdue.is_empty(), "{}", self.overdue.join("; "));
        ensure!(self.answers.wrong.is_empty(), "wrong answers: {}", self.answers.wrong.join("; "));
        shown?;
        self.remove().await
    }

    /// Waits until everything is sent, and asks for answers before and after. The inner error: something is left.
    async fn drained(&mut self) -> Result<Result<()>> {
        self.explained().await?;
        let within = if self.setup.pace == Pace::Short { UNREAD } else { self.drains_within };
        let drained = self.database.wait_until_drained(within).await;
        if drained.is_ok() {
            self.idle().await?;
            self.explained().await?;
        }
        Ok(drained)
    }

    /// The events that must have happened in every run.
    fn witnesses(&mut self, effects: usize) {
        let due = self.consumers.is_some() || self.past_consumers;
        self.witness("an effect", !due || effects > 0);
        let named = self.answers.were_told || self.answers.words.is_empty();
        self.witness("a verdict that names the fault", named);
        self.witness("a fault", self.counts.faults >= self.faults_due);
        self.witness("messages in flight when a fault struck", self.counts.in_flight > 0 || !self.in_flight_due);
    }

    /// The number of relays that logged a panic of a part.
    fn panicked(&self) -> usize {
        self.pages.iter().filter(|page| page.contains(PANICKED)).count()
    }

    /// Adds up the relays' counts, and collects their resource use and output.
    async fn gather(&mut self) -> Result<Totals> {
        for relay in &self.relays {
            let metrics = relay.metrics_within(PATIENCE).await?;
            let limits = [("process_open_fds", DESCRIPTORS), ("process_resident_memory_bytes", MEMORY)];
            for (name, limit) in limits {
                let used = whole(metrics.sum(name));
                // A missing gauge counts as 0, which no process uses.
                ensure!(used > 0, "a relay does not say its {name}");
                self.usage.push(Usage { what: name.to_owned(), used, limit });
            }
            self.pages.push(relay.log()?);
            self.pages.push(relay.get("/metrics").await?.1);
            self.retired.push(metrics);
        }
        let missed: f64 = self.retired.iter().map(|metrics| metrics.sum("outbox_relay_tail_missed_total")).sum();
        ensure!(missed < 0.5, "the log did not show {missed} rows");
        self.counts.moved.extend(self.retired.iter().flat_map(Metrics::moved).map(str::to_owned));
        Ok(Totals::of(&self.retired, self.complete))
    }

    /// Judges the arrivals by the ledger and the tables, without the messages that a restore has removed.
    pub(crate) async fn judged(&mut self) -> Result<Report> {
        let mut tables = self.database.tables().await?;
        let inboxes = self.inboxes.tables().await?;
        (tables.effects, tables.processed) = (inboxes.effects, inboxes.processed);
        let canaries = self.canaries().await?;
        tables.messages.retain(|id| !canaries.contains(id));
        let Restored { forgotten, .. } = &self.restored;
        tables.effects.retain(|id, _| !forgotten.contains(id));
        tables.processed.retain(|id, _| !forgotten.contains(id));
        let all = self.topic.read().await?;
        let lost = self.lost.iter().copied();
        if forgotten.is_empty() {
            return Ok(judge_after_failover(&self.ledger.entries(), all, &tables, lost));
        }
        let arrivals: Vec<_> = all.iter().filter(|arrival| !forgotten.contains(&arrival.id)).cloned().collect();
        Ok(judge_after_failover(&self.ledger.entries(), &arrivals, &tables, lost))
    }

    /// The relays' own messages: no ledger has them.
    async fn canaries(&self) -> Result<HashSet<Uuid>> {
        let ids = "SELECT message_id FROM outbox_messages WHERE event_type = 'outbox.canary'";
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(ids).fetch_all(&mut self.database.plain().await?).await?;
        ids.iter().map(|id| Ok(Uuid::from_slice(id)?)).collect()
    }

    /// Stops the load, and waits until everything is sent and processed.
    pub(crate) async fn at_rest(&mut self) -> Result<()> {
        if let Some(load) = self.load.take() {
            load.stop().await?;
        }
        self.database.wait_until_drained(PATIENCE).await?;
        let (arrived, deliveries) = self.arrived().await?;
        self.caught_up(arrived, deliveries).await
    }

    /// The number of different messages that arrived, and the minimum of deliveries to the consumers.
    async fn arrived(&mut self) -> Result<(i64, u64)> {
        // A killed RabbitMQ may keep unconfirmed messages in the judge's queue alone.
        let alike = self.topic.broker() == Broker::Kafka || self.ground.broker.is_none();
        let arrivals = self.topic.read().await?;
        let ids: HashSet<_> = arrivals.iter().map(|arrival| arrival.id).collect();
        let deliveries = if alike { arrivals.len() } else { ids.len() };
        Ok((i64::try_from(ids.len())?, deliveries as u64))
    }

    /// Stops the consumers in order, unless they make no progress.
    async fn stop_consumers(&mut self, stop: bool) -> Result<()> {
        match &mut self.consumers {
            Some(consumers) if stop => consumers.stop().await,
            _ => Ok(()),
        }
    }

    /// The counts of the consumers.
    fn consumed(&self, in_order: bool) -> Result<Consumed> {
        let Some(consumers) = &self.consumers else { return Ok(Consumed::default()) };
        let counted = consumers.counted()?;
        Ok(Consumed { complete: in_order && counted.complete && !self.past_consumers, ..counted })
    }

    /// Watches the processor time of each relay for this duration: a relay that can do nothing must not spin.
    pub(crate) async fn watch(&mut self, what: &str, time: Duration) -> Result<()> {
        let times = |relays: &[Relay]| relays.iter().map(|relay| cpu_seconds(relay.pid())).collect::<Result<Vec<_>>>();
        let end = Instant::now() + time;
        let window = time.min(WINDOW);
        while Instant::now() < end {
            let before = times(&self.relays)?;
            tokio::time::sleep(window).await;
            for (before, after) in before.iter().zip(times(&self.relays)?) {
                let used = whole(1000.0 * (after - before) / window.as_secs_f64());
                let what = format!("milliseconds of a processor a second, {what}");
                self.usage.push(Usage { what, used, limit: SPIN });
            }
        }
        Ok(())
    }

    /// Waits until the consumers have processed every arrival, while they make progress.
    async fn caught_up(&self, arrived: i64, deliveries: u64) -> Result<()> {
        let mut effects = 0;
        while self.consumers.is_some() && effects < arrived {
            effects = until(PATIENCE, "the consumers to go on", || async {
                let more = self.inboxes.number("SELECT COUNT(*) FROM test_effects").await?;
                ensure!(more > effects, "{effects} of {arrived} messages are processed");
                Ok(more)
            })
            .await?;
        }
        let Some(consumers) = self.consumers.as_ref().filter(|_| !self.past_consumers) else { return Ok(()) };
        until(PATIENCE, "the consumers to count every delivery", || async {
            let Consumed { first, duplicate, complete, .. } = consumers.counted()?;
            ensure!(!complete || first + duplicate >= deliveries, "{first} and {duplicate} of {deliveries}");
            Ok(())
        })
        .await
    }

    /// Removes what would slow down the next case on shared servers.
    async fn remove(self) -> Result<Counts> {
        let Self { relays, consumers, database, inboxes, topic, ground, counts, .. } = self;
        drop((relays, consumers));
        if ground.mysql.is_none() && ground.galera.is_none() {
            if inboxes.url() != database.url() {
                inboxes.remove().await?;
            }
            database.remove().await?;
        }
        if ground.broker.is_none() {
            topic.remove().await?;
        }
        Ok(counts)
    }
}

/// Gauges of bytes and descriptors are whole.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "they are whole and not negative")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}
