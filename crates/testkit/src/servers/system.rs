//! Programs that the machine itself must have: they are installed, if that is allowed, not unpacked.

use std::process::Command;

use anyhow::{Result, bail};

use super::call::{finish, on_path};

/// Ensures that `program` is on the PATH; installs `package` with apt if it is missing. Blocking.
///
/// # Errors
/// When it is missing and cannot be installed.
pub fn ensure_program(program: &str, package: &str) -> Result<()> {
    if on_path(program).is_some() {
        return Ok(());
    }
    if !can_install() {
        bail!("{program} is missing: install it (Debian and Ubuntu: the package {package})");
    }
    tracing::info!(program, package, "installing");
    apt_get(&["update"])?;
    apt_get(&["install", "--yes", "--no-install-recommends", package])
}

/// Whether apt may install packages here without asking for a password.
#[must_use]
pub fn can_install() -> bool {
    on_path("apt-get").is_some() && (is_root() || sudo())
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn sudo() -> bool {
    on_path("sudo").is_some() && finish(Command::new("sudo").args(["-n", "true"])).is_ok()
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new(if is_root() { "env" } else { "sudo" });
    if !is_root() {
        command.args(["-n", "env"]);
    }
    finish(command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]).args(args)).map(drop)
}
