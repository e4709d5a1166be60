//! The reference pages and the copy of the migrations match the code. `BLESS=1 cargo test --test docs` rewrites them.
//! The guarantees have tests that exist, and the code on the pages compiles.

mod alerts;
mod dashboards;
mod kubernetes;
mod pages;

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use mysql_outbox::{cli, config};
use outbox_relay::observe::metrics;

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
fn the_api_reference_is_generated() -> Result<()> {
    same("docs/api.md", &cli::api_reference())
}

#[test]
fn the_metrics_reference_is_generated() -> Result<()> {
    same("docs/metrics.md", &metrics::reference())
}

/// Cargo.toml, too, has these versions.
#[test]
fn the_first_lines_name_the_versions_of_rust_and_sqlx() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let version = |before: &str| {
        let (_, rest) = manifest.split_once(before).with_context(|| format!("no {before} in Cargo.toml"))?;
        Ok::<_, anyhow::Error>(rest.split('.').take(2).collect::<Vec<_>>().join(".").replace('"', ""))
    };
    let rust = format!("Rust {}", version("\nrust-version = \"")?.lines().next().context("no version")?);
    let sqlx = format!("sqlx {}", version("\nsqlx = { version = \"")?);
    for page in ["README.md", "crates/outbox-core/README.md", "crates/outbox-consumer/README.md"] {
        let text = fs::read_to_string(root.join(page))?;
        let first = text.lines().take(8).collect::<Vec<_>>().join("\n");
        ensure!(first.contains(&rust) && first.contains(&sqlx), "{page} does not begin with {rust} and {sqlx}");
    }
    Ok(())
}

/// Whether a function has the attribute of a test, or a macro makes a test of it: then its name occurs once more.
fn is_test(file: &str, name: &str) -> bool {
    let Some((before, after)) = file.split_once(&format!("fn {name}(")) else { return false };
    let attribute = before.trim_end_matches("async ").trim_end().lines().next_back().unwrap_or_default().trim();
    let attributed = attribute.starts_with("#[") && attribute.contains("test");
    let named =
        [before, after].iter().any(|text| [",", ":", ")"].iter().any(|end| text.contains(&format!("{name}{end}"))));
    attributed || named
}

/// The page of the tests names each as ``[`name`](../path.rs)``.
#[test]
fn every_test_of_a_guarantee_exists() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = fs::read_to_string(folder.join("guarantees-tests.md"))?;
    let links: Vec<_> = page.split("[`").skip(1).filter_map(|link| link.split_once("`](")).collect();
    ensure!(!links.is_empty(), "the page names no test");
    for (name, rest) in links {
        let (path, _) = rest.split_once(')').with_context(|| format!("the link of {name} has no end"))?;
        let file = fs::read_to_string(folder.join(path)).with_context(|| format!("{path}, where {name} is to be"))?;
        ensure!(is_test(&file, name), "there is no test {name} in {path}");
    }
    Ok(())
}

/// Each section of the page of the tests belongs to one row.
#[test]
fn every_guarantee_has_tests_or_says_that_there_are_none() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page = folder.join("guarantees.md");
    let tests = folder.join("guarantees-tests.md");
    let page = fs::read_to_string(page)?;
    let tests = fs::read_to_string(tests)?;
    let mut sections: Vec<&str> = tests.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    // The rows of a table follow its line of dashes.
    for table in page.split("\n|---").skip(1) {
        for row in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
            let section = row.split_once("](guarantees-tests.md#").and_then(|(_, rest)| rest.split(')').next());
            ensure!(section.is_some() || row.contains("not tested"), "no test, and not said so: {row}");
            if let Some(section) = section {
                let at = sections.iter().position(|it| *it == section);
                sections.swap_remove(at.with_context(|| format!("no section, or that of another row: {row}"))?);
            }
        }
    }
    ensure!(sections.is_empty(), "no row has the sections {sections:?}");
    Ok(())
}

/// The pages' code is in a file that compiles, but for its indentation, and README's begins with what it imports. Code
/// on the crates' own pages is in doctests.
#[test]
fn the_code_of_the_pages_compiles() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lines = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let mut compiled = String::new();
    let tests = ["tested-service", "sqlx-0-8"].map(|example| format!("examples/{example}/tests/service.rs"));
    let others = ["tests/docs/pages.rs", "tests/containers/testcontainers/rust/tests/order.rs"].map(str::to_owned);
    for path in tests.into_iter().chain(others) {
        compiled += &lines(&fs::read_to_string(root.join(path))?);
    }
    let mut blocks = 0;
    for path in ["README.md", "docs/start.md", "docs/worker.md", "docs/testing.md"] {
        let page = fs::read_to_string(root.join(path))?;
        for block in page.split("```rust\n").skip(1) {
            let (code, _) = block.split_once("```").with_context(|| format!("a block of {path} has no end"))?;
            ensure!(compiled.contains(&lines(code)), "{path} has code that stands in no file:\n{code}");
            ensure!(path != "README.md" || code.starts_with("use "), "README.md has code without its imports:\n{code}");
            blocks += 1;
        }
    }
    ensure!(blocks > 5, "only {blocks} blocks were found");
    Ok(())
}

/// `tests/containers/testcontainers/run` runs these files. The page leaves out their imports and indentation.
#[test]
fn the_code_for_testcontainers_is_that_of_the_files() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lines = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let page = fs::read_to_string(root.join("docs/testing.md"))?;
    let (_, section) = page.split_once("\n## Testcontainers\n").context("no section")?;
    let files = ["relay.toml", "enqueue.sql", "java/src/test/java/OrderTest.java", "go/order_test.go"];
    let mut blocks = 0;
    for file in files {
        let language = file.rsplit('.').next().context("no language")?;
        let text = fs::read_to_string(root.join("tests/containers/testcontainers").join(file))?;
        for block in section.split(&format!("```{language}\n")).skip(1) {
            let (code, _) = block.split_once("```").context("a block has no end")?;
            ensure!(lines(&text).contains(&lines(code)), "{file} does not have the code of docs/testing.md:\n{code}");
            blocks += 1;
        }
    }
    ensure!(blocks == files.len(), "{blocks} blocks were found");
    Ok(())
}
