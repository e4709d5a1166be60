//! The hot statements read only the rows that they are for. Both servers count the reads themselves, with a backlog and
//! a history around them. A plan that scans shows at once.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection, Row as _},
    store::{
        claim::{
            self, Look, NewClaim, NewClaims, held,
            lease::{self, ClaimLease},
            promote, queue, read,
        },
        operate::{find::StateTable, messages, purge, replay, unsent},
        reason::DelayReason,
        session,
        settle::{self, Delayed, Settlement, Way},
    },
};
use outbox_relay::operate::messages::{MessageFilter, list};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    the_hot_statements_read_only_their_rows,
    a_claim_of_another_lane_or_version_changes_nothing,
    no_statement_of_a_claim_waits_for_a_neighbour,
    deleted_rows_that_a_snapshot_keeps_are_not_read,
    however_many_rows_are_queued_a_look_and_a_part_of_a_queue_read_few,
    a_part_of_a_replay_reads_its_own_receipts_and_messages,
    a_list_of_messages_reads_its_budget_and_the_states_of_what_it_finds,
    a_dry_run_of_the_purge_reads_its_budget,
);

const BACKLOG: u64 = 5_000;
const LANE: u16 = 0;

/// Returns the rows that the session has read since the last call. (FLUSH STATUS would reset the counts of all
/// sessions.)
async fn rows_read(db: &mut MySqlConnection) -> Result<u64> {
    let before: u64 =
        sqlx::query_scalar("SELECT CAST(COALESCE(@rows_read, 0) AS UNSIGNED)").fetch_one(&mut *db).await?;
    let now = rows_ever_read(db).await?;
    let again = rows_ever_read(db).await?;
    // A look at the counts reads rows itself.
    let after = again + (again - now);
    sqlx::query("SET @rows_read = ?").bind(after).execute(db).await?;
    Ok(now.saturating_sub(before))
}

async fn rows_ever_read(db: &mut MySqlConnection) -> Result<u64> {
    let rows = sqlx::query("SHOW SESSION STATUS LIKE 'Handler_read%'").fetch_all(&mut *db).await?;
    let mut total = 0;
    for row in &rows {
        let name: String = row.try_get(0)?;
        // rnd_next reads temporary tables and the status table itself, in small numbers.
        if name != "Handler_read_first" {
            total += row.try_get::<String, _>(1)?.parse::<u64>()?;
        }
    }
    Ok(total)
}

async fn at_most(db: &mut MySqlConnection, what: &str, limit: u64) -> Result<()> {
    let read = rows_read(db).await?;
    ensure!(read <= limit, "{what} read {read} rows, more than {limit}");
    ensure!(read > 0, "{what} read nothing");
    Ok(())
}

async fn fill(db: &mut MySqlConnection) -> Result<()> {
    let mut tx = db.begin().await?;
    let messages = (0..BACKLOG).map(|i| Message::new("orders", "x").key(format!("k{}", i % 100)));
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    let scheduled = (0..BACKLOG).map(|_| Message::new("orders", "x").key("later").delay(Duration::from_secs(3600)));
    Outbox::new().enqueue_all(&mut tx, scheduled).await?;
    tx.commit().await?;
    sqlx::raw_sql("ANALYZE TABLE outbox_messages, outbox_pending, outbox_delayed").execute(&mut *db).await?;
    rows_read(db).await.map(drop)
}

/// Inserts a thousand claims, settled just now.
async fn young_receipts(db: &mut MySqlConnection) -> Result<()> {
    let row = |claim| format!("({claim}, 0, 0, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '[]', '[]')");
    let rows: Vec<String> = (1_000..2_000).map(row).collect();
    let columns = "claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, receipts";
    let text = format!("INSERT INTO outbox_sent ({columns}) VALUES {}", rows.join(", "));
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut *db).await?;
    rows_read(db).await.map(drop)
}

async fn claim_100(db: &mut MySqlConnection) -> Result<(ClaimLease, Vec<u64>)> {
    let look =
        Look { lane: LANE, owner: "test", limit: 100, below: &[1..=10, 50..=60], below_limit: 200, ..Look::default() };
    let seen = claim::look(db, &look).await?;
    at_most(db, "look", 300).await?;
    let message_ids: Vec<u64> = seen.fresh.iter().map(|row| row.id).collect();
    ensure!(message_ids.len() == 100 && seen.below.len() == 21);
    let new = NewClaims {
        lane: LANE,
        version: seen.version.unwrap_or(0),
        low: 0,
        owner: "test",
        lease: Duration::from_secs(30),
        claims: &[NewClaim { lease_token: 7, message_ids: &message_ids, key_hashes: &[1] }],
        behind: &[],
    };
    let claimed = claim::claim(db, &new).await?.first().copied();
    at_most(db, "claim", 20).await?;
    Ok((claimed.context("nobody else claims here")?, message_ids))
}

/// One key is blocked.
async fn however_many_rows_are_queued_a_look_and_a_part_of_a_queue_read_few(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let db = &mut database.plain().await?;
    session::prepare(db).await?;
    fill(db).await?;
    let queue = "UPDATE outbox_delayed SET due_at = '9999-12-31', reason = 'behind', holds_key = 1; \
                 ANALYZE TABLE outbox_delayed";
    sqlx::raw_sql(queue).execute(&mut *db).await?;
    let key = sqlx::query_scalar("SELECT MIN(key_hash) FROM outbox_delayed").fetch_one(&mut *db).await?;
    rows_read(db).await?;
    let look = Look { lane: LANE, owner: "test", limit: 100, ..Look::default() };
    let seen = claim::look(db, &look).await?;
    at_most(db, "look", 300).await?;
    ensure!(seen.holds.is_some() && seen.fresh.len() == 100);
    let keys: Vec<u64> = seen.fresh.iter().map(|row| row.key_hash).chain([key]).collect();
    ensure!(held::among(db, LANE, &keys).await?.len() == 1);
    // The list of the keys, and two seeks for each, which MariaDB counts twice.
    at_most(db, "held", 6 * 101).await?;
    ensure!(held::next(db, LANE, 0).await? == Some(key) && held::next(db, LANE, key).await?.is_none());
    at_most(db, "next held key", 20).await?;
    ensure!(queue::next(db, (LANE, key), 0, 128).await?.len() == 128);
    at_most(db, "next of a queue", 150).await?;
    ensure!(queue::keys(db, LANE, 0).await? == [(key, true)]);
    at_most(db, "keys with a queue", 620).await?;
    for (key, messages) in [(key, 20), (key - 1, 0)] {
        ensure!(unsent::of_key(db, StateTable::Delayed, (LANE, key), true, 20).await?.len() == messages);
        at_most(db, "messages of a key", 100).await?;
    }
    ensure!(unsent::lanes(db).await? == [LANE]);
    at_most(db, "lanes with messages", 30).await?;
    ensure!(queue::lane(db, 0).await? == Some(LANE));
    at_most(db, "lane with a queue", 10).await?;
    ensure!(promote::due(db, Duration::from_secs(60), 1000).await?.is_empty());
    ensure!(rows_read(db).await? <= 10, "the search for what is due has read the queue");
    Ok(())
}

async fn a_list_of_messages_reads_its_budget_and_the_states_of_what_it_finds(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let db = &mut database.plain().await?;
    session::prepare(db).await?;
    fill(db).await?;
    rows_read(db).await?;
    let filter = MessageFilter { topic: Some("orders".into()), key: Some("k7".into()), ..MessageFilter::default() };
    // The newer half has another key.
    let page = list(db, &filter, None, 10, 1_000).await?;
    ensure!(page.rows.is_empty() && page.looked_at == 1_000, "{page:?}");
    // The step finds its end by a temporary table of ids, so each row counts thrice.
    at_most(db, "a list that finds nothing", 3 * 1_000 + 50).await?;
    // Ids have gaps where the server's increment is not 1.
    let nth = "SELECT id FROM outbox_messages ORDER BY id LIMIT 1 OFFSET ?";
    let low: u64 = sqlx::query_scalar(nth).bind(1_000).fetch_one(&mut *db).await?;
    let below: u64 = sqlx::query_scalar(nth).bind(2_000).fetch_one(&mut *db).await?;
    rows_read(db).await?;
    let page = list(db, &filter, Some(below), 50, 1_000).await?;
    ensure!(page.rows.len() == 10 && page.next == Some(low), "{page:?}");
    at_most(db, "a list", 3 * 1_000 + 50 + 10 * 10).await?;
    let last: u64 = sqlx::query_scalar("SELECT MAX(id) FROM outbox_messages").fetch_one(&mut *db).await?;
    rows_read(db).await?;
    ensure!(messages::first_since(db, i64::MAX / 2).await? == last + 1);
    at_most(db, "the search for a time", 40).await
}

/// Beside a backlog and thousands of receipts.
async fn a_part_of_a_replay_reads_its_own_receipts_and_messages(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let db = &mut database.plain().await?;
    session::prepare(db).await?;
    fill(db).await?;
    let receipts = "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, \
                    receipts) \
                    SELECT id, 1, 0, 'x', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), CONCAT('[', id, ']'), '[]' \
                    FROM outbox_messages; \
                    DELETE FROM outbox_pending WHERE id MOD 2 = 0; ANALYZE TABLE outbox_sent, outbox_pending";
    sqlx::raw_sql(receipts).execute(&mut *db).await?;
    rows_read(db).await?;
    let found = replay::receipts(db, 1_000, 100).await?;
    at_most(db, "receipts", 310).await?;
    ensure!(found.len() == 100 && found.is_sorted_by_key(|receipt| receipt.claim_id));
    let (above, last) = replay::bounds(db, 0).await?;
    at_most(db, "bounds", 200).await?;
    ensure!(above < last);
    let ids: Vec<u64> = found.iter().flat_map(|receipt| receipt.ids.iter().copied()).collect();
    let sent = replay::sent(db, LANE, &ids, 7).await?;
    // The list, and a seek in each of five tables.
    at_most(db, "sent", 700).await?;
    ensure!(sent.len() == 50, "{} messages", sent.len());
    ensure!(replay::again(db, LANE, &ids, 7).await?.len() == 100);
    at_most(db, "again", 350).await
}

async fn a_dry_run_of_the_purge_reads_its_budget(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let db = &mut database.plain().await?;
    session::prepare(db).await?;
    fill(db).await?;
    let old = "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, \
               receipts) \
               SELECT id, 1, 0, 'x', '2020-01-01', '2020-01-01', CONCAT('[', id, ']'), '[]' FROM outbox_pending; \
               INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, reason, owner) \
               SELECT lane, id, 0, 0, 1, '2020-01-01', 'x', 'x' FROM outbox_delayed; \
               INSERT INTO inbox_processed (consumer, message_id, processed_at) SELECT 'x', message_id, '2020-01-01' \
               FROM outbox_messages; \
               DELETE FROM outbox_pending WHERE id MOD 2 = 0; \
               ANALYZE TABLE outbox_sent, outbox_dead, outbox_pending, inbox_processed";
    sqlx::raw_sql(old).execute(&mut *db).await?;
    rows_read(db).await?;
    let age = Duration::from_secs(3600);
    let receipts = purge::old_receipts(db, age, 1_000, 200).await?.old;
    at_most(db, "old receipts", 200 + 10).await?;
    ensure!(receipts.len() == 200, "{} receipts", receipts.len());
    let ids: Vec<_> = receipts.iter().flat_map(|it| it.ids.iter().map(|id| (it.lane, *id))).collect();
    ensure!(purge::unsent(db, &ids).await?.len() == 100);
    at_most(db, "messages that are to be sent again", 4 * 200 + 10).await?;
    for (what, old) in [
        ("old dead messages", purge::old_dead(db, age, 500).await?),
        ("old rows of the inbox", purge::old_inbox(db, age, 500).await?),
    ] {
        ensure!(old.rows == 500 && !old.is_complete, "{what}: {old:?}");
    }
    at_most(db, "old dead messages and old rows of the inbox", 2 * (2 * 500 + 10)).await
}

async fn the_hot_statements_read_only_their_rows(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let db = &mut database.plain().await?;
    session::prepare(db).await?;
    fill(db).await?;
    let (lease, ids) = claim_100(db).await?;
    ensure!(read::messages(db, &ids).await?.len() == 100);
    at_most(db, "read", 150).await?;
    ensure!(lease::renew(db, &[lease], Duration::from_secs(30)).await?.prolonged == [lease]);
    at_most(db, "renew", 30).await?;
    ensure!(lease::expired(db, 0).await?.is_empty());
    at_most(db, "expired", 20).await?;
    let (last, sent) = ids.split_last().ok_or_else(|| anyhow::anyhow!("an empty claim"))?;
    let settlement = Settlement {
        sent: sent.iter().map(|id| (*id, "somewhere".to_owned())).collect(),
        delayed: vec![Delayed {
            id: *last,
            wait: Some(Duration::ZERO),
            spent: true,
            reason: DelayReason::Unconfirmed,
            error: String::new(),
        }],
        dead: Vec::new(),
    };
    ensure!(settle::settle(db, &[(lease, &settlement)], Way::Ranges).await? == [lease]);
    // With the list of the ids themselves.
    at_most(db, "settle", 450).await?;
    ensure!(settle::settled(db, &[lease]).await? == [lease]);
    at_most(db, "settled", 10).await?;
    let due = promote::due(db, Duration::ZERO, 1000).await?;
    ensure!(due.len() == 1);
    at_most(db, "due", 20).await?;
    ensure!(promote::promote(db, LANE, &[*last]).await? == 1);
    at_most(db, "promote", 20).await?;
    let many = "INSERT INTO outbox_delayed (lane, id, key_hash, bytes, due_at, reason) \
                SELECT 9 - id % 3, id + 1000000, 0, 1, \
                '2020-01-01', 'parked' FROM outbox_messages";
    sqlx::raw_sql(many).execute(&mut *db).await?;
    rows_read(db).await?;
    ensure!(promote::due(db, Duration::ZERO, 100).await?.len() == 100);
    at_most(db, "due, of many", 120).await?;
    young_receipts(db).await?;
    ensure!(purge::sent(db, Duration::from_secs(3600), &mut 0, 1000).await? == (0, 0));
    at_most(db, "purge", 150).await?;
    Ok(())
}

async fn a_claim_of_another_lane_or_version_changes_nothing(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let db = &mut database.plain().await?;
    session::prepare(db).await?;
    fill(db).await?;
    let (lease, ids) = claim_100(db).await?;
    let stale = NewClaims {
        lane: LANE,
        version: 0,
        low: 0,
        owner: "other",
        lease: Duration::from_secs(30),
        claims: &[NewClaim { lease_token: 8, message_ids: &ids, key_hashes: &[] }],
        behind: &[],
    };
    ensure!(claim::claim(db, &stale).await?.is_empty(), "the version had been raised");
    let stranger = ClaimLease { lease_token: 8, ..lease };
    let settlement = Settlement { sent: ids.iter().map(|id| (*id, String::new())).collect(), ..Settlement::default() };
    ensure!(settle::settle(db, &[(stranger, &settlement)], Way::Ranges).await?.is_empty(), "the token is another's");
    ensure!(lease::renew(db, &[stranger], Duration::from_secs(30)).await?.standing.is_empty());
    ensure!(lease::release(db, &[stranger]).await? == 0);
    ensure!(database.number("SELECT COUNT(*) FROM outbox_pending").await? == i64::try_from(BACKLOG)?);
    ensure!(database.number("SELECT COUNT(*) FROM outbox_sent").await? == 0);
    Ok(())
}

/// Different settlers settle claims of neighbouring messages at the same time. If one waited for rows of another, they
/// would sooner or later wait in a circle.
async fn no_statement_of_a_claim_waits_for_a_neighbour(flavor: Flavor) -> Result<()> {
    const CLAIMS: u64 = 8;
    let database = Database::create(flavor).await?;
    let db = &mut database.plain().await?;
    session::prepare(db).await?;
    fill(db).await?;
    let mut leases = Vec::new();
    for ids in (1..=10 * CLAIMS).collect::<Vec<_>>().chunks(10) {
        leases.push((claim_these(db, ids).await?, ids.to_vec()));
    }
    let (neighbour, own) = leases.split_last().ok_or_else(|| anyhow::anyhow!("no claim"))?;
    let mut other = database.plain().await?;
    session::prepare(&mut other).await?;
    let mut other = other.begin().await?;
    let settled = Settlement::default();
    sqlx::query("SELECT 1 FROM outbox_claims WHERE claim_id = ? FOR UPDATE")
        .bind(neighbour.0.claim_id)
        .fetch_one(&mut *other)
        .await?;
    for id in &neighbour.1 {
        let sql = "SELECT 1 FROM outbox_pending WHERE lane = ? AND id = ? FOR UPDATE";
        sqlx::query(sql).bind(LANE).bind(id).fetch_one(&mut *other).await?;
    }
    sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 1").execute(&mut *db).await?;
    let own_leases: Vec<ClaimLease> = own.iter().map(|(lease, _)| *lease).collect();
    lease::renew(db, &own_leases, Duration::from_secs(30)).await.context("renew")?;
    let (released, settled_leases) = own_leases.split_at(2);
    lease::release(db, released).await.context("release")?;
    let sent = |ids: &[u64]| ids.iter().map(|id| (*id, String::new())).collect();
    let settlements: Vec<_> =
        own.iter().skip(2).map(|(_, ids)| Settlement { sent: sent(ids), ..settled.clone() }).collect();
    let claims: Vec<_> = settled_leases.iter().copied().zip(&settlements).collect();
    settle::settle(db, &claims, Way::Ranges).await.context("settle")?;
    Ok(())
}

async fn claim_these(db: &mut MySqlConnection, ids: &[u64]) -> Result<ClaimLease> {
    let version: u64 = sqlx::query_scalar("SELECT version FROM outbox_head").fetch_one(&mut *db).await?;
    let new = NewClaims {
        lane: LANE,
        version,
        low: 0,
        owner: "test",
        lease: Duration::from_secs(30),
        claims: &[NewClaim { lease_token: 7, message_ids: ids, key_hashes: &[1] }],
        behind: &[],
    };
    claim::claim(db, &new).await?.first().copied().context("nobody else claims here")
}

/// An open transaction keeps all rows that are deleted meanwhile, and the statistics show none. A plan that then reads
/// the whole table meets the row of a service that has not committed.
async fn deleted_rows_that_a_snapshot_keeps_are_not_read(flavor: Flavor) -> Result<()> {
    const KEPT: u64 = 400_000;
    let database = Database::create(flavor).await?;
    let mut reader = database.plain().await?;
    let mut service = database.plain().await?;
    sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT").execute(&mut reader).await?;
    for chunk in (1..=KEPT).collect::<Vec<_>>().chunks(100_000) {
        insert_pending(&database, chunk).await?;
    }
    database.execute("DELETE FROM outbox_pending").await?;
    let mut open = service.begin().await?;
    sqlx::query("INSERT INTO outbox_pending (lane, id) VALUES (0, ?)").bind(2 * KEPT).execute(&mut *open).await?;

    let db = &mut database.plain().await?;
    session::prepare(db).await?;
    sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 1").execute(&mut *db).await?;
    // MariaDB went wrong with the first claim, and MySQL with the second.
    for first in [KEPT + 1, KEPT + 1001] {
        let ids: Vec<u64> = (first..first + 1000).collect();
        database.execute("ANALYZE TABLE outbox_pending").await?;
        insert_pending(&database, &ids).await?;
        if first > KEPT + 1 {
            database.execute("ANALYZE TABLE outbox_pending").await?;
        }
        let lease = claim_these(db, &ids).await?;
        let sent = ids.iter().map(|id| (*id, String::new())).collect();
        let settlement = Settlement { sent, ..Settlement::default() };
        ensure!(settle::settle(db, &[(lease, &settlement)], Way::Ranges).await? == [lease]);
    }
    ensure!(database.number("SELECT COUNT(*) FROM outbox_pending").await? == 0);
    Ok(())
}

async fn insert_pending(database: &Database, ids: &[u64]) -> Result<()> {
    let rows: Vec<String> = ids.iter().map(|id| format!("(0,{id})")).collect();
    database.execute(&format!("INSERT INTO outbox_pending (lane, id) VALUES {}", rows.join(","))).await
}
