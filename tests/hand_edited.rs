//! Rows edited by hand, as an operator in a hurry would: what is wrong is reported and isolated, and others flow.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    judge::judge,
    ledger::{Draft, Ledger},
    load,
    relay::{Relay, Settings},
    servers::Flavor,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A database with a row edited by hand, and a relay; messages that are committed afterwards must arrive.
struct Edited {
    database: Database,
    topic: Topic,
    ledger: Ledger,
    relay: Relay,
}

impl Edited {
    async fn new(edit: &str) -> Result<Self> {
        let (database, topic) = (Database::create(Flavor::MySql).await?, Topic::create(Broker::Kafka).await?);
        let settings = Settings::new(database.url()).with_broker_of(&topic);
        let ledger = Ledger::new();
        load::commit(&database, &ledger, &[Draft::new(topic.name(), "before")], |message| message).await?;
        database.execute(edit).await?;
        Ok(Self { relay: Relay::start(env!("CARGO_BIN_EXE_relay"), &settings)?, database, topic, ledger })
    }

    /// Commits messages, and waits until all are sent.
    async fn others_flow(&mut self) -> Result<()> {
        let drafts: Vec<Draft> = (1_u64..=50)
            .map(|n| Draft::new(self.topic.name(), n.to_string()).key(format!("k{}", n % 5), n.div_ceil(5)))
            .collect();
        load::commit(&self.database, &self.ledger, &drafts, |message| message).await?;
        let sent = "SELECT COUNT(*) >= 50 FROM outbox_sent_messages";
        self.database
            .wait_for(PATIENCE, sent)
            .await
            .map_err(|error| error.context(self.relay.log().unwrap_or_default()))?;
        let (ledger, arrivals) = (self.ledger.entries(), self.topic.read().await?);
        let report = judge(&ledger, arrivals, &self.database.tables().await?);
        ensure!(report.lost.is_empty() && report.order_violations.is_empty(), "{report}");
        Ok(())
    }
}

const OLD: &str = "'1999-01-01', '1999-01-01'";

#[tokio::test]
async fn a_claim_that_names_no_messages_stops_nobody() -> Result<()> {
    for ids in ["[]", "[4000000000]", "not JSON", "", "[1, 2"] {
        let edit = format!(
            "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, key_hashes) \
             VALUES (0, 'somebody', 7, {OLD}, '{ids}', '')"
        );
        let mut edited = Edited::new(&edit).await?;
        println!(
            "{ids}: {:?}",
            edited.others_flow().await.map_err(|e| format!("{e:#}").chars().take(1500).collect::<String>())
        );
        println!("{:?}", edited.database.number("SELECT COUNT(*) FROM outbox_claims").await?);
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_without_owner_and_with_half_a_key_stops_nobody() -> Result<()> {
    let edit = "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, key_hashes) \
             VALUES (0, '', 0, UTC_TIMESTAMP(6) + INTERVAL 3 SECOND, UTC_TIMESTAMP(6), '[1]', 'abc')";
    let mut edited = Edited::new(edit).await?;
    println!(
        "half: {:?}",
        edited.others_flow().await.map_err(|e| format!("{e:#}").chars().take(1500).collect::<String>())
    );
    Ok(())
}

#[tokio::test]
async fn a_message_that_is_pending_and_delayed_stops_nobody() -> Result<()> {
    let edit = "INSERT INTO outbox_delayed (lane, id, due_at, reason) SELECT lane, id, '1999-01-01', 'retry' FROM outbox_pending";
    let mut edited = Edited::new(edit).await?;
    println!(
        "both: {:?}",
        edited.others_flow().await.map_err(|e| format!("{e:#}").chars().take(1500).collect::<String>())
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("delayed left: {:?}", edited.database.number("SELECT COUNT(*) FROM outbox_delayed").await?);
    println!(
        "{}",
        edited.relay.log()?.lines().filter(|l| !l.contains("DEBUG")).take(12).collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

#[tokio::test]
async fn attempts_at_the_limit_of_their_column_stop_nobody() -> Result<()> {
    let edit = format!(
        "UPDATE outbox_pending SET attempts = 65535; \
         INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, key_hashes) \
         SELECT lane, 'somebody', 7, {OLD}, CONCAT('[', id, ']'), '' FROM outbox_pending"
    );
    let mut edited = Edited::new(&edit).await?;
    println!(
        "attempts: {:?}",
        edited.others_flow().await.map_err(|e| format!("{e:#}").chars().take(1500).collect::<String>())
    );
    println!("claims left: {:?}", edited.database.number("SELECT COUNT(*) FROM outbox_claims").await?);
    println!(
        "{}",
        edited.relay.log()?.lines().filter(|l| !l.contains("DEBUG")).take(12).collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

#[tokio::test]
async fn a_message_without_head_unknown_lane_and_bad_headers_stop_nobody() -> Result<()> {
    for edit in [
        "DELETE FROM outbox_head",
        "UPDATE outbox_head SET low = 18446744073709551615, version = 18446744073709551614",
        "UPDATE outbox_messages SET headers = 'not JSON'",
        "UPDATE outbox_messages SET headers = '{\"a\":1}'",
        "UPDATE outbox_messages SET topic = ''",
        "UPDATE outbox_messages SET created_at = '0001-01-01'",
        "UPDATE outbox_pending SET key_hash = 18446744073709551615, bytes = 4294967295",
    ] {
        let mut edited = Edited::new(edit).await?;
        println!(
            "{edit}: {:?}",
            edited.others_flow().await.map_err(|e| format!("{e:#}").chars().take(1500).collect::<String>())
        );
        println!("dead: {:?}", edited.database.number("SELECT COUNT(*) FROM outbox_dead").await?);
    }
    Ok(())
}
