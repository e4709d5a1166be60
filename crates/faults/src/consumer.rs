//! Consumers, each in its own process, so that they can be killed: this program again, selected by its environment.

use std::{fs, io::Read as _, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use outbox_consumer::{
    Delivery, Failure, Handler, Metrics, SequencePolicy, kafka,
    prometheus::{Registry, TextEncoder},
    rabbitmq,
};
use outbox_core::sqlx::{self, MySqlConnection, mysql::MySqlPoolOptions};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use testkit::{
    accounts::Account,
    clock::Clock,
    consume::{Broker, Topic},
    database::Database,
    judge::Consumed,
    relay,
};
use tokio::{
    process::{Child, Command},
    sync::oneshot,
    time::{sleep, timeout},
};

/// The variable that makes a process a consumer.
const VARIABLE: &str = "FAULTS_CONSUMER";
/// The number of messages that one process handles concurrently.
const CONCURRENCY: u32 = 4;
/// How often a consumer writes its counts.
const SHOWN: Duration = Duration::from_millis(250);
/// The time limit for a consumer to stop in order.
const STOP: Duration = Duration::from_secs(60);

/// How to start the program that becomes a consumer: it must call [`become_one_if_asked`].
#[derive(Debug, Clone)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its clock, if it differs from the machine's.
    pub clock: Option<Arc<Clock>>,
}

/// The job of a consumer. Consumers of the baseline read it too.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    kafka: bool,
    address: String,
    source: String,
    name: String,
    database: String,
    /// Whether it refuses messages of sequenced keys that are out of order.
    strict: bool,
    /// The folder in which each consumer writes its counts, in its own file.
    pages: PathBuf,
}

/// The consumers of a run. Drop kills them.
#[derive(Debug)]
pub struct Consumers {
    program: Program,
    job: Job,
    running: Vec<Child>,
    /// Whether no consumer was killed with unread counts.
    complete: bool,
    pages: TempDir,
}

impl Consumers {
    /// Starts this number of consumers.
    pub async fn start(
        program: &Program,
        topic: &Topic,
        database: &Database,
        sequence: SequencePolicy,
        consumers: usize,
    ) -> Result<Self> {
        let pages = tempfile::tempdir()?;
        let job = Job {
            kafka: topic.broker() == Broker::Kafka,
            address: topic.address().to_owned(),
            source: topic.for_consumers().await?,
            name: topic.name().to_owned(),
            database: database.url_as(Account::Service)?,
            strict: sequence == SequencePolicy::Refuse,
            pages: pages.path().to_owned(),
        };
        let mut all = Self { program: program.clone(), job, running: Vec::new(), complete: true, pages };
        for _ in 0..consumers {
            all.start_one()?;
        }
        Ok(all)
    }

    /// Starts one more.
    pub fn start_one(&mut self) -> Result<()> {
        self.running.push(self.spawn(&self.program, None)?);
        Ok(())
    }

    /// Starts one more, of another build.
    pub fn start_one_of(&mut self, program: &Program) -> Result<()> {
        self.running.push(self.spawn(program, None)?);
        Ok(())
    }

    /// Stops the newest one in order.
    pub async fn stop_newest(&mut self) -> Result<()> {
        stop(self.running.pop().context("no consumer runs")?).await
    }

    /// Kills the one that has run longest, and waits for its end.
    pub async fn kill_one(&mut self) -> Result<()> {
        self.complete = false;
        let mut victim = (!self.running.is_empty()).then(|| self.running.remove(0)).context("no consumer runs")?;
        Ok(victim.kill().await?)
    }

    /// Starts one that dies at this point of the first message that reaches it: `before_commit` or
    /// `before_acknowledge`.
    pub fn doomed(&mut self, point: &str) -> Result<Child> {
        self.complete = false;
        self.spawn(&self.program, Some(point))
    }

    /// Stops them in order. It is an error if one has already ended, or does not stop.
    pub async fn stop(&mut self) -> Result<()> {
        for consumer in &mut self.running {
            drop(consumer.stdin.take());
        }
        for consumer in self.running.drain(..) {
            stop(consumer).await?;
        }
        Ok(())
    }

    /// The counts of all of them so far, including those that have ended.
    pub fn counted(&self) -> Result<Consumed> {
        let files = fs::read_dir(self.pages.path())?;
        let pages = files.map(|file| Ok(relay::Metrics::parse(&fs::read_to_string(file?.path())?)));
        let pages: Vec<_> = pages.collect::<Result<_>>()?;
        Ok(Consumed::of(&pages, self.complete))
    }

    fn spawn(&self, program: &Program, dies: Option<&str>) -> Result<Child> {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).env(VARIABLE, serde_json::to_string(&self.job)?);
        command.envs(dies.map(|point| ("OUTBOX_CRASH_POINT", point)));
        command.envs(self.program.clock.iter().flat_map(|clock| clock.variables()));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        // A Ctrl-C is for the parent.
        command.process_group(0);
        command.spawn().context("cannot start a consumer")
    }
}

async fn stop(mut consumer: Child) -> Result<()> {
    drop(consumer.stdin.take());
    let status = timeout(STOP, consumer.wait()).await.context("a consumer does not stop")??;
    ensure!(status.success(), "a consumer ended with {status}");
    Ok(())
}

/// Consumes until the parent has ended or asks for a stop, if this process was started for that.
pub async fn become_one_if_asked() -> Result<()> {
    let Ok(job) = std::env::var(VARIABLE) else { return Ok(()) };
    let job: Job = serde_json::from_str(&job)?;
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || {
        // However the parent ends, the pipe ends with it.
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        stop.send(()).ok();
        std::thread::sleep(STOP);
        std::process::exit(1);
    });
    let registry = Registry::new();
    let page = job.pages.join(std::process::id().to_string());
    let metrics = Metrics::register(&registry)?;
    let show = || Ok(fs::write(&page, TextEncoder::new().encode_to_string(&registry.gather())?)?);
    let shows = async {
        loop {
            if let Err(error) = show() {
                return error;
            }
            sleep(SHOWN).await;
        }
    };
    tokio::select! {
        ended = consume(job, metrics, stopped) => ended?,
        error = shows => return Err(error),
    }
    show()?;
    std::process::exit(0);
}

async fn consume(job: Job, metrics: Metrics, stopped: oneshot::Receiver<()>) -> Result<()> {
    let stopped = async { stopped.await.unwrap_or_default() };
    let options = MySqlPoolOptions::new().max_connections(CONCURRENCY).acquire_timeout(Duration::from_secs(2));
    let pool = options.connect_lazy(&job.database)?;
    let at_once = usize::try_from(CONCURRENCY)?;
    let policy = if job.strict { SequencePolicy::Refuse } else { SequencePolicy::Accept };
    if job.kafka {
        let consumer = kafka::Consumer::new(job.address, &job.name, pool)?.topic(job.source).concurrency(at_once);
        // Another consumer must get the partitions of a killed one soon.
        let consumer = consumer.property("session.timeout.ms", "6000").property("heartbeat.interval.ms", "1000");
        consumer.sequence(policy).metrics(metrics).run(Effect, stopped).await?;
    } else {
        let consumer = rabbitmq::Consumer::new(&job.address, &job.source, &job.name, pool)?.concurrency(at_once);
        consumer.sequence(policy).metrics(metrics).run(Effect, stopped).await?;
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
