//! `api`: lists of the libraries' public items. They are committed, so that a change of an API shows in the commit that
//! makes it.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use testkit::servers::cache;

use crate::tools::{cargo, quietly};

/// The libraries that services depend on, and the paths of their lists.
const LIBRARIES: [(&str, &str); 3] = [
    ("outbox_core", "crates/outbox-core/api.txt"),
    ("outbox_consumer", "crates/outbox-consumer/api.txt"),
    ("outbox_relay", "crates/outbox-relay/api.txt"),
];

/// Writes the lists anew.
pub(crate) async fn write() -> Result<()> {
    for (path, list) in lists().await? {
        fs::write(&path, list).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Fails if a list differs from its library.
pub(crate) async fn check() -> Result<String> {
    for (path, list) in lists().await? {
        let committed = fs::read_to_string(&path).unwrap_or_default();
        ensure!(committed == list, "{} is stale: run `./dev api` and look at the difference", path.display());
    }
    Ok(String::new())
}

/// For each library, the path of its list and the list's expected contents.
async fn lists() -> Result<Vec<(PathBuf, String)>> {
    let target = target()?;
    // Only rustdoc may use unstable features: with them, cargo and the compiler would build every dependency anew.
    let rustdoc = target.join("rustdoc-json");
    fs::write(&rustdoc, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755))?;
    // The whole workspace, as the documentation is built, so that nothing is compiled once more.
    let mut documentation = cargo(["doc", "--workspace", "--no-deps", "--lib", "--quiet"]);
    documentation.env("RUSTDOC", &rustdoc).env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    quietly(documentation).await?;
    let list = |(library, path)| {
        let json = target.join("doc").join(format!("{library}.json"));
        let api = public_api::Builder::from_rustdoc_json(json);
        let api = api.omit_blanket_impls(true).omit_auto_trait_impls(true).omit_auto_derived_impls(true).build()?;
        Ok((cache::repository().join(path), format!("{api}")))
    };
    LIBRARIES.into_iter().map(list).collect()
}

/// The folder in which cargo builds: this program lies in it.
fn target() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.parent().and_then(|folder| folder.parent()).context("this program is in no target folder")?.to_owned())
}
