//! The way back: what becomes of a message after its batch, and of the later ones of its key.

use std::{sync::Arc, time::Instant};

use outbox_core::store::claim::lease::ClaimLease;

use super::{
    Publisher,
    batch::Done,
    chains::Origin,
    item::{InFlight, Item, Tag},
};
use crate::{
    pipeline::{
        retry::{self, Disposition},
        settle::Finished,
    },
    sink::{Destination, Outcome, PublishError},
    state::{
        crash,
        queues::{self, Wanted},
    },
};

impl Publisher {
    pub(super) fn done(&mut self, done: Done) {
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

    pub(super) fn disposition(
        &mut self,
        tag: Tag,
        destination: &Arc<Destination>,
        error: &PublishError,
    ) -> Disposition {
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
    pub(super) fn fail(&mut self, tag: Tag, disposition: Disposition, error: String) {
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
    pub(super) fn queue_stays(&mut self, origin: Origin) {
        if let Some(claim) = self.claims.get_mut(&origin.lease)
            && !claim.queued.contains(&origin.key.1)
        {
            claim.queued.push(origin.key.1);
        }
    }

    pub(super) fn finish(&mut self, Origin { lease, id, .. }: Origin, disposition: Disposition, error: String) {
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
}
