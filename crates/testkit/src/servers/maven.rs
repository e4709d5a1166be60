//! Kafka with its libraries, and axe-core, which Maven copies from its repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::cache;
use super::call::{finish, on_path};
use super::system::{can_install, ensure_program};
use crate::tokens::sha256;

/// The Kafka server that the tests run against.
pub(super) const KAFKA: &str = "4.1.0";

/// The artifact whose jar has axe-core, the checks of accessibility: 4.10.2. Its other files and its dependencies are
/// for Java.
const AXE: &str = "4.10.1";
const AXE_FILE: &str = "axe.min.js";
const AXE_SHA256: &str = "b511cd9dec01c76f4b2ad1723b66b6db37d4c2eb4ed199076e1829d9ee7b75e3";

pub(super) fn available() -> bool {
    (on_path("java").is_some() && on_path("mvn").is_some()) || can_install()
}

/// The folder with Kafka's jars, downloaded the first time. Blocking.
pub(super) fn jars() -> Result<PathBuf> {
    ensure_program("java", "default-jre-headless")?;
    cache::entry(&format!("kafka-{KAFKA}"), |target| {
        tracing::info!(version = KAFKA, "downloading Kafka");
        ensure_program("mvn", "maven")?;
        copy(target)
    })
}

/// The source text of axe-core, downloaded the first time. Blocking.
///
/// # Errors
/// When it cannot be downloaded, or is not the known file.
pub fn axe() -> Result<String> {
    let folder = cache::entry(&format!("axe-{AXE}"), |target| {
        tracing::info!(version = AXE, "downloading axe-core");
        ensure_program("mvn", "maven")?;
        unpack(target)
    })?;
    fs::read_to_string(folder.join(AXE_FILE)).context("axe-core is not in its folder")
}

fn copy(target: &Path) -> Result<()> {
    let kafka =
        format!("<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version>");
    let mut maven = maven(target, "copy-dependencies", &kafka)?;
    maven.arg("-DincludeScope=runtime").arg(format!("-DoutputDirectory={}", target.join("libs").display()));
    finish(&mut maven).map(drop)
}

fn unpack(target: &Path) -> Result<()> {
    let axe = format!(
        "<groupId>com.deque.html.axe-core</groupId><artifactId>selenium</artifactId><version>{AXE}</version>\
         <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    );
    let mut maven = maven(target, "unpack-dependencies", &axe)?;
    maven.arg(format!("-Dmdep.unpack.includes=**/{AXE_FILE}"));
    finish(maven.arg(format!("-DoutputDirectory={}", target.display())))?;
    let hash = sha256(fs::read(target.join(AXE_FILE))?);
    ensure!(hash == AXE_SHA256, "axe-core is another file than {AXE_SHA256}: {hash}");
    Ok(())
}

/// A goal of Maven's plugin for dependencies, for a project with this one.
fn maven(target: &Path, goal: &str, dependency: &str) -> Result<Command> {
    let pom = target.join("pom.xml");
    let text = format!(
        "<project><modelVersion>4.0.0</modelVersion>\
         <groupId>testkit</groupId><artifactId>testkit</artifactId><version>1</version><packaging>pom</packaging>\
         <dependencies><dependency>{dependency}</dependency></dependencies></project>\n"
    );
    fs::write(&pom, text)?;
    let mut maven = Command::new("mvn");
    maven.args(["--batch-mode", "--quiet", "--file"]).arg(&pom).arg(format!("dependency:{goal}"));
    Ok(maven)
}
