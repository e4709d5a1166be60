//! The report of one or several runs.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// One object: the median of each figure, and with several runs all of them, as `runs`.
pub(crate) fn object(runs: &[Object]) -> Object {
    let mut object: Object = names(runs).into_iter().map(|name| (name.to_owned(), median(runs, name))).collect();
    if runs.len() > 1 {
        object.insert("runs".to_owned(), json!(runs));
    }
    object
}

/// A line for each figure: its median, and with several runs each value.
pub(crate) fn table(runs: &[Object]) -> String {
    let mut text = String::new();
    for name in names(runs) {
        let all = runs.iter().filter_map(|run| run.get(name)).map(shown);
        let all = if runs.len() > 1 { all.collect::<Vec<_>>().join(" ") } else { String::new() };
        let line = format!("{name:<40} {:>14}   {all}", shown(&median(runs, name)));
        writeln!(text, "{}", line.trim_end()).unwrap_or_default();
    }
    text
}

fn names(runs: &[Object]) -> Vec<&str> {
    runs.first().into_iter().flat_map(Map::keys).map(String::as_str).collect()
}

/// The median of a figure. For counts of faults the highest value, because a median would hide one. For everything else
/// the first.
fn median(runs: &[Object], name: &str) -> Value {
    let mut values: Vec<&Value> = runs.iter().filter_map(|run| run.get(name)).collect();
    let number = |value: &&Value| value.as_f64().unwrap_or_default();
    values.sort_by(|a, b| number(a).total_cmp(&number(b)));
    let faults = ["lost", "duplicates", "out_of_order"].iter().any(|fault| name.ends_with(fault));
    let place = if faults { values.len().saturating_sub(1) } else { values.len() / 2 };
    values.get(place).map_or(Value::Null, |value| (*value).clone())
}

fn shown(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if value.is_f64() => format!("{number:.2}"),
        _ => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Object, object, table};

    fn runs(runs: Value) -> Vec<Object> {
        serde_json::from_value(runs).unwrap()
    }

    #[test]
    fn one_run_is_the_report() {
        let report = json!({"broker": "kafka", "messages_per_second": 1.5, "lost": 0});
        assert_eq!(Value::Object(object(&runs(json!([report])))), report);
    }

    #[test]
    fn several_runs_have_medians_and_the_worst_of_the_faults() {
        let all = runs(json!([{"p50_ms": 3.0, "lost": 0}, {"p50_ms": 1.0, "lost": 2}, {"p50_ms": 2.0, "lost": 0}]));
        let report = object(&all);
        assert_eq!((&report["p50_ms"], &report["lost"]), (&json!(2.0), &json!(2)));
        assert_eq!(report["runs"], json!(all));
        assert!(table(&all).contains("3.00 1.00 2.00"), "{}", table(&all));
        let of_one_kind = runs(json!([{"worker_x4_lost": 0}, {"worker_x4_lost": 1}, {"worker_x4_lost": 0}]));
        assert_eq!(object(&of_one_kind)["worker_x4_lost"], json!(1));
    }
}
