//! The cases of the suite.

use std::{
    collections::HashMap,
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::join_all;
use tokio::{join, sync::Semaphore, task::yield_now};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Arrived, ConformanceError, Control, DEADLINE, Harness,
    messages::{Draft, comparable, expected, publish},
    tally::Tally,
};
use crate::sink::{Destination, GRACE, KeyOrder, Outcome, Outgoing, PublishError};

/// Most time until a broker that came back is in use again.
const RECOVERY: Duration = Duration::from_secs(30);
/// The time that one publish to a frozen broker may take.
const SILENCE: Duration = Duration::from_secs(3);
/// The number of batches in flight when the broker dies.
const PUBLISHERS: u32 = 4;

pub(super) async fn every_message_arrives_byte_equal(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let messages = all_kinds(&destination);
    all_sent(&publish(harness.sink(), &messages).await)?;
    let arrived = by_id(harness.arrived(&destination, messages.len()).await?);
    ensure!(arrived.len() == messages.len(), "{} of {} messages arrived", arrived.len(), messages.len());
    for message in &messages {
        let arrived = arrived.get(&message.message_id).context("a message did not arrive")?;
        ensure!(*arrived == expected(message), "sent {:?}, arrived {arrived:?}", expected(message));
    }
    Ok(())
}

fn all_kinds(destination: &Arc<Destination>) -> Vec<Outgoing> {
    let plain = || Draft::new(destination, "{\"a\":1}");
    let many = (0..200).fold(plain(), |draft, n| draft.header(&format!("name-{n}"), &format!("value {n}")));
    let drafts = vec![
        plain(),
        plain().key(b""),
        plain().key(b"a key"),
        plain().key(&[0, 255, 10, 13, 128]),
        Draft::new(destination, ""),
        Draft::new(destination, (0..=255).collect::<Vec<u8>>()),
        Draft::new(destination, vec![b'x'; 500_000]),
        plain().tombstone(),
        plain().tombstone().key(b"gone"),
        plain().described(&"t".repeat(255), "application/json"),
        plain().described("", ""),
        plain().header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        plain().header("empty", "").header("größe", "übergroß ☃\n\0\t").header("", "no name"),
        plain().header("twice", "2").header("once", "-").header("twice", "1"),
        many,
    ];
    drafts.into_iter().map(Draft::build).collect()
}

pub(super) async fn an_empty_batch_has_no_outcome(harness: &dyn Harness) -> Result<()> {
    let outcomes = harness.sink().publish(&[], Instant::now() + DEADLINE).await;
    ensure!(outcomes.is_empty(), "{} outcomes", outcomes.len());
    Ok(())
}

pub(super) async fn a_large_batch_arrives(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let messages: Vec<_> = (0..5000).map(|n| numbered(&destination, n, n)).collect();
    let outcomes = harness.sink().publish(&messages, Instant::now() + DEADLINE).await;
    all_arrived(harness, &destination, &messages, &outcomes).await
}

pub(super) async fn several_batches_are_in_flight(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let messages: Vec<_> = (0..2000).map(|n| numbered(&destination, n, n)).collect();
    let deadline = Instant::now() + DEADLINE;
    let in_flight = join_all(messages.chunks(100).map(|batch| harness.sink().publish(batch, deadline))).await;
    all_arrived(harness, &destination, &messages, &in_flight.concat()).await
}

pub(super) async fn keys_keep_their_order(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let messages: Vec<_> = (0..2000).map(|n| numbered(&destination, n, n % 20)).collect();
    let sink = harness.sink();
    // A sink that keeps the order from some message on may leave it to its caller at first.
    let (first, rest) = messages.split_at(messages.len() / 2);
    all_sent(&publish(sink, first).await)?;
    if rest.iter().all(|message| sink.key_order(message) == KeyOrder::Pipelined) {
        let deadline = Instant::now() + DEADLINE;
        all_sent(&join_all(rest.chunks(70).map(|batch| sink.publish(batch, deadline))).await.concat())?;
    } else {
        all_sent(&publish(sink, rest).await)?;
    }
    in_order(&harness.arrived(&destination, messages.len()).await?, messages.len())
}

pub(super) async fn a_refused_message_harms_no_neighbour(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let mut tally = Tally::default();
    let rejected = harness.rejected(&destination).map(|message| (message, "rejected"));
    let unroutable = harness.missing().map(|missing| (numbered(&missing, 0, 0), "unroutable"));
    for (refused, class) in rejected.into_iter().chain(unroutable) {
        let good: Vec<_> = (0..200).map(|n| numbered(&destination, n, n)).collect();
        let (before, behind) = good.split_at(100);
        let mut outcomes = publish(harness.sink(), &[before, slice::from_ref(&refused), behind].concat()).await;
        ensure!(outcomes.len() == good.len() + 1, "{} outcomes for {} messages", outcomes.len(), good.len() + 1);
        let outcome = outcomes.remove(before.len());
        let found = match &outcome {
            Err(PublishError::Rejected { .. }) => "rejected",
            Err(PublishError::Unroutable { .. }) => "unroutable",
            _ => "neither",
        };
        ensure!(found == class, "a message that is {class} has the outcome {outcome:?}");
        all_sent(&outcomes)?;
        tally.add(&good, &outcomes)?;
    }
    tally.check(&harness.arrived(&destination, tally.confirmed()).await?)
}

pub(super) async fn outcomes_stand_in_the_batchs_order(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let mut messages = Vec::new();
    for n in 0..400 {
        let rejected = if n % 10 == 3 { harness.rejected(&destination) } else { None };
        messages.push(rejected.unwrap_or_else(|| numbered(&destination, n, n)));
    }
    let outcomes = publish(harness.sink(), &messages).await;
    ensure!(outcomes.len() == messages.len(), "{} outcomes for {} messages", outcomes.len(), messages.len());
    let sent = messages.into_iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok());
    let (sent, outcomes): (Vec<_>, Vec<_>) = sent.unzip();
    ensure!(sent.len() >= 360, "{} of 360 good messages were sent", sent.len());
    all_arrived(harness, &destination, &sent, &outcomes).await
}

pub(super) async fn a_deadline_is_kept(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let mut tally = Tally::default();
    let mut late = 0;
    for (n, micros) in [0, 1, 300, 1000, 3000, 10_000].into_iter().enumerate() {
        let messages: Vec<_> = (0..500).map(|m| numbered(&destination, m, n * 500 + m)).collect();
        let deadline = Instant::now() + Duration::from_micros(micros);
        let outcomes = harness.sink().publish(&messages, deadline).await;
        late += usize::from(Instant::now() >= deadline + GRACE);
        tally.add(&messages, &outcomes)?;
    }
    mostly_in_time(late)?;
    // The sink works again.
    tally.publish_all(harness.sink(), &[numbered(&destination, 0, 0)], RECOVERY).await?;
    tally.check(&harness.arrived(&destination, tally.confirmed()).await?)
}

/// One call may have met a machine that stalled for a moment.
fn mostly_in_time(late: usize) -> Result<()> {
    ensure!(late <= 1, "{late} calls returned more than {GRACE:?} after their deadline");
    Ok(())
}

pub(super) async fn an_unreachable_broker_is_unavailable(harness: &dyn Harness) -> Result<()> {
    let Some(sink) = harness.unreachable() else { return Ok(()) };
    let destination = harness.destination().await?;
    let messages: Vec<_> = (0..50).map(|n| numbered(&destination, n, n)).collect();
    for _ in 0..3 {
        let start = Instant::now();
        for outcome in sink.publish(&messages, start + DEADLINE).await {
            ensure!(matches!(outcome, Err(PublishError::Unavailable(_))), "{outcome:?}");
        }
        ensure!(start.elapsed() < DEADLINE / 2, "it took {:?}", start.elapsed());
        let checked = sink.check(Instant::now() + Duration::from_secs(2)).await;
        ensure!(matches!(checked, Err(PublishError::Unavailable(_))), "check says {checked:?}");
    }
    sink.close().await;
    Ok(())
}

pub(super) async fn a_frozen_broker_confirms_nothing(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let mut tally = Tally::default();
    tally.publish_all(harness.sink(), &[numbered(&destination, 0, 0)], RECOVERY).await?;
    if !harness.control(Control::Freeze).await? {
        return Ok(());
    }
    let messages: Vec<_> = (1..300).map(|n| numbered(&destination, n, n)).collect();
    let mut late = 0;
    for _ in 0..2 {
        let deadline = Instant::now() + SILENCE;
        let in_flight = messages.chunks(100).map(|batch| harness.sink().publish(batch, deadline));
        let outcomes = join_all(in_flight).await.concat();
        late += usize::from(Instant::now() >= deadline + GRACE);
        none_sent(&outcomes)?;
        tally.add(&messages, &outcomes)?;
    }
    mostly_in_time(late)?;
    harness.control(Control::Thaw).await?;
    tally.publish_all(harness.sink(), &messages, RECOVERY).await?;
    tally.check(&harness.arrived(&destination, tally.confirmed()).await?)
}

pub(super) async fn nothing_is_lost_when_the_broker_dies(harness: &dyn Harness) -> Result<()> {
    let destination = harness.destination().await?;
    let mut tally = Tally::default();
    tally.publish_all(harness.sink(), &[numbered(&destination, 0, 0)], RECOVERY).await?;
    let Some(mut in_flight) = killed_in_flight(harness, &destination).await? else { return Ok(()) };
    for (messages, outcomes) in &in_flight {
        tally.add(messages, outcomes)?;
    }
    let messages: Vec<_> = (1..100).map(|n| numbered(&destination, n, n)).collect();
    let mut late = 0;
    for _ in 0..3 {
        let deadline = Instant::now() + DEADLINE;
        let outcomes = harness.sink().publish(&messages, deadline).await;
        late += usize::from(Instant::now() >= deadline + GRACE);
        none_sent(&outcomes)?;
        tally.add(&messages, &outcomes)?;
    }
    mostly_in_time(late)?;
    let last = harness.sink().publish(&messages, Instant::now() + DEADLINE).await;
    let spends = last.iter().find(|it| !matches!(it, Err(PublishError::Unavailable(_))));
    ensure!(spends.is_none(), "spends attempts: {spends:?}");
    harness.control(Control::Restart).await?;
    in_flight.push((messages, Vec::new()));
    for (messages, _) in &in_flight {
        tally.publish_all(harness.sink(), messages, RECOVERY).await?;
    }
    tally.check(&harness.arrived(&destination, tally.confirmed()).await?)
}

type CaseBatch = (Vec<Outgoing>, Vec<Outcome>);

/// Kills the broker while several batches are in flight. Returns all batches and their outcomes, or `None` if this
/// harness cannot.
async fn killed_in_flight(harness: &dyn Harness, destination: &Arc<Destination>) -> Result<Option<Vec<CaseBatch>>> {
    let confirmed = Semaphore::new(0);
    let killed = CancellationToken::new();
    let publisher = async |number: usize| {
        let mut batches = Vec::new();
        while !killed.is_cancelled() {
            let messages: Vec<_> = (0..100).map(|n| numbered(destination, n, number * 100 + n)).collect();
            let outcomes = harness.sink().publish(&messages, Instant::now() + DEADLINE).await;
            confirmed.add_permits(1);
            batches.push((messages, outcomes));
            // A sink that never waits would keep the kill from its turn.
            yield_now().await;
        }
        batches
    };
    let kill = async {
        // Every publisher is at work.
        drop(confirmed.acquire_many(PUBLISHERS * 3).await.map_err(ConformanceError::new)?);
        let can = harness.control(Control::Kill).await;
        killed.cancel();
        can
    };
    let (batches, can) = join!(join_all((0..PUBLISHERS as usize).map(publisher)), kill);
    Ok(can?.then(|| batches.concat()))
}

/// Returns a message whose payload is its number, with the key of this number.
fn numbered(destination: &Arc<Destination>, number: usize, key: usize) -> Outgoing {
    Draft::new(destination, number.to_string()).key(format!("key-{key}").as_bytes()).build()
}

fn all_sent(outcomes: &[Outcome]) -> Result<()> {
    match outcomes.iter().find(|outcome| outcome.is_err()) {
        Some(outcome) => bail!("not sent: {outcome:?}"),
        None => Ok(()),
    }
}

fn none_sent(outcomes: &[Outcome]) -> Result<()> {
    let sent = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    ensure!(sent == 0, "a broker that does not run confirmed {sent} of {} messages", outcomes.len());
    Ok(())
}

/// Checks that all messages were sent, and each arrived once.
async fn all_arrived(
    harness: &dyn Harness,
    destination: &Destination,
    messages: &[Outgoing],
    outcomes: &[Outcome],
) -> Result<()> {
    let mut tally = Tally::default();
    tally.add(messages, outcomes)?;
    all_sent(outcomes)?;
    tally.check(&harness.arrived(destination, messages.len()).await?)
}

fn by_id(arrived: Vec<Arrived>) -> HashMap<Uuid, Arrived> {
    arrived.into_iter().map(|it| (it.message_id, comparable(it))).collect()
}

fn in_order(arrived: &[Arrived], count: usize) -> Result<()> {
    ensure!(arrived.len() == count, "{} of {count} messages arrived", arrived.len());
    let mut last: HashMap<&[u8], usize> = HashMap::new();
    for message in arrived {
        let number: usize = std::str::from_utf8(message.payload.as_deref().unwrap_or_default())?.parse()?;
        let before = last.insert(message.key.as_deref().unwrap_or_default(), number);
        ensure!(before.is_none_or(|before| before < number), "{number} arrived after {before:?}");
    }
    Ok(())
}
