//! Servers in Docker: one service of the project's `docker-compose.yml`, in its own Compose project.
//!
//! The compose file takes the published port from `OUTBOX_<SERVICE>_PORT` (`OUTBOX_MYSQL_PORT`, `OUTBOX_KAFKA_PORT`, …)
//! and defaults to the usual one. Every server here gets a free port: tests collide neither with each other nor with a
//! developer's own stack.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::call::finish;
use super::origin::Kind;
use super::{cache, ports};

/// Whether a Docker daemon answers, Compose is installed, and the project has its file.
pub(super) fn answers() -> bool {
    file().is_file()
        && finish(Command::new("docker").args(["version", "--format", "{{.Server.Version}}"])).is_ok()
        && finish(Command::new("docker").args(["compose", "version"])).is_ok()
}

fn file() -> PathBuf {
    cache::repository().join("docker-compose.yml")
}

/// A running service in its own Compose project; removed on drop.
#[derive(Debug)]
pub(super) struct Compose {
    kind: Kind,
    pub(super) port: u16,
}

impl Compose {
    pub(super) fn up(kind: Kind) -> Result<Self> {
        let compose = Self { kind, port: ports::free_port()? };
        compose.run(&["up", "--detach", kind.name()])?;
        Ok(compose)
    }

    /// Runs `docker compose` on this project. `args` must contain the service's name if Compose needs it.
    pub(super) fn run(&self, args: &[&str]) -> Result<String> {
        let mut docker = Command::new("docker");
        docker.args([
            "compose",
            "--project-name",
            &format!("outbox-test-{}", self.port),
            "--profile",
            "test",
            "--file",
        ]);
        docker.arg(file()).args(args);
        docker.env(format!("OUTBOX_{}_PORT", self.kind.name().to_uppercase()), self.port.to_string());
        finish(&mut docker)
    }

    pub(super) fn service(&self, command: &str) -> Result<()> {
        self.run(&[command, self.kind.name()]).map(drop)
    }

    pub(super) fn logs(&self) -> String {
        self.run(&["logs", "--tail", "25", self.kind.name()]).unwrap_or_default()
    }
}

impl Drop for Compose {
    fn drop(&mut self) {
        if let Err(error) = self.run(&["down", "--volumes", "--timeout", "1"]) {
            tracing::warn!(%error, "cannot remove the containers of a test");
        }
    }
}
