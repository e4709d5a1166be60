use std::{future, time::Duration};

use async_trait::async_trait;
use futures_util::stream;
use outbox_core::{Contents, store::claim::lease::ClaimLease};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::*;
use crate::{
    pipeline::{claim::Claimed, read::Ready, retry::Policy},
    settings::{AfterDead, OnRejected, RetryConfig},
    sink::{Destination, Feed, Outcome, Outgoing, PublishError, Receipt, Sink},
    state::{capacity::Capacity, leases::Tenure, queues::Wanted},
};

/// Most messages of a batch that the sink confirms.
const TAKES: usize = 8;
/// The sink finds no route for these messages.
const UNROUTABLE: std::ops::Range<u64> = 100..200;
/// The sink refuses messages from this one on at once, for the time being.
const REFUSED: u64 = 1000;
/// This message is dead before it is published, and holds back its key.
const DEAD: u64 = 3000;
/// This key has a queue in the database.
const QUEUED: u64 = 77;

/// Answers its first batch once all messages are handed in: its first message is unconfirmed, the others are confirmed.
/// Confirms no message of a batch that is too large.
struct Slow {
    order: KeyOrder,
    answer: Notify,
    batches: Mutex<Vec<Vec<u64>>>,
    /// Whether the first batch does not end before the second begins, though all its messages but one are confirmed.
    is_stuck: bool,
    second: Notify,
}

impl Slow {
    fn new(order: KeyOrder) -> Arc<Self> {
        let answer = Notify::new();
        let batches = Mutex::default();
        let second = Notify::new();
        Arc::new(Self { order, answer, batches, is_stuck: false, second })
    }
}

#[async_trait]
impl Sink for Slow {
    fn key_order(&self, _message: &Outgoing) -> KeyOrder {
        self.order
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        let first = {
            let mut batches = self.batches.lock();
            batches.push(batch.iter().map(|message| message.message_id.as_u64_pair().1).collect());
            batches.len() == 1
        };
        if first && self.is_stuck {
            let confirmed = batch.iter().skip(1).flat_map(|message| &message.progress);
            confirmed.for_each(|progress| progress.confirmed(Instant::now()));
            self.second.notified().await;
            self.batches.lock().push(Vec::new());
        } else if first {
            self.answer.notified().await;
        } else {
            self.second.notify_one();
        }
        let number = |message: &Outgoing| message.message_id.as_u64_pair().1;
        let too_many = batch.len() > TAKES;
        if too_many {
            tokio::time::sleep_until(deadline.into()).await;
        }
        let refused = |message: &Outgoing| (REFUSED..DEAD).contains(&number(message));
        let unconfirmed = || Err(PublishError::Unconfirmed("no reply".into()));
        let outcome = |(index, message)| {
            if UNROUTABLE.contains(&number(message)) {
                return Err(PublishError::Unroutable { reason: "unroutable", detail: String::new() });
            }
            let fails = too_many || (first && index == 0) || refused(message);
            if fails { unconfirmed() } else { Ok(Receipt::new("there")) }
        };
        batch.iter().enumerate().map(outcome).collect()
    }

    async fn check(&self, _deadline: Instant) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

fn destination(routing_key: &str) -> Arc<Destination> {
    Destination { sink: "slow".into(), target: "t".into(), routing_key: routing_key.into() }.into()
}

const POLICY: Policy = Policy {
    on_rejected: OnRejected::Dead,
    after_dead: AfterDead::Skip,
    retry: RetryConfig { base: Duration::from_secs(1), max: Duration::from_secs(60), max_attempts: 5 },
};

async fn claim(context: &Context, claim_id: u64, lease: Duration, messages: &[(u64, u64)]) -> ReadClaim {
    let until = Instant::now() + lease;
    let lease = ClaimLease { claim_id, lease_token: 1 };
    let ids = messages.iter().map(|(id, _)| *id).collect();
    let mut tenure = Tenure::new(lease, 0, ids, Vec::new(), until);
    tenure.queued.extend(messages.iter().map(|(_, key)| *key).filter(|key| *key == QUEUED).take(1));
    let tenure = Arc::new(tenure);
    context.leases.insert(&tenure);
    let claimed = Claimed {
        tenure,
        pass: claim_id,
        times: (until, until),
        last_pass: Arc::default(),
        rows: Vec::new(),
        messages: None,
        behind: Vec::new(),
        room: Capacity::new(&context.config.relay).take(0).await,
        settler: None,
    };
    let messages = messages.iter().map(|&(id, key_hash)| {
        let outgoing = Outgoing {
            message_id: Uuid::from_u64_pair(0, id),
            key_hash,
            contents: Contents { topic: "t".to_owned(), ..Contents::default() },
            created_at_micros: 0,
            destination: destination(if UNROUTABLE.contains(&id) { "nowhere" } else { "" }),
            progress: None,
        };
        let ready = Ready { outgoing, policy: POLICY, pipelined: false, due_at: Instant::now(), link: None };
        let dead = Disposition::Dead { reason: "expired", spent: false, holds_key: true };
        let step = if id == DEAD { Step::Decided(dead, String::new()) } else { Step::Publish(Box::new(ready)) };
        (Pending { id, key_hash, bytes: 1, attempts: 0, takeovers: 0 }, step)
    });
    ReadClaim { claimed, messages: messages.collect() }
}

/// Returns the batches of a pipelined sink for claims with these leases, messages and keys. Also returns the claims
/// that may leave messages behind.
async fn published(claims: &[(Duration, &[(u64, u64)])]) -> (Vec<Vec<u64>>, Vec<u64>) {
    published_to(Slow::new(KeyOrder::Pipelined), claims).await
}

/// Returns the batch sizes of a sink for messages without keys.
async fn sizes_of(sink: Arc<Slow>, messages: impl Iterator<Item = u64>) -> Vec<usize> {
    let messages: Vec<_> = messages.map(|id| (id, 0)).collect();
    published_to(sink, &[(LONG, &messages)]).await.0.iter().map(Vec::len).collect()
}

async fn sizes(order: KeyOrder, messages: impl Iterator<Item = u64>) -> Vec<usize> {
    sizes_of(Slow::new(order), messages).await
}

async fn published_to(sink: Arc<Slow>, claims: &[(Duration, &[(u64, u64)])]) -> (Vec<Vec<u64>>, Vec<u64>) {
    published_by(&Context::without_database(), sink, claims).await
}

async fn published_by(
    context: &Arc<Context>,
    sink: Arc<Slow>,
    claims: &[(Duration, &[(u64, u64)])],
) -> (Vec<Vec<u64>>, Vec<u64>) {
    let mut read = Vec::new();
    for (claim_id, (lease, messages)) in (1..).zip(claims) {
        read.push(claim(context, claim_id, *lease, messages).await);
    }
    let ((events, connected), (open, mut is_open)) = (mpsc::unbounded_channel(), watch::channel(false));
    let (finished, _at_the_settlers) = mpsc::unbounded_channel();
    let (_settlers, settled) = mpsc::unbounded_channel();
    let slow: Arc<dyn Sink> = Arc::<Slow>::clone(&sink);
    let (batches, batch) = if sink.is_stuck { (2, 100) } else { (1, 10) };
    let feed = Feed { name: "slow".into(), sink: slow, batches, batch };
    let outlets = Outlets::new(context, vec![feed], events, open);
    let publisher = Publisher::new(context, outlets, finished);
    let all_there = Arc::clone(&sink);
    let reads = stream::once(async move { is_open.wait_for(|open| *open).await.map(|_| ()) })
        .filter_map(|_| future::ready(None))
        .chain(stream::iter(read))
        .chain(stream::poll_fn(move |_| {
            all_there.answer.notify_one();
            std::task::Poll::Ready(None)
        }));
    publisher.run(reads.boxed(), connected, settled).await;
    let returning = context.leases.all().into_iter().filter(|tenure| tenure.may_return());
    let returning = returning.map(|tenure| tenure.lease.claim_id).collect();
    (std::mem::take(&mut sink.batches.lock()), returning)
}

/// Returns the outcome of a message with many attempts whose sink is down, with this number of sinks.
fn in_an_outage(sinks: usize) -> Disposition {
    let context = Context::without_database();
    let ((events, _connected), (open, _is_open)) = (mpsc::unbounded_channel(), watch::channel(false));
    let (finished, _at_the_settlers) = mpsc::unbounded_channel();
    let feed = |n: usize| Feed { name: n.to_string(), sink: Slow::new(KeyOrder::Pipelined), batches: 1, batch: 10 };
    let outlets = Outlets::new(&context, (0..sinks).map(feed).collect(), events, open);
    let mut publisher = Publisher::new(&context, outlets, finished);
    let lease = ClaimLease { claim_id: 1, lease_token: 1 };
    let origin = Origin { key: (0, 7), lease, pass: 1, id: 1 };
    let due_at = Instant::now();
    let tag = Tag { origin, attempts: u16::MAX, policy: POLICY, pipelined: false, alone: true, due_at, outlet: 0 };
    publisher.disposition(tag, &destination(""), &PublishError::Unavailable("down".into()))
}

const LONG: Duration = Duration::from_secs(600);
/// Not over yet, but shorter than a publish may take.
const SHORT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn what_waits_in_a_queue_behind_a_failure_of_its_key_is_not_published() {
    let claims: [(_, &[_]); 2] = [(LONG, &[(1, 7), (2, 8)]), (LONG, &[(3, 7), (4, 8), (5, 0)])];
    assert_eq!(published(&claims).await, (vec![vec![1, 2], vec![4, 5]], vec![1, 2]));
}

#[tokio::test]
async fn what_follows_a_message_whose_lease_is_too_short_is_not_published() {
    let claims: [(_, &[_]); 3] = [(LONG, &[(1, 6)]), (SHORT, &[(2, 7), (3, 0)]), (LONG, &[(4, 7), (5, 8), (6, 0)])];
    assert_eq!(published(&claims).await, (vec![vec![1], vec![5, 6]], vec![1, 2, 3]));
}

#[tokio::test]
async fn what_its_destination_would_refuse_is_not_published_nor_what_follows_it_in_its_key() {
    let claims: [(_, &[_]); 2] = [(LONG, &[(1, 6), (100, 7)]), (LONG, &[(2, 8), (101, 9), (3, 9), (102, 0), (4, 0)])];
    assert_eq!(published(&claims).await, (vec![vec![1, 100], vec![2, 4]], vec![1, 2]));
}

#[tokio::test]
async fn a_message_that_is_dead_before_it_is_published_holds_back_what_comes_after_it() {
    let claims: [(_, &[_]); 1] = [(LONG, &[(1, 6), (2, 7), (3, 7), (DEAD, 7), (DEAD + 1, 7)])];
    let published = published_to(Slow::new(KeyOrder::OneInFlight), &claims).await;
    assert_eq!(published, (vec![vec![1, 2], vec![3]], vec![1]));
}

/// Here the first batch reports its first message as unconfirmed.
#[tokio::test]
async fn a_message_that_was_sent_reads_the_queue_of_its_key_on() {
    let wanted = async |order, messages: &[(u64, u64)]| {
        let context = Context::without_database();
        published_by(&context, Slow::new(order), &[(LONG, messages)]).await;
        context.queues.take_wanted(9)
    };
    let next = |above, rows| vec![((0, QUEUED), Wanted { above, rows })];
    assert_eq!(wanted(KeyOrder::OneInFlight, &[(1, 6), (2, QUEUED), (3, QUEUED)]).await, next(2, queues::AT_ONCE));
    assert_eq!(
        wanted(KeyOrder::Pipelined, &[(1, 6), (2, QUEUED), (3, QUEUED)]).await,
        next(2, crate::settings::Config::default().relay.claim_messages)
    );
    // With many messages in flight, the next ones are fetched once few are left.
    let many: Vec<_> = [(1, 6)].into_iter().chain((2..=90).map(|id| (id, QUEUED))).collect();
    assert_eq!(wanted(KeyOrder::OneInFlight, &many).await, next(90 - queues::FEW as u64, queues::AT_ONCE));
    // After a message that was not sent, the settlement asks.
    assert_eq!(wanted(KeyOrder::OneInFlight, &[(1, QUEUED), (2, QUEUED)]).await, []);
}

#[tokio::test]
async fn a_sink_that_confirms_nothing_in_time_gets_less_at_a_time_and_more_again() {
    assert_eq!(sizes(KeyOrder::Pipelined, 1..=40).await, [10, 1, 1, 1, 1, 2, 3, 4, 6, 9, 1, 1]);
}

/// The first room has 64 messages.
#[tokio::test]
async fn a_confirm_makes_room_before_its_batch_ends() {
    let mut sink = Slow::new(KeyOrder::Pipelined);
    Arc::get_mut(&mut sink).unwrap().is_stuck = true;
    assert_eq!(sizes_of(sink, 1..=80).await, [64, 16, 0], "the first batch ends behind the second");
}

#[tokio::test]
async fn what_a_sink_refuses_at_once_makes_no_room() {
    for order in [KeyOrder::OneInFlight, KeyOrder::Pipelined] {
        let sizes = sizes(order, (1..=10).chain(REFUSED..REFUSED + 5)).await;
        assert_eq!(sizes, [vec![10], vec![1; 5]].concat());
    }
}

#[tokio::test]
async fn an_outage_spends_no_attempt_whatever_other_sinks_there_are() {
    assert_eq!(in_an_outage(1), Disposition::Release);
    assert!(matches!(in_an_outage(2), Disposition::Delay { spent: false, .. }));
}
