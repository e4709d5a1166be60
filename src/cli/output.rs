//! Data on standard output: a table for people, JSON for programs.

use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use outbox_relay::operate::shown::{is_unsafe, shown};
use serde::Serialize;
use serde_json::{Map, Value};
use unicode_width::UnicodeWidthStr as _;

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
    /// Whether a program reads it.
    pub(super) fn is_json(self) -> bool {
        self.format == Form::Json
    }

    /// Prints a value as JSON, if a program reads it. Returns whether it did.
    pub(super) fn json(self, value: &impl Serialize) -> anyhow::Result<bool> {
        if self.is_json() {
            text(&format!("{}\n", escaped(&format!("{:#}", serde_json::to_value(value)?))))?;
        }
        Ok(self.is_json())
    }

    /// Prints rows under their columns, or as a JSON list of objects.
    pub(super) fn rows<const N: usize>(self, columns: [&str; N], rows: &[[Value; N]]) -> io::Result<()> {
        if self.format == Form::Table {
            return text(&table(&columns, rows));
        }
        text(&format!("{:#}\n", objects(&columns, rows)))
    }

    /// Prints these columns of a list of objects, or the list as JSON.
    pub(super) fn list<const N: usize>(self, columns: [&str; N], list: &Value) -> anyhow::Result<()> {
        if self.json(list)? {
            return Ok(());
        }
        Ok(text(&table(&columns, &picked(list, columns)))?)
    }

    /// Prints these columns of further objects of a list, with their names above the first ones. As JSON, prints a line
    /// for each.
    pub(super) fn lines<const N: usize>(
        self,
        columns: [&str; N],
        rows: &[Value],
        is_first: bool,
    ) -> anyhow::Result<()> {
        if self.is_json() {
            let lines: Vec<_> = rows.iter().map(|row| format!("{}\n", escaped(&row.to_string()))).collect();
            return Ok(text(&lines.concat())?);
        }
        let columns_once: &[&str] = if is_first { &columns } else { &[] };
        Ok(text(&table(columns_once, &picked(&Value::from(rows), columns)))?)
    }

    /// Prints what is there of an object, and below it these columns of the list in it that has this name; or the
    /// object as JSON.
    pub(super) fn object_with_list<const N: usize>(
        self,
        object: &Value,
        name: &str,
        columns: [&str; N],
    ) -> anyhow::Result<()> {
        if self.json(object)? {
            return Ok(());
        }
        let mut pairs = Vec::new();
        for (name, value) in object.as_object().into_iter().flatten() {
            match value {
                Value::Null | Value::Array(_) => {}
                Value::Object(parts) => {
                    let label = |part: &String| format!("{}: {part}", name.replace('_', " "));
                    pairs.extend(parts.iter().map(|(part, value)| [label(part).into(), value.clone()]));
                }
                value => pairs.push([name.as_str().into(), value.clone()]),
            }
        }
        text(&table(&[], &pairs))?;
        Ok(self.list_below(object, name, columns)?)
    }

    /// Prints these columns of the list in an object that has this name, if it is not empty, below the object. As JSON
    /// nothing: the object has the list.
    pub(super) fn list_below<const N: usize>(self, object: &Value, name: &str, columns: [&str; N]) -> io::Result<()> {
        let rows = picked(object.get(name).unwrap_or(&Value::Null), columns);
        if rows.is_empty() || self.is_json() {
            return Ok(());
        }
        text(&format!("\n{}", table(&columns, &rows)))
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
        self.object(&[pairs, &[(name, objects(&columns, rows))]].concat())
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

fn objects<const N: usize>(columns: &[&str; N], rows: &[[Value; N]]) -> Value {
    let object = |row: &[Value; N]| -> Value {
        let pairs = columns.iter().zip(row).map(|(column, value)| ((*column).to_owned(), value.clone()));
        pairs.collect::<Map<_, _>>().into()
    };
    rows.iter().map(object).collect()
}

/// These properties of each object in a list.
fn picked<const N: usize>(list: &Value, names: [&str; N]) -> Vec<[Value; N]> {
    let pick = |object: &Value| names.map(|name| object.get(name).cloned().unwrap_or_default());
    list.as_array().into_iter().flatten().map(pick).collect()
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

/// Prints how to go on, if there may be more rows behind a page.
pub(super) fn rest(page: &Value, flag: &str) -> anyhow::Result<()> {
    if let Some(next) = page.get("next").filter(|next| !next.is_null()) {
        let looked_at = cell(page.get("looked_at").unwrap_or(&Value::Null));
        note(&format!("Looked at {looked_at} messages; there may be more: --{flag} {}", cell(next)))?;
    }
    Ok(())
}

fn table<const N: usize>(columns: &[&str], rows: &[[Value; N]]) -> String {
    let head = columns.iter().map(|column| column.to_uppercase()).collect::<Vec<_>>();
    let rows = rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>());
    let lines: Vec<_> = Some(head).filter(|head| !head.is_empty()).into_iter().chain(rows).collect();
    let width = |i: usize| lines.iter().filter_map(|line| line.get(i)).map(|cell| cell.width()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    let line = |cells: &Vec<String>| {
        let cells: Vec<_> = cells.iter().zip(&widths).map(|(cell, width)| padded(cell, *width)).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    lines.iter().map(line).collect()
}

/// A cell with blanks behind it. A width in `format!` may not exceed 65,535; a payload does.
fn padded(cell: &str, width: usize) -> String {
    let blanks = width.saturating_sub(cell.width());
    format!("{cell}{}", " ".repeat(blanks))
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Object(parts) => {
            let part = |(name, value): (&String, &Value)| format!("{name}: {}", cell(value));
            parts.iter().map(part).collect::<Vec<_>>().join(", ")
        }
        value => value.as_str().map_or_else(|| value.to_string(), shown),
    }
}

/// JSON in which the characters that [`shown`] escapes are written as `\u2028`; the texts are the same.
fn escaped(json: &str) -> String {
    let escape = |c: char| match c {
        '\n' => c.to_string(),
        c if is_unsafe(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_may_be_longer_than_a_width_in_a_format() {
        let long = "x".repeat(70_000);
        assert_eq!(table(&[], &[["payload".into(), long.as_str().into()]]), format!("payload  {long}\n"));
    }

    #[test]
    fn a_table_is_as_wide_as_its_widest_cells() {
        let rows = [["a".into(), "long cell".into(), 3.into()], ["bb".into(), "c".into(), Value::Null]];
        assert_eq!(table(&["x", "y", "z"], &rows), "X   Y          Z\na   long cell  3\nbb  c          -\n");
        let wide = [["注文".into(), 1.into()], ["order".into(), 2.into()]];
        assert_eq!(table(&[], &wide), "注文   1\norder  2\n", "each of the two characters has two columns");
    }
}
