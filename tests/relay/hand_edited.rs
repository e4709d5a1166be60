//! Rows edited by hand, as an operator in a hurry might: wrong rows are reported and isolated, and others flow.

use anyhow::{Result, ensure};
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    judge::{Expectations, judge},
    ledger::{Draft, Ledger},
    load,
    relay::{Relay, Settings},
    servers::{Flavor, PATIENCE},
};

use crate::stage::Stage;

/// A database with a row edited by hand, and a relay. Messages committed afterwards must arrive.
struct Edited {
    database: Database,
    topic: Topic,
    ledger: Ledger,
    relay: Relay,
    /// The number of messages that cannot be sent any more.
    lost: usize,
}

impl Edited {
    async fn new(edit: &str) -> Result<Self> {
        let (database, topic, ledger) = one_message("before").await?;
        database.execute(edit).await?;
        let settings = Settings::new(&database.url_as(Account::Relay)?).with_broker_of(&topic);
        Ok(Self { relay: Relay::start(env!("CARGO_BIN_EXE_relay"), &settings)?, database, topic, ledger, lost: 0 })
    }

    /// Edits the row while the relay holds a claim of it.
    async fn while_claimed(edit: &str, payload: &str) -> Result<Self> {
        let (database, topic, ledger) = one_message(payload).await?;
        let settings =
            Settings::new(&database.url_as(Account::Relay)?).with_broker_of(&topic).patient().pause_at("after_claim");
        let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings)?;
        relay.wait_for_pause(PATIENCE).await?;
        ensure!(database.number("SELECT COUNT(*) FROM outbox_claims").await? == 1);
        database.execute(edit).await?;
        relay.resume()?;
        Ok(Self { relay, database, topic, ledger, lost: 0 })
    }

    /// Commits messages, and waits until all are sent.
    async fn others_flow(&mut self) -> Result<()> {
        let drafts: Vec<Draft> = (1_u64..=50)
            .map(|n| Draft::new(self.topic.name(), n.to_string()).key(format!("k{}", n % 5), n.div_ceil(5)))
            .collect();
        load::commit(&self.database, &self.ledger, &drafts, |message| message).await?;
        // The edited one, which has no key, may be sent several times.
        let sent = "SELECT COUNT(DISTINCT s.id) = 50 FROM outbox_sent_messages s JOIN outbox_messages m ON m.id = s.id \
                    WHERE m.message_key IS NOT NULL";
        self.database
            .wait_for(PATIENCE, sent)
            .await
            .map_err(|error| error.context(self.relay.log().unwrap_or_default()))?;
        // The tables come first: a message sent between the two reads has then arrived, and is not lost.
        let tables = self.database.tables().await?;
        let report = judge(&self.ledger.entries(), self.topic.read().await?, &tables);
        ensure!(report.lost.len() == self.lost && report.order_violations.is_empty(), "{report}");
        Ok(())
    }
}

async fn one_message(payload: &str) -> Result<(Database, Topic, Ledger)> {
    let database = Database::create(Flavor::MySql).await?;
    let topic = Topic::create(Broker::Kafka).await?;
    let ledger = Ledger::new();
    load::commit(&database, &ledger, &[Draft::new(topic.name(), payload)], |message| message).await?;
    Ok((database, topic, ledger))
}

const OLD: &str = "'1999-01-01', '1999-01-01'";
const CLAIM: &str =
    "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, key_hashes)";

/// The claim covers no message, whatever its list says, and ends like every claim whose lease has passed.
#[tokio::test]
async fn a_claim_whose_list_cannot_be_read_stops_nobody_and_is_taken_over() -> Result<()> {
    for ids in ["[]", "[4000000000]", "not JSON", "", "[1, 2"] {
        let mut edited =
            Edited::new(&format!("{CLAIM} VALUES (0, 'somebody', 7, {OLD}, '{ids}', 'half a key')")).await?;
        edited.others_flow().await?;
        edited.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_claims WHERE owner = 'somebody'").await?;
        edited.relay.wait_for_log(PATIENCE, "took over a claim whose lease had passed").await?;
    }
    Ok(())
}

/// A lease without an owner passes as well.
#[tokio::test]
async fn a_claim_without_owner_stops_nobody() -> Result<()> {
    let now = "UTC_TIMESTAMP(6)";
    let edit = format!("{CLAIM} VALUES (0, '', 0, {now} + INTERVAL 3 SECOND, {now}, 'not JSON', '')");
    let mut edited = Edited::new(&edit).await?;
    edited.others_flow().await?;
    edited.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_claims WHERE owner = ''").await
}

#[tokio::test]
async fn a_message_that_is_pending_and_delayed_is_sent_and_stops_nobody() -> Result<()> {
    let edit = "INSERT INTO outbox_delayed (lane, id, due_at, reason) SELECT lane, id, '1999-01-01', 'retry' \
                FROM outbox_pending";
    let mut edited = Edited::new(edit).await?;
    edited.others_flow().await?;
    edited.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_delayed").await
}

/// One more attempt does not fit into the column. The count stays at its limit, which is far above that of the
/// configuration.
#[tokio::test]
async fn attempts_at_the_limit_of_their_column_end_as_dead() -> Result<()> {
    let edit = format!(
        "UPDATE outbox_pending SET attempts = 65535; \
         {CLAIM} SELECT lane, 'somebody', 7, {OLD}, CONCAT('[', id, ']'), '' FROM outbox_pending"
    );
    let mut edited = Edited::new(&edit).await?;
    edited.others_flow().await?;
    let dead = "SELECT COUNT(*) = 1 FROM outbox_dead WHERE reason = 'attempts_exhausted'";
    edited.database.wait_for(PATIENCE, dead).await
}

#[tokio::test]
async fn what_cannot_be_sent_is_dead_and_the_rest_flows() -> Result<()> {
    for (edit, dead) in [
        ("DELETE FROM outbox_head", 0),
        ("UPDATE outbox_head SET low = 18446744073709551615, version = 18446744073709000000", 0),
        ("UPDATE outbox_messages SET headers = 'not JSON'", 1),
        ("UPDATE outbox_messages SET headers = '{\"a\":1}'", 1),
        ("UPDATE outbox_messages SET topic = ''", 1),
        ("UPDATE outbox_messages SET created_at = '0001-01-01'", 0),
        ("UPDATE outbox_pending SET key_hash = 18446744073709551615, bytes = 4294967295", 0),
    ] {
        let mut edited = Edited::new(edit).await?;
        edited.others_flow().await?;
        let found = edited.database.number("SELECT COUNT(*) FROM outbox_dead WHERE reason = 'invalid'").await?;
        ensure!(found == dead, "{edit}: {found} are dead");
    }
    Ok(())
}

/// No code alone decides anything.
#[tokio::test]
async fn a_code_that_nobody_knows_stops_nobody() -> Result<()> {
    let now = "UTC_TIMESTAMP(6)";
    let delayed = format!(
        "INSERT INTO outbox_delayed (lane, id, due_at, reason, holds_key) SELECT lane, id, {now}, 'nonsense', 7 \
         FROM outbox_pending; DELETE FROM outbox_pending"
    );
    let dead = format!(
        "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, reason, holds_key, owner) \
         SELECT lane, id, key_hash, bytes, attempts, {now}, 'nonsense', 7, '' FROM outbox_pending"
    );
    for edit in [delayed.as_str(), dead.as_str(), "UPDATE outbox_pending SET lane = 65535, takeovers = 255"] {
        let mut edited = Edited::new(edit).await?;
        edited.others_flow().await.map_err(|error| error.context(edit.to_owned()))?;
        edited.database.wait_for(PATIENCE, "SELECT COUNT(*) = 51 FROM outbox_sent_messages").await?;
    }
    Ok(())
}

/// Its claim, its place in the queue or its text is deleted while a relay works on it. A large message is read after
/// its claim was made.
#[tokio::test]
async fn a_row_that_is_deleted_while_it_is_claimed_stops_nobody() -> Result<()> {
    let small = "before".to_owned();
    let large = "before".repeat(20_000);
    for (edit, payload, lost) in [
        ("DELETE FROM outbox_claims", &small, 0),
        ("DELETE FROM outbox_pending", &small, 0),
        ("DELETE FROM outbox_messages", &small, 0),
        ("DELETE FROM outbox_messages", &large, 1),
    ] {
        let mut edited = Edited { lost, ..Edited::while_claimed(edit, payload).await? };
        edited.others_flow().await.map_err(|error| error.context(edit))?;
        let left = "SELECT COUNT(*) = 0 FROM outbox_claims WHERE lease_until < UTC_TIMESTAMP(6)";
        edited.database.wait_for(PATIENCE, left).await?;
        let missing = "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'message_missing'";
        ensure!(edited.database.number(missing).await? == i64::try_from(lost)?, "{edit}");
    }
    Ok(())
}

#[tokio::test]
async fn a_head_that_is_deleted_while_a_relay_runs_is_made_again() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let _relay = stage.relay()?;
    stage.commit(&[stage.draft(0)]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    stage.database.execute("DELETE FROM outbox_head").await?;
    stage.commit(&[stage.draft(1)]).await?;
    stage.drain_and_judge(&Expectations::new().at_least(2)).await
}
