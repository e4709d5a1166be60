use std::{future, sync::Mutex, time::Duration};

use async_trait::async_trait;
use futures_util::stream;
use outbox_core::store::lease::Lease;
use tokio::sync::{Notify, Semaphore, watch};
use uuid::Uuid;

use super::*;
use crate::{
    config::{AfterDead, OnRejected},
    leases::{Tenure, lock},
    outlet::Feed,
    read::Ready,
    run::without_database,
    sink::{Destination, KeyOrder, Receipt, Sink},
};

/// What the sink takes in time.
const TAKES: usize = 8;

/// Answers its first batch when everything is there: that its first message is unconfirmed and the others have arrived. Of a batch
/// that is too much for it nothing is confirmed.
#[derive(Default)]
struct Slow {
    answer: Notify,
    batches: Mutex<Vec<Vec<u64>>>,
}

#[async_trait]
impl Sink for Slow {
    fn key_order(&self) -> KeyOrder {
        KeyOrder::Pipelined
    }

    async fn publish(&self, batch: &[Outgoing], deadline: Instant) -> Vec<Outcome> {
        let first = {
            let mut batches = lock(&self.batches);
            batches.push(batch.iter().map(|message| message.message_id.as_u64_pair().1).collect());
            batches.len() == 1
        };
        if first {
            self.answer.notified().await;
        }
        if batch.len() > TAKES {
            tokio::time::sleep_until(deadline.into()).await;
        }
        let late = |index| batch.len() > TAKES || (first && index == 0);
        let unconfirmed = || Err(PublishError::Unconfirmed("no reply".into()));
        let outcome = |index| if late(index) { unconfirmed() } else { Ok(Receipt::new("there")) };
        (0..batch.len()).map(outcome).collect()
    }

    async fn check(&self, _deadline: Instant) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

const POLICY: Policy = Policy { on_rejected: OnRejected::Dead, after_dead: AfterDead::Skip };

async fn claim(context: &Context, claim_id: u64, lease: Duration, messages: &[(u64, u64)]) -> ReadClaim {
    let until = Instant::now() + lease;
    let lease = Lease { claim_id, lease_token: 1 };
    let tenure = Arc::new(Tenure::new(lease, 0, Vec::new(), Vec::new(), until));
    context.leases.insert(&tenure);
    let permit = async || Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
    let (count, bytes) = (permit().await, permit().await);
    let claimed = Claimed { tenure, pass: claim_id, last_pass: Arc::default(), rows: Vec::new(), count, bytes };
    let messages = messages.iter().map(|&(id, key_hash)| {
        let destination = Destination { sink: "slow".into(), target: "t".into(), routing_key: String::new() };
        let outgoing = Outgoing {
            message_id: Uuid::from_u64_pair(0, id),
            key_hash,
            topic: "t".into(),
            key: None,
            event_type: None,
            content_type: None,
            headers: Vec::new(),
            payload: None,
            created_at_micros: 0,
            destination: Arc::new(destination),
        };
        let ready = Ready { outgoing, policy: POLICY, pipelined: false, created_at: Instant::now() };
        (Pending { id, key_hash, bytes: 1, attempts: 0 }, Step::Publish(Box::new(ready)))
    });
    ReadClaim { claimed, messages: messages.collect() }
}

/// What the sink got of claims with these leases and these messages and keys, and from which of them something goes back.
async fn published(claims: &[(Duration, &[(u64, u64)])]) -> (Vec<Vec<u64>>, Vec<u64>) {
    let sink = Arc::new(Slow::default());
    let context = without_database(Vec::new()).context;
    let mut read = Vec::new();
    for (claim_id, (lease, messages)) in (1..).zip(claims) {
        read.push(claim(&context, claim_id, *lease, messages).await);
    }
    let ((events, connected), (open, mut is_open)) = (mpsc::unbounded_channel(), watch::channel(false));
    let (finished, _at_the_settlers) = mpsc::unbounded_channel();
    let (_settlers, settled) = mpsc::unbounded_channel();
    let slow: Arc<dyn Sink> = Arc::<Slow>::clone(&sink);
    let feed = Feed { name: "slow".into(), sink: slow, batches: 1, batch: 10 };
    let outlets = Outlets::new(&context, vec![feed], events, open);
    let publisher = Publisher::new(&context, outlets, finished);
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
    (std::mem::take(&mut lock(&sink.batches)), returning)
}

/// What becomes of a message, however often it was tried, where there are so many sinks and its own is down.
fn in_an_outage(sinks: usize) -> Disposition {
    let context = without_database(Vec::new()).context;
    let ((events, _connected), (open, _is_open)) = (mpsc::unbounded_channel(), watch::channel(false));
    let (finished, _at_the_settlers) = mpsc::unbounded_channel();
    let feed = |n: usize| Feed { name: n.to_string(), sink: Arc::new(Slow::default()), batches: 1, batch: 10 };
    let outlets = Outlets::new(&context, (0..sinks).map(feed).collect(), events, open);
    let publisher = Publisher::new(&context, outlets, finished);
    let (origin, created_at) = (Origin { key: (0, 7), claim_id: 1, pass: 1 }, Instant::now());
    let tag = Tag { origin, id: 1, attempts: u16::MAX, policy: POLICY, alone: true, created_at, outlet: 0 };
    publisher.disposition(tag, &PublishError::Unavailable("down".into()))
}

const LONG: Duration = Duration::from_secs(600);
/// Not over yet, but before an answer would be there.
const SHORT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn what_waits_in_a_queue_behind_a_failure_of_its_key_is_not_published() {
    let claims: [(_, &[_]); 2] = [(LONG, &[(1, 7), (2, 8)]), (LONG, &[(3, 7), (4, 8), (5, 0)])];
    assert_eq!(published(&claims).await, (vec![vec![1, 2], vec![4, 5]], vec![]));
}

#[tokio::test]
async fn what_follows_a_message_whose_lease_is_too_short_is_not_published() {
    let claims: [(_, &[_]); 3] = [(LONG, &[(1, 6)]), (SHORT, &[(2, 7), (3, 0)]), (LONG, &[(4, 7), (5, 8), (6, 0)])];
    assert_eq!(published(&claims).await, (vec![vec![1], vec![5, 6]], vec![2, 3]));
}

#[tokio::test]
async fn a_sink_that_confirms_nothing_in_time_gets_less_at_a_time_and_more_again() {
    let messages: Vec<_> = (1..=40).map(|id| (id, 0)).collect();
    let (batches, _) = published(&[(LONG, &messages)]).await;
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [10, 5, 10, 5, 10]);
}

#[tokio::test]
async fn an_outage_spends_no_attempt_whatever_other_sinks_there_are() {
    assert_eq!(in_an_outage(1), Disposition::Release);
    assert!(matches!(in_an_outage(2), Disposition::Delay { spent: false, .. }));
}
