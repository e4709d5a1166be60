//! Consumers, each a process of its own, so that they can be killed: this program again, told by its environment.

use std::{future::pending, io::Read as _, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result};
use outbox_consumer::{Delivery, Failure, Handler, kafka, rabbitmq};
use outbox_core::sqlx::{self, MySqlConnection, mysql::MySqlPoolOptions};
use serde::{Deserialize, Serialize};
use testkit::{
    consume::{Broker, Topic},
    database::Database,
};
use tokio::process::{Child, Command};

/// The variable that makes a process a consumer.
const VARIABLE: &str = "FAULTS_CONSUMER";
/// Messages at work at the same time in one process.
const CONCURRENCY: u32 = 4;

/// How the program is started that becomes a consumer: it must call [`become_one_if_asked`].
#[derive(Debug, Clone)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// What a consumer has to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    kafka: bool,
    address: String,
    source: String,
    name: String,
    database: String,
}

/// The consumers of a run. Drop kills them.
#[derive(Debug)]
pub struct Consumers {
    program: Program,
    job: Job,
    running: Vec<Child>,
}

impl Consumers {
    /// Starts so many.
    pub async fn start(program: &Program, topic: &Topic, database: &Database, consumers: usize) -> Result<Self> {
        let job = Job {
            kafka: topic.broker() == Broker::Kafka,
            address: topic.address().to_owned(),
            source: topic.for_consumers().await?,
            name: topic.name().to_owned(),
            database: database.url().to_owned(),
        };
        let mut all = Self { program: program.clone(), job, running: Vec::new() };
        for _ in 0..consumers {
            all.start_one()?;
        }
        Ok(all)
    }

    /// Starts one more.
    pub fn start_one(&mut self) -> Result<()> {
        self.running.push(self.spawn(None)?);
        Ok(())
    }

    /// Kills the one that has run for longest, and waits for its end.
    pub async fn kill_one(&mut self) -> Result<()> {
        let mut victim = (!self.running.is_empty()).then(|| self.running.remove(0)).context("no consumer runs")?;
        Ok(victim.kill().await?)
    }

    /// Starts one that dies at this point of the first message that it gets there with: `before_commit` or `before_acknowledge`.
    pub fn doomed(&self, point: &str) -> Result<Child> {
        self.spawn(Some(point))
    }

    fn spawn(&self, dies: Option<&str>) -> Result<Child> {
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.arguments).env(VARIABLE, serde_json::to_string(&self.job)?);
        command.envs(dies.map(|point| ("OUTBOX_CRASH_POINT", point)));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        // A Ctrl-C is for the program that started it.
        command.process_group(0);
        command.spawn().context("cannot start a consumer")
    }
}

/// Consumes until the process that started this one has ended, if this is what it was started for.
pub async fn become_one_if_asked() -> Result<()> {
    let Ok(job) = std::env::var(VARIABLE) else { return Ok(()) };
    let job: Job = serde_json::from_str(&job)?;
    std::thread::spawn(|| {
        // However the parent ends, the pipe ends with it.
        let ended = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(i32::from(ended.is_err()));
    });
    let options = MySqlPoolOptions::new().max_connections(CONCURRENCY).acquire_timeout(Duration::from_secs(2));
    let pool = options.connect_lazy(&job.database)?;
    let at_once = usize::try_from(CONCURRENCY)?;
    if job.kafka {
        let consumer = kafka::Consumer::new(job.address, &job.name, pool)?.topic(job.source).concurrency(at_once);
        // The partitions of a consumer that was killed are to be another's soon.
        let consumer = consumer.property("session.timeout.ms", "6000").property("heartbeat.interval.ms", "1000");
        consumer.run(Effect, pending()).await?;
    } else {
        let consumer = rabbitmq::Consumer::new(&job.address, &job.source, &job.name, pool)?.concurrency(at_once);
        consumer.run(Effect, pending()).await?;
    }
    Ok(())
}

struct Effect;

impl Handler for Effect {
    async fn handle(&self, tx: &mut MySqlConnection, message: &Delivery) -> Result<(), Failure> {
        let sql = "INSERT INTO test_effects (message_id) VALUES (?)";
        sqlx::query(sql).bind(message.id.as_bytes().as_slice()).execute(tx).await?;
        Ok(())
    }
}
