//! When the publisher hears that a part is settled.

use super::*;

/// An open tail that has taken one row, and settled it in this claim's place. Returns the part, too, and the
/// publisher's ear.
fn settled(shown_before: u64) -> (Tail, ClaimLease, mpsc::UnboundedReceiver<Settled>) {
    let lease = |claim_id| ClaimLease { claim_id, lease_token: 1 };
    let claim = |claim_id, mark| TailClaim { lease: lease(claim_id), kind: ClaimKind::Open, mark };
    let ((finished, _), (settled, told)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let context = Context::without_database();
    let tail =
        Tail::new(&context, (0, claim(7, 100)), Instant::now(), (finished, settled), &Arc::new(AtomicU64::new(3)));
    tail.state.lock().phase = TailPhase::Open;
    let row = Pending { id: 1, key_hash: 5, bytes: 1, attempts: 0, takeovers: 0 };
    let part = tail.take(&[row], Vec::new()).unwrap().0.lease;
    tail.showed(shown_before);
    let sent = SentPart { mark: Some(101), at: Instant::now(), parts: vec![part] };
    tail.state.lock().sent.push(sent);
    tail.became(&FoundTail { is_settled: true, claim: Some(claim(8, 101)) }, &[]);
    tail.closed(part);
    (tail, part, told)
}

#[test]
fn a_part_is_told_once_the_log_has_shown_its_settlement() {
    let (tail, part, mut told) = settled(6);
    assert!(told.try_recv().is_err(), "rows from before the settlement may still come");
    tail.last_pass.store(9, Ordering::Release);
    tail.showed(7);
    let Settled { lease, pass } = told.try_recv().unwrap();
    assert_eq!((lease, pass), (part, 9));
    tail.showed(8);
    assert!(told.try_recv().is_err(), "it was told twice");
}

#[test]
fn a_settlement_that_the_log_has_shown_before_its_reply_is_told_at_the_reply() {
    let (_tail, part, mut told) = settled(7);
    assert_eq!(told.try_recv().unwrap().lease, part);
}

#[test]
fn the_end_of_a_tail_tells_what_the_log_has_not_shown() {
    let (tail, part, mut told) = settled(0);
    tail.end("stop");
    assert_eq!(told.try_recv().unwrap().lease, part);
}
