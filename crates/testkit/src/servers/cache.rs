//! The project's cache folder: files that were downloaded, unpacked or initialised once. Git ignores it, and it may be
//! deleted at any time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::call::finish;

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.ancestors().nth(2).unwrap_or(crate_folder).to_path_buf()
}

/// The project's cache folder: `.cache` of the repository.
#[must_use]
pub fn folder() -> PathBuf {
    repository().join(".cache")
}

pub(super) fn servers() -> PathBuf {
    folder().join("servers")
}

/// Returns the folder `name` of the server cache, and makes it with `build` the first time.
///
/// Safe if it is interrupted, or called by several processes at once. One process builds, under a file lock, in a
/// folder with another name. Only a finished folder gets its own name.
pub(crate) fn entry(name: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let finished = servers().join(name);
    if finished.is_dir() {
        return Ok(finished);
    }
    let _lock = lock(&finished)?;
    if !finished.is_dir() {
        let unfinished = beside(&finished, "unfinished");
        remove(&unfinished)?;
        fs::create_dir_all(&unfinished)?;
        build(&unfinished)?;
        fs::rename(&unfinished, &finished)?;
    }
    Ok(finished)
}

/// An exclusive lock named after `target`. It ends with the returned file, also if the process dies.
pub(super) fn lock(target: &Path) -> Result<fs::File> {
    let path = beside(target, "lock");
    fs::create_dir_all(path.parent().unwrap_or(target))?;
    let file = fs::File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock()?;
    Ok(file)
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(extension);
    path.with_file_name(name)
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// Copies a folder, sharing its blocks if the file system can.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    finish(Command::new("cp").args(["-R", "-p"]).arg(from).arg(to)).map(drop)
}
