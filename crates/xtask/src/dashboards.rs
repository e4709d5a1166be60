//! Prometheus rules and their tests, checked by promtool, and the routes of alerts, checked by amtool.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testkit::servers::{amtool, cache, promtool};

use crate::tools::quietly;

/// Checks the rules and runs their tests. The note reports that there are none.
pub(crate) async fn check() -> Result<String> {
    let folder = cache::repository().join("dashboards");
    let rules = files(&folder, ".rules.yml");
    let tests = files(&folder.join("tests"), ".yml");
    if rules.is_empty() && tests.is_empty() {
        return Ok("no rules in dashboards/".into());
    }
    run("check", &rules).await?;
    run("test", &tests).await?;
    let routes = folder.join("alertmanager.yml");
    let routes = move || amtool(&["check-config", &routes.to_string_lossy()]);
    quietly(tokio::task::spawn_blocking(routes).await.context("cancelled")??.into()).await?;
    Ok(String::new())
}

async fn run(command: &'static str, files: &[PathBuf]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let tool = tokio::task::spawn_blocking(move || promtool(&[command, "rules"])).await.context("cancelled")??;
    let mut tool = tokio::process::Command::from(tool);
    tool.args(files);
    quietly(tool).await
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
}
