//! Runs the program, and reads its findings.

use std::{
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The program's finding on one server.
pub(crate) struct Finding {
    pub(crate) ok: bool,
    pub(crate) detail: String,
}

pub(crate) fn database(url: &str) -> Result<Finding> {
    find("database", &format!("[database]\nurl = \"{url}\"\n"), None)
}

/// Checks RabbitMQ with the system's certificates, or with those in a file.
pub(crate) fn rabbitmq(url: &str, certificates: Option<&Path>) -> Result<Finding> {
    find("sink it", &format!("[sinks.it]\ntype = \"rabbitmq\"\nurl = \"{url}\"\n"), certificates)
}

/// Checks RabbitMQ with the sink's own files.
pub(crate) fn rabbitmq_with(url: &str, keys: &str) -> Result<Finding> {
    find("sink it", &format!("[sinks.it]\ntype = \"rabbitmq\"\nurl = \"{url}\"\n{keys}"), None)
}

/// Checks a receiver of requests with the certificates in the sink's own file.
pub(crate) fn http(url: &str, authorities: &Path) -> Result<Finding> {
    let file = authorities.display();
    find("sink it", &format!("[sinks.it]\ntype = \"http\"\nurl = \"{url}\"\nca_file = \"{file}\"\n"), None)
}

pub(crate) fn kafka(brokers: &str, properties: &str) -> Result<Finding> {
    let section = format!("[sinks.it]\ntype = \"kafka\"\nbrokers = \"{brokers}\"\nproperties = {{ {properties} }}\n");
    find("sink it", &section, None)
}

/// Returns the codes of what `relay doctor` finds.
pub(crate) fn doctor(url: &str) -> Result<Vec<String>> {
    let output = run(&format!("[database]\nurl = \"{url}\"\n"), &["doctor"], None)?;
    let findings: Vec<Value> =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(findings.iter().filter_map(|it| it["finding"].as_str()).map(str::to_owned).collect())
}

/// Returns what `relay doctor` could not check of a RabbitMQ sink.
pub(crate) fn unchecked(url: &str, keys: &str) -> Result<String> {
    let section = format!("[sinks.it]\ntype = \"rabbitmq\"\nurl = \"{url}\"\n{keys}");
    let output = run(&section, &["doctor"], None)?;
    let findings: Vec<Value> =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let note = findings.iter().find(|it| it["finding"] == "not_checked").context("all is checked")?;
    Ok(note["evidence"].as_str().unwrap_or_default().to_owned())
}

/// Asks a `relay api` with these certificates alone.
pub(crate) fn via(url: &str, certificates: &Path) -> Result<Finding> {
    let output = run("", &["controls", "--via", url], Some(certificates))?;
    Ok(Finding { ok: output.status.success(), detail: String::from_utf8(output.stderr)? })
}

/// Returns the finding on the database or on the sink `it`.
fn find(checked: &str, section: &str, certificates: Option<&Path>) -> Result<Finding> {
    let output = run(section, &["check", "--connect"], certificates)?;
    let rows: Vec<Value> =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let row = rows.iter().find(|row| row["checked"] == checked).context("not checked")?;
    let finding = Finding { ok: row["ok"] == true, detail: row["detail"].as_str().unwrap_or_default().to_owned() };
    ensure!(finding.ok || output.status.code() == Some(3), "{}", output.status);
    Ok(finding)
}

/// Runs the program with a section, and what a configuration lacks beside it.
fn run(section: &str, arguments: &[&str], certificates: Option<&Path>) -> Result<Output> {
    let folder = tempfile::tempdir()?;
    let database =
        if section.contains("[database]") { "" } else { "[database]\nurl = \"mysql://relay@127.0.0.1:1/shop\"\n" };
    let sink = if section.contains("[sinks") { "" } else { "[sinks.it]\ntype = \"null\"\n" };
    let route = if section.contains("rabbitmq") { "exchange = \"e\"\n" } else { "" };
    let text = format!("{database}{section}\n{sink}[[routes]]\ntopics = \"*\"\nsink = \"it\"\n{route}");
    std::fs::write(folder.path().join("relay.toml"), text)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_relay"));
    command.current_dir(folder.path()).args(arguments).args(["--format", "json", "--config", "relay.toml"]);
    if let Some(certificates) = certificates {
        // Then no other certificates count.
        command.env("SSL_CERT_FILE", certificates).env_remove("SSL_CERT_DIR");
    }
    Ok(command.output()?)
}
