//! What is counted of the queue.

use anyhow::{Result, ensure};
use outbox_core::store::stats;
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(a_claim_whose_list_cannot_be_read_is_counted_without_messages);

/// It may stand for as long as somebody has written: the gauges of all relays go on meanwhile.
async fn a_claim_whose_list_cannot_be_read_is_counted_without_messages(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    for ids in ["[7,8]", "not JSON", "[1, 2", ""] {
        let claim =
            "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, key_hashes)";
        let sql = format!("{claim} VALUES (0, 'somebody', 7, '9999-01-01', UTC_TIMESTAMP(6), '{ids}', '')");
        database.execute(&sql).await?;
    }
    let stats = stats::stats(&mut database.connect().await?).await?;
    ensure!((stats.leased, stats.expired_leases) == (2, 0), "{stats:?}");
    Ok(())
}
