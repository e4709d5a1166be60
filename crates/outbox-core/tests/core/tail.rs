//! Tails: each text counts once, a closed one takes nothing more, and a sealed lane has no other claims.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    REPLAY_HEADER,
    sqlx::MySqlConnection,
    store::{
        claim::{
            self, Look, NewClaim, NewClaims,
            lease::ClaimLease,
            promote, read,
            tail::{self, ClaimKind, FoundTail, NextClaim},
        },
        operate::{find, stats},
        settle::{Delayed, Settlement, Way},
    },
};
use testkit::{on_both_databases, servers::Flavor};

use crate::protocol::{LEASE, counts, look, version, with_messages};

on_both_databases!(
    a_settlement_counts_once_and_leaves_a_successor,
    a_closed_tail_stays_closed_and_becomes_a_list,
    a_sealed_lane_has_no_other_claims_until_its_tail_ends,
    a_replay_that_reads_do_not_see_yet_is_not_read,
    a_row_that_reads_do_not_see_yet_is_delayed_all_the_same,
    the_successor_of_a_list_is_numbered_under_the_lock_of_the_head,
);

const MARK: u64 = 3;

/// Makes a tail up to the mark.
async fn open(db: &mut MySqlConnection) -> Result<ClaimLease> {
    let forming = tail::form(db, 0, "me", (7, LEASE)).await?.context("no tail was made")?;
    ensure!(tail::is_alone(db, 0).await? && tail::is_tailed(db, 0).await?, "it is not alone");
    let found = settle(db, forming, Settlement::default(), &NextClaim::Open(MARK)).await?;
    let open = found.claim.context("no successor")?;
    assert_eq!((open.kind, open.mark), (ClaimKind::Open, MARK));
    Ok(open.lease)
}

async fn settle(
    db: &mut MySqlConnection,
    claim: ClaimLease,
    settlement: Settlement,
    next: &NextClaim,
) -> Result<FoundTail> {
    Ok(tail::settle(db, ("me", 0), (claim, &settlement), (next, LEASE), Way::OneByOne).await?)
}

fn sent(ids: &[u64]) -> Settlement {
    Settlement { sent: ids.iter().map(|id| (*id, String::new())).collect(), ..Settlement::default() }
}

async fn a_settlement_counts_once_and_leaves_a_successor(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 4).await?;
    let first = open(&mut db).await?;
    let found = settle(&mut db, first, sent(&[1]), &NextClaim::Same(9)).await?;
    let second = found.claim.context("no successor")?;
    ensure!(found.is_settled && second.lease.claim_id > first.claim_id, "{found:?}");
    assert_eq!((second.lease.lease_token, second.kind, second.mark), (7, ClaimKind::Open, 9));
    ensure!(look(&mut db).await?.has_tail, "a look does not see it");
    assert_eq!(counts(&database).await?, [3, 0, 0, 2, 1]);
    // A text that comes late changes nothing, whatever its outcomes.
    let late = settle(&mut db, first, sent(&[1, 2]), &NextClaim::End).await?;
    assert_eq!(late, found);
    assert_eq!(counts(&database).await?, [3, 0, 0, 2, 1]);
    let other = ClaimLease { lease_token: 8, ..second.lease };
    assert_eq!(settle(&mut db, other, sent(&[2]), &NextClaim::End).await?, FoundTail::default());
    let last = settle(&mut db, second.lease, sent(&[2, 3]), &NextClaim::End).await?;
    assert_eq!(last, FoundTail { is_settled: true, claim: None });
    assert_eq!(counts(&database).await?, [1, 0, 0, 3, 0]);
    Ok(())
}

async fn a_closed_tail_stays_closed_and_becomes_a_list(flavor: Flavor) -> Result<()> {
    let (_database, mut db) = with_messages(flavor, 4).await?;
    let first = open(&mut db).await?;
    let lanes = stats::lanes(&mut db).await?;
    assert_eq!(lanes.iter().map(|lane| (lane.pending, lane.leased)).collect::<Vec<_>>(), [(4, MARK)]);
    for (id, is_covered) in [(MARK, true), (MARK + 1, false)] {
        assert_eq!(find::find(&mut db, id).await?.claims.iter().any(|claim| claim.kind == ClaimKind::Open), is_covered);
    }
    ensure!(!tail::close(&mut db, first, Duration::from_secs(60)).await?, "it was written just now");
    assert_eq!(tail::found(&mut db, "me", first).await?.claim.map(|claim| claim.lease), Some(first));
    ensure!(!tail::list(&mut db, first, (&[1, 2, 3], &[])).await?, "it is open");
    ensure!(tail::close(&mut db, first, Duration::ZERO).await?, "it was not closed");
    ensure!(!tail::close(&mut db, first, Duration::ZERO).await?, "it was closed twice");
    // The owner's next text is about a claim that is gone, and it finds the closed one.
    let found = settle(&mut db, first, sent(&[1]), &NextClaim::Same(9)).await?;
    let mut closed = found.claim.context("no closed tail")?;
    ensure!(!found.is_settled && closed.kind == ClaimKind::Closed, "{found:?}");
    for next in [NextClaim::Same(9), NextClaim::Open(10)] {
        closed = settle(&mut db, closed.lease, sent(&[1]), &next).await?.claim.context("no successor")?;
        assert_eq!(closed.kind, ClaimKind::Closed);
    }
    ensure!(tail::list(&mut db, closed.lease, (&[2, 3], &[5])).await?, "no list was made");
    ensure!(!tail::list(&mut db, closed.lease, (&[2, 3], &[5])).await?, "a second list was made");
    let found = tail::found(&mut db, "me", closed.lease).await?;
    let list = found.claim.context("no list with the token")?;
    // The mark still names the text that made the claim.
    ensure!(!found.is_settled && list.kind == ClaimKind::List && list.mark == 10, "{found:?}");
    let seen = claim::look(&mut db, &Look { owner: "other", ..Look::default() }).await?;
    let listed = seen.claims.first().context("others do not see the list")?;
    assert_eq!((listed.lease, &listed.message_ids[..], &listed.key_hashes[..]), (list.lease, &[2, 3][..], &[5][..]));
    ensure!(!seen.has_tail, "{seen:?}");
    Ok(())
}

/// Claims the first message with this version.
async fn claims(db: &mut MySqlConnection, version: u64) -> bool {
    let claims = [NewClaim { lease_token: 8, message_ids: &[1], key_hashes: &[] }];
    let new = NewClaims { lane: 0, version, low: 1, owner: "other", lease: LEASE, claims: &claims, behind: &[] };
    claim::claim(db, &new).await.is_ok_and(|made| !made.is_empty())
}

async fn a_sealed_lane_has_no_other_claims_until_its_tail_ends(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 4).await?;
    let before = version(&mut db).await?;
    let first = open(&mut db).await?;
    ensure!(tail::form(&mut db, 0, "other", (9, LEASE)).await?.is_none(), "a second tail was made");
    assert_eq!(version(&mut db).await?, tail::SEALED);
    ensure!(!claims(&mut db, before).await && !claims(&mut db, tail::SEALED).await, "another claim was made");
    // Rows may be put back meanwhile.
    promote::promote(&mut db, 0, &[1]).await?;
    tail::unseal(&mut db, 0).await?;
    assert_eq!(version(&mut db).await?, tail::SEALED, "it has a tail");
    settle(&mut db, first, Settlement::default(), &NextClaim::End).await?;
    let after = version(&mut db).await?;
    ensure!(after > before && after < tail::SEALED, "version {after} after {before}");
    ensure!(!claims(&mut db, before).await && claims(&mut db, after).await, "the claim of an earlier look was made");
    database.execute("DELETE FROM outbox_claims").await?;
    open(&mut db).await?;
    // As by hand.
    database.execute("DELETE FROM outbox_claims").await?;
    assert_eq!(version(&mut db).await?, tail::SEALED);
    tail::unseal(&mut db, 0).await?;
    let last = version(&mut db).await?;
    ensure!(last > after + 1 && last < tail::SEALED, "version {last} after {after}");
    Ok(())
}

/// A job sends a message again: its old row is seen before its mark.
async fn a_replay_that_reads_do_not_see_yet_is_not_read(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    database.execute("DELETE FROM outbox_pending").await?;
    let mut job = database.connect_as_admin().await?;
    let again = "BEGIN; INSERT INTO outbox_replays (id, job_id) VALUES (1, 7); \
                 INSERT INTO outbox_pending (lane, id, key_hash, bytes) VALUES (0, 1, 5, 1)";
    outbox_core::sqlx::raw_sql(again).execute(&mut job).await?;
    ensure!(read::shown(&mut db, 0, &[1]).await?.is_empty(), "a message without its mark was read");
    outbox_core::sqlx::raw_sql("COMMIT").execute(&mut job).await?;
    let read = read::shown(&mut db, 0, &[1, 2]).await?;
    let headers: Vec<_> = read.iter().flat_map(|message| &message.contents.headers).collect();
    ensure!(headers.iter().any(|(name, value)| name == REPLAY_HEADER && value == "7"), "{headers:?}");
    ensure!(read::shown(&mut db, 1, &[1]).await?.is_empty(), "the row is of another lane");
    Ok(())
}

/// A transaction that holds a lock on the row stands for one that the log shows and that is not committed for others
/// yet.
async fn a_row_that_reads_do_not_see_yet_is_delayed_all_the_same(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    let tail = open(&mut db).await?;
    let mut service = database.connect_as_admin().await?;
    let insert = "BEGIN; INSERT INTO outbox_pending (lane, id, key_hash, bytes) VALUES (0, 2, 5, 1)";
    outbox_core::sqlx::raw_sql(insert).execute(&mut service).await?;
    let behind = Settlement { delayed: vec![Delayed::behind(2)], ..Settlement::default() };
    let settled = tokio::spawn(async move { settle(&mut db, tail, behind, &NextClaim::Same(9)).await });
    database.wait_for_lock_waits(flavor, 1).await?;
    outbox_core::sqlx::raw_sql("COMMIT").execute(&mut service).await?;
    ensure!(settled.await??.is_settled, "nothing was settled");
    assert_eq!(counts(&database).await?[..2], [1, 1]);
    Ok(())
}

/// A look passes claims by whose numbers are below those that it has seen. A claim that is being made has the lock.
async fn the_successor_of_a_list_is_numbered_under_the_lock_of_the_head(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 2).await?;
    let tail = open(&mut db).await?;
    let list = |ids: &[u64], mark| NextClaim::List { ids: ids.to_vec(), keys: Vec::new(), mark };
    let first = settle(&mut db, tail, Settlement::default(), &list(&[1, 2], 9)).await?.claim.context("no list")?;
    let mut other = database.connect_as_admin().await?;
    outbox_core::sqlx::raw_sql("BEGIN; SELECT * FROM outbox_head FOR UPDATE").execute(&mut other).await?;
    let settled = tokio::spawn(async move { settle(&mut db, first.lease, sent(&[1]), &list(&[2], 10)).await });
    database.wait_for_lock_waits(flavor, 1).await?;
    outbox_core::sqlx::raw_sql("COMMIT").execute(&mut other).await?;
    ensure!(settled.await??.is_settled, "nothing was settled");
    Ok(())
}
