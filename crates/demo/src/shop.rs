//! The shop: lets everything run, waits until all has arrived, and makes up the ledger.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use outbox_core::{
    Outbox,
    sqlx::MySqlPool,
    store::operate::stats::{Stats, stats},
};
use testkit::consume::{Broker, Topic};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    consumers::consume,
    ledger::Ledger,
    orders::OrderService,
    show::show,
    sight::{Viewer, claims},
    tables,
    tally::{Board, Intake, Sales},
};

/// Order services at work, each on a connection.
const SELLERS: u32 = 8;
/// Connections of the sellers, of the two consumers (eight each), and of those that look on.
pub(crate) const CONNECTIONS: u32 = SELLERS + 20;
/// Messages that are sent to each broker once more.
const REPEATED: usize = 50;
const LOOK: Duration = Duration::from_millis(100);
/// When nothing has moved for so long, nothing will: longer than the leases of the demo, and the relay's pauses.
const PATIENCE: Duration = Duration::from_secs(25);

/// A shop whose tables and topics are there.
#[derive(Debug)]
pub(crate) struct Shop {
    pub(crate) pool: MySqlPool,
    pub(crate) topics: Vec<Topic>,
    /// The arrivals of each topic's consumer.
    pub(crate) intakes: Vec<Arc<Intake>>,
    pub(crate) board: Arc<Board>,
    /// Orders a second.
    pub(crate) rate: u32,
    /// How long orders are placed.
    pub(crate) total: Duration,
}

impl Shop {
    /// Places orders until the time has passed or `stop` is cancelled, waits until their messages have arrived, and
    /// returns the ledger.
    pub(crate) async fn run(&self, relays: Vec<(&'static str, u16)>, stop: &CancellationToken) -> Result<Ledger> {
        let sales = Arc::new(Sales::new(&self.board));
        let closed = CancellationToken::new();
        let mut consumers = JoinSet::new();
        for (topic, intake) in self.topics.iter().zip(&self.intakes) {
            let place = (topic.address().to_owned(), topic.name().to_owned());
            consumers.spawn(consume(place, self.pool.clone(), Arc::clone(intake), closed.clone()));
        }
        let pool = self.pool.clone();
        let board = Arc::clone(&self.board);
        let viewer = Viewer { pool, board, sales: Arc::clone(&sales), intakes: self.intakes.clone(), relays };
        let work = async {
            self.sell(&sales, stop).await;
            self.board.note("no more orders: waiting for the rest to arrive");
            self.drain().await
        };
        show(&viewer, self.total, work).await?;
        closed.cancel();
        while let Some(ended) = consumers.join_next().await {
            ended?.context("a consumer has ended")?;
        }
        Ledger::new(&self.pool, &sales, self.intakes.iter().map(AsRef::as_ref)).await
    }

    /// Sends the latest messages once more, as a relay does that could not note that they were sent.
    pub(crate) async fn repeat(&self) -> Result<()> {
        for (topic, intake) in self.topics.iter().zip(&self.intakes) {
            topic.send(&intake.latest(REPEATED)).await?;
        }
        self.board.note(format!("{REPEATED} messages are sent to each broker once more, on purpose"));
        Ok(())
    }

    async fn sell(&self, sales: &Arc<Sales>, stop: &CancellationToken) {
        let enough = stop.child_token();
        let start = Instant::now();
        let has = |broker| self.topics.iter().any(|topic| topic.broker() == broker);
        let service = OrderService {
            pool: self.pool.clone(),
            outbox: Outbox::new(),
            sales: Arc::clone(sales),
            kafka: has(Broker::Kafka),
            rabbitmq: has(Broker::RabbitMq),
        };
        let mut sellers = JoinSet::new();
        for _ in 0..SELLERS {
            sellers.spawn(service.clone().sell(self.rate, start, enough.clone()));
        }
        timeout(self.total, stop.cancelled()).await.unwrap_or_default();
        enough.cancel();
        sellers.join_all().await;
    }

    /// Waits until every order has arrived everywhere and the outbox is empty, or nothing has moved for a while. Dead
    /// messages are not waited for: they are lost.
    async fn drain(&self) -> Result<()> {
        let committed = tables::orders(&self.pool).await?.len() as u64;
        let mut moved = Instant::now();
        let mut last = None;
        while moved.elapsed() < PATIENCE {
            let Stats { pending, delayed, .. } = stats(&mut *self.pool.acquire().await?).await?;
            let left = (pending, delayed, claims(&self.pool).await?.len());
            let arrived: Vec<u64> = self.intakes.iter().map(|intake| intake.count().first).collect();
            if left == (0, 0, 0) && arrived.iter().all(|orders| *orders >= committed) {
                return Ok(());
            }
            let state = Some((left, arrived));
            if state != last {
                (moved, last) = (Instant::now(), state);
            }
            sleep(LOOK).await;
        }
        self.board.note(format!("nothing has arrived for {} s", PATIENCE.as_secs()));
        Ok(())
    }
}
