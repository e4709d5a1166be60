//! Two relays as child processes, of which one is killed.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use outbox_core::sqlx::MySqlPool;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::{
    metrics::{Metrics, get},
    sight::{Claims, RelayAddress, claims},
    tally::Board,
};

const READY: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);
/// Looks for a moment at which the relay to be killed holds claims.
const TRIES: u32 = 100;
/// Time for statements on their way when the relay is frozen.
const STILL: Duration = Duration::from_millis(100);

/// The relays of the demo.
#[derive(Debug)]
pub(crate) struct Relays {
    relays: Vec<Relay>,
    folder: TempDir,
}

/// Drop kills it.
#[derive(Debug)]
struct Relay {
    name: &'static str,
    address: SocketAddr,
    child: Child,
}

impl Relays {
    /// Starts two relays, and waits until they are ready. `settings` is their configuration without name and listener.
    pub(crate) async fn start(program: Option<&Path>, settings: &str) -> Result<Self> {
        let program = program.map_or_else(beside, |program| Ok(program.to_path_buf()))?;
        let folder = tempfile::Builder::new().prefix("outbox-demo-").tempdir()?;
        let start = |name| Relay::start(&program, folder.path(), name, settings);
        let relays = vec![start("relay-1")?, start("relay-2")?];
        let mut relays = Self { relays, folder };
        for relay in &mut relays.relays {
            relay.wait_until_ready(relays.folder.path()).await?;
        }
        Ok(relays)
    }

    /// What the screen looks at.
    pub(crate) fn addresses(&self) -> Vec<RelayAddress> {
        self.relays.iter().map(|relay| (relay.name.to_owned(), relay.address)).collect()
    }

    /// Kills the first relay without warning (SIGKILL) and waits until another has taken its claims over.
    pub(crate) async fn kill_one(&mut self, pool: &MySqlPool, board: &Board) -> Result<()> {
        let [relay, other] = self.relays.as_mut_slice() else { bail!("there are not two relays") };
        let (before, held) = (other.takeovers().await, relay.kill_with_claims(pool).await?);
        let (name, killed) = (relay.name, Instant::now());
        board.note(format!("{name} is killed (SIGKILL); it held {} claims of {} messages", held.claims, held.messages));
        while claims(pool).await?.contains_key(name) {
            sleep(LOOK).await;
        }
        let (after, taken) = (killed.elapsed().as_secs_f64(), other.takeovers().await.saturating_sub(before));
        board.note(format!("{} has taken over {taken} claims of {name}, {after:.1} s after the kill", other.name));
        Ok(())
    }

    /// Asks those that run to stop.
    pub(crate) async fn stop(mut self) -> Result<()> {
        for relay in &mut self.relays {
            relay.stop().await?;
        }
        Ok(())
    }

    /// The relays that run, for people.
    pub(crate) fn running(&mut self) -> Vec<String> {
        let running = |relay: &mut Relay| matches!(relay.child.try_wait(), Ok(None));
        let running = self.relays.iter_mut().filter_map(|relay| running(relay).then_some(relay));
        running.map(|relay| format!("{} http://{}/metrics", relay.name, relay.address)).collect()
    }
}

impl Relay {
    /// In a process group of its own: a Ctrl-C in the terminal is not meant for it.
    fn start(program: &Path, folder: &Path, name: &'static str, settings: &str) -> Result<Self> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let file = folder.join(format!("{name}.toml"));
        let own = format!("[relay]\nowner = \"{name}\"\n{LEASE}\n[http]\nlisten = \"{address}\"\n");
        std::fs::write(&file, format!("{settings}\n{own}"))?;
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(folder.join(format!("{name}.log")))?).process_group(0).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { name, address, child })
    }

    async fn wait_until_ready(&mut self, folder: &Path) -> Result<()> {
        let start = Instant::now();
        while !get(self.address, "/readyz").await.is_ok_and(|answer| answer.contains(" 200 OK")) {
            if self.child.try_wait()?.is_some() || start.elapsed() > READY {
                let log = std::fs::read_to_string(folder.join(format!("{}.log", self.name))).unwrap_or_default();
                bail!("{} is not ready; its log:\n{log}", self.name);
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// A relay holds claims only for milliseconds at a time. So it is frozen, looked at, and let go until it holds some: those
    /// are what the other will find.
    async fn kill_with_claims(&mut self, pool: &MySqlPool) -> Result<Claims> {
        let mut held = Claims::default();
        for _ in 0..TRIES {
            self.signal(Signal::STOP)?;
            sleep(STILL).await;
            held = claims(pool).await?.remove(self.name).unwrap_or_default();
            if held.messages > 0 {
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
        let metrics = Metrics::fetch(self.address).await.unwrap_or_default();
        metrics.count("outbox_relay_lease_takeovers_total")
    }

    async fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        self.signal(Signal::TERM)?;
        let ended = tokio::time::timeout(STOP, self.child.wait()).await;
        let status = ended.with_context(|| format!("{} did not stop within {STOP:?}", self.name))??;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        Ok(kill_process(pid.with_context(|| format!("{} has ended", self.name))?, signal)?)
    }
}

/// Short, so that the take-over can be watched.
const LEASE: &str = "lease = \"5s\"\npublish_deadline = \"2s\"\nsettle_deadline = \"1s\"\nsafety = \"1s\"";

/// The program `relay` beside this one.
fn beside() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("relay"))
}
