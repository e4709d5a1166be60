//! Forged runs: each has one fault, which the judge must find and name.

use std::collections::HashSet;

use uuid::Uuid;

use super::{Consumed, Expectations, Report, Totals, Usage, judge, judge_after_failover};
use crate::{
    consume::Arrival,
    database::Tables,
    ledger::{Draft, Entry, Ledger},
};

/// A run without faults: six messages of two keys, one rolled back.
pub(super) struct Run {
    pub(super) drafts: Vec<Draft>,
    ledger: Vec<Entry>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) tables: Tables,
    rolled_back: Draft,
}

impl Run {
    pub(super) fn good() -> Self {
        let draft = |n: u64| {
            let key = if n.is_multiple_of(2) { "even" } else { "odd" };
            Draft::new("orders", format!("payload {n}")).key(key, n / 2 + 1).header("n", &n.to_string())
        };
        let drafts: Vec<Draft> = (0..6).map(draft).collect();
        let rolled_back = Draft::new("orders", "never").key("even", 4);
        let ledger = Ledger::new();
        ledger.open(&drafts).committed();
        ledger.open(std::slice::from_ref(&rolled_back)).rolled_back();
        let mut tables = Tables::default();
        for draft in &drafts {
            tables.messages.insert(draft.id);
            tables.business.insert(draft.id);
            tables.effects.insert(draft.id, 1);
            tables.processed.insert(draft.id, 1);
            tables.receipts.insert(draft.id, vec!["orders/0@1".into()]);
        }
        let arrivals = drafts.iter().map(arrival).collect();
        Self { drafts, ledger: ledger.entries(), arrivals, tables, rolled_back }
    }

    pub(super) fn id(&self, n: usize) -> Uuid {
        self.drafts[n].id
    }

    pub(super) fn remove(&mut self, n: usize) {
        let id = self.id(n);
        self.arrivals.retain(|arrival| arrival.id != id);
        self.tables.receipts.remove(&id);
        self.tables.effects.remove(&id);
        self.tables.processed.remove(&id);
    }

    pub(super) fn judge(&self) -> Report {
        judge(&self.ledger, &self.arrivals, &self.tables)
    }

    fn complaint(&self, expected: &Expectations) -> String {
        self.judge().assert_ok(expected).unwrap_err().to_string()
    }
}

pub(super) fn arrival(draft: &Draft) -> Arrival {
    Arrival {
        id: draft.id,
        topic: draft.topic.clone(),
        outbox_topic: Some(draft.topic.clone()),
        key: draft.key.clone(),
        event_type: draft.event_type.clone(),
        content_type: draft.content_type.clone(),
        headers: draft.headers.clone(),
        payload: draft.payload.clone(),
        place: "0@1".into(),
        redelivered: false,
    }
}

fn names(complaint: &str, kind: &str) {
    assert!(complaint.lines().any(|line| line.starts_with(kind)), "`{kind}` is not named in:\n{complaint}");
    assert_eq!(complaint.lines().count(), 2, "one finding and the summary, and nothing else:\n{complaint}");
}

#[test]
fn a_good_run_is_good() {
    Run::good().judge().assert_ok(&Expectations::new().at_least(6)).unwrap();
}

#[test]
fn a_lost_message_is_caught() {
    let mut run = Run::good();
    run.remove(5);
    run.tables.messages.remove(&run.id(5));
    assert_eq!(run.judge().lost, [run.id(5)]);
    names(&run.complaint(&Expectations::new()), "lost (1)");
}

#[test]
fn a_message_that_was_marked_sent_and_never_arrived_is_lost() {
    let mut run = Run::good();
    let id = run.id(4);
    run.remove(4);
    run.tables.receipts.insert(id, vec!["orders/0@7".into()]);
    assert_eq!(run.judge().lost, [id]);
    assert!(run.complaint(&Expectations::new()).contains("marked sent, but it never arrived"));
}

#[test]
fn a_phantom_is_caught_wherever_it_shows() {
    let mut run = Run::good();
    run.arrivals.push(arrival(&run.rolled_back));
    names(&run.complaint(&Expectations::new()), "phantom (1)");
    let mut run = Run::good();
    run.tables.messages.insert(run.rolled_back.id);
    names(&run.complaint(&Expectations::new()), "phantom (1)");
    let mut run = Run::good();
    run.arrivals.push(arrival(&Draft::new("orders", "of nobody")));
    names(&run.complaint(&Expectations::new()), "phantom (1)");
}

#[test]
fn a_reordered_message_is_caught() {
    let mut run = Run::good();
    run.arrivals.swap(1, 3);
    assert_eq!(run.judge().order_violations, ["odd: 2 arrived before 1"]);
    names(&run.complaint(&Expectations::new()), "out of order (1)");
}

#[test]
fn messages_of_different_keys_have_no_order() {
    let mut run = Run::good();
    run.arrivals.swap(0, 1);
    run.judge().assert_ok(&Expectations::new()).unwrap();
}

#[test]
fn a_late_duplicate_is_no_reordering() {
    let mut run = Run::good();
    run.arrivals.push(arrival(&run.drafts[0]));
    assert_eq!(run.judge().duplicates, [run.id(0)]);
    assert!(run.judge().order_violations.is_empty());
    run.judge().assert_ok(&Expectations::new().duplicates(1)).unwrap();
    names(&run.complaint(&Expectations::new()), "too many duplicates (1)");
}

#[test]
fn a_duplicate_where_none_was_due_is_caught() {
    let mut run = Run::good();
    run.arrivals.push(arrival(&run.drafts[0]));
    run.judge().assert_ok(&Expectations::new().duplicates_among([run.id(0)])).unwrap();
    let elsewhere = Expectations::new().duplicates_among([run.id(1)]);
    names(&run.complaint(&elsewhere), "a duplicate where none was due (1)");
    run.judge().assert_ok(&elsewhere.late(1)).unwrap();
    run.judge().assert_ok(&Expectations::new().late(1)).unwrap();
}

#[test]
fn a_take_over_is_late_only_where_a_relay_lost_its_own_claims() {
    let announced = [("takeover".to_owned(), 5), ("unconfirmed".to_owned(), 2), ("resent".to_owned(), 1)];
    let totals = Totals { announced: announced.into(), ..totals() };
    assert_eq!(totals.late(), 3);
    assert_eq!(Totals { fenced: 1, ..totals }.late(), 8);
}

#[test]
fn what_the_broker_repeats_by_itself_is_no_duplicate() {
    let mut run = Run::good();
    run.arrivals.push(Arrival { redelivered: true, ..arrival(&run.drafts[0]) });
    assert_eq!(run.judge().redelivered, 1);
    run.judge().assert_ok(&Expectations::new()).unwrap();
}

type Flip = (&'static str, fn(&mut Arrival));

#[test]
fn a_flipped_bit_is_caught_in_every_part() {
    let flips: [Flip; 6] = [
        ("payload", |arrival| arrival.payload.as_mut().unwrap()[3] ^= 1),
        ("payload", |arrival| arrival.payload = None),
        ("key", |arrival| arrival.key = Some("oDd".into())),
        ("headers", |arrival| arrival.headers[0].1.push(' ')),
        ("event type", |arrival| arrival.event_type = Some(String::new())),
        ("content type", |arrival| arrival.content_type = Some(String::new())),
    ];
    for (part, flip) in flips {
        let mut run = Run::good();
        flip(&mut run.arrivals[5]);
        assert_eq!(run.judge().mismatched, [format!("{}: {part}", run.id(5))]);
        names(&run.complaint(&Expectations::new()), "changed on the way (1)");
    }
}

#[test]
fn an_empty_payload_is_no_tombstone() {
    let mut run = Run::good();
    let empty = Draft::new("orders", "");
    let ledger = Ledger::new();
    ledger.open(std::slice::from_ref(&empty)).committed();
    run.ledger.extend(ledger.entries());
    run.arrivals.push(arrival(&empty.clone().tombstone()));
    run.tables.business.insert(empty.id);
    run.tables.effects.insert(empty.id, 1);
    run.tables.processed.insert(empty.id, 1);
    names(&run.complaint(&Expectations::new()), "changed on the way (1)");
}

#[test]
fn a_double_effect_and_a_missing_one_are_caught() {
    for times in [0, 2] {
        let mut run = Run::good();
        run.tables.effects.insert(run.id(2), times);
        assert_eq!(run.judge().effects, [format!("{}: {times} effects and 1 rows in the inbox, 1 due", run.id(2))]);
        names(&run.complaint(&Expectations::new()), "wrong number of effects (1)");
    }
}

#[test]
fn a_consumer_that_marks_and_does_nothing_is_caught() {
    let mut run = Run::good();
    run.tables.effects.clear();
    assert_eq!(run.judge().effects.len(), 6);
    names(&run.complaint(&Expectations::new()), "wrong number of effects (6)");
}

#[test]
fn an_effect_without_its_row_in_the_inbox_is_caught() {
    let mut run = Run::good();
    run.tables.processed.remove(&run.id(2));
    assert_eq!(run.judge().effects, [format!("{}: 1 effects and 0 rows in the inbox, 1 due", run.id(2))]);
    names(&run.complaint(&Expectations::new()), "wrong number of effects (1)");
}

#[test]
fn an_empty_run_is_caught() {
    let report = judge(&[], &[], &Tables::default());
    assert!(report.assert_ok(&Expectations::new().at_least(0)).is_err());
    let run = Run::good();
    names(&run.complaint(&Expectations::new().at_least(7)), "nothing shown: 6 messages, at least 7 due");
    names(&run.complaint(&Expectations::new().witness("a take-over", false)), "nothing shown: a take-over");
    run.judge().assert_ok(&Expectations::new().witness("a take-over", true)).unwrap();
}

#[test]
fn a_visible_message_is_not_lost_but_must_be_expected() {
    let mut run = Run::good();
    run.remove(4);
    run.tables.delayed.insert(run.id(4));
    names(&run.complaint(&Expectations::new()), "still waiting (1)");
    run.judge().assert_ok(&Expectations::new().waiting([run.id(4)])).unwrap();
    run.tables.delayed = HashSet::new();
    run.tables.dead.insert(run.id(4), "too_large".into());
    names(&run.complaint(&Expectations::new()), "dead (1)");
    run.judge().assert_ok(&Expectations::new().dead([run.id(4)])).unwrap();
    names(&Run::good().complaint(&Expectations::new().dead([run.id(4)])), "not dead (1)");
}

#[test]
fn a_message_that_was_settled_twice_is_caught() {
    let mut run = Run::good();
    let id = run.id(1);
    run.tables.receipts.insert(id, vec!["orders/0@1".into(), "orders/0@2".into()]);
    names(&run.complaint(&Expectations::new()), "wrong state (1)");
    run.tables.receipts.remove(&id);
    names(&run.complaint(&Expectations::new()), "wrong state (1)");
}

#[test]
fn a_torn_transaction_is_caught() {
    let mut run = Run::good();
    run.tables.business.remove(&run.id(3));
    names(&run.complaint(&Expectations::new()), "torn transaction (1)");
    let mut run = Run::good();
    run.tables.business.insert(run.rolled_back.id);
    names(&run.complaint(&Expectations::new()), "torn transaction (1)");
}

#[test]
fn a_gap_in_a_sequence_is_caught() {
    let mut run = Run::good();
    let id = run.id(2);
    run.remove(2);
    run.ledger.retain(|entry| entry.id != id);
    run.tables.messages.remove(&id);
    assert_eq!(run.judge().gaps, ["even: 3 follows 1"]);
    names(&run.complaint(&Expectations::new()), "gap in a sequence (1)");
}

#[test]
fn an_unknown_outcome_is_what_the_business_row_says() {
    let mut run = Run::good();
    let ledger = Ledger::new();
    let drafts = [Draft::new("orders", "a"), Draft::new("orders", "b")];
    let opened = ledger.open(&drafts);
    opened.unknown();
    run.ledger.extend(ledger.entries());
    run.tables.business.insert(drafts[0].id);
    assert_eq!(run.judge().lost, [drafts[0].id]);
    run.arrivals.push(arrival(&drafts[1]));
    assert_eq!(run.judge().phantoms.len(), 1);
}

/// The counts of the good run's relays.
fn totals() -> Totals {
    Totals { attempts: 6, published: 6, complete: true, ..Totals::default() }
}

#[test]
fn a_metric_off_by_one_is_caught() {
    let judged = |totals: &Totals| Run::good().judge().with_totals(totals).assert_ok(&Expectations::new());
    judged(&totals()).unwrap();
    let off = [
        Totals { published: 5, ..totals() },
        Totals { published: 7, attempts: 7, ..totals() },
        Totals { dead: [("invalid".to_owned(), 1)].into(), ..totals() },
    ];
    for totals in off {
        names(&judged(&totals).unwrap_err().to_string(), "metrics and ledger differ (1)");
    }
    // Counts read before a relay was killed are lower than its real counts.
    judged(&Totals { published: 5, complete: false, ..totals() }).unwrap();
    let uncertain = Totals { published: 5, uncertain: 1, ..totals() };
    judged(&uncertain).unwrap();
}

#[test]
fn a_duplicate_that_no_relay_announced_is_caught() {
    let mut run = Run::good();
    run.arrivals.push(arrival(&run.drafts[0]));
    let totals = Totals { attempts: 7, published: 7, ..totals() };
    let expected = Expectations::new().duplicates(1);
    let complaint = run.judge().with_totals(&totals).assert_ok(&expected).unwrap_err().to_string();
    names(&complaint, "metrics and ledger differ (1)");
    let totals = Totals { announced: [("takeover".to_owned(), 1)].into(), ..totals };
    run.judge().with_totals(&totals).assert_ok(&expected).unwrap();
}

#[test]
fn consumers_that_count_other_than_there_are_effects_are_caught() {
    let judged =
        |consumed: &Consumed| Run::good().judge().with_consumed(consumed, 6, 7).assert_ok(&Expectations::new());
    let good = Consumed { first: 6, duplicate: 1, complete: true, ..Consumed::default() };
    judged(&good).unwrap();
    judged(&Consumed { first: 5, duplicate: 2, failed: 1, ..good.clone() }).unwrap();
    judged(&Consumed { first: 3, duplicate: 0, complete: false, ..good.clone() }).unwrap();
    let wrong = [
        Consumed { first: 7, ..good.clone() },
        Consumed { first: 7, complete: false, ..good.clone() },
        Consumed { first: 5, duplicate: 2, ..good.clone() },
        Consumed { first: 4, duplicate: 3, failed: 1, ..good.clone() },
        Consumed { duplicate: 0, ..good.clone() },
        Consumed { refused: 1, ..good },
    ];
    for consumed in wrong {
        let complaint = judged(&consumed).unwrap_err().to_string();
        names(&complaint, "metrics and ledger differ (1)");
    }
}

#[test]
fn what_is_used_beyond_its_limit_is_caught() {
    let usage = |used| [Usage { what: "open descriptors".into(), used, limit: 64 }];
    Run::good().judge().with_usage(&usage(64)).assert_ok(&Expectations::new()).unwrap();
    let complaint = Run::good().judge().with_usage(&usage(65)).assert_ok(&Expectations::new()).unwrap_err();
    names(&complaint.to_string(), "beyond a limit (1)");
}

#[test]
fn a_payload_in_a_log_is_caught() {
    let judged = |page: &str| Run::good().judge().with_pages(&[page.to_owned()], &["canary"]);
    judged("published 3 messages").assert_ok(&Expectations::new()).unwrap();
    let complaint = judged("one line\npublished \"a canary\"").assert_ok(&Expectations::new()).unwrap_err();
    names(&complaint.to_string(), "secret or payload printed (1)");
}

#[test]
fn a_row_without_message_is_caught() {
    let mut run = Run::good();
    run.tables.orphans.push("outbox_pending: 7".into());
    names(&run.complaint(&Expectations::new()), "row without message (1)");
}

/// Its key continues with the number that the server assigns again.
#[test]
fn a_message_that_its_server_lost_is_named_and_no_other_is_excused() {
    let mut run = Run::good();
    let id = run.id(4);
    run.remove(4);
    let judged = |run: &Run| judge_after_failover(&run.ledger, &run.arrivals, &run.tables, [id]);
    assert_eq!(judged(&run).phantoms.len(), 1, "its rows are there");
    run.tables.messages.remove(&id);
    run.tables.business.remove(&id);
    assert_eq!(judged(&run).lost_by_server, [id]);
    judged(&run).assert_ok(&Expectations::new().at_least(5)).unwrap();
    run.remove(5);
    assert_eq!(judged(&run).lost, [run.id(5)]);
}
