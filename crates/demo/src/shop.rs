//! The shop: lets everything run, waits until all has arrived, and makes up the ledger.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use outbox_core::{Inbox, Outbox, sqlx::MySqlPool};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    consumers::{Consumer, Role},
    kafka::Topic,
    ledger::{Account, Ledger},
    orders::OrderService,
    rabbitmq::Queue,
    show::show,
    sight::{RelayAddress, Viewer},
    tables,
    tally::{Board, Intake, Sales},
};

/// Order services at work, each on a connection.
pub(crate) const SELLERS: u32 = 8;
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(100);
/// When nothing has moved for so long, nothing will: longer than the leases of the demo, and the relay's pauses.
const PATIENCE: Duration = Duration::from_secs(25);

/// A shop whose tables, topic and queue are there.
#[derive(Debug)]
pub(crate) struct Shop {
    pub(crate) pool: MySqlPool,
    pub(crate) topic: Option<Topic>,
    pub(crate) queue: Option<Queue>,
    pub(crate) board: Arc<Board>,
    /// Orders a second.
    pub(crate) rate: u32,
    /// How long orders are placed.
    pub(crate) total: Duration,
}

type Intakes = Vec<(Role, Arc<Intake>)>;

impl Shop {
    /// Creates topic and queue.
    pub(crate) async fn open(&self) -> Result<()> {
        if let Some(topic) = &self.topic {
            topic.create().await?;
        }
        if let Some(queue) = &self.queue {
            queue.create().await?;
        }
        Ok(())
    }

    /// Deletes topic and queue.
    pub(crate) async fn close(&self) -> Result<()> {
        if let Some(topic) = &self.topic {
            topic.delete().await?;
        }
        if let Some(queue) = &self.queue {
            queue.delete().await?;
        }
        Ok(())
    }

    /// Places orders until the time has passed or `stop` is cancelled, waits until their messages have arrived, and returns
    /// the ledger.
    pub(crate) async fn run(&self, relays: Vec<RelayAddress>, stop: &CancellationToken) -> Result<Ledger> {
        let sales = Arc::new(Sales::new(&self.board));
        let roles = self.topic.iter().map(|_| Role::Billing).chain(self.queue.iter().map(|_| Role::Mailer));
        let intakes: Intakes = roles.map(|role| (role, Arc::new(Intake::new(&sales)))).collect();
        let closed = CancellationToken::new();
        let consumers = self.start_consumers(&intakes, &closed)?;
        let (pool, board) = (self.pool.clone(), Arc::clone(&self.board));
        let viewer = Viewer { pool, board, sales: Arc::clone(&sales), intakes: intakes.clone(), relays };
        let work = async {
            self.sell(&sales, stop).await;
            self.board.note("no more orders: waiting for the rest to arrive");
            self.drain(&intakes).await
        };
        show(&viewer, self.total, work).await?;
        closed.cancel();
        consumers.join_all().await;
        self.ledger(&sales, &intakes).await
    }

    fn start_consumers(&self, intakes: &Intakes, stop: &CancellationToken) -> Result<JoinSet<()>> {
        let mut tasks = JoinSet::new();
        for (role, intake) in intakes {
            let consumer = Consumer {
                role: *role,
                pool: self.pool.clone(),
                inbox: Inbox::new(role.name())?,
                intake: Arc::clone(intake),
                board: Arc::clone(&self.board),
            };
            tasks.spawn(consume(consumer, self.topic.clone(), self.queue.clone(), stop.clone()));
        }
        Ok(tasks)
    }

    async fn sell(&self, sales: &Arc<Sales>, stop: &CancellationToken) {
        let (enough, start) = (stop.child_token(), Instant::now());
        let service = OrderService {
            pool: self.pool.clone(),
            outbox: Outbox::new(),
            to_kafka: self.topic.is_some(),
            to_rabbitmq: self.queue.is_some(),
        };
        let mut sellers = JoinSet::new();
        for _ in 0..SELLERS {
            let (service, sales, rate, enough) = (service.clone(), Arc::clone(sales), self.rate, enough.clone());
            sellers.spawn(async move { service.sell(&sales, rate, start, enough).await });
        }
        timeout(self.total, stop.cancelled()).await.unwrap_or_default();
        enough.cancel();
        sellers.join_all().await;
    }

    /// Waits until every order has arrived everywhere and the outbox is empty, or nothing has moved for a while.
    async fn drain(&self, intakes: &Intakes) -> Result<()> {
        let committed = tables::orders(&self.pool).await?.len() as u64;
        let (mut moved, mut last) = (Instant::now(), None);
        while moved.elapsed() < PATIENCE {
            let left = tables::unsettled(&self.pool).await?;
            let arrived: Vec<u64> = intakes.iter().map(|(_, intake)| intake.count().orders).collect();
            if left == 0 && arrived.iter().all(|orders| *orders >= committed) {
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

    async fn ledger(&self, sales: &Sales, intakes: &Intakes) -> Result<Ledger> {
        let orders = tables::orders(&self.pool).await?;
        let mut accounts = Vec::new();
        for (role, intake) in intakes {
            let effects = match role {
                Role::Billing => tables::booked(&self.pool).await?,
                Role::Mailer => tables::mailed(&self.pool).await?,
            };
            accounts.push(Account::new(*role, intake.count(), &orders, &intake.orders(), &effects));
        }
        Ok(Ledger { committed: orders.len() as u64, sales: sales.count(), accounts })
    }
}

/// Consumes until told to stop; a broker that is gone is tried again.
async fn consume(consumer: Consumer, topic: Option<Topic>, queue: Option<Queue>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let ended = match (consumer.role, &topic, &queue) {
            (Role::Billing, Some(topic), _) => topic.consume(&consumer, &stop).await,
            (Role::Mailer, _, Some(queue)) => queue.consume(&consumer, &stop).await,
            _ => return,
        };
        if let Err(error) = ended {
            consumer.board.note(format!("{} connects again: {error:#}", consumer.role.name()));
            stop.run_until_cancelled(sleep(PAUSE_AFTER_ERROR)).await;
        }
    }
}
