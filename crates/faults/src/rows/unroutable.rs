//! A3: RabbitMQ returns a tenth of the messages.

use anyhow::{Result, ensure};
use futures_util::FutureExt as _;
use testkit::{
    consume::Broker,
    ledger::Draft,
    load,
    servers::{Flavor, until},
};

use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// Messages of a batch, a tenth of which are unroutable.
const BATCH: usize = 400;

pub(super) fn row() -> Row {
    let case = |flavor| Case::new("a tenth", |arena| strike(arena).boxed()).on(flavor, Broker::RabbitMq);
    Row {
        id: "A3",
        fault: "a tenth unroutable, with hundreds in flight",
        shows: "no unroutable message is marked sent, no routable one is dead",
        cases: vec![case(Flavor::MySql).short(), case(Flavor::MariaDb)],
    }
}

async fn strike(arena: &mut Arena) -> Result<()> {
    arena.start().await?;
    let mut unroutable = Vec::new();
    for batch in 0..5 {
        // A relay rejects a hundred messages of one destination.
        let nowhere = format!("nowhere-{batch}-{}", arena.topic.name());
        let draft = |number: usize| {
            let topic = if number % 10 == 3 { nowhere.as_str() } else { arena.topic.name() };
            Draft::new(topic, format!("payload {number}"))
        };
        let drafts: Vec<Draft> = (0..BATCH).map(draft).collect();
        unroutable.extend(drafts.iter().filter(|draft| draft.topic == nowhere).map(|draft| draft.id));
        load::commit(&arena.database, &arena.ledger, &drafts, |message| message).await?;
        arena.strike().await?;
    }
    // Where all destinations in use refuse, none of their messages is rejected: one goes on taking messages.
    until(PATIENCE, "dead messages", async || {
        load::commit(&arena.database, &arena.ledger, &[Draft::new(arena.topic.name(), "routable")], |it| it).await?;
        let dead = arena.database.number("SELECT COUNT(*) FROM outbox_dead").await?;
        ensure!(usize::try_from(dead)? == unroutable.len(), "{dead} messages are dead");
        Ok(())
    })
    .await?;
    arena.expected = arena.expected.clone().dead(unroutable);
    Ok(())
}
