//! The publisher: hands messages to the sinks in the order of their keys, and notes the outcome of each.

pub(crate) mod batch;
pub mod chains;
pub(crate) mod destination;
pub(crate) mod item;
mod outcome;
pub(crate) mod outlet;
mod room;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    stream::{BoxStream, FuturesUnordered},
};
use outbox_core::store::claim::{Pending, lease::ClaimLease};
use tokio::{sync::mpsc, task};

use self::{
    batch::{Batch, Done},
    chains::{ChainEntry, Chains, Origin},
    destination::Destinations,
    item::{InFlight, Item, Tag},
    outlet::Outlets,
};
use crate::{
    pipeline::{
        read::{ReadClaim, Ready, Step},
        retry::{self, DelayReason, Disposition},
        settle::{Finished, Settled},
    },
    sink::KeyOrder,
    state::{
        context::Context,
        crash,
        queues::{self, LaneKey},
    },
};

/// The pause between two looks whether the sinks have room for messages.
const LOOK: Duration = Duration::from_millis(10);

/// The publisher, owned by one task.
pub struct Publisher {
    context: Arc<Context>,
    outlets: Outlets,
    destinations: Destinations,
    claims: HashMap<ClaimLease, InFlight>,
    chains: Chains<Item>,
    publishing: FuturesUnordered<BoxFuture<'static, Done>>,
    finished: mpsc::UnboundedSender<Finished>,
}

impl Publisher {
    /// Creates a publisher that sends finished claims to the settlers.
    #[must_use]
    pub fn new(context: &Arc<Context>, outlets: Outlets, finished: mpsc::UnboundedSender<Finished>) -> Self {
        Self {
            context: Arc::clone(context),
            outlets,
            destinations: Destinations::new(context),
            claims: HashMap::new(),
            chains: Chains::default(),
            publishing: FuturesUnordered::new(),
            finished,
        }
    }

    /// Publishes until the claimers have stopped and everything in flight is finished.
    pub async fn run(
        mut self,
        mut reads: BoxStream<'static, ReadClaim>,
        mut reached: mpsc::UnboundedReceiver<usize>,
        mut settled: mpsc::UnboundedReceiver<Settled>,
    ) {
        let mut more = true;
        let hurry = self.context.hurry.clone();
        let mut minutes = tokio::time::interval(Duration::from_secs(60));
        while more || !self.claims.is_empty() {
            tokio::select! {
                Some(Settled { lease, pass }) = settled.recv() => self.chains.settled(lease, pass),
                Some(done) = self.publishing.next() => self.done(done),
                read = reads.next(), if more => match read {
                    Some(read) => self.accept(read),
                    None => more = false,
                },
                Some(outlet) = reached.recv() => {
                    self.outlets.up(outlet);
                    self.destinations.reached(self.outlets.name(outlet));
                }
                _ = minutes.tick() => self.destinations.forget(Instant::now()),
                () = tokio::time::sleep(LOOK), if self.outlets.want_room() => {}
                () = hurry.cancelled(), if self.waiting() => self.give_up(),
            }
            self.start();
        }
        self.outlets.close().await;
    }

    fn waiting(&self) -> bool {
        self.outlets.waiting() || self.chains.waiting()
    }

    /// Accepts a claim: notes the messages that need no publishing, and queues the rest.
    fn accept(&mut self, read: ReadClaim) {
        let ReadClaim { claimed, mut messages } = read;
        let lease = claimed.tenure.lease;
        let pass = claimed.pass;
        let lane = claimed.tenure.lane;
        self.chains.prune(lane, pass);
        self.context.metrics.in_flight_messages.add(i64::try_from(messages.len()).unwrap_or(0));
        self.claims.insert(lease, InFlight::new(claimed, &mut messages));
        for (row, step) in messages {
            let origin = Origin { key: (lane, row.key_hash), lease, pass, id: row.id };
            self.take(origin, row, step);
        }
    }

    fn take(&mut self, origin: Origin, row: Pending, step: Step) {
        match step {
            Step::Decided(disposition, error) => self.decided(origin, disposition, error),
            Step::Publish(ready) => {
                let outlet = self.outlets.find(&ready.outgoing.destination.sink);
                let Ready { outgoing, policy, pipelined, due_at, .. } = *ready;
                let attempts = row.attempts;
                let tag = Tag { origin, attempts, policy, pipelined, alone: false, due_at, outlet };
                self.admit(self.ordered(Item { outgoing, tag }));
            }
        }
    }

    /// Notes a message that is not to be published. It still has its place in the order of its key.
    fn decided(&mut self, origin: Origin, disposition: Disposition, error: String) {
        if let Some(fate) = retry::behind(&disposition) {
            self.chains.hold(origin, &fate);
        }
        self.finish(origin, disposition, error);
    }

    /// Notes whether no other message of its key may be in flight with a message.
    fn ordered(&self, mut item: Item) -> Item {
        let tag = &mut item.tag;
        let order = self.outlets.key_order(tag.outlet, &item.outgoing);
        tag.alone = match order {
            KeyOrder::FirstAlone => true,
            KeyOrder::OneInFlight => !tag.pipelined,
            KeyOrder::Pipelined => !tag.pipelined && tag.policy.rejection_holds_key(),
        };
        if tag.alone && tag.origin.key.1 != 0 && order != KeyOrder::FirstAlone {
            self.context.queues.go_one_by_one();
        }
        item
    }

    fn admit(&mut self, item: Item) {
        let tag = item.tag;
        match self.chains.admit(tag.origin, tag.alone, item) {
            ChainEntry::Go(item) => self.queue(item),
            ChainEntry::Queued => {
                if self.chains.waiting_of(tag.origin.key) == queues::AT_ONCE {
                    self.context.queues.crowd(tag.origin.key, true);
                }
            }
            ChainEntry::Blocked(_, fate) => {
                self.queue_stays(tag.origin);
                self.finish(tag.origin, fate, String::new());
            }
        }
    }

    fn queue(&mut self, item: Item) {
        let tag = item.tag;
        if self.context.hurry.is_cancelled() {
            self.fail(tag, Disposition::Release, "the relay is stopping".into());
        } else if !self.outlets.push(item) {
            self.refuse(tag);
        }
    }

    /// Gives a message whose sink is down its outcome.
    fn refuse(&mut self, tag: Tag) {
        let error = format!("{}: the sink is unavailable", self.outlets.name(tag.outlet));
        self.fail(tag, self.outlets.when_unavailable(tag.outlet), error);
    }

    /// Starts as many batches as the outlets take.
    fn start(&mut self) {
        while let Some(Batch { outlet, items, is_try }) = self.outlets.next_batch() {
            let (items, mut tries) = self.admitted(items);
            if !items.is_empty() {
                self.publish(Batch { outlet, items, is_try });
            }
            while let Some(first) = tries.first().map(|item| Arc::clone(&item.outgoing.destination)) {
                let (items, others) = tries.into_iter().partition(|item| item.outgoing.destination == first);
                self.publish(Batch { outlet, items, is_try: true });
                tries = others;
            }
        }
    }

    fn publish(&mut self, batch: Batch) {
        crash::point("before_publish");
        let mut publishing = self.outlets.publish(batch).boxed();
        // The first poll hands the batch in, before the next batch and before any failure that is not known here yet. A
        // sink assumes that its caller knows all outcomes it has returned by then.
        match task::unconstrained(publishing.as_mut()).now_or_never() {
            Some(done) => self.done(done),
            None => self.publishing.push(publishing),
        }
    }

    /// Leaves out messages that may outlast their lease, messages that their destination would refuse, and later
    /// messages of their keys. The second list goes out as tries.
    fn admitted(&mut self, items: Vec<Item>) -> (Vec<Item>, Vec<Item>) {
        let relay = &self.context.config.relay;
        let time = relay.under_lease();
        let now = Instant::now();
        // Keys with a message that is left out or goes out as a try, each with the outcome of the messages behind it.
        let mut held: HashMap<LaneKey, Disposition> = HashMap::new();
        let mut admitted = Vec::with_capacity(items.len());
        let mut tries = Vec::new();
        let mut left_out = Vec::new();
        for item in items {
            let Origin { key, lease, .. } = item.tag.origin;
            let lasts = self.claims.get(&lease).is_some_and(|claim| claim.claimed.tenure.lasts(time));
            let destination = &item.outgoing.destination;
            let admission = if let Some(fate) = held.get(&key) {
                Err((*fate, Arc::default()))
            } else if !lasts {
                Err((Disposition::Release, "the lease would not last".into()))
            } else if let Some(pause) = self.context.controls.of(destination) {
                let wait = pause.wait(now);
                Err((Disposition::Delay { wait, spent: false, reason: DelayReason::Paused }, pause.why))
            } else {
                self.destinations.admit(destination, now).map_err(|held| (held.disposition(), held.error))
            };
            let fate = match admission {
                Ok(destination::Sending::Go) => {
                    admitted.push(item);
                    continue;
                }
                Ok(destination::Sending::Try) => {
                    tries.push(item);
                    Disposition::Release
                }
                Err((fate, why)) => {
                    left_out.push((item.tag, fate, why));
                    fate
                }
            };
            if let Some(fate) = retry::behind(&fate).filter(|_| key.1 != 0) {
                held.insert(key, fate);
            }
        }
        for (tag, fate, why) in left_out {
            if fate == Disposition::Behind {
                self.queue_stays(tag.origin);
            }
            self.fail(tag, fate, (*why).to_owned());
        }
        (admitted, tries)
    }

    /// Releases what has not started, because the deadline of the stop is near.
    fn give_up(&mut self) {
        let mut left = self.outlets.drain();
        left.extend(self.chains.drain());
        for item in left {
            self.fail(item.tag, Disposition::Release, "the relay is stopping".into());
        }
    }
}

#[cfg(test)]
mod tests;
