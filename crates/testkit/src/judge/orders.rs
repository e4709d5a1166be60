//! Compares the orders of operators with the findings: messages that were to arrive again, or not at all.

use std::collections::{BTreeMap, HashSet};

use uuid::Uuid;

use super::Report;

/// The jobs of operators that change what arrives.
#[derive(Debug, Clone, Default)]
pub struct Orders {
    /// The messages that jobs may have discarded.
    pub discardable: HashSet<Uuid>,
    /// The number that they have discarded, by their own count.
    pub discarded: u64,
    /// The number of messages that each replay has put back, by the number of its job.
    pub replayed: BTreeMap<String, u64>,
}

impl Report {
    /// Takes discarded messages out of the lost ones, if their jobs count as many. Each replay has delivered as many
    /// messages as its job counts.
    #[must_use]
    pub fn with_orders(mut self, orders: &Orders) -> Self {
        let before = self.lost.len();
        self.lost.retain(|id| !orders.discardable.contains(id));
        let gone = (before - self.lost.len()) as u64;
        let discarded = orders.discarded;
        self.check(gone == discarded, || format!("{gone} messages are gone, jobs discarded {discarded}"));
        let found = self.replayed.clone();
        let due = &orders.replayed;
        self.check(found == *due, || format!("replays delivered {found:?}, their jobs put back {due:?}"));
        self
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::REPLAY_HEADER;

    use super::{
        super::{
            Expectations,
            tests::{Run, arrival},
        },
        Orders,
    };

    /// A run in which job 7 has sent these messages again, in this order.
    fn replayed(messages: &[usize]) -> Run {
        let mut run = Run::good();
        for n in messages {
            let mut again = arrival(&run.drafts[*n]);
            again.headers.push((REPLAY_HEADER.to_owned(), "7".to_owned()));
            run.arrivals.push(again);
            run.tables.receipts.entry(run.id(*n)).or_default().push("orders/0@9".into());
        }
        run
    }

    fn job(messages: u64) -> Orders {
        Orders { replayed: [("7".to_owned(), messages)].into(), ..Orders::default() }
    }

    /// Returns the faults of a run with these orders; empty if there is none.
    fn wrong(run: &Run, orders: &Orders) -> String {
        let judged = run.judge().with_orders(orders).assert_ok(&Expectations::new());
        judged.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_replay_is_no_duplicate_and_delivers_what_its_job_counts() {
        let run = replayed(&[0, 2, 1]);
        assert_eq!(wrong(&run, &job(3)), "");
        assert!(wrong(&run, &job(4)).starts_with("metrics and ledger differ (1): replays delivered"));
        assert!(wrong(&run, &Orders::default()).contains("replays delivered"));
    }

    #[test]
    fn a_second_delivery_by_one_replay_is_a_duplicate() {
        let mut run = replayed(&[0]);
        run.arrivals.extend(run.arrivals.last().cloned());
        assert!(wrong(&run, &job(1)).starts_with("too many duplicates (1)"));
    }

    #[test]
    fn a_replay_that_is_out_of_order_changed_or_first_is_caught() {
        assert!(wrong(&replayed(&[2, 0]), &job(2)).contains("even: 2 arrived before 1 in replay 7"));
        let mut run = replayed(&[0]);
        run.arrivals[6].payload = None;
        assert!(wrong(&run, &job(1)).starts_with("changed on the way (1)"));
        let mut run = replayed(&[5]);
        run.arrivals.remove(5);
        assert!(wrong(&run, &job(1)).contains("has not arrived, and job 7 sent it again"));
    }

    #[test]
    fn discarded_messages_are_not_lost_if_their_jobs_count_them() {
        let mut run = Run::good();
        run.remove(5);
        run.tables.messages.remove(&run.id(5));
        let orders = |discarded| Orders { discardable: [run.id(5)].into(), discarded, ..Orders::default() };
        assert_eq!(wrong(&run, &orders(1)), "");
        assert!(wrong(&run, &orders(0)).contains("1 messages are gone, jobs discarded 0"));
        assert!(wrong(&run, &orders(2)).contains("1 messages are gone, jobs discarded 2"));
        let other = Orders { discardable: [run.id(4)].into(), ..Orders::default() };
        assert!(wrong(&run, &other).starts_with("lost (1)"));
    }
}
