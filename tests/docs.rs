//! The reference pages and the copy of the migrations are what the code says. `BLESS=1 cargo test --test docs` rewrites them.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use outbox_relay::{cli, config, metrics};

fn same(path: &str, text: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, text)?;
    }
    ensure!(fs::read_to_string(&path)? == text, "{} is stale: run BLESS=1 cargo test --test docs", path.display());
    Ok(())
}

#[test]
fn the_configuration_reference_is_generated() -> Result<()> {
    same("docs/configuration.md", &config::reference())
}

#[test]
fn the_command_line_reference_is_generated() -> Result<()> {
    same("docs/cli.md", &cli::reference())
}

#[test]
fn the_metrics_reference_is_generated() -> Result<()> {
    same("docs/metrics.md", &metrics::reference())
}

#[test]
fn the_crate_carries_the_same_migrations() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for file in fs::read_dir(root.join("migrations")).unwrap().map(Result::unwrap) {
        if file.path().extension().is_some_and(|extension| extension == "sql") {
            let copy = root.join("crates/outbox-core/migrations").join(file.file_name());
            assert_eq!(fs::read(file.path()).unwrap(), fs::read(copy).unwrap(), "{:?}", file.file_name());
            files += 1;
        }
    }
    assert_eq!(files, outbox_core::MIGRATIONS.len());
}
