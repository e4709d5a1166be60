//! The publisher: hands messages to the sinks in the order of their keys, and notes the outcome of each.

pub(crate) mod batch;
pub mod chains;
pub(crate) mod destination;
pub(crate) mod item;
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
    sink::{Destination, KeyOrder, Outcome, PublishError},
    state::{
        context::Context,
        crash,
        queues::{self, LaneKey, Wanted},
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
        let (mut more, hurry) = (true, self.context.hurry.clone());
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

    fn done(&mut self, done: Done) {
        crash::point("after_publish");
        self.outlets.note(&done);
        self.outlets.refused().into_iter().for_each(|item| self.refuse(item.tag));
        let confirmed =
            done.outcomes.iter().filter(|(.., outcome)| outcome.is_ok()).map(|(_, destination, _)| destination);
        self.destinations.took(confirmed, Instant::now());
        let late = done.is_late(self.context.config.relay.publish_deadline).then_some(done.started);
        for (tag, destination, outcome) in done.outcomes {
            self.outcome(tag, &destination, outcome, late);
        }
    }

    /// Acts on the outcome of a message. `late` is the start of its batch, if the batch ran into the deadline.
    fn outcome(&mut self, tag: Tag, destination: &Arc<Destination>, outcome: Outcome, late: Option<Instant>) {
        if let Some(trace) = self.claims.get_mut(&tag.origin.lease).and_then(|claim| claim.trace.as_mut()) {
            trace.done(tag.origin.id);
        }
        match outcome {
            Ok(receipt) => {
                if let Some(claim) = self.claims.get_mut(&tag.origin.lease) {
                    claim.settlement.sent.push((tag.origin.id, receipt.place));
                }
                self.read_on(tag);
                self.close(tag.origin.lease);
                self.advance(tag);
            }
            Err(error) => {
                if let (PublishError::Unconfirmed(_), Some(since)) = (&error, late) {
                    self.destinations.confirmed_nothing(destination, since, &error.to_string(), Instant::now());
                }
                let disposition = self.disposition(tag, destination, &error);
                tracing::debug!(id = tag.origin.id, %error, ?disposition, "a message was not published");
                self.fail(tag, disposition, format!("{destination}: {error}"));
            }
        }
    }

    fn disposition(&mut self, tag: Tag, destination: &Arc<Destination>, error: &PublishError) -> Disposition {
        if matches!(error, PublishError::Unavailable(_)) {
            return self.outlets.when_unavailable(tag.outlet);
        }
        if let PublishError::Unroutable { reason, detail } = error
            && let Some(held) = self.destinations.refused(destination, reason, detail, Instant::now())
        {
            return held.disposition();
        }
        retry::decide(error, tag.attempts, tag.policy, rand::random())
    }

    /// Notes a message that was not sent, and the effect on later messages of its key.
    fn fail(&mut self, tag: Tag, disposition: Disposition, error: String) {
        match retry::behind(&disposition) {
            Some(fate) => self.block(tag.origin, &fate),
            None => self.advance(tag),
        }
        self.finish(tag.origin, disposition, error);
    }

    /// Gives messages behind an unsent one its outcome, in its chain and in the queue of an outlet.
    fn block(&mut self, origin: Origin, fate: &Disposition) {
        let mut behind: Vec<Item> = self.chains.block(origin, fate).into();
        if behind.len() >= queues::AT_ONCE {
            self.context.queues.crowd(origin.key, false);
        }
        if origin.key.1 != 0 {
            behind.extend(self.outlets.take(|tag| tag.origin.key == origin.key && tag.origin.id > origin.id));
        }
        for item in behind {
            // The waiting message's own claim must hold the block as well.
            self.chains.block(item.tag.origin, fate);
            if item.tag.origin.lease != origin.lease {
                self.queue_stays(item.tag.origin);
            }
            self.finish(item.tag.origin, *fate, String::new());
        }
    }

    fn advance(&mut self, tag: Tag) {
        let mut alone = !tag.alone;
        while !alone && let Some(next) = self.chains.advance(tag.origin.key) {
            if self.chains.waiting_of(tag.origin.key) + 1 == queues::AT_ONCE {
                self.context.queues.crowd(tag.origin.key, false);
            }
            // A sink may keep the order from now on.
            let next = self.ordered(next);
            alone = next.tag.alone;
            self.queue(next);
        }
    }

    /// Fetches the next messages from a key's queue after a confirmation, if few are left in flight.
    fn read_on(&mut self, tag: Tag) {
        let Origin { key, lease, id, .. } = tag.origin;
        let Some(claim) = self.claims.get_mut(&lease).filter(|claim| claim.queued.contains(&key.1)) else { return };
        if self.chains.waiting_of(key) > queues::FEW {
            return;
        }
        claim.queued.retain(|queued| *queued != key.1);
        let rows = if tag.alone { queues::AT_ONCE } else { self.context.config.relay.claim_messages };
        self.context.queues.want(key, Wanted { above: id, rows });
    }

    /// Notes that a message goes into the queue of its key with another claim than the message before it. If that claim
    /// is settled first, only the settlement of this one can read the queue on.
    fn queue_stays(&mut self, origin: Origin) {
        if let Some(claim) = self.claims.get_mut(&origin.lease)
            && !claim.queued.contains(&origin.key.1)
        {
            claim.queued.push(origin.key.1);
        }
    }

    fn finish(&mut self, Origin { lease, id, .. }: Origin, disposition: Disposition, error: String) {
        let Some(claim) = self.claims.get_mut(&lease) else { return };
        disposition.note(&mut claim.settlement, id, error);
        self.close(lease);
    }

    /// Notes the outcome of one open message; the last one finishes the claim.
    fn close(&mut self, lease: ClaimLease) {
        let Some(claim) = self.claims.get_mut(&lease) else { return };
        claim.open -= 1;
        self.context.metrics.in_flight_messages.dec();
        if claim.open > 0 {
            return;
        }
        let Some(InFlight { claimed, mut settlement, queued, trace, .. }) = self.claims.remove(&lease) else { return };
        settlement.sent.sort_unstable_by_key(|(id, _)| *id);
        // The settlers outlive the publisher.
        let settler = claimed.settler.clone();
        let finished = Finished::new(claimed, settlement, queued, trace);
        settler.as_ref().unwrap_or(&self.finished).send(finished).ok();
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
