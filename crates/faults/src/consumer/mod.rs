//! Consumers with an inbox, each a process of its own, so that they can be killed: this program again, told by its environment.

mod kafka;
mod rabbitmq;

use std::{io::Read as _, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result};
use outbox_core::sqlx::{self, Connection as _, MySqlConnection};
use serde::{Deserialize, Serialize};
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    inbox,
};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// The variable that makes a process a consumer.
const VARIABLE: &str = "FAULTS_CONSUMER";
/// Pause after an error: a server is down.
const PAUSE: Duration = Duration::from_millis(200);

/// How the program is started that becomes a consumer: it must call [`become_one_if_asked`].
#[derive(Debug, Clone)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Where a consumer dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Point {
    /// With the effect written and not committed.
    BeforeCommit,
    /// With the effect committed and the message not acknowledged.
    AfterCommit,
}

/// What a consumer has to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    kafka: bool,
    address: String,
    source: String,
    database: String,
    /// Where it dies, and after how many messages.
    dies: Option<(Point, u32)>,
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
            database: database.url().to_owned(),
            dies: None,
        };
        let mut all = Self { program: program.clone(), job, running: Vec::new() };
        for _ in 0..consumers {
            all.start_one()?;
        }
        Ok(all)
    }

    /// Starts one more.
    pub fn start_one(&mut self) -> Result<()> {
        self.running.push(self.spawn(&self.job)?);
        Ok(())
    }

    /// Kills the one that has run for longest, and waits for its end.
    pub async fn kill_one(&mut self) -> Result<()> {
        let mut victim = (!self.running.is_empty()).then(|| self.running.remove(0)).context("no consumer runs")?;
        Ok(victim.kill().await?)
    }

    /// Starts one that dies at this point after so many messages.
    pub fn doomed(&self, point: Point, after: u32) -> Result<Child> {
        self.spawn(&Job { dies: Some((point, after)), ..self.job.clone() })
    }

    fn spawn(&self, job: &Job) -> Result<Child> {
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.arguments).env(VARIABLE, serde_json::to_string(job)?);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
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
    let mut done = 0;
    loop {
        let ended =
            if job.kafka { kafka::consume(&job, &mut done).await } else { rabbitmq::consume(&job, &mut done).await };
        if ended.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Processes one delivery: its effect and the inbox in one transaction.
async fn process(job: &Job, db: &mut MySqlConnection, id: Uuid, done: &mut u32) -> Result<()> {
    *done += 1;
    let dies = |at: Point| job.dies.is_some_and(|(point, after)| point == at && *done >= after);
    let mut tx = db.begin().await?;
    let first = inbox::apply(&mut tx, id).await?;
    if first && dies(Point::BeforeCommit) {
        std::process::abort();
    }
    tx.commit().await?;
    if first && dies(Point::AfterCommit) {
        std::process::abort();
    }
    Ok(())
}

async fn connect(job: &Job) -> Result<MySqlConnection, sqlx::Error> {
    MySqlConnection::connect(&job.database).await
}
