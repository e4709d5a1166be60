//! The table of faults, with the number of tries and the results.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{counts::Counts, row::Row, runner::Ran};

const COLUMNS: [&str; 10] = [
    "row",
    "fault",
    "runs",
    "failed",
    "messages",
    "faults (in flight)",
    "take-overs",
    "fenced",
    "duplicates (announced)",
    "recovery s (median, max)",
];

/// The table in Markdown, which is readable on a terminal too.
#[must_use]
pub fn markdown(rows: &[Row], ran: &[Ran], seed: u64) -> String {
    let mut lines = vec![COLUMNS.map(str::to_owned)];
    lines.extend(rows.iter().map(|row| line(row, &total(row, ran))));
    let mut text = format!("Seed {seed}.\n\n{}", table(&lines));
    // Writing to a string does not fail.
    for (ran, unshown) in ran.iter().flat_map(|ran| ran.unshown.iter().map(move |unshown| (ran, unshown))) {
        write!(text, "\n{} {}, seed {}, tried again:\n{unshown}\n", ran.row, ran.case, ran.seed).ok();
    }
    for failed in ran.iter().filter(|ran| ran.error.is_some()) {
        let error = failed.error.as_deref().unwrap_or_default();
        write!(text, "\n{} {}, seed {}:\n{error}\n", failed.row, failed.case, failed.seed).ok();
    }
    text
}

/// The same with every run, for programs.
#[must_use]
pub fn json(rows: &[Row], ran: &[Ran], seed: u64) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let runs: Vec<Value> = ran
                .iter()
                .filter(|ran| ran.row == row.id)
                .map(|ran| {
                    json!({
                        "case": ran.case, "seed": ran.seed, "seconds": ran.took.as_secs_f64(), "error": ran.error,
                        "unshown": ran.unshown, "counts": ran.counts,
                    })
                })
                .collect();
            json!({ "row": row.id, "fault": row.fault, "shows": row.shows, "counts": total(row, ran), "runs": runs })
        })
        .collect();
    json!({ "seed": seed, "rows": rows })
}

fn total(row: &Row, ran: &[Ran]) -> Counts {
    let mut counts = Counts::default();
    ran.iter().filter(|ran| ran.row == row.id).for_each(|ran| counts += &ran.counts);
    counts
}

fn line(row: &Row, counts: &Counts) -> [String; 10] {
    let announced: Vec<String> = counts.announced.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    [
        row.id.to_owned(),
        row.fault.to_owned(),
        counts.runs.to_string(),
        counts.failed.to_string(),
        match counts.lost_by_server {
            0 => counts.messages.to_string(),
            lost => format!("{} (and {lost} lost by the server)", counts.messages),
        },
        format!("{} ({})", counts.faults, counts.in_flight),
        counts.takeovers.to_string(),
        counts.fenced.to_string(),
        format!("{} ({})", counts.duplicates, announced.join(", ")),
        match (counts.median(), counts.slowest()) {
            (Some(median), Some(slowest)) => format!("{median:.1}, {slowest:.1}"),
            _ => String::new(),
        },
    ]
}

/// A Markdown table with columns of one width; the first line is its head.
#[must_use]
pub fn table<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} |"));
        let line = format!("|{}\n", cells.collect::<String>());
        text += &line;
        if number == 0 {
            text += &line.chars().map(|c| if c == '|' || c == '\n' { c } else { '-' }).collect::<String>();
        }
    }
    text
}
