//! The accounts of `deploy/grants` have the rights for the work of each program.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_core::{
    Claim, EnqueueError, Inbox, Message, OnBacklog, Outbox, Uuid,
    lease::Leases,
    sqlx::{self, Connection as _, MySqlConnection, mysql::MySqlConnectOptions},
};
use testkit::{consume::Broker, database::Database, judge::Expectations, load, on_both_databases, servers::Flavor};
use url::Url;

use crate::stage::{PATIENCE, Stage, account, start};

on_both_databases!(
    the_migrator_makes_the_tables,
    the_relay_does_its_work,
    a_relay_with_the_grants_of_an_earlier_release_waits_for_those_of_its_own,
    the_service_does_its_work,
    what_is_not_granted_is_refused,
);

const MIGRATOR: &str = include_str!("../../deploy/grants/migrator.sql");
const RECOVERY: &str = include_str!("../../deploy/grants/recovery.sql");
const RELAY: &str = include_str!("../../deploy/grants/relay.sql");
const SERVICE: &str = include_str!("../../deploy/grants/service.sql");

async fn the_migrator_makes_the_tables(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    let url = account(&database, &MIGRATOR.replace("outbox_migrator", "{user}")).await?;
    let mut connection = MySqlConnection::connect(url.as_str()).await?;
    for _ in 0..2 {
        outbox_core::migrate(&mut connection).await?;
    }
    outbox_core::check_schema(&mut connection).await?;
    remove(&database, &url).await
}

/// The relay claims, sends, promotes, buries, takes over and purges.
async fn the_relay_does_its_work(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    let url = account(&stage.database, &RELAY.replace("outbox_relay", "{user}")).await?;
    stage.settings = stage.settings.clone().set("database", "url", url.as_str()).set("retention", "sent", "1h");
    let plain = [stage.draft(1)];
    let delayed = [stage.draft(2)];
    let expired = [stage.draft(3)];
    stage.commit(&plain).await?;
    let later = |message: outbox_core::Message| message.delay(Duration::from_millis(500));
    load::commit(&stage.database, &stage.ledger, &delayed, later).await?;
    let soon = |message: outbox_core::Message| message.expires_after(Duration::from_millis(1));
    load::commit(&stage.database, &stage.ledger, &expired, soon).await?;
    start(&stage.settings.clone().crash_at("after_claim"))?.wait_for_end(PATIENCE).await?;
    let mut relay = start(&stage.settings.clone().patient())?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let takeovers = relay.metrics_within(PATIENCE).await?.sum("outbox_relay_lease_takeovers_total");
    ensure!(takeovers >= 1.0, "nothing was taken over");
    stage.judge(&Expectations::new().at_least(3).dead(expired.map(|draft| draft.id))).await?;
    stage.database.execute("UPDATE outbox_sent SET sent_at = sent_at - INTERVAL 2 HOUR").await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 1 FROM outbox_messages").await?;
    relay.stop(PATIENCE).await?;
    remove(&stage.database, &url).await
}

/// The service enqueues in every way, consumes, and holds a lease.
/// Without one it cannot read, without the other it cannot settle.
async fn a_relay_with_the_grants_of_an_earlier_release_waits_for_those_of_its_own(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let url = account(&stage.database, &RELAY.replace("outbox_relay", "{user}")).await?;
    stage.settings = stage.settings.clone().set("database", "url", url.as_str());
    let user = url.username();
    stage.commit(&[stage.draft(1)]).await?;
    for later in [
        "SELECT, INSERT, UPDATE, DELETE ON outbox_replays",
        "SELECT, INSERT, DELETE ON outbox_attempts",
        "SELECT, DELETE ON outbox_controls",
    ] {
        stage.database.execute(&format!("REVOKE {later} FROM '{user}'@'%'")).await?;
        let mut relay = stage.relay()?;
        relay.wait_for_log(PATIENCE, "the account lacks a privilege: run deploy/grants").await?;
        ensure!(!relay.log()?.contains("relay started"), "a relay without {later} claims");
        stage.database.execute(&format!("GRANT {later} TO '{user}'@'%'")).await?;
        stage.drain_and_judge(&Expectations::new().at_least(1)).await?;
        relay.stop(PATIENCE).await?;
    }
    remove(&stage.database, &url).await
}

async fn the_service_does_its_work(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let url = account(&database, &SERVICE.replace("outbox_service", "{user}")).await?;
    let mut connection = MySqlConnection::connect(url.as_str()).await?;
    outbox_core::check_schema(&mut connection).await?;
    let outbox = Outbox::new().max_backlog_age(PATIENCE, OnBacklog::Refuse);
    let inbox = Inbox::new("billing")?;
    let message = || Message::new("orders", "{}");
    for number in 1..=2_u64 {
        let id = Uuid::now_v7();
        let mut tx = connection.begin().await?;
        outbox.enqueue(&mut tx, message().key("7").sequenced()).await?;
        outbox.enqueue(&mut tx, message().message_id(id).delay(PATIENCE)).await?;
        let again = outbox.enqueue(&mut tx, message().message_id(id)).await;
        ensure!(matches!(again, Err(EnqueueError::Duplicate { .. })), "{again:?}");
        ensure!(matches!(inbox.claim(&mut tx, id).await?, Claim::First(())));
        inbox.follow(&mut tx, "orders", b"7", number).await?;
        tx.commit().await?;
    }
    // A large message goes by the statements of `prepare`.
    let mut tx = connection.begin().await?;
    for large in
        [Message::new("orders", vec![b'x'; 300_000]), Message::new("orders", vec![b'x'; 300_000]).delay(PATIENCE)]
    {
        outbox.enqueue(&mut tx, large).await?;
    }
    outbox.enqueue(&mut tx, Message::new("orders", vec![b'x'; 300_000]).key("7").sequenced()).await?;
    tx.commit().await?;
    ensure!(database.number("SELECT CAST(last_sequence AS SIGNED) FROM outbox_key_sequence").await? == 3);
    let lease = Leases::new(url.as_str().parse::<MySqlConnectOptions>()?).acquire("work", PATIENCE).await?;
    let mut tx = connection.begin().await?;
    lease.check(&mut tx).await?;
    tx.rollback().await?;
    lease.release().await?;
    remove(&database, &url).await
}

/// The relay neither sees the service's tables nor writes a message. The service neither marks messages as sent nor
/// sees the messages of others.
async fn what_is_not_granted_is_refused(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let relay = [
        "SELECT * FROM test_orders",
        "INSERT INTO outbox_messages (topic) VALUES ('forged')",
        "UPDATE outbox_messages SET payload = 'forged'",
        "UPDATE outbox_pending SET lane = 1",
        "UPDATE outbox_sent SET receipts = '[]'",
        "INSERT INTO inbox_processed (consumer) VALUES ('forged')",
        "INSERT INTO outbox_jobs (action) VALUES ('forged')",
        "INSERT INTO outbox_audit (action) VALUES ('forged')",
        "UPDATE outbox_audit SET actor = 'forged'",
    ];
    let service = [
        "INSERT INTO outbox_sent (claim_id) VALUES (1)",
        "INSERT INTO outbox_claims (lane) VALUES (0)",
        "INSERT INTO outbox_dead (id) VALUES (1)",
        "INSERT INTO outbox_messages (id, message_id, topic) VALUES (18446744073709551614, 'x', 'the last number')",
        "INSERT INTO outbox_pending (id, attempts) VALUES (1, 65535)",
        "INSERT INTO outbox_pending (id, takeovers) VALUES (1, 255)",
        "INSERT INTO outbox_delayed (id, due_at, reason, holds_key) VALUES (1, '9999-01-01', 'x', 1)",
        "INSERT INTO outbox_delayed (id, due_at, reason, error) VALUES (1, '9999-01-01', 'x', 'forged')",
        "DELETE FROM outbox_pending",
        "UPDATE outbox_pending SET attempts = 0",
        "SELECT payload FROM outbox_messages",
        "UPDATE outbox_messages SET payload = 'forged'",
        "DELETE FROM outbox_messages",
        "UPDATE outbox_head SET low = 0",
        "DELETE FROM inbox_processed",
    ];
    let recovery = [
        "SELECT payload FROM outbox_messages",
        "INSERT INTO outbox_pending (id) VALUES (1)",
        "DELETE FROM outbox_pending",
        "UPDATE outbox_leases SET owner = 'forged'",
    ];
    for (grants, name, statements) in [
        (RELAY, "outbox_relay", relay.as_slice()),
        (SERVICE, "outbox_service", service.as_slice()),
        (RECOVERY, "outbox_recovery", recovery.as_slice()),
    ] {
        let url = account(&database, &grants.replace(name, "{user}")).await?;
        let mut connection = MySqlConnection::connect(url.as_str()).await?;
        for sql in statements {
            let refused = sqlx::raw_sql(*sql).execute(&mut connection).await;
            let text = refused.err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(text.contains("command denied to user"), "{name}: {sql}: {text}");
        }
        remove(&database, &url).await?;
    }
    Ok(())
}

async fn remove(database: &Database, url: &Url) -> Result<()> {
    database.execute(&format!("DROP USER '{}'@'%'", url.username())).await
}
