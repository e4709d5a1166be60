//! Data on standard output: a table for people, JSON for programs.

use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value};

/// How data is printed.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Format {
    /// A table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t = Form::Table)]
    format: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Table,
    Json,
}

impl Format {
    /// Prints a value as JSON, if a program reads it. Returns whether it did.
    pub(super) fn json(self, value: &impl Serialize) -> anyhow::Result<bool> {
        let is_json = self.format == Form::Json;
        if is_json {
            text(&format!("{:#}\n", serde_json::to_value(value)?))?;
        }
        Ok(is_json)
    }

    /// Prints rows under their columns, or as a JSON list of objects.
    pub(super) fn rows<const N: usize>(self, columns: [&str; N], rows: &[[Value; N]]) -> io::Result<()> {
        if self.format == Form::Table {
            return text(&table(&columns, rows));
        }
        text(&format!("{:#}\n", list(&columns, rows)))
    }

    /// Prints these columns of values, or the values as a JSON list.
    pub(super) fn values<T: Serialize, const N: usize>(self, columns: [&str; N], values: &[T]) -> anyhow::Result<()> {
        if self.json(&values)? {
            return Ok(());
        }
        let row = |value: &T| Ok(pick(&serde_json::to_value(value)?, columns));
        let rows: Vec<_> = values.iter().map(row).collect::<Result<_, serde_json::Error>>()?;
        Ok(text(&table(&columns, &rows))?)
    }

    /// Prints names and values, and below them rows under their columns. As JSON, prints an object in which the list of
    /// the rows has a name, too.
    pub(super) fn object_with_rows<const N: usize>(
        self,
        pairs: &[(&str, Value)],
        name: &str,
        columns: [&str; N],
        rows: &[[Value; N]],
    ) -> io::Result<()> {
        if self.format == Form::Table {
            self.object(pairs)?;
            text("\n")?;
            return self.rows(columns, rows);
        }
        self.object(&[pairs, &[(name, list(&columns, rows))]].concat())
    }

    /// Prints names and values, or a JSON object.
    pub(super) fn object(self, pairs: &[(&str, Value)]) -> io::Result<()> {
        if self.format == Form::Table {
            let rows: Vec<_> = pairs.iter().map(|(name, value)| [Value::from(*name), value.clone()]).collect();
            return text(&table(&[], &rows));
        }
        let object: Map<_, _> = pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        text(&format!("{:#}\n", Value::Object(object)))
    }
}

fn list<const N: usize>(columns: &[&str; N], rows: &[[Value; N]]) -> Value {
    let object = |row: &[Value; N]| -> Value {
        let pairs = columns.iter().zip(row).map(|(column, value)| ((*column).to_owned(), value.clone()));
        pairs.collect::<Map<_, _>>().into()
    };
    rows.iter().map(object).collect()
}

/// The properties of an object.
pub(super) fn pick<const N: usize>(object: &Value, names: [&str; N]) -> [Value; N] {
    names.map(|name| object.get(name).cloned().unwrap_or_default())
}

/// Prints a text as it is.
pub(super) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a line for people, beside the data.
pub(super) fn note(line: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{line}")
}

fn table<const N: usize>(columns: &[&str], rows: &[[Value; N]]) -> String {
    let head = columns.iter().map(|column| column.to_uppercase()).collect::<Vec<_>>();
    let rows = rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>());
    let lines: Vec<_> = Some(head).filter(|head| !head.is_empty()).into_iter().chain(rows).collect();
    let width =
        |i: usize| lines.iter().filter_map(|line| line.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let line = |cells: &Vec<String>| {
        let cells: Vec<_> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    lines.iter().map(line).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        value => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_widest_cells() {
        let rows = [["a".into(), "long cell".into(), 3.into()], ["bb".into(), "c".into(), Value::Null]];
        assert_eq!(table(&["x", "y", "z"], &rows), "X   Y          Z\na   long cell  3\nbb  c          -\n");
    }
}
