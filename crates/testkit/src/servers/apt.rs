//! Debian and Ubuntu packages, downloaded and unpacked beside the system.
//!
//! apt gets its own lists, cache and status: the system's package state and lists do not change, and root is not
//! needed. The mirror is the one this machine already uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cache;
use super::call::{finish, on_path};
use super::sources::{self, Mirror};

/// The release that the packages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// The machine's own. Installed libraries are not downloaded again.
    Own,
    /// Debian's `sid`, complete with its C library, for packages missing in the machine's own release.
    Sid,
}

/// Whether this machine has apt and a mirror that this module can use.
pub(super) fn available() -> bool {
    on_path("apt-get").is_some() && on_path("dpkg-deb").is_some() && sources::mirror().is_ok()
}

/// Downloads the first set of `candidates` that the release has, and unpacks it into `target`.
pub(super) fn unpack(release: Release, candidates: &[&[&str]], target: &Path) -> Result<()> {
    let mirror = sources::mirror()?;
    let release = if mirror.debian { release } else { Release::Own };
    let state = cache::servers().join(if release == Release::Own { "apt-own" } else { "apt-sid" });
    let _lock = cache::lock(&state)?;
    let apt = Apt { state };
    apt.prepare(&mirror, release)?;
    apt.download(candidates)?;
    for package in apt.archives()? {
        finish(Command::new("dpkg-deb").arg("-x").arg(&package).arg(target))?;
    }
    fs::remove_dir_all(apt.state)?;
    Ok(())
}

struct Apt {
    state: PathBuf,
}

impl Apt {
    fn prepare(&self, mirror: &Mirror, release: Release) -> Result<()> {
        fs::create_dir_all(self.state.join("lists/partial"))?;
        fs::create_dir_all(self.state.join("cache/archives/partial"))?;
        let (suite, status) = match release {
            Release::Own => (mirror.suite.as_str(), fs::read("/var/lib/dpkg/status")?),
            Release::Sid => ("sid", Vec::new()),
        };
        fs::write(self.state.join("status"), status)?;
        fs::write(self.state.join("mirror.sources"), mirror.with_suite(suite))?;
        self.run(&["update"]).context("cannot read the package lists").map(drop)
    }

    fn download(&self, candidates: &[&[&str]]) -> Result<()> {
        let mut failures = Vec::new();
        for packages in candidates {
            let options = ["install", "--yes", "--download-only", "--no-install-recommends"];
            match self.run(&[&options, *packages].concat()) {
                Ok(_) => return Ok(()),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        bail!("cannot download packages: {}", failures.join("; "))
    }

    /// Runs apt-get with all its files below the state folder. By default it drops root for downloads, and could then
    /// not write there. Descriptions and desktop metadata are large and of no use.
    fn run(&self, args: &[&str]) -> Result<String> {
        let at = |name: &str, path: &str| format!("{name}={}", self.state.join(path).display());
        let mut apt = Command::new("apt-get");
        apt.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        for option in [
            at("Dir::State::Lists", "lists"),
            at("Dir::State::status", "status"),
            at("Dir::Cache", "cache"),
            at("Dir::Etc::SourceList", "mirror.sources"),
            "Dir::Etc::SourceParts=/dev/null".into(),
            "Debug::NoLocking=true".into(),
            "APT::Sandbox::User=".into(),
            // A mirror may be a snapshot. What comes from it is signed, and serves tests only.
            "Acquire::Check-Valid-Until=false".into(),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=3".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "Acquire::IndexTargets::deb::CNF::DefaultEnabled=false".into(),
        ] {
            apt.args(["-o", &option]);
        }
        finish(apt.args(args))
    }

    fn archives(&self) -> Result<Vec<PathBuf>> {
        let files = fs::read_dir(self.state.join("cache/archives"))?;
        let paths: std::io::Result<Vec<PathBuf>> = files.map(|file| Ok(file?.path())).collect();
        Ok(paths?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "deb")).collect())
    }
}
