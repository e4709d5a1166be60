//! A small shop on the outbox: an order service, two relays of which one is killed, and a consumer with an inbox on each
//! broker. Ends with a ledger; exit status 1 if it does not add up.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

mod books;
mod kafka;
mod rabbitmq;
mod relays;
mod screen;
mod shop;
mod tally;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use outbox_core::sqlx::{self, MySqlPool};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{relays::Relays, tally::Tally};

/// A small shop that shows the outbox at work.
#[derive(Debug, Clone, Parser)]
struct Options {
    /// How long orders are placed, in seconds.
    #[arg(long, default_value_t = 25)]
    seconds: u64,
    /// Orders per second.
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Where messages go.
    #[arg(long, value_enum, default_value_t = Broker::Both)]
    broker: Broker,
    /// Leave the relays up at the end, and print the addresses.
    #[arg(long)]
    keep: bool,
    /// A MySQL server, without a database.
    #[arg(long, env = "OUTBOX_TEST_MYSQL_URL", value_name = "URL")]
    mysql: String,
    /// Kafka's bootstrap address.
    #[arg(long, env = "OUTBOX_TEST_KAFKA", value_name = "ADDRESS")]
    kafka: String,
    /// RabbitMQ.
    #[arg(long, env = "OUTBOX_TEST_AMQP", value_name = "URL")]
    amqp: String,
    /// The relay's program; by default the one beside this program.
    #[arg(long, value_name = "FILE")]
    relay: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Broker {
    Kafka,
    Rabbitmq,
    Both,
}

impl Broker {
    fn kafka(self) -> bool {
        self != Self::Rabbitmq
    }

    fn rabbitmq(self) -> bool {
        self != Self::Kafka
    }
}

/// When a relay is killed.
const KILL_AT: Duration = Duration::from_secs(10);
/// How long the rest may take to arrive.
const DRAIN: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let ended = tokio::select! {
        ended = demo(&options) => ended,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(options: &Options) -> Result<bool> {
    let run = format!("{:08x}", rand::random::<u32>());
    let (pool, url) = books::open(&options.mysql, &run).await?;
    let tally = Arc::new(Tally::default());
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    if options.broker.kafka() {
        let consumer = kafka::Consumer::new(&options.kafka, &shop::orders_topic(&run)).await?;
        tasks.spawn(consumer.run(pool.clone(), tally.clone(), stop.clone()));
    }
    if options.broker.rabbitmq() {
        let consumer = rabbitmq::Consumer::new(&options.amqp, &shop::mail_topic(&run)).await?;
        tasks.spawn(consumer.run(pool.clone(), tally.clone(), stop.clone()));
    }
    let mut relays = Relays::start(options, &url).await?;
    play(options, &run, &pool, &tally, &mut relays).await?;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    let ledger = books::ledger(&pool, options.broker, &tally).await?;
    ledger.print();
    if options.keep {
        println!("\nkept: database {url}, relays at {}; stop them with Ctrl-C", relays.addresses());
        tokio::signal::ctrl_c().await?;
    }
    relays.stop().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("DROP DATABASE outbox_demo_{run}"))).execute(&pool).await?;
    Ok(ledger.adds_up())
}

/// Places orders while the screen shows what becomes of them; kills a relay on the way; waits until all has arrived.
async fn play(options: &Options, run: &str, pool: &MySqlPool, tally: &Arc<Tally>, relays: &mut Relays) -> Result<()> {
    let started = Instant::now();
    let orders = tokio::spawn(shop::place_orders(options.clone(), run.to_owned(), pool.clone(), tally.clone()));
    let mut screen = screen::Screen::new(started);
    let total = Duration::from_secs(options.seconds);
    loop {
        tokio::time::sleep(screen.interval()).await;
        if started.elapsed() >= KILL_AT.min(total / 2) {
            relays.kill_first().await?;
        }
        screen.show(tally, &relays.look().await);
        if orders.is_finished() && tally.complete(options.broker) {
            break;
        }
        if started.elapsed() > total + DRAIN {
            println!("not everything has arrived {} s after the last order", DRAIN.as_secs());
            break;
        }
    }
    screen.end();
    orders.await.context("the shop panicked")?
}
