//! Standing claims: each text counts once, and a closed claim takes nothing more.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    sqlx::MySqlConnection,
    store::{
        claim::{self, Look, NewClaim, NewClaims},
        find,
        lease::ClaimLease,
        settle::{Settlement, Way},
        standing::{self, Found, Kind, Next},
        stats,
    },
};
use testkit::{on_both_databases, servers::Flavor};

use crate::protocol::{LEASE, counts, look, version, with_messages};

on_both_databases!(
    a_settlement_counts_once_and_leaves_a_successor,
    a_closed_claim_stays_closed_and_becomes_a_list,
    low_rises_only_while_no_row_is_put_back,
);

const MARK: u64 = 3;

async fn stand(db: &mut MySqlConnection) -> Result<ClaimLease> {
    let claims = [NewClaim { lease_token: 7, message_ids: &[], key_hashes: &[] }];
    let version = version(db).await?;
    let new = NewClaims { lane: 0, version, low: 1, owner: "me", lease: LEASE, claims: &claims, behind: &[] };
    claim::stand(db, &new, MARK).await?.first().copied().context("no claim was made")
}

async fn settle(db: &mut MySqlConnection, claim: ClaimLease, sent: &[u64], next: &Next) -> Result<Found> {
    let sent = sent.iter().map(|id| (*id, String::new())).collect();
    let settlement = Settlement { sent, ..Settlement::default() };
    Ok(standing::settle(db, "me", (claim, &settlement), (next, LEASE), Way::OneByOne).await?)
}

fn further(mark: u64) -> Next {
    Next::Standing { mark, low: None }
}

async fn a_settlement_counts_once_and_leaves_a_successor(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 4).await?;
    let first = stand(&mut db).await?;
    let found = settle(&mut db, first, &[1], &further(9)).await?;
    let second = found.claim.context("no successor")?;
    ensure!(found.is_settled && second.lease.claim_id > first.claim_id, "{found:?}");
    assert_eq!((second.lease.lease_token, second.kind, second.mark), (7, Kind::Open, 9));
    assert_eq!(look(&mut db).await?.standing, Some((second, true)));
    assert_eq!(counts(&database).await?, [3, 0, 0, 1, 1]);
    // A text that comes late changes nothing, whatever its outcomes.
    let late = settle(&mut db, first, &[1, 2], &Next::End).await?;
    assert_eq!(late, found);
    assert_eq!(counts(&database).await?, [3, 0, 0, 1, 1]);
    let other = ClaimLease { lease_token: 8, ..second.lease };
    assert_eq!(settle(&mut db, other, &[2], &Next::End).await?, Found::default());
    let last = settle(&mut db, second.lease, &[2, 3], &Next::End).await?;
    assert_eq!(last, Found { is_settled: true, claim: None });
    assert_eq!(counts(&database).await?, [1, 0, 0, 2, 0]);
    Ok(())
}

async fn a_closed_claim_stays_closed_and_becomes_a_list(flavor: Flavor) -> Result<()> {
    let (_database, mut db) = with_messages(flavor, 4).await?;
    let first = stand(&mut db).await?;
    let lanes = stats::lanes(&mut db).await?;
    assert_eq!(lanes.iter().map(|lane| (lane.pending, lane.leased)).collect::<Vec<_>>(), [(4, MARK)]);
    for (id, is_covered) in [(MARK, true), (MARK + 1, false)] {
        assert_eq!(find::find(&mut db, id).await?.claims.iter().any(|claim| claim.kind == Kind::Open), is_covered);
    }
    ensure!(!standing::close(&mut db, first, Duration::from_secs(60)).await?, "it was written just now");
    ensure!(!standing::list(&mut db, first, (&[1, 2, 3], &[])).await?, "it is open");
    ensure!(standing::close(&mut db, first, Duration::ZERO).await?, "it was not closed");
    let closed = settle(&mut db, first, &[1], &further(9)).await?.claim.context("no successor")?;
    assert_eq!(closed.kind, Kind::Closed);
    ensure!(standing::list(&mut db, closed.lease, (&[2, 3], &[5])).await?, "no list was made");
    ensure!(!standing::list(&mut db, closed.lease, (&[2, 3], &[5])).await?, "a second list was made");
    let found = standing::found(&mut db, "me", closed.lease).await?;
    let list = found.claim.context("no list with the token")?;
    // The mark still names the text that made the claim.
    ensure!(!found.is_settled && list.kind == Kind::List && list.mark == 9, "{found:?}");
    let seen = claim::look(&mut db, &Look { owner: "other", ..Look::default() }).await?;
    let listed = seen.claims.first().context("others do not see the list")?;
    assert_eq!((listed.lease, &listed.message_ids[..], &listed.key_hashes[..]), (list.lease, &[2, 3][..], &[5][..]));
    ensure!(seen.standing.is_none(), "{seen:?}");
    Ok(())
}

async fn low_rises_only_while_no_row_is_put_back(flavor: Flavor) -> Result<()> {
    let (_database, mut db) = with_messages(flavor, 4).await?;
    let mut claim = stand(&mut db).await?;
    let version = version(&mut db).await?;
    for (version, low, after) in [(version, 2, 2), (version - 1, 4, 2), (version, 3, 3)] {
        let next = Next::Standing { mark: MARK, low: Some((version, low)) };
        claim = settle(&mut db, claim, &[], &next).await?.claim.context("no successor")?.lease;
        assert_eq!(look(&mut db).await?.low, after);
    }
    Ok(())
}
