//! The loop of one member of the group. One task owns all of its state; messages are worked on by tasks of their own.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use futures_util::FutureExt as _;
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{CommitMode, Consumer as _, StreamConsumer},
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::BorrowedMessage,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    client::Client,
    context::{GroupContext, GroupEvent, Place, client_error, only},
    dead::DeadLetters,
    offsets::Offsets,
    queued::Queued,
    topics, wire,
};
use crate::{
    ConsumerError, Delivery, Handler,
    crew::{Acknowledge, Crew, CrewJob, FinishedTask},
    delivery::Doubt,
    process::{Decision, Processor},
};

/// The shortest time to commit and to leave the group, where messages at work have taken the rest of the stop deadline.
const LEAVE: Duration = Duration::from_secs(5);
/// As librdkafka's `auto.commit.interval.ms` here.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// A partition while this member has it.
struct Partition {
    /// A partition that comes back, or begins anew, gets another turn, by which its messages are told from earlier
    /// ones.
    turn: u64,
    offsets: Offsets,
    queued: Arc<Queued>,
    /// The number of new messages that the member before may have died of.
    in_doubt: Arc<AtomicUsize>,
    paused: bool,
    /// Whether messages behind others of their key had filled their room at the pause.
    overflowed: bool,
    anew: Option<Anew>,
    stop: CancellationToken,
}

/// A partition that has begun anew at an earlier offset, and has not come back to its last one.
#[derive(Clone, Copy)]
struct Anew {
    /// The offset that was expected.
    expected: i64,
    next_commit: Instant,
}

/// The place of a message.
struct Record {
    place: Place,
    turn: u64,
    offset: i64,
    stop: CancellationToken,
    queued: Arc<Queued>,
    dead: Option<DeadLetters>,
}

impl Acknowledge for Record {
    /// Offsets are committed by the loop; only dead messages are sent from here.
    async fn settle(&self, delivery: &Delivery, decision: Decision) -> Decision {
        match (decision, &self.dead) {
            (Decision::Dead(obituary), Some(dead))
                if dead.send(delivery, &obituary, &self.place.0, &self.stop).await =>
            {
                Decision::Done
            }
            (Decision::Dead(_), _) => Decision::Undecided,
            (decision, _) => decision,
        }
    }

    fn waits(&self, delivery: &Delivery, waits: bool) {
        self.queued.note(delivery.contents.payload.as_ref().map_or(0, Vec::len), waits);
    }
}

/// A member of the group.
pub(super) struct Group<H> {
    consumer: Client<StreamConsumer<GroupContext>>,
    events: UnboundedReceiver<GroupEvent>,
    partitions: HashMap<Place, Partition>,
    turn: u64,
    window: usize,
    dead: Option<DeadLetters>,
    crew: Crew<H, Record>,
}

impl<H: Handler> Group<H> {
    pub(super) fn join(
        config: &ClientConfig,
        topics: &[String],
        window: usize,
        processor: Processor<H>,
        dead: Option<DeadLetters>,
    ) -> Result<Self, ConsumerError> {
        let (sender, events) = unbounded_channel();
        let context = GroupContext { events: sender, consumer: processor.consumer().to_owned() };
        let consumer = Client::new(StreamConsumer::from_config_and_context(config, context).map_err(client_error)?);
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        consumer.subscribe(&names).map_err(client_error)?;
        let crew = Crew::new(processor);
        let name = crew.processor.consumer().to_owned();
        let metrics = crew.processor.options.metrics.clone();
        let member = Arc::downgrade(&consumer.share());
        tokio::spawn(topics::watch(member, topics.to_vec(), name, metrics, crew.stop.clone()));
        Ok(Self { consumer, events, partitions: HashMap::new(), turn: 0, window, dead, crew })
    }

    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), ConsumerError> {
        let processor = Arc::clone(&self.crew.processor);
        tokio::spawn(async move { processor.forget_old_starts().await });
        let ended = caught(self.consume(stop)).await.flatten();
        ended.and(caught(self.leave()).await)
    }

    async fn consume(&mut self, stop: impl Future<Output = ()>) -> Result<(), ConsumerError> {
        let consumer = self.consumer.share();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                Some(finished) = self.crew.next() => {
                    self.follow_rebalances()?;
                    self.finished(&finished?);
                }
                // Also while nothing else happens: a partition that came back may be paused, and gives messages only
                // after this event is handled.
                Some(event) = self.events.recv() => self.follow(event)?,
                received = consumer.recv() => {
                    self.follow_rebalances()?;
                    match received {
                        Ok(message) => self.received(&message),
                        Err(error) => self.failed(error)?,
                    }
                }
            }
        }
    }

    /// Follows assigned and revoked partitions, before anything else: a message of a partition that came back must not
    /// count for the earlier turn.
    fn follow_rebalances(&mut self) -> Result<(), ConsumerError> {
        while let Ok(event) = self.events.try_recv() {
            self.follow(event)?;
        }
        Ok(())
    }

    fn follow(&mut self, event: GroupEvent) -> Result<(), ConsumerError> {
        match event {
            GroupEvent::Panicked => return Err(panicked()),
            GroupEvent::Assigned(places) => {
                for place in places {
                    // It may have been paused when this member had it before.
                    self.pause(&place, false);
                    self.partition(place);
                }
            }
            GroupEvent::Revoked(places) => {
                for partition in places.iter().filter_map(|place| self.partitions.remove(place)) {
                    // The new owner gets the messages that are not committed yet, and waits in the inbox for those in
                    // progress here.
                    partition.stop.cancel();
                }
            }
        }
        self.count_paused();
        Ok(())
    }

    fn partition(&mut self, place: Place) -> &mut Partition {
        let turn = &mut self.turn;
        let stop = &self.crew.stop;
        let window = self.window;
        self.partitions.entry(place).or_insert_with(|| {
            *turn += 1;
            let offsets = Offsets::default();
            let queued = Arc::default();
            let in_doubt = Arc::new(AtomicUsize::new(window));
            let stop = stop.child_token();
            Partition { turn: *turn, offsets, queued, in_doubt, paused: false, overflowed: false, anew: None, stop }
        })
    }

    fn received(&mut self, message: &BorrowedMessage<'_>) {
        let place = (message.topic().to_owned(), message.partition());
        let offset = message.offset();
        let window = self.window;
        let dead = self.dead.clone();
        let delivery = wire::delivery(message);
        if self.partition(place.clone()).offsets.begins_anew_at(offset) {
            self.begin_anew(&place, offset);
        }
        let partition = self.partition(place.clone());
        let turn = partition.turn;
        let stop = partition.stop.clone();
        if !partition.offsets.received(offset, delivery.id, turn) {
            return;
        }
        let queued = Arc::clone(&partition.queued);
        let doubt = Doubt::First(Arc::clone(&partition.in_doubt));
        let tag = Record { place: place.clone(), turn, offset, stop: stop.clone(), queued, dead };
        self.crew.arrived(CrewJob { delivery: Delivery { doubt, ..delivery }, tag, stop });
        let partition = self.partition(place.clone());
        if !partition.paused && partition.queued.is_full(partition.offsets.len(), window) {
            partition.overflowed = partition.queued.overflows(window);
            self.pause(&place, true);
        }
    }

    /// The topic was made again, a restored or uncleanly elected replica leads it, or its offsets were reset. Messages
    /// at work are processed. What they decide says nothing about the records that have their offsets now.
    fn begin_anew(&mut self, place: &Place, offset: i64) {
        self.turn += 1;
        let name = self.crew.processor.consumer();
        let Some(partition) = self.partitions.get_mut(place) else { return };
        partition.turn = self.turn;
        let expected = partition.offsets.begin_anew(offset);
        tracing::warn!(
            consumer = name,
            topic = place.0,
            partition = place.1,
            offset,
            expected,
            "the partition begins anew at an earlier offset: was its topic made again, or restored?"
        );
        self.crew.processor.options.metrics.broker_event(name, "begun_anew");
        partition.anew = Some(Anew { expected, next_commit: Instant::now() });
        let position = partition.offsets.position();
        self.store(place, position);
    }

    fn finished(&mut self, finished: &FinishedTask<Record>) {
        let Record { place, turn, offset, .. } = &finished.job.tag;
        let Some(partition) = self.partitions.get_mut(place) else { return };
        if matches!(finished.decision, Decision::Undecided) {
            return;
        }
        if let Some(position) = partition.offsets.decided(*offset, *turn) {
            self.store(place, position);
        }
        let Some(partition) = self.partitions.get(place) else { return };
        let undecided = partition.offsets.len();
        let overflowed = partition.overflowed;
        if partition.paused && partition.queued.has_room_again(undecided, self.window, overflowed) {
            self.pause(place, false);
        }
    }

    /// Stores the position from which another member would go on.
    fn store(&mut self, place: &Place, position: i64) {
        let topic = place.0.as_str();
        let partition = place.1;
        // librdkafka adds the one.
        if let Err(error) = self.consumer.store_offset(topic, partition, position - 1) {
            tracing::debug!(%error, topic, partition, "the partition was given up meanwhile");
        }
        // librdkafka commits by itself no position up to its last one. A commit may fail: the next position is
        // committed, too.
        let Some(state) = self.partitions.get_mut(place) else { return };
        state.anew = state.anew.filter(|anew| anew.expected >= position);
        let Some(anew) = state.anew.as_mut().filter(|anew| anew.next_commit <= Instant::now()) else { return };
        anew.next_commit = Instant::now() + COMMIT_INTERVAL;
        let mut list = TopicPartitionList::with_capacity(1);
        let committed = list
            .add_partition_offset(topic, partition, Offset::Offset(position))
            .and_then(|()| self.consumer.commit(&list, CommitMode::Async));
        if let Err(error) = committed {
            tracing::debug!(%error, topic, partition, "cannot commit a position after a new beginning");
        }
    }

    /// Pauses a partition, or lets it go on. The others are not affected, and the member stays in the group.
    fn pause(&mut self, place: &Place, pause: bool) {
        let list = only(place);
        let done = if pause { self.consumer.pause(&list) } else { self.consumer.resume(&list) };
        match (done, self.partitions.get_mut(place)) {
            (Ok(()), Some(partition)) => partition.paused = pause,
            (Err(error), _) => tracing::debug!(%error, topic = place.0, partition = place.1, "cannot pause or resume"),
            (Ok(()), None) => {}
        }
        self.count_paused();
    }

    fn count_paused(&self) {
        let paused = self.partitions.values().filter(|partition| partition.paused).count();
        let gauge = &self.crew.processor.options.metrics.paused;
        gauge.with_label_values(&[self.crew.processor.consumer()]).set(i64::try_from(paused).unwrap_or(i64::MAX));
    }

    /// librdkafka connects again by itself; only a fatal error ends the consumer. The context has logged it.
    fn failed(&self, error: KafkaError) -> Result<(), ConsumerError> {
        let name = self.crew.processor.consumer();
        let metrics = &self.crew.processor.options.metrics;
        if self.consumer.client().fatal_error().is_some() {
            return Err(client_error(error));
        }
        match error.rdkafka_error_code() {
            Some(Code::AllBrokersDown) => metrics.disconnects.with_label_values(&[name]).inc(),
            Some(code) if is_unreadable(code) => metrics.broker_event(name, "unreadable"),
            _ => {}
        }
        Ok(())
    }

    /// Lets messages at work end, commits the decided offsets, and leaves the group. Brokers that are away do not delay
    /// the caller for longer than the stop deadline.
    async fn leave(mut self) {
        let until = Instant::now() + self.crew.processor.options.stop_deadline;
        let mut decided = Vec::new();
        self.crew.wind_down(|finished| decided.push(finished)).await;
        // Also after a panic of a callback.
        while self.follow_rebalances().is_err() {}
        for finished in &decided {
            self.finished(finished);
        }
        let left = self.consumer.end(|consumer| consumer.commit_consumer_state(CommitMode::Sync));
        match timeout(until.saturating_duration_since(Instant::now()).max(LEAVE), left).await {
            Ok(Ok(Ok(()) | Err(KafkaError::ConsumerCommit(Code::NoOffset)))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "offsets were not committed: their messages come again"),
            Ok(Err(error)) => tracing::warn!(%error, "leaving the group"),
            Err(_elapsed) => {
                tracing::warn!("Kafka does not answer: offsets may not be committed, and their messages come again");
            }
        }
    }
}

/// Whether a partition cannot be read: its batch or its place. librdkafka tries it again and again.
fn is_unreadable(code: Code) -> bool {
    matches!(
        code,
        Code::AutoOffsetReset
            | Code::BadCompression
            | Code::BadMessage
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::KafkaStorageError
            | Code::MessageSizeTooLarge
            | Code::NotImplemented
            | Code::OffsetOutOfRange
            | Code::Unknown
            | Code::UnsupportedCompressionType
    )
}

/// Ends a future that panics with an error.
async fn caught<T>(work: impl Future<Output = T>) -> Result<T, ConsumerError> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_panic| panicked())
}

fn panicked() -> ConsumerError {
    ConsumerError::Internal("a panic, which the process reports on its standard error".to_owned())
}
