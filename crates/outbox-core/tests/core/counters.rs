//! Counters that would give numbers again are found.

use anyhow::{Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::Connection as _,
    store::schema::counters::{Behind, behind},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    a_counter_of_messages_below_what_is_named_is_found_wherever_that_is,
    a_counter_of_a_sequenced_key_below_its_messages_is_found,
    a_fence_below_its_epoch_is_found,
);

async fn found(database: &Database) -> Result<Option<Behind>> {
    Ok(behind(&mut database.connect().await?).await?)
}

async fn enqueue(database: &Database, messages: impl IntoIterator<Item = Message>) -> Result<()> {
    let mut db = database.connect().await?;
    let mut tx = db.begin().await?;
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    Ok(tx.commit().await?)
}

async fn a_counter_of_messages_below_what_is_named_is_found_wherever_that_is(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    ensure!(found(&database).await?.is_none(), "the tables are new");
    enqueue(&database, (0..3).map(|_| Message::new("orders", "x"))).await?;
    ensure!(found(&database).await?.is_none(), "nothing is wrong");
    let named = "SELECT CAST(MAX(id) AS SIGNED) FROM outbox_pending";
    let used = u64::try_from(database.number(named).await?)?;
    let moved = [
        "",
        "INSERT INTO outbox_delayed (lane, id, due_at, reason) SELECT 7, id, UTC_TIMESTAMP(6), 'behind' \
         FROM outbox_pending",
        "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, reason, owner) \
         SELECT lane, id, 0, 0, 0, UTC_TIMESTAMP(6), '', '' FROM outbox_delayed; DELETE FROM outbox_pending",
        "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, receipts) \
         SELECT 1, 1, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), CONCAT('[1,', MAX(id), ']'), '[]' FROM outbox_dead; \
         DELETE FROM outbox_delayed",
        "DELETE FROM outbox_dead",
    ];
    for sql in moved {
        database.execute(&format!("DO 0; {sql}")).await?;
        database.execute("TRUNCATE TABLE outbox_messages").await?;
        let next = match found(&database).await? {
            Some(Behind::MessageIds { next, used: found }) if found == used => next,
            other => anyhow::bail!("{sql}: {other:?}"),
        };
        ensure!(next <= used, "{sql}: {next}");
        database.execute(&format!("ALTER TABLE outbox_messages AUTO_INCREMENT = {}", used + 1)).await?;
        ensure!(found(&database).await?.is_none(), "{sql}: the remedy does not help");
    }
    Ok(())
}

async fn a_counter_of_a_sequenced_key_below_its_messages_is_found(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let own = Message::new("orders", "x").key("8").header("sequence", "99");
    let numbered = (0..3).map(|_| Message::new("orders", "x").key("7").sequenced());
    enqueue(&database, numbered.chain([own, Message::new("orders", "x")])).await?;
    ensure!(found(&database).await?.is_none(), "nothing is wrong");
    database.execute("UPDATE outbox_key_sequence SET last_sequence = 2").await?;
    let third = u64::try_from(
        database
            .number("SELECT CAST(MIN(id) + 2 * @@GLOBAL.auto_increment_increment AS SIGNED) FROM outbox_messages")
            .await?,
    )?;
    let expected = Behind::SequencedKey { topic: "orders".into(), last: 2, used: 3, id: third };
    ensure!(found(&database).await? == Some(expected), "{:?}", found(&database).await?);
    database.execute("UPDATE outbox_key_sequence SET last_sequence = 3").await?;
    ensure!(found(&database).await?.is_none(), "the remedy does not help");
    Ok(())
}

async fn a_fence_below_its_epoch_is_found(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let row = "INSERT INTO outbox_leases (name, owner, lease_until, fence) VALUES ('work', 'a', UTC_TIMESTAMP(6), 7)";
    database.execute(row).await?;
    ensure!(found(&database).await?.is_none(), "there is no epoch");
    let epoch =
        "INSERT INTO outbox_epochs (epoch, first_id, margin, unsent, account) VALUES (1700000000, 1, 1, 0, 'a')";
    database.execute(epoch).await?;
    let least = 1_700_000_000_000_000;
    let behind = Some(Behind::Fence { name: "work".into(), fence: 7, least });
    ensure!(found(&database).await? == behind, "{:?}", found(&database).await?);
    database.execute(&format!("UPDATE outbox_leases SET fence = {least} WHERE fence < {least}")).await?;
    ensure!(found(&database).await?.is_none(), "the remedy does not help");
    Ok(())
}
