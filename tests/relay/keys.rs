//! `relay keys show`: the head of a key, whatever lies before it.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::process::Output;

use anyhow::{Result, ensure};
use testkit::{consume::Broker, load, on_both_databases, servers::Flavor};

use crate::stage::Stage;

on_both_databases!(the_first_message_of_a_key_is_the_one_that_holds_it, a_key_without_unsent_messages_has_no_first);

/// Of the first six messages three are dead and released, one is scheduled, one parked, and one behind it.
const STATES: &str = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, \
                      owner) \
    SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 0, 'too_large', '', 'test' FROM outbox_pending \
    WHERE id <= 3; \
    INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason, error) \
    SELECT lane, id, key_hash, bytes, 1, IF(id = 6, '9999-12-31', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR), id > 4, \
    ELT(id - 3, 'scheduled', 'parked', 'behind'), NULL FROM outbox_pending WHERE id BETWEEN 4 AND 6; \
    DELETE FROM outbox_pending WHERE id <= 6";

async fn the_first_message_of_a_key_is_the_one_that_holds_it(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    let of_key = |number| stage.draft(number).unordered_key("k");
    let other = stage.draft(9).unordered_key("other");
    stage.commit(&[of_key(1), of_key(2), of_key(3), of_key(4), of_key(5), of_key(6)]).await?;
    stage.commit(&[other.clone(), stage.draft(8)]).await?;
    let elsewhere = |message: outbox_core::Message| message.lane(7);
    load::commit(&stage.database, &stage.ledger, &[of_key(7)], elsewhere).await?;
    stage.database.execute(STATES).await?;
    let show = format!("keys show --topic {} --key k", stage.topic.name());
    for (limit, rows) in [(1, 1), (20, 7)] {
        let key = operator.json(&format!("{show} --limit {limit}"), &[]).await?;
        ensure!(key["first"]["id"] == 5 && key["waiting"] == 2 && key["looked_at"] == 3, "{key:#}");
        ensure!(key["rows"].as_array().is_some_and(|list| list.len() == rows), "{key:#}");
    }
    let key = operator.json(&show, &[]).await?;
    for (at, state, lane) in [(0, "dead", 0), (4, "delayed", 0), (6, "pending", 7)] {
        ensure!(key["rows"][at]["state"] == state && key["rows"][at]["lane"] == lane, "{at}: {key:#}");
    }
    // The message's own row may be gone.
    stage.database.execute("DELETE FROM outbox_messages WHERE id = 5").await?;
    let key = operator.json(&show, &[]).await?;
    ensure!(key["first"]["id"] == 5, "{key:#}");
    let key = operator.json(&format!("keys show {}", other.id), &[]).await?;
    ensure!(key["rows"].as_array().is_some_and(|list| list.len() == 1) && key["first"]["id"] == 7, "{key:#}");
    Ok(())
}

async fn a_key_without_unsent_messages_has_no_first(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    let draft = stage.draft(1);
    stage.commit(std::slice::from_ref(&draft)).await?;
    let shown = operator.run("keys show --topic nothing --key k", &[]).await?;
    let errors = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(shown.status.success() && errors(&shown).contains("No message of this key"), "{shown:?}");
    let refused = operator.run("keys show", &[&draft.id.to_string()]).await?;
    ensure!(!refused.status.success() && errors(&refused).contains("the message has no key"), "{refused:?}");
    Ok(())
}
