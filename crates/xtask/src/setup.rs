//! `setup`: everything the other commands download or install, ahead of time.

use anyhow::{Context, Result};
use testkit::servers::{Kind, amtool, axe, chromium, prepare, promtool};

use crate::deny;

pub(crate) async fn setup() -> Result<()> {
    for kind in Kind::ALL {
        let from = match kind.given() {
            Some(address) => address,
            None => tokio::task::spawn_blocking(move || prepare(kind)).await.context("cancelled")??.to_string(),
        };
        println!("{:<12} {from}", kind.name());
    }
    let tool = tokio::task::spawn_blocking(|| promtool(&["--version"])).await.context("cancelled")??;
    println!("{:<12} {}", "promtool", tool.get_program().display());
    let tool = tokio::task::spawn_blocking(|| amtool(&["--version"])).await.context("cancelled")??;
    println!("{:<12} {}", "amtool", tool.get_program().display());
    tokio::task::spawn_blocking(|| chromium().and_then(|()| axe())).await.context("cancelled")??;
    println!("{:<12} ready, with axe-core", "chromium");
    println!("{:<12} {}", "cargo-deny", deny::program().await?.display());
    Ok(())
}
