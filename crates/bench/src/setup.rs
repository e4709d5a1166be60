//! What every measurement needs: a database, a topic, a relay, and the costs of the servers.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection, Row as _},
};
use testkit::{
    consume::Topic,
    database::Database,
    relay::{Relay, Settings},
    servers::{Flavor, until},
};

use crate::{
    Common,
    process::{cpu_seconds, listening, port},
};

/// Where a run takes place.
pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) topic: Topic,
    program: PathBuf,
    mysql: Option<u32>,
    broker: Option<u32>,
}

/// What the servers have used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Costs {
    pub(crate) mysql_seconds: f64,
    pub(crate) broker_seconds: f64,
    pub(crate) statements: f64,
    pub(crate) round_trips: f64,
}

impl Stage {
    pub(crate) async fn new(common: &Common) -> Result<Self> {
        let database = Database::create(Flavor::MySql).await?;
        let topic = Topic::create(common.broker.into()).await?;
        let beside = std::env::current_exe()?.with_file_name("relay");
        let pid = |address: &str| port(address).and_then(listening);
        Ok(Self {
            mysql: pid(database.url()),
            broker: pid(topic.address()),
            program: common.relay.clone().unwrap_or(beside),
            database,
            topic,
        })
    }

    /// A relay with the default settings, apart from the log.
    pub(crate) fn relay(&self, null: bool) -> Result<Relay> {
        let settings = Settings::new(self.database.url());
        let settings = if null {
            settings.null().route([("topics", "*"), ("sink", "null")])
        } else {
            settings.with_broker_of(&self.topic)
        };
        let settings = settings.set("relay", "lease", "30s").set("relay", "publish_deadline", "10s");
        let settings =
            settings.set("relay", "settle_deadline", "5s").set("relay", "safety", "5s").set("log", "level", "warn");
        Relay::start(&self.program, &settings)
    }

    pub(crate) async fn costs(&self) -> Result<Costs> {
        let mut db = self.database.connect().await?;
        let sql = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Questions', 'Com_select', 'Com_insert', 'Com_insert_select', \
                   'Com_update', 'Com_delete', 'Com_delete_multi', 'Com_commit', 'Com_begin')";
        let mut costs = Costs {
            mysql_seconds: cpu_seconds(self.mysql),
            broker_seconds: cpu_seconds(self.broker),
            ..Costs::default()
        };
        for row in sqlx::query(sql).fetch_all(&mut db).await? {
            let value: f64 = row.try_get::<String, _>(1)?.parse()?;
            match row.try_get::<String, _>(0)?.as_str() {
                "Questions" => costs.round_trips += value,
                _ => costs.statements += value,
            }
        }
        db.close().await?;
        Ok(costs)
    }

    /// Commits messages, a thousand a transaction. The payload begins with the message's number.
    pub(crate) async fn fill(&self, common: &Common, messages: u64) -> Result<()> {
        let mut db = self.database.connect().await?;
        let outbox = Outbox::new();
        for first in (0..messages).step_by(1000) {
            let mut tx = db.begin().await?;
            let batch = (first..messages.min(first + 1000)).map(|number| message(self.topic.name(), common, number));
            outbox.enqueue_all(&mut tx, batch).await?;
            tx.commit().await?;
        }
        Ok(db.close().await?)
    }
}

/// Waits until a relay can publish.
pub(crate) async fn ready(relay: &Relay) -> Result<()> {
    let ask = || async {
        let (status, reasons) = relay.get("/readyz").await?;
        ensure!(status == 200, "{reasons}");
        Ok(())
    };
    until(Duration::from_secs(30), "a relay that is ready", ask).await
}

impl Costs {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            mysql_seconds: self.mysql_seconds - before.mysql_seconds,
            broker_seconds: self.broker_seconds - before.broker_seconds,
            statements: self.statements - before.statements,
            round_trips: self.round_trips - before.round_trips,
        }
    }
}

/// Message `number`: its key is one of `keys`, its payload begins with the number.
pub(crate) fn message(topic: &str, common: &Common, number: u64) -> Message {
    let mut payload = format!("{number:020}").into_bytes();
    payload.resize(common.bytes.max(20), b'x');
    // A prime step, so that neighbours have different keys.
    Message::new(topic, payload).key(format!("key-{}", number.wrapping_mul(7919) % common.keys.max(1)))
}

/// The number at the beginning of a payload.
pub(crate) fn number(payload: Option<&[u8]>) -> Result<u64> {
    let digits = payload.and_then(|payload| payload.get(..20)).context("a message without a number")?;
    Ok(std::str::from_utf8(digits)?.parse()?)
}

/// Enqueues one message in a transaction of its own.
pub(crate) async fn enqueue(db: &mut MySqlConnection, message: Message) -> Result<()> {
    let mut tx = db.begin().await?;
    Outbox::new().enqueue(&mut tx, message).await?;
    Ok(tx.commit().await?)
}

/// How many losses, duplicates and first deliveries that came after a later message of their key.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
}

/// Judges numbers in the order of their arrival, keys as [`message`] gives them.
pub(crate) fn judge(arrivals: impl IntoIterator<Item = u64>, messages: u64, keys: u64) -> Verdict {
    let mut seen = vec![false; usize::try_from(messages).unwrap_or(0)];
    let mut last = std::collections::HashMap::new();
    let mut verdict = Verdict { lost: messages, ..Verdict::default() };
    for number in arrivals {
        let Some(slot) = usize::try_from(number).ok().and_then(|i| seen.get_mut(i)) else { continue };
        if std::mem::replace(slot, true) {
            verdict.duplicates += 1;
            continue;
        }
        verdict.lost -= 1;
        let before = last.insert(number.wrapping_mul(7919) % keys.max(1), number);
        verdict.out_of_order += u64::from(before.is_some_and(|before| before > number));
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn losses_duplicates_and_order_are_counted() {
        let verdict = judge([0, 2, 1, 1], 4, 1);
        assert_eq!((verdict.lost, verdict.duplicates, verdict.out_of_order), (1, 1, 1));
        let verdict = judge([0, 2, 1, 3], 4, 4);
        assert_eq!((verdict.lost, verdict.duplicates, verdict.out_of_order), (0, 0, 0));
    }
}
