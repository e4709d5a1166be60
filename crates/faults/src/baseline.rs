//! Programs of the baseline, the commit in `migrations/BASELINE`: built from git once, and kept below the target
//! folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use testkit::{accounts::Account, database::Database, ledger::Ledger, servers::cache::repository};
use tokio::{
    process::{self, Child},
    time::timeout,
};

const COMMIT: &str = include_str!("../../../migrations/BASELINE");
/// The service, which the baseline's tree lacks.
const SERVICE: &str = include_str!("../baseline/service.rs");
/// The time limit for a service to stop in order.
const STOP: Duration = Duration::from_secs(60);

/// The programs.
#[derive(Debug, Clone)]
pub struct Baseline {
    /// The relay.
    pub relay: PathBuf,
    /// The program that becomes a consumer.
    pub consumer: PathBuf,
    service: PathBuf,
}

impl Baseline {
    /// Builds the programs if they are not built yet, in their own folder beside those of this build, of which this is
    /// one. The first build takes minutes.
    pub async fn build(program: &Path) -> Result<Self> {
        let target = program.ancestors().nth(2).context("the program is in no target folder")?.join("baseline");
        tokio::task::spawn_blocking(move || build(&target)).await?
    }

    /// Makes a database with the baseline's tables.
    pub async fn database(&self, empty: Database) -> Result<Database> {
        let mut migrate = Command::new(&self.relay);
        finish(migrate.args(["migrate", "up"]).env("RELAY__DATABASE__URL", empty.url()))?;
        empty.furnish().await?;
        Ok(empty)
    }

    /// Starts the service on a database.
    pub fn service(&self, database: &Database, topic: &str, rate: f64, seed: u64) -> Result<Service> {
        let folder = tempfile::tempdir()?;
        let mut command = process::Command::new(&self.service);
        command.arg(database.url_as(Account::Service)?).arg(topic).arg(rate.to_string()).arg(seed.to_string());
        command.arg(folder.path().join("ledger.json")).stdin(Stdio::piped()).kill_on_drop(true).process_group(0);
        Ok(Service { child: command.spawn().context("cannot start the service")?, folder })
    }
}

/// A running service of the baseline. Drop kills it.
#[derive(Debug)]
pub struct Service {
    child: Child,
    folder: TempDir,
}

impl Service {
    /// Stops it in order, and adds its messages to the ledger. It must have committed at least one.
    pub async fn stop(mut self, ledger: &Ledger) -> Result<()> {
        drop(self.child.stdin.take());
        let status = timeout(STOP, self.child.wait()).await.context("the service does not stop")??;
        ensure!(status.success(), "the service ended with {status}");
        let committed = ledger.read(&fs::read_to_string(self.folder.path().join("ledger.json"))?)?;
        ensure!(committed > 0, "the service has committed nothing");
        Ok(())
    }
}

fn build(target: &Path) -> Result<Baseline> {
    let source = target.join("source");
    let stamp = source.join(".commit");
    if !fs::read_to_string(&stamp).is_ok_and(|commit| commit == COMMIT) {
        unpack(&source)?;
        fs::write(stamp, COMMIT)?;
    }
    let service = source.join("crates/faults/src/bin/service.rs");
    if !fs::read_to_string(&service).is_ok_and(|text| text == SERVICE) {
        fs::write(service, SERVICE)?;
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--workspace", "--bin", "relay", "--bin", "faults", "--bin", "service", "--target-dir"]);
    // The baseline's own toolchain, whichever one started this program.
    finish(cargo.arg(target).current_dir(&source).env_remove("RUSTUP_TOOLCHAIN"))?;
    let [relay, consumer, service] = ["relay", "faults", "service"].map(|name| target.join("debug").join(name));
    Ok(Baseline { relay, consumer, service })
}

/// Writes the baseline's tree into an empty folder.
fn unpack(source: &Path) -> Result<()> {
    if source.exists() {
        fs::remove_dir_all(source)?;
    }
    fs::create_dir_all(source)?;
    let archive = source.with_extension("tar");
    let mut git = Command::new("git");
    git.current_dir(repository()).args(["archive", "--format=tar", "--output"]).arg(&archive).arg(COMMIT.trim());
    finish(&mut git).context("the baseline must be in this repository: `git fetch --unshallow`")?;
    finish(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(source))?;
    Ok(fs::remove_file(archive)?)
}

fn finish(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let status = output.status;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(status.success(), "{} ended with {status}: {error}", command.get_program().display());
    Ok(())
}
