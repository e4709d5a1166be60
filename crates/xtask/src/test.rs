//! `test`: every check that a change has to pass.
//!
//! There are two lanes: cargo allows only one build at a time, and servers start meanwhile. Warnings are errors through
//! clippy's own arguments: `RUSTFLAGS` would make every build compile its dependencies anew.

use std::collections::BTreeSet;
use std::pin::pin;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::Value;
use testkit::servers::Kind;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use crate::fleet::Fleet;
use crate::steps::{Step, all_passed, step, summary};
use crate::test_output::Counts;
use crate::tools::{Group, cargo, output, packages, watch};
use crate::{api, dashboards, demo, deny, package};

/// Tests without output for this duration hang: each wait in them has a limit, and the longest takes two minutes.
/// `cargo test PACKAGE` may build for a while first.
const SILENCE: Duration = Duration::from_secs(20 * 60);

/// The number of tests at a time.
const THREADS: &str = "4";

/// The settings of the databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum World {
    /// Settings that users have and no stock server has: see `crates/testkit/src/servers/odd.rs`.
    Odd,
    /// The same, and the worst of what a session inherits: see `crates/testkit/src/servers/hostile.rs`.
    Hostile,
}

#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Run tests on databases with other settings: the tests of ARGUMENTS, or the suites that cover every statement.
    #[arg(long)]
    servers: Option<World>,
    /// Arguments for `cargo test`, for example `-p testkit` or `-- --exact name`. With them, only the tests run.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

impl Test {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let mut steps = Vec::new();
        match (self.servers, self.args.is_empty()) {
            (None, true) => Box::pin(everything(&mut steps)).await,
            (None, false) => steps.push(step("tests", chosen(vec![self.args])).await),
            (Some(world), true) => steps.push(step("servers", on(world, brokers().await, statements())).await),
            (Some(world), false) => steps.push(step("servers", on(world, brokers().await, vec![self.args])).await),
        }
        println!("{}", summary(&steps));
        Ok(if all_passed(&steps) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn everything(steps: &mut Vec<Step>) {
    match checks(steps).await {
        Ok(mut fleet) => {
            steps.push(step("demo", demo::check(&fleet)).await);
            steps.push(step("tests", async { tests(&mut fleet, &other_tests().await?).await }).await);
            steps.push(step("hostile servers", on(World::Hostile, Ok(fleet), statements())).await);
        }
        Err(error) => steps.push(step("tests", async { Err(error) }).await),
    }
}

async fn chosen(calls: Vec<Vec<String>>) -> Result<String> {
    tests(&mut Fleet::start().await?, &calls).await
}

pub(crate) async fn brokers() -> Result<Fleet> {
    Fleet::start_only(&[Kind::Kafka, Kind::RabbitMq]).await
}

async fn on(world: World, fleet: Result<Fleet>, calls: Vec<Vec<String>>) -> Result<String> {
    tests(&mut fleet?.in_world(world).await?, &calls).await
}

/// The suites that cover every statement: the tests of `mysql-outbox-core`, and the relay's delivery tests. They run on
/// hostile servers alone, which have every setting of the odd ones: whatever depends on a setting shows there.
fn statements() -> Vec<Vec<String>> {
    vec![call(["--test=core"]), call(["--test=relay", "--"].into_iter().chain(DELIVERY))]
}

const DELIVERY: [&str; 6] = ["delivery::", "lanes::", "lock_waits::", "order::", "rows_touched::", "takeover::"];

/// All other tests of the workspace.
async fn other_tests() -> Result<Vec<Vec<String>>> {
    let packages = packages().await?;
    let targets = packages.iter().filter_map(|package| package.get("targets")?.as_array()).flatten();
    let is_test = |target: &&Value| target.pointer("/kind/0").is_some_and(|kind| kind == "test");
    let suites = targets.filter(is_test).filter_map(|target| target.get("name")?.as_str());
    let others = suites.filter(|suite| !["core", "relay"].contains(suite)).map(|suite| format!("--test={suite}"));
    let beside = DELIVERY.into_iter().flat_map(|module| ["--skip", module]);
    Ok(vec![
        call(["--lib", "--bins"].map(str::to_owned).into_iter().chain(others)),
        call(["--test=relay", "--"].into_iter().chain(beside)),
        call(["--doc"]),
    ])
}

/// Suites are chosen from the whole workspace, so that nothing is built with other features.
fn call<A: Into<String>>(suites: impl IntoIterator<Item = A>) -> Vec<String> {
    ["--workspace", "--no-fail-fast"].map(str::to_owned).into_iter().chain(suites.into_iter().map(Into::into)).collect()
}

/// Everything before the tests, which wait for both lanes.
async fn checks(steps: &mut Vec<Step>) -> Result<Fleet> {
    let (builds, (fleet, others)) = tokio::join!(builds(), others());
    steps.extend(builds);
    steps.extend(others);
    fleet
}

/// The libraries with fewer features than the workspace enables together. Of the consumer's, Kafka is left out:
/// its C library would be built once more.
const FEATURES: [&[&str]; 7] = [
    &["--package=mysql-outbox-core", "--no-default-features"],
    &["--package=mysql-outbox-consumer", "--features=rabbitmq"],
    &["--package=mysql-outbox-relay", "--no-default-features"],
    &["--package=mysql-outbox-relay"],
    &["--package=mysql-outbox", "--package=mysql-outbox-relay", "--no-default-features", "--features=http"],
    &["--package=mysql-outbox", "--package=mysql-outbox-relay", "--no-default-features", "--features=kafka"],
    &["--package=mysql-outbox", "--package=mysql-outbox-relay", "--no-default-features", "--features=rabbitmq"],
];
/// Dependencies of the program, which a service with a worker must not compile.
const OF_THE_PROGRAM: [&str; 5] = ["axum", "clap", "strsim", "toml", "ureq"];

async fn features() -> Result<String> {
    for arguments in FEATURES {
        let mut clippy = cargo(["clippy", "--lib", "--quiet"]);
        clippy.args(arguments).args(["--", "-D", "warnings"]);
        watch(clippy).await?;
    }
    let worker = ["--package=mysql-outbox-relay", "--no-default-features"];
    let mut tree = cargo(["tree", "--edges=normal", "--prefix=none", "--format={p}"].into_iter().chain(worker));
    let tree = output(&mut tree).await?;
    let known: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let foreign: Vec<&str> = OF_THE_PROGRAM.into_iter().filter(|it| known.contains(it)).collect();
    ensure!(foreign.is_empty(), "a worker compiles {}: see `cargo tree {} -i`", foreign.join(", "), worker.join(" "));
    Ok(String::new())
}

async fn builds() -> Vec<Step> {
    let mut documentation = cargo(["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    vec![
        step("format", passed(watch(cargo(["fmt", "--all", "--check"])))).await,
        step(
            "lints",
            passed(watch(cargo(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))),
        )
        .await,
        step("features", features()).await,
        step("documentation", passed(watch(documentation))).await,
        step("api", api::check()).await,
        step("test build", passed(watch(cargo(["test", "--workspace", "--no-run", "--quiet"])))).await,
    ]
}

async fn others() -> (Result<Fleet>, Vec<Step>) {
    let mut fleet = None;
    let servers = async {
        fleet = Some(Fleet::start().await?);
        Ok(String::new())
    };
    let steps = vec![
        step("servers", servers).await,
        step("dependencies", deny::check()).await,
        step("dashboards", dashboards::check()).await,
        step("packages", package::check()).await,
    ];
    (fleet.context("the servers did not start"), steps)
}

async fn passed(work: impl Future<Output = Result<()>>) -> Result<String> {
    work.await.map(|()| String::new())
}

/// Runs the tests of these `cargo test` calls and counts them. An ignored test is a test that does not run.
async fn tests(fleet: &mut Fleet, calls: &[Vec<String>]) -> Result<String> {
    let mut counts = Counts::default();
    let mut failed = None;
    for args in calls {
        let status = cargo_test(fleet, args, &mut counts).await?;
        failed = failed.or((!status.success()).then_some(status));
    }
    println!("\n{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.ignored);
    if let Some(status) = failed {
        bail!("{} tests failed ({status})", counts.failed);
    }
    ensure!(counts.ignored == 0, "{} tests were ignored: they prove nothing", counts.ignored);
    ensure!(counts.passed > 0, "no test ran");
    Ok(String::new())
}

/// Runs `cargo test` and shows its output at once. It ends with the first server that breaks down.
async fn cargo_test(fleet: &mut Fleet, args: &[String], counts: &mut Counts) -> Result<ExitStatus> {
    let mut command = cargo(["test"]);
    command.args(args).envs(fleet.endpoints().into_iter().map(|server| (server.variable, server.address)));
    // Errors name their origin; a hundred frames of the runtime would hide it.
    command.env("RUST_LIB_BACKTRACE", "0");
    // Tests mostly wait for servers. `--test-threads` overrides this.
    command.env("RUST_TEST_THREADS", THREADS);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn()?;
    let mut group = Group::of(child.id());
    let mut broken = pin!(fleet.broken());
    let mut lines = BufReader::new(child.stdout.take().context("cargo has no output")?).lines();
    loop {
        let line = tokio::select! {
            line = timeout(SILENCE, lines.next_line()) => line,
            error = &mut broken => return Err(error),
            interrupted = tokio::signal::ctrl_c() => return interrupted.map(|()| bail!("interrupted"))?,
        };
        let Ok(line) = line else {
            bail!("the tests said nothing for {SILENCE:?}: the last line says which one hangs")
        };
        let Some(line) = line? else { break };
        println!("{line}");
        *counts += Counts::of(&line);
    }
    let status = child.wait().await?;
    group.has_ended();
    Ok(status)
}
