//! `package`: what a release would upload. `test` compares the lists of files and the manifests; `package` builds what
//! is in the packages.

use std::{collections::BTreeSet, path::Path, process::ExitCode};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::servers::cache::repository;
use tokio::process::Command;

use crate::tools::{cargo, output, packages, watch};

/// The keys that a published manifest must have, besides name and version.
const FIELDS: [&str; 7] = ["description", "license", "repository", "readme", "keywords", "categories", "rust_version"];

/// Files that a package may contain besides its sources, readme and licences.
const BESIDE: [(&str, &[&str]); 2] = [
    ("mysql-outbox-core", &["migrations/"]),
    ("mysql-outbox", &["CHANGELOG.md", "askama.toml", "deploy/grants/relay.sql"]),
];

/// Files that cargo adds to a package.
const OF_CARGO: [&str; 4] = [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml", "Cargo.toml.orig"];

/// Builds each published crate from its package alone, with the oldest Rust that it names, which rustup installs.
pub(crate) async fn verify() -> Result<ExitCode> {
    check().await?;
    let published = published().await?;
    let oldest = text(published.first().context("no crate is published")?, "rust_version")?;
    let mut package = Command::new("rustup");
    package.args(["run", "--install", oldest, "cargo", "package", "--allow-dirty", "--target-dir", "target/oldest"]);
    package.current_dir(repository());
    for manifest in &published {
        if text(manifest, "repository")?.contains(".example/") {
            tracing::warn!("the repository of {} is a placeholder: set it in Cargo.toml", text(manifest, "name")?);
        }
        package.args(["--package", text(manifest, "name")?]);
    }
    watch(package).await.map(|()| ExitCode::SUCCESS)
}

/// Compares manifests and lists of files with what is expected.
pub(crate) async fn check() -> Result<String> {
    let mut problems = Vec::new();
    for manifest in published().await? {
        let name = text(&manifest, "name")?;
        problems.extend(mistakes(&manifest).into_iter().map(|mistake| format!("{name}: {mistake}")));
        let mut list = cargo(["package", "--list", "--allow-dirty", "--quiet", "--package", name]);
        let packed = output(&mut list).await?;
        let mut git = Command::new("git");
        git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
        git.current_dir(Path::new(text(&manifest, "manifest_path")?).parent().context("a manifest without folder")?);
        problems.extend(differences(name, &packed, &output(&mut git).await?));
    }
    ensure!(problems.is_empty(), "packages differ from what is expected:\n{}", problems.join("\n"));
    Ok(String::new())
}

/// The manifests of the crates that may be published.
async fn published() -> Result<Vec<Value>> {
    let packages = packages().await?.into_iter();
    Ok(packages.filter(|package| package.get("publish").is_none_or(Value::is_null)).collect())
}

fn text<'a>(manifest: &'a Value, field: &str) -> Result<&'a str> {
    manifest.get(field).and_then(Value::as_str).with_context(|| format!("a manifest without {field}"))
}

/// Returns the keys that a manifest of a published crate lacks, and its dependencies that the registry would refuse.
fn mistakes(manifest: &Value) -> Vec<String> {
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let missing = FIELDS.iter().filter(|&&field| manifest.get(field).is_none_or(empty));
    let mut mistakes: Vec<String> = missing.map(|field| format!("no {field}")).collect();
    let some = |field| manifest.get(field).is_some_and(|value: &Value| value != &Value::Object(serde_json::Map::new()));
    if some("features") && manifest.pointer("/metadata/docs/rs").is_none() {
        mistakes.push("no [package.metadata.docs.rs], so docs.rs shows the default features only".into());
    }
    for dependency in manifest.get("dependencies").and_then(Value::as_array).into_iter().flatten() {
        let field = |name| dependency.get(name).and_then(Value::as_str).unwrap_or_default();
        let ours = !field("path").is_empty();
        let versioned = field("req") != "*";
        if ours && field("kind") == "dev" && versioned && !publishes_before(manifest, field("name")) {
            mistakes.push(format!("the dev-dependency {} has a version: give its path alone", field("name")));
        }
    }
    mistakes
}

/// Whether a crate also needs the other one outside its tests: then that one is published first.
fn publishes_before(manifest: &Value, name: &str) -> bool {
    let all = manifest.get("dependencies").and_then(Value::as_array).into_iter().flatten();
    let mut normal = all.filter(|it| it.get("kind").is_none_or(Value::is_null));
    normal.any(|it| it.get("name").and_then(Value::as_str) == Some(name))
}

/// Compares the list of a package with the files of its folder.
fn differences(name: &str, packed: &str, folder: &str) -> Vec<String> {
    let (packed, folder): (BTreeSet<&str>, BTreeSet<&str>) = (packed.lines().collect(), folder.lines().collect());
    let files = packed.union(&folder).filter(|file| !OF_CARGO.contains(file));
    let different = files.filter(|file| packed.contains(*file) != belongs(name, file));
    let verb = |file| if packed.contains(file) { "must not be" } else { "is not" };
    different.map(|file| format!("{name}: {file} {} in the package", verb(file))).collect()
}

fn belongs(name: &str, file: &str) -> bool {
    let beside = BESIDE.iter().filter(|(package, _)| *package == name).flat_map(|(_, files)| *files);
    let source = file.starts_with("src/");
    source || file == "README.md" || file.starts_with("LICENSE-") || beside.into_iter().any(|it| file.starts_with(it))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_that_lack_or_do_not_belong_are_named() {
        let packed = "Cargo.toml\nREADME.md\nsrc/lib.rs\ntests/core.rs\n";
        let folder = "Cargo.toml\nREADME.md\nmigrations/1.sql\nsrc/a.md\napi.txt\nsrc/lib.rs\ntests/core.rs\n";
        let expected = [
            "mysql-outbox-core: migrations/1.sql is not in the package",
            "mysql-outbox-core: src/a.md is not in the package",
            "mysql-outbox-core: tests/core.rs must not be in the package",
        ];
        assert_eq!(differences("mysql-outbox-core", packed, folder), expected);
        assert_eq!(differences("mysql-outbox-derive", packed, folder).len(), 2);
    }

    #[test]
    fn a_manifest_that_says_too_little_or_needs_a_later_crate_is_refused() {
        let test = json!({ "name": "core", "path": "/core", "req": "^0.1.0", "kind": "dev" });
        let mut manifest = json!({
            "description": "x", "license": "x", "repository": "x", "readme": "x", "keywords": ["x"],
            "categories": [], "rust_version": "1.94", "features": { "x": [] }, "dependencies": [test],
        });
        let found = mistakes(&manifest).join("; ");
        for part in ["no categories", "docs.rs", "dev-dependency core has a version"] {
            assert!(found.contains(part), "{found}");
        }
        manifest["categories"] = json!(["x"]);
        manifest["features"] = json!({});
        manifest["dependencies"][0]["req"] = json!("*");
        assert_eq!(mistakes(&manifest), Vec::<String>::new());
    }
}
