use std::io::Write as _;

use super::Format;

/// Prints rows as columns, or as a JSON list of objects.
pub(super) fn print<const N: usize>(head: [&str; N], rows: &[[String; N]], format: Format) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if format == Format::Json {
        let object = |row: &[String; N]| -> serde_json::Map<String, serde_json::Value> {
            head.iter().zip(row).map(|(name, cell)| ((*name).to_owned(), value(cell))).collect()
        };
        let list: Vec<_> = rows.iter().map(object).collect();
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?);
    }
    let heads = head.map(str::to_owned);
    let widths = (0..N).map(|i| {
        let cells = rows.iter().chain([&heads]).filter_map(|row| row.get(i));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    let widths: Vec<usize> = widths.collect();
    for row in std::iter::once(&heads).chain(rows) {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(out, "{}", line.join("  ").trim_end())?;
    }
    Ok(())
}

/// A number stays a number.
fn value(cell: &str) -> serde_json::Value {
    cell.parse::<i64>().map_or_else(|_| cell.into(), Into::into)
}
