//! Looks and claims: what a look sees, and whether claims are made.

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _},
    store::claim::{self, Look, NewClaim, NewClaims, lease::ClaimLease, queue},
};
use testkit::{on_both_databases, servers::Flavor};

use crate::protocol::{LEASE, claim, claim_at, counts, look, version, with_messages};

on_both_databases!(
    a_look_is_one_statement_that_takes_no_lock,
    a_look_leaves_out_all_rows_of_some_keys,
    a_claim_that_was_not_found_cannot_be_made_later,
    claims_that_are_made_together_are_all_made_or_none,
    claims_are_numbered_as_they_are_made_and_those_that_are_gone_are_not_looked_at,
    what_is_not_committed_is_not_seen,
    rows_go_behind_a_claim_that_is_made_and_behind_no_other,
);

/// In one statement everything is of one moment.
async fn a_look_is_one_statement_that_takes_no_lock(flavor: Flavor) -> Result<()> {
    // As many as one INSERT takes: only within it ids have no gaps.
    let (database, mut db) = with_messages(flavor, 16).await?;
    let lease = claim(&mut db, 7, &[2]).await?;
    let waiting = "INSERT INTO outbox_delayed (lane, id, key_hash, due_at, holds_key, reason) \
                   VALUES (0, 90, 5, UTC_TIMESTAMP(6), 1, 'retry'); \
                   INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, owner) \
                   VALUES (0, 91, 6, 0, 1, UTC_TIMESTAMP(6), 1, 'rejected', 'me')";
    database.execute(waiting).await?;
    let mut other = database.plain().await?;
    let mut selects = Vec::new();
    let mut locks = other.begin().await?;
    for table in ["head", "claims", "pending", "delayed", "dead"] {
        let lock = format!("SELECT * FROM outbox_{table} FOR UPDATE");
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut *locks).await?;
    }
    sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 1").execute(&mut db).await?;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let status = "SHOW SESSION STATUS LIKE 'Com_select'";
        let (_, count): (String, String) = sqlx::query_as(status).fetch_one(&mut db).await?;
        selects.push(count.parse::<u64>()?);
        seen.push(look(&mut db).await?);
    }
    ensure!(selects.is_sorted_by(|before, after| before + 1 == *after), "{selects:?}: a look is not one statement");
    for seen in seen {
        let ids = |rows: &[claim::Pending]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!((ids(&seen.below), ids(&seen.fresh)), (vec![1, 2, 3], (4..=13).collect()));
        assert_eq!(seen.leases, [lease]);
        ensure!(seen.version.is_some() && seen.holds.is_some() && seen.claims.is_empty() && seen.passed.is_empty());
    }
    Ok(())
}

/// Also those in the gaps between claims; and each limit counts what is left.
async fn a_look_leaves_out_all_rows_of_some_keys(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 8).await?;
    database
        .execute(
            "UPDATE outbox_pending SET key_hash = 7 WHERE id IN (3, 6, 8); UPDATE outbox_pending \
                      SET key_hash = 0 WHERE id = 7",
        )
        .await?;
    let key = look(&mut db).await?.below.first().context("no message")?.key_hash;
    let below = [1..=4];
    let keys = [key, 5];
    let look = Look { above: 4, limit: 2, below: &below, below_limit: 1, without: Some((&keys, 7)), ..Look::default() };
    let seen = claim::look(&mut db, &look).await?;
    let ids = |rows: &[claim::Pending]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!((ids(&seen.below), ids(&seen.fresh)), (vec![3], vec![6, 7]));
    let nearer = claim::look(&mut db, &Look { without: Some((&keys, 6)), ..look }).await?;
    assert_eq!((ids(&nearer.below), ids(&nearer.fresh)), (vec![3], vec![6]));
    Ok(())
}

/// Whose reply was lost asks; where the answer is no, the request may still be on its way.
async fn a_claim_that_was_not_found_cannot_be_made_later(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    let version = version(&mut db).await?;
    assert_eq!(claim::find(&mut db, 0, "me", &[8]).await?, []);
    assert_eq!(claim_at(&mut db, version, 8, &[1]).await?, None);
    assert_eq!(counts(&database).await?, [1, 0, 0, 0, 0]);
    let made = claim(&mut db, 9, &[1]).await?;
    assert_eq!(claim::find(&mut db, 0, "me", &[9, 10]).await?, [made]);
    Ok(())
}

/// The server counts in steps.
async fn claims_that_are_made_together_are_all_made_or_none(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 5).await?;
    let version = version(&mut db).await?;
    sqlx::raw_sql("SET SESSION auto_increment_increment = 3").execute(&mut db).await?;
    let parts: [(u64, &[u64], &[u64]); 3] = [(7, &[1, 3], &[u64::MAX, 1]), (8, &[2], &[]), (9, &[5], &[7])];
    let claims = parts.map(|(lease_token, message_ids, key_hashes)| NewClaim { lease_token, message_ids, key_hashes });
    let new = NewClaims { lane: 0, version, low: 1, owner: "me", lease: LEASE, claims: &claims, behind: &[] };
    let late = NewClaims { version: version + 1, ..new };
    assert_eq!(claim::claim(&mut db, &late).await?, []);
    assert_eq!(counts(&database).await?, [5, 0, 0, 0, 0]);
    let (mut made, messages) = claim::claim_and_read(&mut db, &new).await?;
    made.sort_unstable_by_key(|lease| lease.lease_token);
    let sql = "SELECT claim_id, lease_token, CAST(message_ids AS CHAR), HEX(key_hashes) FROM outbox_claims \
               ORDER BY lease_token";
    let rows: Vec<(u64, u64, String, String)> = sqlx::query_as(sql).fetch_all(&mut db).await?;
    let [first, second, third] = made[..] else { anyhow::bail!("{made:?}") };
    let row = |lease: ClaimLease, token, ids: &str, hashes: &str| (lease.claim_id, token, ids.into(), hashes.into());
    let expected = [
        row(first, 7, "[1,3]", "FFFFFFFFFFFFFFFF0000000000000001"),
        row(second, 8, "[2]", ""),
        row(third, 9, "[5]", "0000000000000007"),
    ];
    assert_eq!(rows, expected);
    assert_eq!((second.claim_id, third.claim_id), (first.claim_id + 3, first.claim_id + 6), "the server's steps");
    let messages = messages.context("the messages were not read")?;
    assert_eq!(messages.iter().map(|message| message.id).collect::<Vec<_>>(), [1, 2, 3, 5]);
    let mut found = claim::find(&mut db, 0, "me", &[7, 8, 9, 10]).await?;
    found.sort_unstable_by_key(|lease| lease.lease_token);
    assert_eq!(found, made);
    Ok(())
}

async fn claims_are_numbered_as_they_are_made_and_those_that_are_gone_are_not_looked_at(flavor: Flavor) -> Result<()> {
    let (_database, mut db) = with_messages(flavor, 3).await?;
    let claims = [claim(&mut db, 7, &[1]).await?, claim(&mut db, 8, &[2]).await?, claim(&mut db, 9, &[3]).await?];
    let [first, second, third] = claims;
    ensure!(first.claim_id < second.claim_id && second.claim_id < third.claim_id, "{claims:?}");
    let look = Look { owner: "other", gone_claim: first.claim_id, ..Look::default() };
    let seen = claim::look(&mut db, &look).await?;
    assert_eq!(seen.leases, [second, third]);
    assert_eq!(seen.claims.iter().map(|claim| claim.lease).collect::<Vec<_>>(), [second, third]);
    let seen = claim::look(&mut db, &Look { known_claim: second.claim_id, ..look }).await?;
    assert_eq!(seen.leases, [second, third]);
    assert_eq!(seen.claims.iter().map(|claim| claim.lease).collect::<Vec<_>>(), [third]);
    assert_eq!(seen.passed, [second]);
    Ok(())
}

async fn what_is_not_committed_is_not_seen(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 1).await?;
    let mut service = database.connect().await?;
    let mut open = service.begin().await?;
    Outbox::new().enqueue(&mut open, Message::new("orders", "x")).await?;
    let seen = look(&mut db).await?;
    let ids: Vec<u64> = seen.below.iter().chain(&seen.fresh).map(|row| row.id).collect();
    assert_eq!(ids, [1]);
    Ok(open.rollback().await?)
}

/// Surplus rows of a key go behind in the claim's own text, and only if the claim is made.
async fn rows_go_behind_a_claim_that_is_made_and_behind_no_other(flavor: Flavor) -> Result<()> {
    let (database, mut db) = with_messages(flavor, 3).await?;
    let seen = look(&mut db).await?;
    let (version, key) =
        (seen.version.context("there is no head")?, seen.below.first().context("no message")?.key_hash);
    let new_claim = |lease_token| [NewClaim { lease_token, message_ids: &[1], key_hashes: &[1] }];
    let late = new_claim(7);
    let first = new_claim(8);
    let new =
        |version, claims| NewClaims { lane: 0, version, low: 1, owner: "me", lease: LEASE, claims, behind: &[2, 3] };
    assert_eq!(claim::claim(&mut db, &new(version + 1, &late)).await?, []);
    assert_eq!(counts(&database).await?, [3, 0, 0, 0, 0]);
    ensure!(claim::claim(&mut db, &new(version, &first)).await?.len() == 1, "the claim was not made");
    assert_eq!(counts(&database).await?, [1, 2, 0, 0, 1]);
    assert_eq!(queue::next(&mut db, (0, key), 1, 10).await?, [2, 3]);
    Ok(())
}
