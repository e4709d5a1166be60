//! Of all that share a database one holds a lease, and it knows when it does not.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    lease::{Lease, LeaseError, Leases},
    sqlx::{self, AssertSqlSafe, ConnectOptions as _, Connection as _, mysql::MySqlConnectOptions},
    store::error_number,
};
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    servers::{Flavor, PATIENCE, until},
};
use tokio::{task::JoinSet, time::timeout};

on_both_databases!(
    one_owner_holds_a_lease_and_the_others_are_told_who,
    each_new_holder_has_a_larger_fence,
    an_owner_acquires_again_what_it_holds_and_holds_it_until_the_last_is_released,
    a_held_lease_is_renewed_beyond_its_length,
    a_dropped_lease_becomes_free,
    a_holder_whose_lease_ended_early_is_told,
    a_holder_that_loses_the_database_is_told_before_its_lease_ends,
    a_lease_survives_the_loss_of_its_connection,
    a_checked_lease_cannot_be_taken_over_before_the_transaction_ends,
    a_check_after_the_loss_is_refused,
    a_check_in_a_snapshot_from_before_a_renewal_is_refused_by_mariadb_alone,
    the_time_zone_of_a_session_is_no_matter,
    of_many_at_once_one_holds_it,
);

const FREE_IT: &str = "UPDATE outbox_leases SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND";

fn options(database: &Database) -> Result<MySqlConnectOptions> {
    Ok(database.url_as(Account::Owner)?.parse()?)
}

fn leases(database: &Database, owner: &str) -> Result<Leases> {
    // A call may take a quarter of it, and a machine that is busy needs that.
    Ok(Leases::new(options(database)?).owner(owner).length(Duration::from_secs(120)))
}

async fn held(leases: &Leases) -> Result<Lease> {
    leases.try_acquire("work").await?.context("another holds the lease")
}

async fn one_owner_holds_a_lease_and_the_others_are_told_who(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let a = leases(&database, "a")?;
    let b = leases(&database, "b")?;
    let lease = held(&a).await?;
    assert!(lease.is_held());
    assert!(b.try_acquire("work").await?.is_none());
    assert!(b.try_acquire("other").await?.is_some(), "another name is another lease");
    let refused = b.acquire("work", Duration::from_millis(300)).await.err().context("acquired twice")?;
    assert_eq!(refused.to_string(), "the lease `work` did not become free within 300ms: `a` holds it");
    let (waited, released) = tokio::join!(b.acquire("work", PATIENCE), lease.release());
    released?;
    assert_eq!(waited?.fence(), 2);
    Ok(())
}

async fn each_new_holder_has_a_larger_fence(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let a = leases(&database, "a")?;
    let b = leases(&database, "b")?;
    for fence in [1, 3, 5] {
        let lease = held(&a).await?;
        assert_eq!(lease.fence(), fence);
        lease.release().await?;
        let lease = held(&b).await?;
        assert_eq!(lease.fence(), fence + 1);
        // Not released: it ends.
        database.execute(FREE_IT).await?;
        std::mem::forget(lease);
    }
    Ok(())
}

async fn an_owner_acquires_again_what_it_holds_and_holds_it_until_the_last_is_released(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let a = leases(&database, "a")?;
    let b = leases(&database, "b")?;
    let first = held(&a).await?;
    let second = held(&a).await?;
    assert_eq!(first.fence(), second.fence());
    first.release().await?;
    assert!(second.is_held());
    assert!(b.try_acquire("work").await?.is_none(), "released with the first");
    second.release().await?;
    held(&b).await?.release().await?;
    // A restarted process of the same name need not wait for the lease of its predecessor, which is refused from then
    // on.
    let predecessor = held(&a).await?;
    let successor = held(&leases(&database, "a")?).await?;
    assert_eq!(successor.fence(), predecessor.fence() + 1);
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    assert!(matches!(predecessor.check(&mut tx).await, Err(LeaseError::Lost { .. })));
    successor.check(&mut tx).await?;
    Ok(())
}

async fn a_held_lease_is_renewed_beyond_its_length(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let lease = held(&leases(&database, "a")?.length(Duration::from_secs(15))).await?;
    let first_end = "SELECT CAST(MAX(lease_until) AS CHAR) FROM outbox_leases";
    let end: String = sqlx::query_scalar(first_end).fetch_one(&mut database.connect().await?).await?;
    let passed = format!("SELECT UTC_TIMESTAMP(6) > '{end}' + INTERVAL 1 SECOND");
    database.wait_for(PATIENCE, &passed).await?;
    assert!(lease.is_held());
    assert!(leases(&database, "b")?.try_acquire("work").await?.is_none());
    assert!(timeout(Duration::from_millis(10), lease.lost()).await.is_err(), "told that it was lost");
    Ok(lease.release().await?)
}

async fn a_dropped_lease_becomes_free(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let a = leases(&database, "a")?;
    drop(held(&a).await?);
    drop(a);
    let b = leases(&database, "b")?;
    // Far sooner than it would end by itself.
    let lease = b.acquire("work", PATIENCE).await?;
    assert_eq!(lease.fence(), 2);
    Ok(())
}

async fn a_holder_whose_lease_ended_early_is_told(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let lease = held(&leases(&database, "a")?.length(Duration::from_secs(24))).await?;
    let lost = lease.lost();
    // As if the database's clock had been set forward.
    database.execute(FREE_IT).await?;
    let successor = held(&leases(&database, "b")?).await?;
    timeout(PATIENCE, lost).await?;
    assert!(!lease.is_held());
    assert!(matches!(lease.release().await, Err(LeaseError::Lost { fence: 1, .. })));
    assert!(successor.is_held(), "the loser's release must not touch the successor");
    Ok(successor.release().await?)
}

async fn a_holder_that_loses_the_database_is_told_before_its_lease_ends(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let lease = held(&leases(&database, "a")?.length(Duration::from_secs(4))).await?;
    // Nothing can be renewed in a table that has another name.
    database.execute("RENAME TABLE outbox_leases TO away").await?;
    timeout(PATIENCE, lease.lost()).await?;
    assert!(!lease.is_held());
    let left = "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until) > -2000000 FROM away";
    assert_eq!(database.number(left).await?, 1, "told too late");
    Ok(())
}

async fn a_lease_survives_the_loss_of_its_connection(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let lease = held(&leases(&database, "a")?.length(Duration::from_secs(40))).await?;
    let others = "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist WHERE db = DATABASE() \
                  AND id <> CONNECTION_ID()";
    // MySQL refuses the whole list while some session runs a statement with bytes in it.
    let ids: Vec<u64> = until(PATIENCE, "one connection for the leases of one owner", || async {
        let ids: Vec<u64> = sqlx::query_scalar(others).fetch_all(&mut database.connect().await?).await?;
        ensure!(ids.len() == 1, "{ids:?}");
        Ok(ids)
    })
    .await?;
    for id in ids {
        database.execute(&format!("KILL {id}")).await?;
    }
    let renewed = "SELECT MAX(lease_until) > UTC_TIMESTAMP(6) + INTERVAL 30 SECOND FROM outbox_leases";
    database.execute("UPDATE outbox_leases SET lease_until = UTC_TIMESTAMP(6) + INTERVAL 30 SECOND").await?;
    database.wait_for(PATIENCE, renewed).await?;
    assert!(lease.is_held());
    Ok(lease.release().await?)
}

async fn a_checked_lease_cannot_be_taken_over_before_the_transaction_ends(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let lease = held(&leases(&database, "a")?).await?;
    let mut connection = database.connect().await?;
    assert!(matches!(lease.check(&mut connection).await, Err(LeaseError::NotInTransaction)));
    let mut tx = connection.begin().await?;
    lease.check(&mut tx).await?;
    let b = leases(&database, "a")?;
    let blocked = b.try_acquire("work").await?;
    assert!(blocked.is_none(), "taken over under a check");
    tx.commit().await?;
    assert!(b.try_acquire("work").await?.is_some());
    Ok(())
}

async fn a_check_after_the_loss_is_refused(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let lease = held(&leases(&database, "a")?).await?;
    database.execute(FREE_IT).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    let ended = lease.check(&mut tx).await;
    assert!(matches!(ended, Err(LeaseError::Lost { fence: 1, .. })), "{ended:?}");
    tx.rollback().await?;
    let _successor = held(&leases(&database, "b")?).await?;
    let mut tx = connection.begin().await?;
    let taken = lease.check(&mut tx).await;
    assert!(matches!(taken, Err(LeaseError::Lost { fence: 1, .. })), "{taken:?}");
    Ok(())
}

/// `innodb_snapshot_isolation`, which MariaDB has by default from 11.6.2 on.
async fn a_check_in_a_snapshot_from_before_a_renewal_is_refused_by_mariadb_alone(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let lease = held(&leases(&database, "a")?).await?;
    let mut connection = database.connect().await?;
    for (level, refused) in [("READ COMMITTED", false), ("REPEATABLE READ", flavor == Flavor::MariaDb)] {
        sqlx::raw_sql(AssertSqlSafe(format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")))
            .execute(&mut connection)
            .await?;
        let mut tx = connection.begin().await?;
        sqlx::query("SELECT COUNT(*) FROM outbox_messages").execute(&mut *tx).await?;
        database.execute("UPDATE outbox_leases SET lease_until = lease_until + INTERVAL 1 SECOND").await?;
        match lease.check(&mut tx).await {
            Ok(()) => ensure!(!refused, "{level}: checked"),
            Err(LeaseError::Database(error)) if refused => assert_eq!(error_number(&error), Some(1020), "{error}"),
            Err(error) => return Err(error.into()),
        }
        tx.rollback().await?;
    }
    Ok(())
}

async fn the_time_zone_of_a_session_is_no_matter(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let zone = |zone: &str| anyhow::Ok(Leases::new(options(&database)?.timezone(Some(zone.to_owned()))));
    let west = zone("-11:00")?;
    let east = zone("+13:00")?;
    let lease = held(&west).await?;
    assert!(east.try_acquire("work").await?.is_none());
    lease.release().await?;
    let lease = held(&east).await?;
    assert!(west.try_acquire("work").await?.is_none());
    let mut connection = options(&database)?.timezone(Some("-11:00".to_owned())).connect().await?;
    let mut tx = connection.begin().await?;
    Ok(lease.check(&mut tx).await?)
}

async fn of_many_at_once_one_holds_it(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let inside = Arc::new(AtomicUsize::new(0));
    let mut owners = JoinSet::new();
    for number in 0..6 {
        let leases = leases(&database, &format!("owner-{number}"))?;
        let inside = Arc::clone(&inside);
        owners.spawn(async move {
            let mut fences = Vec::new();
            while fences.len() < 5 {
                let lease = leases.acquire("work", PATIENCE).await?;
                ensure!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two hold the lease");
                tokio::time::sleep(Duration::from_millis(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                fences.push(lease.fence());
                lease.release().await?;
            }
            anyhow::Ok(fences)
        });
    }
    let mut fences = Vec::new();
    while let Some(owner) = owners.join_next().await {
        fences.extend(owner??);
    }
    fences.sort_unstable();
    assert_eq!(fences, (1..=30).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused() -> Result<()> {
    let leases = || Leases::new(MySqlConnectOptions::new());
    let long = "x".repeat(101);
    for (leases, name) in [
        (leases(), ""),
        (leases(), "two words"),
        (leases(), &long[..65]),
        (leases(), "outbox/purge"),
        (leases().owner("größe"), "work"),
        (leases().owner(long.as_str()), "work"),
        (leases().length(Duration::from_millis(999)), "work"),
        (leases().length(Duration::from_secs(90_000)), "work"),
    ] {
        let refused = leases.try_acquire(name).await;
        assert!(matches!(refused, Err(LeaseError::Invalid(_))), "{refused:?}");
    }
    Ok(())
}

/// A host's clock may be set at any time. So no code of the leases reads one, and no statement gets a time from
/// outside: what is bound are names, numbers and lengths.
#[test]
fn no_clock_of_a_host_is_read() -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = ["lease/mod.rs", "lease/keeper.rs", "store/named.rs"];
    let text = files.iter().map(|file| fs::read_to_string(source.join(file))).collect::<Result<String, _>>()?;
    for clock in
        ["SystemTime", "chrono", "now_v7", "OffsetDateTime", "UNIX_EPOCH", "NOW(", "CURRENT_TIMESTAMP", "SYSDATE"]
    {
        assert!(!text.contains(clock), "{clock}");
    }
    let bound = text.split(".bind(").skip(1).filter_map(|rest| rest.split(')').next());
    let unknown: Vec<_> = bound.filter(|bound| !["name", "owner", "fence", "seen", "micros"].contains(bound)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    Ok(())
}
