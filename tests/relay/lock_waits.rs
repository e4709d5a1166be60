//! A relay's writes lock its own rows and no others. So they wait neither for a service that keeps its transaction
//! open, nor for another relay. Small tables matter most: there the optimizer tends to read everything.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection},
    store::{
        claim::{
            self, Look, NewClaim, NewClaims,
            lease::{self, ClaimLease},
            promote,
        },
        session,
        settle::{self, Settlement, Way},
    },
};
use testkit::{
    consume::Broker,
    database::Database,
    judge::Expectations,
    load, on_both_databases,
    proxy::Proxy,
    relay::Metrics,
    servers::{Flavor, until},
};

use crate::stage::{PATIENCE, Stage, start};

on_both_databases!(
    settling_and_renewing_wait_for_no_open_transaction_and_no_other_settler,
    a_take_over_waits_for_no_open_transaction,
    promoting_waits_for_no_open_transaction,
    a_renewal_whose_machine_vanishes_lets_go_of_its_claims,
    a_message_that_somebody_has_locked_holds_up_no_other_settlement,
);

/// A relay's session in which a lock wait is refused after one second, instead of five.
async fn relay(database: &Database) -> Result<MySqlConnection> {
    let mut db = database.plain().await?;
    session::prepare(&mut db).await?;
    sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 1").execute(&mut db).await?;
    Ok(db)
}

async fn enqueue(db: &mut MySqlConnection, messages: usize, delay: Option<Duration>) -> Result<()> {
    for _ in 0..messages {
        let message = Message::new("orders", "x").key("k");
        let message = if let Some(delay) = delay { message.delay(delay) } else { message };
        Outbox::new().enqueue(db, message).await?;
    }
    Ok(())
}

async fn committed(database: &Database, messages: usize, delay: Option<Duration>) -> Result<()> {
    let mut db = database.plain().await?;
    let mut tx = db.begin().await?;
    enqueue(&mut tx, messages, delay).await?;
    Ok(tx.commit().await?)
}

/// Claims the first messages above an id.
async fn claim(
    db: &mut MySqlConnection,
    above: u64,
    messages: u32,
    lease: Duration,
) -> Result<(ClaimLease, Settlement)> {
    let owner = "test";
    let lease_token = u64::MAX - above;
    let look = Look { owner, above, limit: messages, ..Look::default() };
    let seen = claim::look(db, &look).await?;
    let message_ids: Vec<u64> = seen.fresh.iter().map(|row| row.id).collect();
    ensure!(message_ids.len() == messages as usize, "{seen:?}");
    let version = seen.version.context("the lane has a head")?;
    let message_ids = &*message_ids;
    let key_hashes = &[1][..];
    let behind = &[][..];
    let new = NewClaims {
        lane: 0,
        version,
        low: 0,
        owner,
        lease,
        claims: &[NewClaim { lease_token, message_ids, key_hashes }],
        behind,
    };
    let lease = claim::claim(db, &new).await?.first().copied().context("nobody else claims")?;
    let sent = message_ids.iter().map(|id| (*id, String::new())).collect();
    Ok((lease, Settlement { sent, ..Settlement::default() }))
}

async fn settling_and_renewing_wait_for_no_open_transaction_and_no_other_settler(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut first = relay(&database).await?;
    let mut second = relay(&database).await?;
    let mut service = database.plain().await?;
    committed(&database, 8, None).await?;
    let lease = Duration::from_secs(60);
    let (one, sent) = claim(&mut first, 0, 3, lease).await?;
    let last = sent.sent.last().context("three messages")?.0;
    let (other, also_sent) = claim(&mut first, last, 3, lease).await?;
    let mut open = service.begin().await?;
    enqueue(&mut open, 2, None).await?;

    // Another settler has locked its claim and its rows and has not finished.
    let mut halfway = second.begin().await?;
    sqlx::query("SELECT claim_id FROM outbox_claims WHERE claim_id = ? FOR UPDATE")
        .bind(other.claim_id)
        .fetch_one(&mut *halfway)
        .await?;
    for (id, _) in &also_sent.sent {
        sqlx::query("DELETE FROM outbox_pending WHERE lane = 0 AND id = ?").bind(id).execute(&mut *halfway).await?;
    }
    let renewed = lease::renew(&mut first, &[one, other], lease).await?;
    ensure!(renewed.prolonged == [one] && renewed.standing == [one, other], "{renewed:?}");
    ensure!(settle::settle(&mut first, &[(one, &sent)], Way::Ranges).await? == [one]);
    halfway.rollback().await?;
    ensure!(settle::settle(&mut first, &[(other, &also_sent)], Way::OneByOne).await? == [other]);
    open.commit().await?;
    ensure!(database.number("SELECT COUNT(*) FROM outbox_pending").await? == 4);
    Ok(())
}

async fn a_take_over_waits_for_no_open_transaction(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = relay(&database).await?;
    let mut service = database.plain().await?;
    committed(&database, 3, None).await?;
    claim(&mut db, 0, 3, Duration::ZERO).await?;
    let mut open = service.begin().await?;
    enqueue(&mut open, 2, None).await?;
    let expired = lease::expired(&mut db, 0).await?;
    ensure!(lease::take_over(&mut db, expired.first().context("the lease has passed")?).await?);
    open.commit().await?;
    ensure!(database.number("SELECT COUNT(*) FROM outbox_pending WHERE attempts = 1").await? == 3);
    Ok(())
}

async fn promoting_waits_for_no_open_transaction(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = relay(&database).await?;
    let mut service = database.plain().await?;
    committed(&database, 3, Some(Duration::from_secs(60))).await?;
    sqlx::raw_sql("UPDATE outbox_delayed SET due_at = '2020-01-01'").execute(&mut db).await?;
    let mut open = service.begin().await?;
    enqueue(&mut open, 2, Some(Duration::from_secs(60))).await?;
    let due: Vec<u64> = promote::due(&mut db, Duration::ZERO, 10).await?.iter().map(|due| due.id).collect();
    ensure!(promote::promote(&mut db, 0, &due).await? == 3);
    open.commit().await?;
    ensure!(database.number("SELECT COUNT(*) FROM outbox_delayed").await? == 2);
    Ok(())
}

/// Nothing follows the first of its two round trips, and the connection stays open.
async fn a_renewal_whose_machine_vanishes_lets_go_of_its_claims(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut db = relay(&database).await?;
    committed(&database, 1, None).await?;
    let (held, _) = claim(&mut db, 0, 1, Duration::from_secs(60)).await?;
    let proxy = Proxy::start(database.url()).await?;
    let mut lost = MySqlConnection::connect(proxy.address()).await?;
    session::prepare(&mut lost).await?;
    proxy.black_hole_after(|request| request.windows(11).any(|part| part == b"SKIP LOCKED"));
    let renewing =
        tokio::spawn(async move { lease::renew(&mut lost, &[held], Duration::from_secs(10)).await.map(drop) });
    let lock = async || database.execute("SELECT claim_id FROM outbox_claims FOR UPDATE NOWAIT").await;
    until(PATIENCE, "the claim to be locked", || async {
        ensure!(lock().await.is_err());
        Ok(())
    })
    .await?;
    until(PATIENCE, "the server to let go of the claim", lock).await?;
    renewing.abort();
    Ok(())
}

/// There is one settler. What is sent and not settled counts as in flight: its relay must not seem drained.
async fn a_message_that_somebody_has_locked_holds_up_no_other_settlement(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    load::commit(&stage.database, &stage.ledger, &[stage.draft(1)], |message| message.lane(1)).await?;
    let mut console = stage.database.plain().await?;
    sqlx::raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").execute(&mut console).await?;
    let mut lock = console.begin().await?;
    sqlx::raw_sql("SELECT id FROM outbox_pending WHERE lane = 1 FOR UPDATE").fetch_all(&mut *lock).await?;
    let mut relay = start(&stage.settings.clone().set("relay", "settlers", 1))?;
    let is_sent = |metrics: &Metrics| metrics.sum("outbox_relay_published_messages_total") > 0.5;
    relay.wait_for_metrics(PATIENCE, "the locked message to be sent", is_sent).await?;
    stage.commit(&[stage.draft(2)]).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM outbox_sent_messages").await?;
    let beat = "SELECT COUNT(*) FROM outbox_instances WHERE in_flight = 1 AND seen_at > (SELECT MAX(sent_at) \
                FROM outbox_sent)";
    stage.database.wait_for(PATIENCE, beat).await?;
    lock.rollback().await?;
    stage.drain_and_judge(&Expectations::new().at_least(2)).await
}
