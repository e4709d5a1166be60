//! The promises of single statements of the claim protocol to the relay: order of reading, fence, clock, head.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection},
    store::{
        claim::{
            self, Look, NewClaim, NewClaims, held,
            lease::{self, ClaimLease},
            promote, queue,
        },
        operate::purge,
        reason::DelayReason,
        session,
        settle::{self, Dead, Delayed, Settlement, Way},
    },
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    a_settlement_needs_the_token_of_its_claim,
    claims_that_are_settled_together_keep_what_is_theirs_however_long,
    a_receipt_of_an_earlier_claim_with_the_same_number_settles_nothing,
    a_renewal_needs_the_token_of_its_claim,
    a_claim_that_was_renewed_is_not_taken_over,
    a_message_that_was_put_off_is_not_suspected_any_more,
    promotion_lowers_low_and_raises_the_version,
    a_promotion_that_comes_late_deletes_no_message_that_failed_meanwhile,
    a_row_that_is_pending_and_delayed_at_once_stops_neither_promotion_nor_the_lane,
    a_row_that_is_pending_and_delayed_or_dead_at_once_can_be_delayed_and_given_up,
    a_retry_and_what_is_behind_it_hold_back_their_key,
    what_a_broker_said_is_kept_to_500_characters_whatever_they_are,
    a_lease_runs_by_the_databases_clock,
    a_purge_deletes_only_what_a_receipt_names,
);

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A database with messages of the same key.
pub(crate) async fn with_messages(flavor: Flavor, count: usize) -> Result<(Database, MySqlConnection)> {
    let database = Database::create(flavor).await?;
    let mut db = database.plain().await?;
    session::prepare(&mut db).await?;
    let mut tx = db.begin().await?;
    let messages = (0..count).map(|_| Message::new("orders", "x").key("k"));
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    tx.commit().await?;
    Ok((database, db))
}

pub(crate) async fn look(db: &mut MySqlConnection) -> Result<claim::Seen> {
    let below = [1..=3];
    let look = Look { owner: "me", above: 3, limit: 10, below: &below, below_limit: 10, ..Look::default() };
    Ok(claim::look(db, &look).await?)
}

pub(crate) async fn version(db: &mut MySqlConnection) -> Result<u64> {
    look(db).await?.version.context("there is no head")
}

/// Claims these messages, if this is the lane's version.
pub(crate) async fn claim_at(
    db: &mut MySqlConnection,
    version: u64,
    lease_token: u64,
    ids: &[u64],
) -> Result<Option<ClaimLease>> {
    let message_ids = ids;
    let key_hashes = &[1][..];
    let behind = &[];
    let new = NewClaims {
        lane: 0,
        version,
        low: 9,
        owner: "me",
        lease: LEASE,
        claims: &[NewClaim { lease_token, message_ids, key_hashes }],
        behind,
    };
    Ok(claim::claim(db, &new).await?.first().copied())
}

/// Claims these messages.
pub(crate) async fn claim(db: &mut MySqlConnection, lease_token: u64, message_ids: &[u64]) -> Result<ClaimLease> {
    let version = version(db).await?;
    claim_at(db, version, lease_token, message_ids).await?.context("nobody else claims here")
}

async fn settle(db: &mut MySqlConnection, lease: ClaimLease, settlement: &Settlement) -> Result<Vec<ClaimLease>> {
    Ok(settle::settle(db, &[(lease, settlement)], Way::Ranges).await?)
}

fn delayed(id: u64) -> Settlement {
    let error = String::new();
    let delayed = Delayed { id, wait: Some(Duration::ZERO), spent: true, reason: DelayReason::Unconfirmed, error };
    Settlement { delayed: vec![delayed], ..Settlement::default() }
}

/// Pending, delayed, dead messages, receipts and claims.
pub(crate) async fn counts(database: &Database) -> Result<[i64; 5]> {
    let mut counts = [0; 5];
    for (count, table) in counts.iter_mut().zip(["pending", "delayed", "dead", "sent", "claims"]) {
        *count = match table {
            "pending" => database.number("SELECT COUNT(*) FROM outbox_pending").await?,
            "delayed" => database.number("SELECT COUNT(*) FROM outbox_delayed").await?,
            "dead" => database.number("SELECT COUNT(*) FROM outbox_dead").await?,
            "sent" => database.number("SELECT COUNT(*) FROM outbox_sent").await?,
            _ => database.number("SELECT COUNT(*) FROM outbox_claims").await?,
        };
    }
    Ok(counts)
}

/// The relay that lost the first claim has another one; that helps it nothing.
async fn a_settlement_needs_the_token_of_its_claim(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 3).await?;
    let lost = claim(&mut db, 7, &[1, 2]).await?;
    assert_eq!(lease::release(&mut db, &[lost]).await?, 1);
    let held = claim(&mut db, 8, &[1, 2]).await?;
    let sent = Settlement { sent: vec![(1, String::new())], ..delayed(2) };
    let dead = Dead { id: 1, spent: true, holds_key: false, reason: "rejected", error: String::new() };
    let dead = Settlement { dead: vec![dead], ..Settlement::default() };
    for stranger in [lost, ClaimLease { lease_token: 7, ..held }, ClaimLease { lease_token: 8, ..lost }] {
        for settlement in [&sent, &dead] {
            assert_eq!(settle(&mut db, stranger, settlement).await?, []);
            assert_eq!(counts(&database).await?, [3, 0, 0, 0, 1]);
        }
    }
    assert_eq!(settle(&mut db, held, &sent).await?, [held]);
    assert_eq!(counts(&database).await?, [1, 1, 0, 1, 0]);
    Ok(())
}

/// MariaDB 10.11 cuts long literals in a UNION.
async fn claims_that_are_settled_together_keep_what_is_theirs_however_long(flavor: Flavor) -> Result<()> {
    let lengths = [0, 10, 15_000, 70_000, 200_000, 1, 7];
    let (database, mut db) = with_messages(flavor, lengths.len()).await?;
    let mut claims = Vec::new();
    for (id, length) in (1_u64..).zip(lengths) {
        let settlement = Settlement { sent: vec![(id, "p".repeat(length))], ..Settlement::default() };
        claims.push((claim(&mut db, id, &[id]).await?, settlement));
    }
    let lost = claims.pop().context("no claim")?;
    assert_eq!(lease::release(&mut db, &[lost.0]).await?, 1);
    let all: Vec<_> = claims.iter().chain([&lost]).map(|(lease, settlement)| (*lease, settlement)).collect();
    let held: Vec<ClaimLease> = claims.iter().map(|(lease, _)| *lease).collect();
    assert_eq!(settle::settle(&mut db, &all, Way::Ranges).await?, held);
    assert_eq!(counts(&database).await?, [1, 0, 0, 6, 0]);
    let receipts = "SELECT claim_id, lease_token, message_ids, receipts FROM outbox_sent ORDER BY claim_id";
    let written: Vec<(u64, u64, String, String)> = sqlx::query_as(receipts).fetch_all(&mut db).await?;
    let expected = claims.iter().map(|(lease, settlement)| {
        let [(id, receipt)] = &*settlement.sent else { return (0, 0, String::new(), String::new()) };
        (lease.claim_id, lease.lease_token, format!("[{id}]"), format!("[\"{receipt}\"]"))
    });
    ensure!(written.into_iter().eq(expected), "receipts were mixed up or cut");
    Ok(())
}

/// The numbers began again, as in a copy of the tables without their counters.
async fn a_receipt_of_an_earlier_claim_with_the_same_number_settles_nothing(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 2).await?;
    let sent = |id| Settlement { sent: vec![(id, String::new())], ..Settlement::default() };
    let first = claim(&mut db, 7, &[1]).await?;
    assert_eq!(settle(&mut db, first, &sent(1)).await?, [first]);
    database.execute("TRUNCATE TABLE outbox_claims").await?;
    let again = claim(&mut db, 8, &[2]).await?;
    assert_eq!(again.claim_id, first.claim_id, "nothing shown: its number is another");
    assert_eq!(settle::settled(&mut db, &[again, first]).await?, [first]);
    assert_eq!(settle(&mut db, again, &sent(2)).await?, [again]);
    assert_eq!(settle::settled(&mut db, &[first, again]).await?, [first, again]);
    assert_eq!(counts(&database).await?, [0, 0, 0, 2, 0]);
    Ok(())
}

async fn a_renewal_needs_the_token_of_its_claim(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    let held = claim(&mut db, 8, &[1]).await?;
    let stranger = ClaimLease { lease_token: 7, ..held };
    assert_eq!(lease::renew(&mut db, &[stranger], Duration::from_secs(3600)).await?.standing, []);
    let prolonged = "SELECT COUNT(*) FROM outbox_claims WHERE lease_until > UTC_TIMESTAMP(6) + INTERVAL 60 SECOND";
    assert_eq!(database.number(prolonged).await?, 0);
    assert_eq!(lease::renew(&mut db, &[held], Duration::from_secs(3600)).await?.prolonged, [held]);
    assert_eq!(database.number(prolonged).await?, 1);
    Ok(())
}

/// It was found with its lease passed, and its relay came back before it was ended.
async fn a_claim_that_was_renewed_is_not_taken_over(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    let held = claim(&mut db, 8, &[1]).await?;
    sqlx::raw_sql("SET timestamp = 2147000000").execute(&mut db).await?;
    let expired = lease::expired(&mut db, 0).await?;
    let expired = expired.first().context("its lease has passed")?;
    assert_eq!(lease::renew(&mut db, &[held], LEASE).await?.prolonged, [held]);
    assert!(!lease::take_over(&mut db, expired).await?);
    let attempts = "SELECT COUNT(*) FROM outbox_pending WHERE attempts = 1";
    assert_eq!((counts(&database).await?, database.number(attempts).await?), ([1, 0, 0, 0, 1], 0));
    sqlx::raw_sql("SET timestamp = 2147000031").execute(&mut db).await?;
    assert!(lease::take_over(&mut db, expired).await?);
    assert_eq!((counts(&database).await?, database.number(attempts).await?), ([1, 0, 0, 0, 0], 1));
    Ok(())
}

/// Whatever put it off, it did not end the relay that time.
async fn a_message_that_was_put_off_is_not_suspected_any_more(flavor: Flavor) -> Result<()> {
    let (_database, mut db) = with_messages(flavor, 1).await?;
    claim(&mut db, 7, &[1]).await?;
    sqlx::raw_sql("SET timestamp = 2147000000").execute(&mut db).await?;
    let expired = lease::expired(&mut db, 0).await?;
    assert!(lease::take_over(&mut db, expired.first().context("its lease has passed")?).await?);
    assert_eq!(spent(&mut db).await?, [(1, 1)]);
    let held = claim(&mut db, 8, &[1]).await?;
    settle(&mut db, held, &delayed(1)).await?;
    promote::promote(&mut db, 0, &[1]).await?;
    assert_eq!(spent(&mut db).await?, [(2, 0)]);
    Ok(())
}

/// Attempts and take-overs of all pending messages.
async fn spent(db: &mut MySqlConnection) -> Result<Vec<(u16, u8)>> {
    Ok(look(db).await?.below.iter().map(|row| (row.attempts, row.takeovers)).collect())
}

/// Also for a pending row that no message can have: one with the id 0.
async fn what_a_broker_said_is_kept_to_500_characters_whatever_they_are(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 3).await?;
    database.execute("INSERT INTO outbox_pending (lane, id) VALUES (0, 0)").await?;
    let held = claim(&mut db, 8, &[1, 2, 3]).await?;
    let said = format!("'\";\\\0{}", "🦀".repeat(600));
    let kept: String = said.chars().take(500).collect();
    let late = |id, error: &str| Delayed {
        id,
        wait: Some(LEASE),
        spent: false,
        reason: DelayReason::Unconfirmed,
        error: error.into(),
    };
    let dead = Dead { id: 3, spent: true, holds_key: true, reason: "rejected", error: said.clone() };
    let settlement =
        Settlement { delayed: vec![late(1, &said), late(2, "")], dead: vec![dead], ..Settlement::default() };
    assert_eq!(settle(&mut db, held, &settlement).await?, [held]);
    let sql = "SELECT id, attempts, holds_key, reason, error FROM outbox_delayed UNION ALL \
               SELECT id, attempts, holds_key, reason, error FROM outbox_dead ORDER BY id";
    let rows: Vec<(u64, u16, u8, String, String)> = sqlx::query_as(sql).fetch_all(&mut db).await?;
    let row = |id, attempts, reason: &str, error: &str| (id, attempts, 1, reason.to_owned(), error.to_owned());
    assert_eq!(rows, [row(1, 0, "unconfirmed", &kept), row(2, 0, "unconfirmed", ""), row(3, 1, "rejected", &kept)]);
    assert_eq!(counts(&database).await?, [1, 2, 1, 1, 0]);
    Ok(())
}

async fn promotion_lowers_low_and_raises_the_version(flavor: Flavor) -> Result<()> {
    let (_database, mut db) = with_messages(flavor, 2).await?;
    let held = claim(&mut db, 8, &[1, 2]).await?;
    settle(&mut db, held, &delayed(2)).await?;
    let before = look(&mut db).await?;
    assert_eq!(promote::promote(&mut db, 0, &[2]).await?, 1);
    let after = look(&mut db).await?;
    assert_eq!((before.low, after.low), (9, 2));
    assert!(after.version > before.version, "a claim on what was seen before must fail");
    Ok(())
}

/// Another relay has promoted it before, and settles its failure.
async fn a_promotion_that_comes_late_deletes_no_message_that_failed_meanwhile(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    let mut settler = database.plain().await?;
    let mut settles = settler.begin().await?;
    let fails = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, due_at, holds_key, reason) \
                 SELECT lane, id, key_hash, bytes, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 1, 'unconfirmed' \
                 FROM outbox_pending; \
                 DELETE FROM outbox_pending WHERE id = 1";
    sqlx::raw_sql(fails).execute(&mut *settles).await?;
    let settled = async {
        database.wait_for_lock_waits(flavor, 1).await?;
        anyhow::Ok(settles.commit().await?)
    };
    let (promoted, settled) = tokio::join!(promote::promote(&mut db, 0, &[1]), settled);
    settled?;
    assert_eq!((promoted?, counts(&database).await?), (0, [0, 1, 0, 0, 0]));
    assert_eq!(promote::promote_due(&mut db, 0, &[1]).await?, 0, "it waits again");
    sqlx::raw_sql("UPDATE outbox_delayed SET due_at = UTC_TIMESTAMP(6)").execute(&mut db).await?;
    assert_eq!(promote::promote_due(&mut db, 0, &[1]).await?, 1);
    Ok(())
}

/// Somebody has put back two messages by hand, and left them where they were.
async fn a_row_that_is_pending_and_delayed_at_once_stops_neither_promotion_nor_the_lane(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 2).await?;
    let both = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason) \
                SELECT lane, id, key_hash, bytes, attempts, UTC_TIMESTAMP(6), 1, 'behind' FROM outbox_pending";
    database.execute(both).await?;
    assert_eq!(promote::promote(&mut db, 0, &[1]).await?, 1);
    let version = version(&mut db).await?;
    assert!(claim::defer(&mut db, (0, version, 9), &[2]).await?);
    let left = "SELECT CONCAT((SELECT GROUP_CONCAT(id) FROM outbox_pending), ' ', GROUP_CONCAT(id)) = '1 2' \
                FROM outbox_delayed";
    assert_eq!(database.number(left).await?, 1);
    Ok(())
}

async fn a_row_that_is_pending_and_delayed_or_dead_at_once_can_be_delayed_and_given_up(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 2).await?;
    let both = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, reason) \
                SELECT lane, id, key_hash, bytes, 7, UTC_TIMESTAMP(6), 'before' FROM outbox_pending WHERE id = 1; \
                INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, owner, reason) \
                SELECT lane, id, key_hash, bytes, 7, UTC_TIMESTAMP(6), '', 'before' FROM outbox_pending WHERE id = 2";
    database.execute(both).await?;
    let held = claim(&mut db, 8, &[1, 2]).await?;
    let dead = Dead { id: 2, spent: true, holds_key: false, reason: "after", error: String::new() };
    let settlement = Settlement { dead: vec![dead], ..delayed(1) };
    assert_eq!(settle(&mut db, held, &settlement).await?, [held]);
    let latest = "SELECT (SELECT COUNT(*) FROM outbox_delayed WHERE id = 1 AND attempts = 1 \
                  AND reason = 'unconfirmed') \
                  + (SELECT COUNT(*) FROM outbox_dead WHERE id = 2 AND attempts = 1 AND reason = 'after') \
                  - (SELECT COUNT(*) FROM outbox_pending)";
    assert_eq!(database.number(latest).await?, 2);
    Ok(())
}

async fn a_retry_and_what_is_behind_it_hold_back_their_key(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 3).await?;
    let held = claim(&mut db, 8, &[1]).await?;
    settle(&mut db, held, &delayed(1)).await?;
    let seen = look(&mut db).await?;
    let key = seen.below.first().context("a message is left")?.key_hash;
    ensure!(seen.holds.is_some(), "the look saw nothing that waits");
    assert_eq!(held::among(&mut db, 0, &[5, key]).await?, [(key, 1)]);
    assert!(claim::defer(&mut db, (0, seen.version.context("there is no head")?, 9), &[2, 3]).await?);
    assert_eq!(held::among(&mut db, 0, &[5, key]).await?, [(key, 1)]);
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_delayed WHERE holds_key = 1").await?, 3);
    // The retry has a date; what is behind it has none, and comes after it.
    assert_eq!(promote::due(&mut db, Duration::ZERO, 10).await?.len(), 1);
    assert_eq!(queue::next(&mut db, (0, key), 0, 10).await?, Vec::<u64>::new());
    assert_eq!(queue::keys(&mut db, 0, 0).await?, [(key, false)]);
    promote::promote(&mut db, 0, &[1]).await?;
    assert_eq!(queue::keys(&mut db, 0, 0).await?, [(key, true)]);
    assert_eq!(queue::next(&mut db, (0, key), 0, 1).await?, [2]);
    assert_eq!(queue::next(&mut db, (0, key), 2, 10).await?, [3]);
    assert_eq!([queue::lane(&mut db, 0).await?, queue::lane(&mut db, 1).await?], [Some(0), None]);
    // A dead message may hold the key as well.
    let dead = format!(
        "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, owner) \
        VALUES (0, 1, {key}, 0, 1, UTC_TIMESTAMP(6), 1, 'rejected', 'me')"
    );
    database.execute(&dead).await?;
    assert_eq!(queue::next(&mut db, (0, key), 0, 10).await?, Vec::<u64>::new());
    assert_eq!(queue::keys(&mut db, 0, 0).await?, [(key, false)], "a dead message holds it");
    Ok(())
}

/// The session's clock is set to another century; the host's is not.
async fn a_lease_runs_by_the_databases_clock(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    let then = "SELECT COUNT(*) FROM outbox_claims WHERE lease_until = TIMESTAMP'2001-09-09 01:47:10'";
    sqlx::raw_sql("SET timestamp = 1000000000").execute(&mut db).await?;
    let held = claim(&mut db, 8, &[1]).await?;
    assert_eq!(database.number(then).await?, 1);
    assert_eq!(lease::expired(&mut db, 0).await?.len(), 0);
    sqlx::raw_sql("SET timestamp = 1000000031").execute(&mut db).await?;
    assert_eq!(lease::expired(&mut db, 0).await?.len(), 1);
    assert_eq!(lease::expired(&mut db, held.claim_id).await?.len(), 0);
    sqlx::raw_sql("SET timestamp = 1000000000").execute(&mut db).await?;
    lease::renew(&mut db, &[held], LEASE).await?;
    assert_eq!(database.number(then).await?, 1);
    Ok(())
}

async fn a_purge_deletes_only_what_a_receipt_names(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 3).await?;
    let held = claim(&mut db, 8, &[1, 2]).await?;
    let settlement = Settlement { sent: vec![(2, String::new())], ..Settlement::default() };
    settle(&mut db, held, &settlement).await?;
    sqlx::raw_sql("SET timestamp = 2147000000").execute(&mut db).await?;
    assert_eq!(purge::sent(&mut db, Duration::from_secs(60), &mut 0, 10).await?, (1, 1));
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_messages WHERE id IN (1, 3)").await?, 2);
    assert_eq!(counts(&database).await?, [2, 0, 0, 0, 0]);
    Ok(())
}
