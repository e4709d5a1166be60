//! Two relays as child processes, of which one is killed, and the console.
//!
//! They are not started by the tests' own `Relay`: that has a shell as watchdog, and the container image has none.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use outbox_core::sqlx::MySqlPool;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{
    relay::{Metrics, Settings, get},
    servers::free_port,
};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::{
    sight::{Claims, claims, delivered},
    tally::Board,
};

const READY: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(50);
/// Looks for a moment at which the relay to be killed holds claims.
const TRIES: u32 = 100;
/// Of these, looks for claims of which a consumer has messages already.
const CHOOSY: u32 = 50;
/// Time for statements on their way when the relay is frozen.
const STILL: Duration = Duration::from_millis(100);

/// The relays of the demo, and their console.
#[derive(Debug)]
pub(crate) struct Relays {
    relays: Vec<Relay>,
    console: Relay,
    _folder: TempDir,
}

/// Drop kills it.
#[derive(Debug)]
struct Relay {
    name: &'static str,
    port: u16,
    log: PathBuf,
    child: Child,
}

impl Relays {
    /// Starts two relays and a console, in which everybody on this machine is an operator. Waits until they are ready.
    pub(crate) async fn start(program: Option<&Path>, settings: &Settings, operator: &Settings) -> Result<Self> {
        let beside = std::env::current_exe()?.with_file_name("relay");
        let program = program.unwrap_or(&beside);
        let folder = tempfile::Builder::new().prefix("outbox-demo-").tempdir()?;
        let start = |name| Relay::start(program, folder.path(), (name, "run"), free_port()?, settings);
        let port = free_port()?;
        let operator = operator.clone().set("api", "listen", format!("127.0.0.1:{port}"));
        let operator = operator.set("api", "anonymous", "operator");
        let console = Relay::start(program, folder.path(), ("console", "console"), port, &operator)?;
        let mut relays = Self { relays: vec![start("relay-1")?, start("relay-2")?], console, _folder: folder };
        for relay in &mut relays.relays {
            relay.wait_until("/readyz").await?;
        }
        relays.console.wait_until("/livez").await?;
        Ok(relays)
    }

    /// The address of the console.
    pub(crate) fn console(&self) -> String {
        format!("http://127.0.0.1:{}/", self.console.port)
    }

    /// The name of each relay, and the port of its metrics.
    pub(crate) fn ports(&self) -> Vec<(&'static str, u16)> {
        self.relays.iter().map(|relay| (relay.name, relay.port)).collect()
    }

    /// Kills the first relay without warning (SIGKILL) and waits until another has taken its claims over.
    pub(crate) async fn kill_one(&mut self, pool: &MySqlPool, board: &Board) -> Result<()> {
        let [relay, other] = self.relays.as_mut_slice() else { bail!("there are not two relays") };
        let (before, (held, sent)) = (other.takeovers().await, relay.kill_with_claims(pool).await?);
        let (name, killed, Claims { claims: count, messages, .. }) = (relay.name, Instant::now(), held);
        board.note(format!(
            "{name} is killed (SIGKILL) with {count} claims: {messages} messages, {sent} of them delivered"
        ));
        while claims(pool).await?.contains_key(name) {
            sleep(LOOK).await;
        }
        let after = killed.elapsed().as_secs_f64();
        let taken = other.takeovers().await.saturating_sub(before);
        board.note(format!("{} has taken over {taken} claims of {name}, {after:.1} s after the kill", other.name));
        Ok(())
    }

    /// Asks those that run to stop.
    pub(crate) async fn stop(mut self) -> Result<()> {
        for relay in self.relays.iter_mut().chain([&mut self.console]) {
            relay.stop().await?;
        }
        Ok(())
    }

    /// The relays that run, for people.
    pub(crate) fn running(&mut self) -> Vec<String> {
        let running = |relay: &mut Relay| matches!(relay.child.try_wait(), Ok(None));
        let running = self.relays.iter_mut().filter_map(|relay| running(relay).then_some(relay));
        running.map(|relay| format!("{} http://127.0.0.1:{}/metrics", relay.name, relay.port)).collect()
    }
}

impl Relay {
    /// In a process group of its own: a Ctrl-C in the terminal is not meant for it.
    fn start(
        program: &Path,
        folder: &Path,
        (name, command): (&'static str, &str),
        port: u16,
        settings: &Settings,
    ) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, settings.clone().set("relay", "owner", name).render(port)?)?;
        let arguments = [command, "--config"];
        let mut command = Command::new(program);
        command.args(arguments).arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log)?).process_group(0).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { name, port, log, child })
    }

    /// Waits until it says at this path that it is well.
    async fn wait_until(&mut self, path: &str) -> Result<()> {
        let start = Instant::now();
        while !matches!(timeout(ANSWER, get(self.port, path)).await, Ok(Ok((200, ref page))) if page.starts_with("ok\n"))
        {
            if self.child.try_wait()?.is_some() || start.elapsed() > READY {
                bail!("{} is not ready; its log:\n{}", self.name, std::fs::read_to_string(&self.log)?);
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Kills it at the worst moment: it holds claims of which messages have arrived, and has not noted that. Returns
    /// the claims, and how many of their messages have arrived. A relay holds claims only for milliseconds at a time.
    /// So it is frozen, looked at, and let go until it holds such claims.
    async fn kill_with_claims(&mut self, pool: &MySqlPool) -> Result<(Claims, u64)> {
        let mut held = (Claims::default(), 0);
        for tried in 1..=TRIES {
            self.signal(Signal::STOP)?;
            sleep(STILL).await;
            held = (claims(pool).await?.remove(self.name).unwrap_or_default(), delivered(pool, self.name).await?);
            if held.1 > 0 || (held.0.messages > 0 && tried > CHOOSY) {
                break;
            }
            self.signal(Signal::CONT)?;
            sleep(STILL).await;
        }
        self.signal(Signal::KILL)?;
        self.child.wait().await?;
        Ok(held)
    }

    /// How many claims it has taken over.
    async fn takeovers(&self) -> u64 {
        let metrics = metrics(self.port).await.unwrap_or_default();
        count(&metrics, "outbox_relay_lease_takeovers_total")
    }

    async fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        self.signal(Signal::TERM)?;
        // A run that ends early may leave it frozen.
        self.signal(Signal::CONT)?;
        let ended = timeout(STOP, self.child.wait()).await;
        let status = ended.with_context(|| format!("{} did not stop within {STOP:?}", self.name))??;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        Ok(kill_process(pid.with_context(|| format!("{} has ended", self.name))?, signal)?)
    }
}

/// The metrics of the relay that listens here; `None` if it does not answer.
pub(crate) async fn metrics(port: u16) -> Option<Metrics> {
    let (_, text) = timeout(ANSWER, get(port, "/metrics")).await.ok()?.ok()?;
    Some(Metrics::parse(&text))
}

/// A counter or gauge, the sum over its labels.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and not negative")]
pub(crate) fn count(metrics: &Metrics, name: &str) -> u64 {
    metrics.sum(name).max(0.0) as u64
}
