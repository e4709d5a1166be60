//! The alerts' rules serve any number of outboxes.

#![expect(clippy::indexing_slicing, reason = "a missing value of YAML is null")]

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_yaml_ng::Value;
use testkit::servers::{cache, promtool};

/// The number of outboxes, or services, in which the same happens. Tests that last for hours take long: they have
/// fewer.
const COPIES: usize = 100;
const COPIES_FOR_HOURS: usize = 2;
/// The alerts that other series of their instance keep silent, and the instances of their tests.
const SILENCED: [&str; 2] = ["OutboxLoopStuck", "OutboxCanaryLost"];
const INSTANCES: [&str; 3] = ["a", "b", "lost"];

/// The instances of all have the same names, and those of another job what keeps alerts silent. So a rule that joins or
/// groups without `job` mixes them.
#[test]
fn each_of_a_hundred_outboxes_raises_its_own_alerts() -> Result<()> {
    let dashboards = cache::repository().join("dashboards");
    let mut file: Value = serde_yaml_ng::from_str(&fs::read_to_string(dashboards.join("tests/alerts.test.yml"))?)?;
    file["rule_files"] = Value::Sequence(vec![dashboards.join("alerts.rules.yml").to_string_lossy().into()]);
    let mut alerts = 0;
    for test in list(&mut file["tests"])? {
        let checks = list(&mut test["alert_rule_test"])?;
        let copies = if checks.iter().any(lasts_for_hours) { COPIES_FOR_HOURS } else { COPIES };
        for expected in checks.iter_mut().filter_map(|check| check.get_mut("exp_alerts")) {
            let expected = list(expected)?;
            *expected = expected.iter().flat_map(|alert| copies_of_alert(alert, copies)).collect();
            alerts += expected.len();
        }
        let is_silenced = checks.iter().any(|check| SILENCED.iter().any(|alert| check["alertname"] == *alert));
        let series = list(&mut test["input_series"])?;
        let all = series.iter().map(|series| copies_of_series(series, copies)).collect::<Result<Vec<_>>>()?;
        *series = all.concat();
        if is_silenced {
            series.extend(INSTANCES.iter().flat_map(silences));
        }
    }
    ensure!(alerts > 15 * COPIES, "only {alerts} alerts are expected");
    let copies = tempfile::NamedTempFile::with_suffix(".yml")?;
    fs::write(&copies, serde_yaml_ng::to_string(&file)?)?;
    let output = promtool(&["test", "rules", &copies.path().to_string_lossy()])?.output()?;
    let error: String = String::from_utf8_lossy(&output.stderr).chars().take(5000).collect();
    ensure!(output.status.success(), "{error}");
    Ok(())
}

fn list(value: &mut Value) -> Result<&mut Vec<Value>> {
    value.as_sequence_mut().context("no list")
}

fn lasts_for_hours(check: &Value) -> bool {
    let time = check["eval_time"].as_str().unwrap_or_default();
    time.ends_with('h') || time.strip_suffix('m').and_then(|time| time.parse().ok()).is_some_and(|time: u32| time > 60)
}

fn copies_of_series(series: &Value, copies: usize) -> Result<Vec<Value>> {
    let name = series["series"].as_str().context("no series")?;
    let (before, job) = name.split_once("job=\"").with_context(|| format!("{name} has no job"))?;
    ensure!(series["values"].is_string(), "the values of {name} are a number: put them in quotes");
    let copy = |copy| {
        let mut series = series.clone();
        series["series"] = format!("{before}job=\"{}", job.replacen('"', &format!("-{copy}\""), 1)).into();
        series
    };
    Ok((0..copies).map(copy).collect())
}

/// The series with which the alerts of an instance are silent, in another job.
fn silences(instance: &&str) -> [Value; 3] {
    let series = [
        ("database_connected", "", "0x1000"),
        ("sink_connected", ", sink=\"kafka\"", "0x1000"),
        ("paused", ", kind=\"lane\", name=\"0\"", "1x1000"),
    ];
    series.map(|(name, labels, values)| {
        let series = format!("outbox_relay_{name}{{job=\"silent\", instance=\"{instance}\"{labels}}}");
        Value::Mapping(
            [("series", series.as_str()), ("values", values)]
                .map(|(key, it)| (key.into(), it.into()))
                .into_iter()
                .collect(),
        )
    })
}

/// An alert without a job fires once for all of them.
fn copies_of_alert(alert: &Value, copies: usize) -> Vec<Value> {
    let Some(job) = alert["exp_labels"]["job"].as_str() else { return vec![alert.clone()] };
    let copy = |copy| {
        let name = format!("{job}-{copy}");
        let mut alert = alert.clone();
        alert["exp_labels"]["job"] = name.clone().into();
        for (_, text) in alert["exp_annotations"].as_mapping_mut().into_iter().flatten() {
            let rest = text.as_str().and_then(|text| text.strip_prefix(job));
            if let Some(rest) = rest.filter(|rest| rest.starts_with([':', ','])) {
                *text = format!("{name}{rest}").into();
            }
        }
        alert
    };
    (0..copies).map(copy).collect()
}
