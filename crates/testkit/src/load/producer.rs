//! One producer.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{Message, Outbox};
use rand::{RngExt as _, rngs::StdRng};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, MySqlTransaction};

use super::{CANARY, Load, zipf::Zipf};
use crate::{
    accounts::Account,
    chance,
    database::Database,
    ledger::{Draft, Ledger, Opened},
};

/// The pause after an error: while a server is down there is nothing to do.
const PAUSE: Duration = Duration::from_millis(50);
/// The latest time at which a cancelled handler is cancelled: about the duration of a transaction.
const CANCELLED: Duration = Duration::from_millis(20);

pub(super) struct Producer {
    load: Arc<Load>,
    database: Database,
    ledger: Ledger,
    random: StdRng,
    zipf: Zipf,
    connection: Option<MySqlConnection>,
}

/// The plan of one transaction.
struct Plan {
    key: u64,
    messages: u64,
    rolled_back: bool,
    held: Duration,
}

impl Producer {
    pub(super) fn new(load: &Arc<Load>, number: u64, database: &Database, ledger: &Ledger) -> Self {
        let random = chance::random(load.seed * 1000 + number);
        let zipf = Zipf::new(load.keys);
        let load = Arc::clone(load);
        Self { load, database: database.clone(), ledger: ledger.clone(), random, zipf, connection: None }
    }

    /// Runs one transaction. An error is no failure of the load: faults kill its servers, and the ledger has the known
    /// outcome.
    pub(super) async fn transact(&mut self) {
        let cancelled = self.random.random_bool(self.load.cancelled);
        let patience = if cancelled { CANCELLED.mul_f64(self.random.random()) } else { Duration::MAX };
        // A cancelled handler takes its connection with it; the outcome of its transaction is unknown.
        let Ok(done) = tokio::time::timeout(patience, self.attempt()).await else { return };
        if let Err(error) = done {
            tracing::debug!(%error, "a transaction failed");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn attempt(&mut self) -> Result<()> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.database.connect_as(Account::Service).await?,
        };
        let plan = self.plan();
        let mut tx = connection.begin().await?;
        let last = lock(&mut tx, &plan).await?;
        let drafts = self.drafts(&plan, last);
        let opened = self.ledger.open(&drafts);
        let lane = self.load.lane_of(plan.key);
        let messages = drafts.iter().map(|draft| draft.message().lane(lane));
        if let Err(error) = write(&mut tx, &drafts, messages).await {
            opened.rolled_back();
            return Err(error);
        }
        tokio::time::sleep(plan.held).await;
        end(tx, opened, plan.rolled_back).await?;
        self.connection = Some(connection);
        Ok(())
    }

    fn plan(&mut self) -> Plan {
        let first = self.load.first_key();
        Plan {
            key: first
                + if self.load.zipf {
                    self.zipf.draw(&mut self.random)
                } else {
                    self.random.random_range(0..self.load.keys)
                },
            messages: self.random.random_range(self.load.messages.clone()),
            rolled_back: self.random.random_bool(self.load.rolled_back),
            held: self.load.held.mul_f64(self.random.random()),
        }
    }

    fn drafts(&mut self, plan: &Plan, last: u64) -> Vec<Draft> {
        (last - plan.messages + 1..=last).map(|sequence| self.draft(plan.key, sequence)).collect()
    }

    /// Logarithmic if keys are unevenly spread too: few are large.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two sizes")]
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    fn size(&mut self) -> usize {
        let least = *self.load.payload.start();
        let most = *self.load.payload.end();
        if !self.load.zipf {
            return self.random.random_range(least..=most);
        }
        let low = (least.max(1) as f64).ln();
        let high = (most.max(1) as f64).ln();
        (low + (high - low) * self.random.random::<f64>()).exp().round() as usize
    }

    fn draft(&mut self, key: u64, sequence: u64) -> Draft {
        let mut payload = vec![0; self.size()];
        self.random.fill(payload.as_mut_slice());
        if let Some(start) = payload.get_mut(..CANARY.len()) {
            start.copy_from_slice(CANARY.as_bytes());
        }
        let draft = Draft::new(&self.load.topic, payload)
            .key(format!("key-{key}"), sequence)
            .described("changed", "application/octet-stream")
            .header("naïve", "ü ≠ 🦀");
        if self.load.sequenced.is_some_and(|each| key.is_multiple_of(each)) { draft.sequenced() } else { draft }
    }
}

/// Commits messages with their business rows in one transaction and writes the ledger. `with` may change each message
/// before its enqueue: a delay, an expiry, a lane.
///
/// # Errors
/// When the database refuses, or the messages cannot be enqueued.
pub async fn commit(
    database: &Database,
    ledger: &Ledger,
    drafts: &[Draft],
    with: impl Fn(Message) -> Message,
) -> Result<()> {
    let mut connection = database.connect_as(Account::Service).await?;
    let mut tx = connection.begin().await?;
    let opened = ledger.open(drafts);
    write(&mut tx, drafts, drafts.iter().map(|draft| with(draft.message()))).await?;
    end(tx, opened, false).await?;
    Ok(connection.close().await?)
}

/// Locks the business row before any enqueue, so that its messages are inserted in the order of their commits. Returns
/// the key's new last sequence.
async fn lock(tx: &mut MySqlTransaction<'_>, plan: &Plan) -> Result<u64> {
    let sql = "UPDATE test_keys SET sequence = LAST_INSERT_ID(sequence + ?) WHERE id = ?";
    let done = sqlx::query(sql).bind(plan.messages).bind(plan.key).execute(&mut **tx).await?;
    ensure!(done.rows_affected() == 1, "there is no business row {}", plan.key);
    Ok(done.last_insert_id())
}

async fn write(tx: &mut MySqlTransaction<'_>, drafts: &[Draft], messages: impl Iterator<Item = Message>) -> Result<()> {
    Outbox::new().enqueue_all(tx, messages).await.context("cannot enqueue")?;
    insert_business_rows(tx, drafts).await
}

/// Writes the service's row for each message: the judge compares both.
///
/// # Errors
/// When the database refuses.
pub async fn insert_business_rows(conn: &mut MySqlConnection, drafts: &[Draft]) -> Result<()> {
    for drafts in drafts.chunks(1000) {
        let rows: Vec<String> = drafts.iter().map(|draft| format!("(0x{})", draft.id.simple())).collect();
        let sql = format!("INSERT INTO test_orders (message_id) VALUES {}", rows.join(", "));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *conn).await?;
    }
    Ok(())
}

async fn end(tx: MySqlTransaction<'_>, opened: Opened, rolled_back: bool) -> Result<()> {
    if rolled_back {
        opened.rolled_back();
        return Ok(tx.rollback().await?);
    }
    // Between sending COMMIT and its answer the outcome is unknown; after an error it stays unknown.
    tx.commit().await?;
    opened.committed();
    Ok(())
}
