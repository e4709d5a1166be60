//! Kafka and its libraries, which Maven copies from its repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::cache;
use super::call::{finish, on_path};
use super::system::{can_install, ensure_program};

/// The Kafka server that the tests run against.
pub(super) const KAFKA: &str = "4.1.0";

const POM: &str = r"<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>testkit</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>VERSION</version>
    </dependency>
  </dependencies>
</project>
";

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

fn copy(target: &Path) -> Result<()> {
    let pom = target.join("pom.xml");
    fs::write(&pom, POM.replace("VERSION", KAFKA))?;
    let mut maven = Command::new("mvn");
    maven.args(["--batch-mode", "--quiet", "--file"]).arg(&pom).arg("dependency:copy-dependencies");
    maven.arg("-DincludeScope=runtime").arg(format!("-DoutputDirectory={}", target.join("libs").display()));
    finish(&mut maven).map(drop)
}
