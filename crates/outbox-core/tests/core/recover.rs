//! After a restore no number is given out again.

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    lease::Leases,
    sqlx::{Connection as _, MySqlConnection, mysql::MySqlConnectOptions},
    store::{
        claim::read,
        schema::{
            counters::{Behind, behind},
            recover::{Holder, RecoverPlan, holder, plan, recover},
        },
    },
};
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    servers::{Flavor, PATIENCE},
};

on_both_databases!(
    the_plan_names_what_is_unsent_and_how_far_the_counters_are,
    a_recovery_raises_every_counter_and_can_be_repeated,
    messages_belong_to_the_last_epoch_that_began_before_them,
    no_fence_comes_again_however_small_the_margin,
    no_epoch_comes_again_when_a_snapshot_is_restored_twice,
    a_counter_below_the_first_message_of_the_epoch_is_found,
    a_process_whose_lease_has_not_ended_is_named,
);

async fn enqueue(conn: &mut MySqlConnection, messages: impl IntoIterator<Item = Message>) -> Result<()> {
    let mut tx = conn.begin().await?;
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    Ok(tx.commit().await?)
}

fn sequenced() -> Message {
    Message::new("orders", "x").key("7").sequenced()
}

/// Takes a lease and gives it back, and returns its fence.
async fn fence(database: &Database, name: &str) -> Result<u64> {
    let lease =
        Leases::new(database.url_as(Account::Owner)?.parse::<MySqlConnectOptions>()?).acquire(name, PATIENCE).await?;
    let fence = lease.fence();
    lease.release().await?;
    Ok(fence)
}

async fn the_plan_names_what_is_unsent_and_how_far_the_counters_are(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let conn = &mut database.plain().await?;
    let delayed = Message::new("bills", "x").delay(PATIENCE).lane(3);
    enqueue(conn, [sequenced(), sequenced(), Message::new("bills", "x").lane(3), delayed]).await?;
    fence(&database, "work").await?;
    let RecoverPlan {
        epoch,
        new_epoch,
        next_message,
        next_claim,
        next_receipt,
        keys,
        highest_number,
        leases,
        highest_fence,
        unsent,
    } = plan(conn).await?;
    let found: Vec<_> = unsent.iter().map(|it| (it.lane, it.topic.as_str(), it.messages)).collect();
    assert_eq!(found, [(0, "orders", 2), (3, "bills", 2)]);
    ensure!(unsent.iter().all(|it| it.oldest.starts_with("20")), "{unsent:?}");
    assert_eq!((epoch, keys, highest_number, leases, highest_fence), (0, 1, 2, 1, 1));
    ensure!(new_epoch > 1_700_000_000, "{new_epoch} is no time");
    let last = database.number("SELECT CAST(MAX(id) AS SIGNED) FROM outbox_messages").await?.unsigned_abs();
    ensure!(next_message > last && next_claim > 0 && next_receipt > 0, "{next_message} after {last}");
    database.execute("DELETE FROM outbox_messages; ALTER TABLE outbox_messages AUTO_INCREMENT = 1").await?;
    ensure!(plan(conn).await?.next_message > last, "the backlog names a later message than the counter");
    Ok(())
}

async fn a_recovery_raises_every_counter_and_can_be_repeated(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let conn = &mut database.plain().await?;
    enqueue(conn, [sequenced(), sequenced()]).await?;
    fence(&database, "work").await?;
    let mut before = plan(conn).await?;
    for _ in 0..2 {
        recover(conn, &before, 1000).await?;
        let after = plan(conn).await?;
        let counters =
            |plan: &RecoverPlan| [plan.next_message, plan.next_claim, plan.next_receipt, plan.highest_number];
        for (before, after) in counters(&before).into_iter().zip(counters(&after)) {
            ensure!(after >= before + 1000, "{after} after {before}");
        }
        ensure!(after.highest_fence >= (before.highest_fence + 1000).max(before.lowest_fence()), "{after:?}");
        assert_eq!((after.epoch, after.unsent()), (before.new_epoch, 2));
        ensure!(after.new_epoch > after.epoch, "{after:?}");
        ensure!(behind(conn).await?.is_none(), "what was raised is not behind");
        before = after;
    }
    enqueue(conn, [sequenced()]).await?;
    let noted = "SELECT CAST(JSON_UNQUOTE(JSON_EXTRACT(headers, '$.sequence')) AS SIGNED) FROM outbox_messages \
                 ORDER BY id DESC LIMIT 1";
    assert_eq!(database.number(noted).await?, 2003, "in the order of the commits, behind both margins");
    let account = "SELECT COUNT(*) FROM outbox_epochs WHERE margin = 1000 AND unsent = 2 AND account = CURRENT_USER()";
    assert_eq!(database.number(account).await?, 2);
    Ok(())
}

async fn messages_belong_to_the_last_epoch_that_began_before_them(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let conn = &mut database.plain().await?;
    let mut epochs = Vec::new();
    for _ in 0..3 {
        enqueue(conn, [sequenced(), sequenced()]).await?;
        let plan = plan(conn).await?;
        epochs.extend([plan.epoch; 2]);
        recover(conn, &plan, 1).await?;
    }
    let ids = "SELECT CAST(id AS SIGNED) FROM outbox_messages ORDER BY id";
    let ids: Vec<i64> = outbox_core::sqlx::query_scalar(ids).fetch_all(&mut *conn).await?;
    let ids: Vec<u64> = ids.into_iter().map(i64::unsigned_abs).collect();
    let read: Vec<u64> = read::messages(conn, &ids).await?.iter().map(|message| message.epoch).collect();
    assert_eq!(read, epochs);
    Ok(())
}

/// One lease is in the snapshot, with a lower fence; the other is not.
async fn no_fence_comes_again_however_small_the_margin(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut fences = vec![fence(&database, "old").await?];
    database.keep().await?;
    for name in ["old", "new", "old", "new", "old", "new"] {
        fences.push(fence(&database, name).await?);
    }
    let highest = fences.into_iter().max().context("no fence")?;
    database.restore().await?;
    let conn = &mut database.plain().await?;
    let plan = plan(conn).await?;
    recover(conn, &plan, 1).await?;
    for name in ["old", "new"] {
        let first = fence(&database, name).await?;
        ensure!(first > highest && first > plan.lowest_fence(), "{name}: {first} after {highest}");
        assert_eq!(fence(&database, name).await?, first + 1, "{name}");
    }
    Ok(())
}

async fn no_epoch_comes_again_when_a_snapshot_is_restored_twice(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.keep().await?;
    let mut last = 0;
    for _ in 0..2 {
        database.restore().await?;
        let conn = &mut database.plain().await?;
        let plan = plan(conn).await?;
        assert_eq!(plan.epoch, 0, "as in the snapshot");
        ensure!(plan.new_epoch > last, "{} after {last}", plan.new_epoch);
        recover(conn, &plan, 1).await?;
        last = plan.new_epoch;
        database.wait_for(PATIENCE, &format!("SELECT UNIX_TIMESTAMP() > {last}")).await?;
    }
    Ok(())
}

async fn a_counter_below_the_first_message_of_the_epoch_is_found(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let conn = &mut database.plain().await?;
    let plan = plan(conn).await?;
    recover(conn, &plan, 1000).await?;
    ensure!(behind(conn).await?.is_none());
    database.execute("TRUNCATE TABLE outbox_messages").await?;
    let found = behind(conn).await?;
    ensure!(matches!(found, Some(Behind::MessageIds { used: 1000.., .. })), "{found:?}");
    Ok(())
}

async fn a_process_whose_lease_has_not_ended_is_named(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let conn = &mut database.plain().await?;
    ensure!(holder(conn).await?.is_none());
    let leases = Leases::new(database.url_as(Account::Owner)?.parse::<MySqlConnectOptions>()?).owner("worker-1");
    let lease = leases.acquire("work", PATIENCE).await?;
    let found = holder(conn).await?.context("the lease is held")?;
    let Holder { owner, lease: name, seconds } = &found;
    ensure!(owner == "worker-1" && name.as_deref() == Some("work") && (1..=31).contains(seconds), "{found:?}");
    lease.release().await?;
    let claim = "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, \
                 key_hashes) \
                 VALUES (0, 'relay-1', 1, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, UTC_TIMESTAMP(6), '[1]', '')";
    database.execute(claim).await?;
    let found = holder(conn).await?.context("the claim is live")?;
    ensure!(found.owner == "relay-1" && found.lease.is_none(), "{found:?}");
    database.execute("UPDATE outbox_claims SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND").await?;
    ensure!(holder(conn).await?.is_none(), "a claim of a dead process is in no way");
    Ok(())
}
