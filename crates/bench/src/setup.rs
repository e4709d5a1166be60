//! The parts of every measurement: a database, a topic, a relay, and the costs of the servers.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection},
};
use testkit::{
    accounts::Account,
    consume::{self, Topic},
    database::Database,
    relay::{Client, Relay, Settings},
    servers::{Flavor, until},
    usage::cpu_seconds,
};

use crate::{
    Common,
    costs::{Costs, machine_seconds},
    process::{listening, port},
};

/// The servers and tables of a run.
pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) topic: Topic,
    /// The destinations of the load.
    pub(crate) topics: Vec<String>,
    program: PathBuf,
    account: Account,
    mysql: Option<u32>,
    broker: Option<u32>,
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
            account: if common.no_tail { Account::Relay } else { Account::RelayWithTail },
            program: common.relay.clone().unwrap_or(beside),
            database,
            topics: vec![topic.name().to_owned()],
            topic,
        })
    }

    /// Adds destinations for the load.
    pub(crate) async fn beside(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let name = match self.topic.broker() {
                consume::Broker::Kafka => self.topic.beside_replicated(1).await?,
                consume::Broker::RabbitMq => self.topic.beside(None).await?,
            };
            self.topics.push(name);
        }
        Ok(())
    }

    /// Starts a relay with the default settings except for the log. `null`: its sink confirms at once and sends
    /// nothing.
    pub(crate) fn relay(&self, null: bool) -> Result<Relay> {
        self.start(&self.settings(null)?)
    }

    /// The command line, with this account.
    pub(crate) fn client(&self, account: Account) -> Result<Client> {
        Ok(Client::new(&self.program, self.database.url_as(account)?))
    }

    /// Starts `relay api` with these settings.
    pub(crate) fn start_api(&self, settings: &Settings) -> Result<Relay> {
        Relay::start_api(&self.program, settings)
    }

    /// Starts `relay console`.
    pub(crate) fn start_console(&self, settings: &Settings) -> Result<Relay> {
        Relay::start_console(&self.program, settings)
    }

    /// Starts a relay with these settings.
    pub(crate) fn start(&self, settings: &Settings) -> Result<Relay> {
        Relay::start(&self.program, settings)
    }

    /// The default settings, except for the log.
    pub(crate) fn settings(&self, null: bool) -> Result<Settings> {
        let settings = Settings::new(&self.database.url_as(self.account)?);
        let settings = if null {
            settings.null().route([("topics", "*"), ("sink", "null")])
        } else {
            settings.with_broker_of(&self.topic)
        };
        let settings = settings.set("relay", "lease", "30s").set("relay", "publish_deadline", "10s");
        let settings = settings.set("relay", "settle_deadline", "5s").set("relay", "safety", "5s");
        Ok(settings.set("log", "level", "warn"))
    }

    /// CPU time, statements and round trips so far, of the servers and of these relays.
    pub(crate) async fn costs(&self, relays: &[&Relay]) -> Result<Costs> {
        let mut db = self.database.connect_as_admin().await?;
        // A text of several statements counts as that number of statements.
        let sql = "SHOW GLOBAL STATUS LIKE 'Questions'";
        let (_, statements): (String, String) = sqlx::query_as(sql).fetch_one(&mut db).await?;
        db.close().await?;
        let mut round_trips = 0.0;
        for relay in relays {
            let metrics = relay.metrics().await.unwrap_or_default();
            round_trips += metrics.sum("outbox_relay_db_call_duration_seconds_count");
        }
        // `None` for servers elsewhere.
        let cpu = |pid: Option<u32>| pid.and_then(|pid| cpu_seconds(pid).ok()).unwrap_or(0.0);
        Ok(Costs {
            at: Instant::now(),
            relay: relays.iter().map(|relay| cpu(Some(relay.pid()))).sum(),
            mysql: cpu(self.mysql),
            broker: cpu(self.broker),
            own: cpu(Some(std::process::id())),
            machine: machine_seconds(),
            statements: statements.parse()?,
            round_trips,
        })
    }

    /// Removes everything that the run has left on the servers.
    pub(crate) async fn remove(self) -> Result<()> {
        self.database.remove().await?;
        self.topic.remove().await
    }

    /// Commits messages as [`message`] makes them, a thousand a transaction.
    pub(crate) async fn fill(&self, common: &Common, messages: u64) -> Result<()> {
        self.fill_with(messages, |number| message(self.topic.name(), common, number)).await
    }

    /// The same with other messages.
    pub(crate) async fn fill_with(&self, messages: u64, message: impl Fn(u64) -> Message) -> Result<()> {
        let mut db = self.database.connect().await?;
        let outbox = Outbox::new();
        for first in (0..messages).step_by(1000) {
            let mut tx = db.begin().await?;
            outbox.enqueue_all(&mut tx, (first..messages.min(first + 1000)).map(&message)).await?;
            tx.commit().await?;
        }
        Ok(db.close().await?)
    }
}

/// Waits until the relay can publish.
pub(crate) async fn ready(relay: &Relay) -> Result<()> {
    let ask = || async {
        let (_, reasons) = relay.get("/readyz").await?;
        ensure!(reasons == "ok\n", "{reasons}");
        Ok(())
    };
    until(Duration::from_secs(30), "a relay that is ready", ask).await
}

/// Message `number` of a run. The payload begins with the number.
pub(crate) fn message(topic: &str, common: &Common, number: u64) -> Message {
    Message::new(topic, payload(number, common.bytes)).key(format!("key-{}", key(number, common.keys)))
}

/// The destination of message `number` of a run, which depends on its key.
pub(crate) fn topic_of<'a>(topics: &'a [String], common: &Common, number: u64) -> &'a str {
    let place = usize::try_from(key(number, common.keys)).unwrap_or(0) % topics.len().max(1);
    topics.get(place).map_or("", String::as_str)
}

/// The key of a message: one of `keys`, in no order, but the same in every run. Keys in turn would be too kind: no key
/// would be in flight twice.
pub(crate) fn key(number: u64, keys: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) % keys.max(1)
}

/// A payload of this number of bytes that begins with a number.
pub(crate) fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = format!("{number:020}").into_bytes();
    payload.resize(bytes.max(20), b'x');
    payload
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

/// The number of losses, of duplicates, and of first deliveries that came after a later message of their key.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) out_of_order: u64,
}

/// Judges message numbers in the order of their arrival. Keys are those of [`message`].
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
        let before = last.insert(key(number, keys), number);
        verdict.out_of_order += u64::from(before.is_some_and(|before| before > number));
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::{judge, key};

    #[test]
    fn losses_duplicates_and_order_are_counted() {
        let verdict = judge([0, 2, 1, 1], 4, 1);
        assert_eq!((verdict.lost, verdict.duplicates, verdict.out_of_order), (1, 1, 1));
        let in_order = (0..1000).filter(|number| key(*number, 4) == 1);
        let verdict = judge(in_order.chain((0..1000).filter(|number| key(*number, 4) != 1)), 1000, 4);
        assert_eq!((verdict.lost, verdict.duplicates, verdict.out_of_order), (0, 0, 0));
    }

    #[test]
    fn keys_are_spread_and_not_in_turn() {
        let mut counts = [0; 10];
        (0..10_000).for_each(|number| counts[usize::try_from(key(number, 10)).unwrap()] += 1);
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert!(
            (0..1000).any(|number| key(number, 1000) == key(number + 1, 1000))
                || (0..1000).any(|number| key(number, 1000) == key(number + 2, 1000))
        );
    }
}
