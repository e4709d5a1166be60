//! `sown`: bugs on purpose. Each is a patch in `tests/sown` that names the tests meant to catch it. It is applied to a
//! copy of the tree: the product has no switches and the tree never changes. A bug that no test notices is a missing
//! test.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use testkit::{
    chance,
    servers::cache::{self, repository},
};
use tokio::{
    process::Command,
    signal::unix::{SignalKind, signal},
    time::timeout,
};

use crate::{
    fleet::{Endpoint, Fleet},
    test::{World, brokers},
    test_output::Counts,
    tools::{Group, quietly},
};

/// A test that still runs after this time never ends.
const TEST: Duration = Duration::from_mins(5);
/// The limit of a build: covers the very first one.
const BUILD: Duration = Duration::from_mins(60);

#[derive(Debug, Args)]
pub(crate) struct Sown {
    /// Names of bugs: files of tests/sown without their extension. Without names, all bugs.
    names: Vec<String>,
    /// How often the tests of a bug run, each time with the next seed and so with other random choices.
    #[arg(long, default_value_t = 1)]
    tries: u32,
    /// The seed of the first try, for loads, cuts and property tests. With 0, loads and cuts are those of `./dev test`.
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Run the tests on databases with other settings, among them other time zones.
    #[arg(long)]
    servers: Option<World>,
    /// Skip the proof that the tests pass without the bug.
    #[arg(long)]
    unproven: bool,
}

/// A bug.
#[derive(Debug)]
struct Bug {
    name: String,
    patch: PathBuf,
    /// The first file that the patch changes.
    file: String,
    /// A description of the bug.
    what: String,
    tests: Vec<Test>,
}

/// The arguments of `cargo test` for a test.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Test(Vec<String>);

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// The result for a bug.
struct Outcome {
    /// The tests that failed; empty if the bug survived.
    caught_by: BTreeSet<String>,
    /// How many tries caught the bug, and how many tries there were.
    caught: u32,
    tries: u32,
    took: Duration,
}

impl Sown {
    /// Fails if a bug was not caught. Ctrl-C ends the running tests.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            outcome = Box::pin(self.sow()) => outcome,
            _ = terminate.recv() => Ok(ExitCode::FAILURE),
            _ = interrupt.recv() => Ok(ExitCode::FAILURE),
        }
    }

    async fn sow(&self) -> Result<ExitCode> {
        let bugs = self.bugs()?;
        let fleet = match self.servers {
            Some(world) => brokers().await?.in_world(world).await?,
            None => Fleet::start().await?,
        };
        let field = Field::new(fleet.endpoints())?;
        let useless = if self.unproven { BTreeMap::new() } else { field.useless(&bugs).await? };
        let mut left = 0;
        let mut lines = Vec::new();
        for bug in &bugs {
            let problem = bug.tests.iter().find_map(|test| useless.get(test));
            let outcome = match problem {
                Some(problem) => Err(anyhow::anyhow!("its test {problem}, where there is no bug")),
                None => field.sow(bug, self.seed, self.tries).await,
            };
            if let Err(error) = &outcome {
                tracing::error!(bug = bug.name, "{error:#}");
            }
            left += u32::from(!outcome.as_ref().is_ok_and(|outcome| !outcome.caught_by.is_empty()));
            lines.push(line(bug, &outcome));
            println!("{}", lines.last().map_or("", String::as_str));
        }
        println!("\n{}\n\n{} bugs, {left} not caught", lines.join("\n"), bugs.len());
        Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The selected bugs, by name.
    fn bugs(&self) -> Result<Vec<Bug>> {
        let mut bugs = all()?;
        for name in &self.names {
            ensure!(bugs.iter().any(|bug| bug.name == *name), "there is no tests/sown/{name}.patch");
        }
        bugs.retain(|bug| self.names.is_empty() || self.names.contains(&bug.name));
        Ok(bugs)
    }
}

/// A line of the table.
fn line(bug: &Bug, outcome: &Result<Outcome>) -> String {
    let said = match outcome {
        Ok(Outcome { caught_by, took, .. }) if caught_by.is_empty() => {
            let tests = bug.tests.iter().map(Test::to_string).collect::<Vec<_>>().join(" and ");
            format!("SURVIVED {tests}, {} s", took.as_secs())
        }
        Ok(Outcome { caught_by, caught, tries, took }) => {
            let tests = caught_by.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("caught in {caught} of {tries} by {tests}, {} s", took.as_secs())
        }
        Err(error) => {
            let text = format!("{error:#}");
            format!("FAILED: {}", text.lines().next().unwrap_or_default())
        }
    };
    format!("{:<32} {said}  ({})", bug.name, bug.what)
}

/// All bugs, by name.
fn all() -> Result<Vec<Bug>> {
    let folder = fs::read_dir(repository().join("tests/sown"))?;
    let mut paths: Vec<PathBuf> = folder.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    let bugs = paths.iter().map(|path| read(path).with_context(|| path.display().to_string()));
    let mut bugs: Vec<Bug> = bugs.collect::<Result<_>>()?;
    // Neighbours share a test binary and a crate, so that the next build is small.
    bugs.sort_by_cached_key(|bug| {
        let binary = bug.tests.first().map(|test| test.0.iter().take(4).cloned().collect::<Vec<_>>());
        (binary, bug.file.clone(), bug.name.clone())
    });
    Ok(bugs)
}

/// The first line of a patch describes the bug; its tests follow, one a line.
fn read(patch: &Path) -> Result<Bug> {
    let text = fs::read_to_string(patch)?;
    let mut lines = text.lines();
    let what = lines.next().context("it is empty")?.to_owned();
    let tests = lines.map_while(|line| line.strip_prefix("Test: "));
    let tests: Vec<Test> = tests.map(|test| Test(test.split(' ').map(str::to_owned).collect())).collect();
    ensure!(!tests.is_empty(), "it names no test");
    let name = patch.file_stem().context("it has no name")?.to_string_lossy().into_owned();
    let file = text.lines().find_map(|line| line.strip_prefix("+++ b/")).context("it changes no file")?.to_owned();
    Ok(Bug { name, patch: patch.to_owned(), file, what, tests })
}

/// A copy of the tree, with one target folder for all bugs.
struct Field {
    tree: PathBuf,
    target: PathBuf,
    servers: Vec<Endpoint>,
}

impl Field {
    fn new(servers: Vec<Endpoint>) -> Result<Self> {
        let program = std::env::current_exe()?;
        let target = program.parent().and_then(Path::parent).context("this program is in no target folder")?;
        Ok(Self { tree: target.join("sown/tree"), target: target.join("sown/target"), servers })
    }

    /// The tests of these bugs that fail without a bug, and how they end: they prove nothing.
    async fn useless(&self, bugs: &[Bug]) -> Result<BTreeMap<Test, String>> {
        self.copy().await?;
        let mut useless = BTreeMap::new();
        let tests: BTreeSet<&Test> = bugs.iter().flat_map(|bug| &bug.tests).collect();
        for test in tests {
            tracing::info!(%test, "without a bug");
            let problem = match self.test(test, 0).await {
                Ok(failed) if failed.is_empty() => continue,
                Ok(failed) => format!("{test} fails ({})", failed.join(", ")),
                Err(error) => format!("{test} does not run: {error:#}"),
            };
            useless.insert(test.clone(), problem);
        }
        Ok(useless)
    }

    async fn sow(&self, bug: &Bug, first_seed: u32, tries: u32) -> Result<Outcome> {
        tracing::info!(bug = bug.name, "{}", bug.what);
        self.copy().await?;
        self.apply(bug).await?;
        for test in &bug.tests {
            self.build(test).await?;
        }
        let start = Instant::now();
        let mut caught_by = BTreeSet::new();
        let mut caught = 0;
        for seed in (0..tries).map(|turn| first_seed.wrapping_add(turn)) {
            let mut failed = Vec::new();
            for test in &bug.tests {
                failed.extend(self.test(test, seed).await?);
            }
            tracing::info!(bug = bug.name, seed, caught = !failed.is_empty(), "a try");
            caught += u32::from(!failed.is_empty());
            caught_by.extend(failed);
        }
        Ok(Outcome { caught_by, caught, tries, took: start.elapsed() })
    }

    /// Makes the copy equal to the tree. Unchanged files keep their time, so that cargo builds little.
    async fn copy(&self) -> Result<()> {
        let mut list = Command::new("git");
        list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(repository());
        let list = list.output().await.context("cannot run git")?;
        ensure!(list.status.success(), "this is no git repository");
        let list = String::from_utf8(list.stdout)?;
        let mut names: BTreeSet<&Path> = list.split_terminator('\0').map(Path::new).collect();
        names.retain(|name| repository().join(name).exists());
        for name in &names {
            let from = repository().join(name);
            let to = self.tree.join(name);
            match fs::read_link(&from) {
                // A link to a folder of the tree.
                Ok(folder) if from.is_dir() => link(&folder, &to)?,
                _ => copy_file(&from, &to)?,
            }
        }
        remove_others(&self.tree, &self.tree, &names)?;
        self.share_cache()
    }

    /// The copy's tests use the files that other tests have downloaded and unpacked.
    fn share_cache(&self) -> Result<()> {
        let cache = cache::folder();
        fs::create_dir_all(&cache)?;
        link(&cache, &self.tree.join(".cache"))
    }

    async fn apply(&self, bug: &Bug) -> Result<()> {
        let mut git = Command::new("git");
        // The copy lies inside the repository, which git must not find.
        git.env("GIT_CEILING_DIRECTORIES", self.tree.parent().unwrap_or(&self.tree));
        git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE");
        git.arg("apply").arg(&bug.patch).current_dir(&self.tree);
        quietly(git).await.context("the patch does not apply")
    }

    async fn build(&self, test: &Test) -> Result<()> {
        let built = self.cargo(&["--no-run"], test, 0, BUILD).await?.context("the build does not end")?;
        ensure!(built.success, "it does not build\n{}", built.said);
        Ok(())
    }

    /// Runs a test with a seed. Returns the failures: none if it passed. An error means that no test ran.
    async fn test(&self, test: &Test, seed: u32) -> Result<Vec<String>> {
        self.build(test).await?;
        let Some(ended) = self.cargo(&[], test, seed, TEST).await? else {
            return Ok(vec![format!("{test} (which did not end)")]);
        };
        let mut counts = Counts::default();
        for line in ended.said.lines() {
            counts += Counts::of(line);
        }
        let failed = ended.said.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let failed: Vec<String> = failed.map(str::to_owned).collect();
        match (ended.success, counts.passed) {
            (true, 0) => bail!("there is no such test"),
            (true, _) => Ok(Vec::new()),
            (false, _) if failed.is_empty() => Ok(vec![test.to_string()]),
            (false, _) => Ok(failed),
        }
    }

    /// `cargo test` in the copy; `None` if it did not end in time.
    async fn cargo(&self, options: &[&str], test: &Test, seed: u32, limit: Duration) -> Result<Option<Ended>> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.arg("test").args(options).args(&test.0).current_dir(&self.tree);
        // Building takes nearly all of the time: tested crates build faster unoptimised, dependencies stay as they are.
        cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "none");
        cargo.env("CARGO_TARGET_DIR", &self.target).envs(self.servers.iter().map(|it| (&it.variable, &it.address)));
        cargo.env(chance::VARIABLE, seed.to_string()).env("PROPTEST_RNG_SEED", seed.to_string());
        // The next try must not begin with the failures of this one.
        cargo.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        cargo.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).process_group(0);
        let child = cargo.spawn().context("cannot run cargo")?;
        let mut group = Group::of(child.id());
        let Ok(output) = timeout(limit, child.wait_with_output()).await else { return Ok(None) };
        group.has_ended();
        let output = output?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Ok(Some(Ended { success: output.status.success(), said }))
    }
}

/// How cargo ended.
struct Ended {
    success: bool,
    said: String,
}

fn link(folder: &Path, link: &Path) -> Result<()> {
    fs::create_dir_all(link.parent().unwrap_or(link))?;
    if !link.is_symlink() {
        symlink(folder, link)?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from)?;
    if fs::read(to).is_ok_and(|copy| copy == bytes) {
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    Ok(fs::write(to, bytes)?)
}

/// Deletes files from the copy that the tree does not have.
fn remove_others(copy: &Path, folder: &Path, names: &BTreeSet<&Path>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            remove_others(copy, &path, names)?;
            // A folder that is not empty stays.
            fs::remove_dir(&path).ok();
        } else if kind.is_file() && !names.contains(path.strip_prefix(copy)?) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of all source files below a folder.
    fn sources(folder: &Path, text: &mut String) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                sources(&path, text)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(path)?);
            }
        }
        Ok(())
    }

    #[tokio::test]
    async fn each_bug_still_applies_to_the_tree() -> Result<()> {
        let bugs = all()?;
        assert!(bugs.len() >= 20, "only {} bugs", bugs.len());
        for bug in &bugs {
            let mut apply = Command::new("git");
            apply.args(["apply", "--check"]).arg(&bug.patch).current_dir(repository());
            quietly(apply).await.with_context(|| bug.name.clone())?;
        }
        Ok(())
    }

    #[test]
    fn each_bug_names_tests_that_there_are() -> Result<()> {
        let mut text = String::new();
        for folder in ["src", "tests", "crates"] {
            sources(&repository().join(folder), &mut text)?;
        }
        for bug in all()? {
            for test in &bug.tests {
                let path = test.0.last().context("no test")?;
                let name = path.rsplit("::").next().unwrap_or(path);
                ensure!(name.len() > 12 && text.contains(name), "{}: there is no test {name}", bug.name);
            }
        }
        Ok(())
    }

    #[test]
    fn what_the_tree_does_not_have_is_removed_from_the_copy() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("sown-{}", std::process::id()));
        for name in ["kept/file", "kept/other", "gone/file"] {
            fs::create_dir_all(folder.join(name).parent().context("a folder")?)?;
            fs::write(folder.join(name), "x")?;
        }
        remove_others(&folder, &folder, &[Path::new("kept/file")].into())?;
        let left = ["kept/file", "kept/other", "gone"].map(|name| folder.join(name).exists());
        fs::remove_dir_all(&folder)?;
        assert_eq!(left, [true, false, false]);
        Ok(())
    }
}
