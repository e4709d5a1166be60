//! Erlang from unpacked packages. Its programs start each other by path: those that need the unpacked C library must
//! come with its loader.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

const HOME: &str = "usr/lib/erlang";

/// Erlang's start script contains a fixed folder; here it finds its own.
const FIND_ROOTDIR: &str = r#"ROOTDIR="$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)""#;

/// Replaces a program, and runs it with the loader beside it, wherever the folder is.
const WRAPPER: &str = r#"#!/bin/sh
here=$0
[ -L "$here" ] && here=$(readlink -f "$here")
root=${here%/usr/lib/erlang/*}
exec "$root/LOADER" --library-path "$root/LIBRARIES" --argv0 "$0" "$here.program" "$@"
"#;

/// Adapts an Erlang below `root`, if there is one, to run from there, with the loader if one was unpacked.
pub(super) fn relocate(root: &Path, loader: Option<&(PathBuf, PathBuf)>) -> Result<()> {
    let script = root.join(HOME).join("bin/erl");
    let Ok(text) = fs::read_to_string(&script) else { return Ok(()) };
    write_script(&script, &text.replace("ROOTDIR=/usr/lib/erlang", FIND_ROOTDIR))?;
    let Some((loader, libraries)) = loader else { return Ok(()) };
    let below_root = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
    let wrapper = WRAPPER.replace("LOADER", &below_root(loader)).replace("LIBRARIES", &below_root(libraries));
    programs(&root.join(HOME))?.iter().try_for_each(|program| wrap(program, &wrapper))
}

fn wrap(program: &Path, wrapper: &str) -> Result<()> {
    let mut behind = program.as_os_str().to_os_string();
    behind.push(".program");
    fs::rename(program, behind)?;
    write_script(program, wrapper)
}

fn write_script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// The machine code in folders named `bin`: the loader finds libraries, and scripts need none.
fn programs(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            found.append(&mut programs(&path)?);
        } else if kind.is_file() && folder.ends_with("bin") && is_machine_code(&path)? {
            found.push(path);
        }
    }
    Ok(found)
}

fn is_machine_code(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(4).read_to_end(&mut start)?;
    Ok(start == b"\x7fELF")
}
