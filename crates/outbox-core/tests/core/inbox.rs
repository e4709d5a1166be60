//! A message has one effect, however often it is delivered.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use outbox_core::{
    Claim, Inbox, InboxError, Uuid,
    sqlx::Connection as _,
    store::{inbox::retries, operate::jobs::Actor},
};
use testkit::{accounts::Account, database::Database, inbox::process_one, on_both_databases, servers::Flavor};
use tokio::{sync::Barrier, task::JoinSet};

on_both_databases!(
    concurrent_duplicates_have_one_effect,
    a_duplicate_waits_for_the_first_and_is_first_when_that_one_rolls_back,
    consumers_do_not_share_their_memory,
    claiming_outside_a_transaction_is_refused,
    an_order_takes_gaps_that_die_later_and_no_other_later_death,
);

async fn concurrent_duplicates_have_one_effect(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let ids: Arc<[Uuid]> = (0..20).map(|_| Uuid::now_v7()).collect();
    let barrier = Arc::new(Barrier::new(8));
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let ids = Arc::clone(&ids);
        let barrier = Arc::clone(&barrier);
        let mut connection = database.connect().await?;
        workers.spawn(async move {
            let mut firsts = 0;
            let inbox = Inbox::new("c")?;
            for id in ids.iter() {
                barrier.wait().await;
                firsts += usize::from(process_one(&inbox, &mut connection, *id).await?);
            }
            anyhow::Ok(firsts)
        });
    }
    let mut firsts = 0;
    // The first error ends the others: they would wait at the barrier for ever.
    while let Some(counted) = workers.join_next().await {
        firsts += counted??;
    }
    assert_eq!(firsts, ids.len());
    let effects = database.tables().await?.effects;
    assert_eq!(effects, ids.iter().map(|id| (*id, 1)).collect());
    Ok(())
}

async fn a_duplicate_waits_for_the_first_and_is_first_when_that_one_rolls_back(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let inbox = Inbox::new("c")?;
    let id = Uuid::now_v7();
    let mut a = database.connect().await?;
    let mut b = database.connect().await?;
    let mut a = a.begin().await?;
    let mut b = b.begin().await?;
    assert_eq!(inbox.claim(&mut a, id).await?, Claim::First(()));
    let waits = async {
        let claim = inbox.claim(&mut b, id).await?;
        anyhow::Ok(claim)
    };
    let rolls_back = async {
        database.wait_for_lock_waits(flavor, 1).await?;
        anyhow::Ok(a.rollback().await?)
    };
    let (claim, rolled_back) = tokio::join!(waits, rolls_back);
    rolled_back?;
    assert_eq!(claim?, Claim::First(()));
    b.commit().await?;
    let mut c = database.connect().await?;
    let mut c = c.begin().await?;
    assert_eq!(inbox.claim(&mut c, id).await?, Claim::Duplicate);
    Ok(())
}

async fn consumers_do_not_share_their_memory(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let id = Uuid::now_v7();
    for consumer in ["mail", "Mail", "stock"] {
        assert_eq!(Inbox::new(consumer)?.claim(&mut tx, id).await?, Claim::First(()), "{consumer}");
        assert_eq!(Inbox::new(consumer)?.claim(&mut tx, id).await?, Claim::Duplicate, "{consumer}");
    }
    Ok(tx.commit().await?)
}

async fn claiming_outside_a_transaction_is_refused(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let refused = Inbox::new("c")?.claim(&mut connection, Uuid::now_v7()).await;
    assert!(matches!(refused, Err(InboxError::NotInTransaction)), "{refused:?}");
    assert_eq!(database.number("SELECT COUNT(*) FROM inbox_processed").await?, 0);
    Ok(())
}

#[test]
fn a_consumers_name_can_be_stored() {
    for name in ["", "two words", "größe", &"x".repeat(101)] {
        assert!(matches!(Inbox::new(name), Err(InboxError::InvalidConsumer)), "{name:?}");
    }
    assert!(Inbox::new("x".repeat(100)).is_ok());
}

async fn an_order_takes_gaps_that_die_later_and_no_other_later_death(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let dead = "INSERT INTO inbox_dead (consumer, message_id, topic, attempts, died_at, reason) VALUES \
        ('c', UNHEX(LPAD('1', 32, '0')), 't', 1, UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE, 'attempts'), \
        ('c', UNHEX(LPAD('2', 32, '0')), 't', 1, UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE, 'attempts'), \
        ('c', UNHEX(LPAD('3', 32, '0')), 't', 1, UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE, 'sequence')";
    database.execute(dead).await?;
    let mut db = database.session_of(Account::Owner).await?;
    let actor = Actor { name: "alice", via: "test", reason: "x" };
    retries::order(&mut db, ("c", None), 3, &actor).await?;
    let mut taken = Vec::new();
    loop {
        let retry = retries::open(&mut db, "c").await?.context("it is open")?;
        let Some(id) = retries::next(&mut db, "c", &retry).await? else { break };
        assert!(retries::take(&mut db, &retry, id, Duration::ZERO).await?);
        taken.push(id.as_u128());
    }
    assert_eq!(taken, [1, 3]);
    Ok(())
}
