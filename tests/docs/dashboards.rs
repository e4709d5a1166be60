//! All names in dashboards and alerts must exist: metrics with their labels, units, sections of the runbook.

use std::{collections::BTreeSet, fs, path::Path};

use outbox_relay::observe::metrics::METRICS;
use serde_json::Value;

/// The dashboards, by their uid.
const DASHBOARDS: [(&str, &str); 3] = [
    ("outbox-overview", include_str!("../../dashboards/overview.json")),
    ("outbox-deep-dive", include_str!("../../dashboards/deep-dive.json")),
    ("outbox-consumers", include_str!("../../dashboards/consumers.json")),
];
const RULES: &str = include_str!("../../dashboards/alerts.rules.yml");
const MIXIN: &str = include_str!("../../dashboards/mixin.libsonnet");
const TESTS: &str = include_str!("../../dashboards/tests/alerts.test.yml");
const RUNBOOK: &str = include_str!("../../docs/runbook.md");
/// Its table is that of the consumers' metrics, which their own tests compare with the code.
const CONSUMERS: &str = include_str!("../../crates/outbox-consumer/README.md");

/// Metrics that the collector for processes adds, on Linux.
const PROCESS: [&str; 5] = [
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
];

/// Labels that Prometheus itself adds, and the one of buckets.
const OWN_LABELS: [&str; 3] = ["instance", "job", "le"];

fn dashboards() -> impl Iterator<Item = (&'static str, Value)> {
    DASHBOARDS.iter().map(|(uid, text)| (*uid, serde_json::from_str(text).unwrap_or_default()))
}

fn panels() -> Vec<Value> {
    let of =
        |(_, dashboard): (_, Value)| dashboard.get("panels").and_then(Value::as_array).cloned().unwrap_or_default();
    dashboards().flat_map(of).filter(|panel| panel["type"] != "row").collect()
}

fn targets() -> Vec<String> {
    let texts = |panel: &Value| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.iter().filter_map(|target| Some(target["expr"].as_str()?.to_owned())).collect::<Vec<_>>()
    };
    panels().iter().flat_map(texts).collect()
}

/// Returns the values of `key:` in the rules: on the same line, or below it and further indented.
fn values(key: &str) -> Vec<String> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for line in RULES.lines() {
        let text = line.trim_start_matches([' ', '-']);
        let depth = line.len() - text.len();
        if let Some(value) = text.strip_prefix(key).and_then(|rest| rest.strip_prefix(':')) {
            found.push((depth, value.trim_start_matches([' ', '|', '>', '-']).to_owned()));
            open = true;
        } else if let Some((_, value)) = found.last_mut().filter(|(start, _)| open && depth > *start) {
            *value += " ";
            *value += text;
        } else {
            open = false;
        }
    }
    found.into_iter().map(|(_, value)| value).collect()
}

fn expressions() -> Vec<String> {
    targets().into_iter().chain(values("expr")).collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the metrics of an expression, each with the labels in its selector.
fn selectors(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = ["outbox_", "process_"].iter().filter_map(|prefix| rest.find(prefix)).min() {
        let (name, tail) = split_word(rest.get(start..).unwrap_or_default());
        let braces = tail.strip_prefix('{').and_then(|tail| tail.split_once('}'));
        let labels = braces.map(|(inside, _)| inside.split(',').map(|matcher| split_word(matcher.trim()).0.to_owned()));
        found.push((name.to_owned(), labels.into_iter().flatten().collect()));
        rest = tail;
    }
    found
}

fn split_word(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c| !is_word(c)).unwrap_or(text.len()))
}

/// Returns the labels by which an expression groups or joins.
fn groupings(expression: &str) -> Vec<&str> {
    let lists = ["by (", "on ("].iter().flat_map(|word| expression.split(word).skip(1));
    lists.filter_map(|list| list.split_once(')')).flat_map(|(list, _)| list.split(", ")).collect()
}

/// Returns the labels of a metric by the name of its samples; `None` if no such metric exists.
fn labels_of(sample: &str) -> Option<Vec<&'static str>> {
    let of_consumers = CONSUMERS.lines().filter_map(|line| {
        let (name, labels) = line.strip_prefix("| `")?.split_once('}')?.0.split_once('{')?;
        Some((name, labels.split(',').collect(), name.ends_with("_seconds")))
    });
    let of_relays = METRICS.iter().map(|metric| (metric.name, metric.labels.to_vec(), metric.kind == "histogram"));
    let mut all = of_relays.chain(of_consumers);
    let found = all.find(|(known, _, is_histogram)| {
        let suffixes: &[&str] = if *is_histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
        sample.strip_prefix(known).is_some_and(|suffix| suffixes.contains(&suffix))
    });
    found.map(|(_, labels, _)| labels).or_else(|| PROCESS.contains(&sample).then(Vec::new))
}

#[test]
fn every_metric_that_is_named_exists_with_its_labels() {
    let expressions = expressions();
    // The part of a recorded name between its colons.
    let recorded: Vec<_> =
        values("record").iter().filter_map(|name| Some(name.split(':').nth(1)?.to_owned())).collect();
    assert!(expressions.len() > 40, "only {} expressions were found", expressions.len());
    for expression in expressions {
        let selectors = selectors(&expression);
        assert!(!selectors.is_empty(), "no metric in {expression}");
        let mut known = OWN_LABELS.to_vec();
        for (name, matchers) in selectors.iter().filter(|(name, _)| !recorded.contains(name)) {
            let labels = labels_of(name).unwrap_or_else(|| panic!("no metric {name}, in {expression}"));
            known.extend(&labels);
            for label in matchers {
                let exists = OWN_LABELS.contains(&label.as_str()) || labels.contains(&label.as_str());
                assert!(exists, "{name} has no label {label}, in {expression}");
            }
        }
        for label in groupings(&expression) {
            assert!(known.contains(&label), "no metric has the label {label}, in {expression}");
        }
    }
}

#[test]
fn the_series_of_the_alerts_tests_have_the_labels_of_their_metric() {
    let series: Vec<_> = TESTS.lines().filter_map(|line| line.trim().strip_prefix("- series: outbox_")).collect();
    assert!(series.len() > 40, "only {} series were found", series.len());
    for text in series {
        let (name, labels) = selectors(&format!("outbox_{text}")).remove(0);
        let mut expected: Vec<_> = labels_of(&name).unwrap_or_else(|| panic!("no metric {name}"));
        expected.extend(["job", "instance"].into_iter().chain(name.ends_with("_bucket").then_some("le")));
        let (given, expected): (BTreeSet<_>, BTreeSet<_>) =
            (labels.iter().map(String::as_str).collect(), expected.into_iter().collect());
        assert_eq!(given, expected, "{name}");
    }
}

#[test]
fn the_gauges_of_the_queue_are_never_summed() {
    for expression in expressions() {
        for (at, _) in expression.match_indices("outbox_queue_") {
            let before = &expression[..at];
            assert!(before.rfind("max") > before.rfind("sum"), "use max, in {expression}");
        }
    }
}

#[test]
fn every_panel_has_a_description_a_unit_and_the_chosen_data_source() {
    for panel in panels() {
        let title = panel["title"].as_str().unwrap();
        let text = |pointer: &str| panel.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        assert!(text("/description").ends_with('.'), "{title}: the description is not a sentence");
        assert!(!text("/fieldConfig/defaults/unit").is_empty(), "{title}: no unit");
        assert_eq!(text("/datasource/uid"), "${datasource}", "{title}");
        assert_eq!(text("/targets/0/datasource/uid"), "${datasource}", "{title}");
    }
}

#[test]
fn each_dashboard_has_a_fixed_uid_and_follows_the_scrape_interval() {
    for (uid, dashboard) in dashboards() {
        assert_eq!(dashboard["uid"], uid);
        assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    }
    for (uid, dashboard) in dashboards() {
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let is_known = |name: &str| name.starts_with("__") || variables.iter().any(|it| it["name"] == name);
        let panels = dashboard["panels"].as_array().unwrap().iter();
        for target in panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten()) {
            let expression = target["expr"].as_str().unwrap();
            for name in expression.split('$').skip(1).map(|rest| split_word(rest).0) {
                assert!(is_known(name), "{uid} has no variable {name}, in {expression}");
            }
        }
    }
    for expression in targets() {
        let chosen = ["[$__rate_interval]", "[$__range]"].iter().map(|range| expression.matches(range).count());
        assert_eq!(expression.matches('[').count(), chosen.sum::<usize>(), "{expression}");
    }
}

#[test]
fn panels_do_not_overlap_and_have_different_ids() {
    for (uid, dashboard) in dashboards() {
        let mut ids = BTreeSet::new();
        let mut cells = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{uid}: id {} twice", panel["id"]);
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(x + w <= 24, "{uid}: {} is too wide", panel["title"]);
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(cells.insert(cell), "{uid}: {} overlaps another", panel["title"]);
            }
        }
    }
}

#[test]
fn every_alert_has_a_severity_a_summary_a_description_and_a_section_in_the_runbook() {
    let alerts = values("alert");
    assert!(alerts.len() >= 8);
    for key in ["expr", "severity", "summary", "description"] {
        let values = self::values(key);
        let recorded = if key == "expr" { self::values("record").len() } else { 0 };
        assert_eq!(values.len(), alerts.len() + recorded, "{key}");
        assert!(values.iter().all(|value| !value.is_empty()), "{key}");
    }
    let links: Vec<_> = alerts.iter().map(|alert| format!("docs/runbook.md#{}", alert.to_lowercase())).collect();
    assert_eq!(values("runbook"), links);
    let sections: Vec<_> = RUNBOOK.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(sections, alerts);
}

/// No program here evaluates it.
#[test]
fn the_mixin_imports_the_alerts_and_every_dashboard() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
    let paths = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let files: Vec<_> = paths.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
    assert_eq!(files.len(), DASHBOARDS.len());
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(MIXIN.contains(&format!("import '{name}'")), "without {name}");
    }
    assert!(MIXIN.contains("importstr 'alerts.rules.yml'"));
}
