//! The tables as the server describes them.

use std::collections::BTreeSet;

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

/// A table or a view, and its parts in one spelling: `topic varchar(249) ascii_bin not null`,
/// `key outbox_delayed_due (due_at)`. Of a view the parts are the names of its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectShape {
    pub(crate) kind: ObjectKind,
    pub(crate) name: String,
    pub(crate) parts: BTreeSet<String>,
}

/// The kind of object that a name has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Table,
    View,
}

impl ObjectKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::View => "view",
        }
    }
}

/// The table or view with this name, if there is one. Reads the dictionary.
pub(crate) async fn shape(conn: &mut MySqlConnection, name: &str) -> Result<Option<ObjectShape>, sqlx::Error> {
    let sql = "SELECT table_type = 'VIEW', LOWER(CAST(engine AS CHAR)) FROM information_schema.tables \
               WHERE table_schema = DATABASE() AND table_name = ?";
    let found: Option<(bool, Option<String>)> = sqlx::query_as(sql).bind(name).fetch_optional(&mut *conn).await?;
    let Some((is_view, engine)) = found else { return Ok(None) };
    let columns = columns(conn, name).await?;
    let (kind, parts) = if is_view {
        (ObjectKind::View, columns.into_iter().map(|column| column.name).collect())
    } else {
        let columns = columns.into_iter().map(Column::part);
        let engine = engine.map(|engine| format!("engine {engine}"));
        (ObjectKind::Table, columns.chain(engine).chain(keys(conn, name).await?).collect())
    };
    Ok(Some(ObjectShape { kind, name: name.to_owned(), parts }))
}

/// About how many rows a table has, and how many bytes. Reads the server's statistics.
pub(crate) async fn size(conn: &mut MySqlConnection, table: &str) -> Result<(u64, u64), sqlx::Error> {
    let sql = "SELECT CAST(COALESCE(table_rows, 0) AS UNSIGNED), CAST(COALESCE(data_length + index_length, \
               0) AS UNSIGNED) \
               FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?";
    Ok(sqlx::query_as(sql).bind(table).fetch_optional(conn).await?.unwrap_or_default())
}

struct Column {
    name: String,
    kind: String,
    collation: Option<String>,
    nullable: bool,
    default: Option<String>,
    extra: String,
}

async fn columns(conn: &mut MySqlConnection, table: &str) -> Result<Vec<Column>, sqlx::Error> {
    let sql = "SELECT CAST(column_name AS CHAR), LOWER(CAST(column_type AS CHAR)), CAST(collation_name AS CHAR), \
               is_nullable = 'YES', CAST(column_default AS CHAR), LOWER(CAST(extra AS CHAR)) \
               FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? \
               LIMIT 18446744073709551615";
    let rows = sqlx::query(sql).bind(table).fetch_all(conn).await?;
    rows.iter().map(Column::read).collect()
}

/// The keys of a table as parts. (`GROUP_CONCAT` would be cut by `group_concat_max_len`.)
async fn keys(conn: &mut MySqlConnection, table: &str) -> Result<Vec<String>, sqlx::Error> {
    let sql = "SELECT CAST(index_name AS CHAR), non_unique = 0, \
               CAST(CONCAT(COALESCE(column_name, '?'), COALESCE(CONCAT('(', sub_part, ')'), '')) AS CHAR) \
               FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ? \
               ORDER BY index_name, seq_in_index LIMIT 18446744073709551615";
    let rows: Vec<(String, bool, String)> = sqlx::query_as(sql).bind(table).fetch_all(conn).await?;
    let key = |rows: &[(String, bool, String)]| {
        let columns = rows.iter().map(|(.., column)| column.as_str()).collect::<Vec<_>>().join(",");
        rows.first().map(|(name, unique, _)| match (name.as_str(), unique) {
            ("PRIMARY", _) => format!("primary key ({columns})"),
            (_, true) => format!("unique key {name} ({columns})"),
            (_, false) => format!("key {name} ({columns})"),
        })
    };
    Ok(rows.chunk_by(|(one, ..), (other, ..)| one == other).filter_map(key).collect())
}

impl Column {
    fn read(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let (kind, extra): (String, String) = (row.try_get(1)?, row.try_get(5)?);
        Ok(Self {
            name: row.try_get(0)?,
            kind: without_display_width(&kind),
            collation: row.try_get(2)?,
            nullable: row.try_get(3)?,
            default: row.try_get(4)?,
            extra: extra.replace("default_generated", "").trim().to_owned(),
        })
    }

    fn part(self) -> String {
        // MariaDB writes the default NULL as a text.
        let default = self.default.filter(|default| !(self.nullable && default.eq_ignore_ascii_case("null")));
        let words = [
            Some(self.name),
            Some(self.kind),
            self.collation,
            Some(if self.nullable { "null" } else { "not null" }.to_owned()),
            default.map(|default| format!("default {}", default.to_lowercase())),
            Some(self.extra).filter(|extra| !extra.is_empty()),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// `bigint unsigned` for MariaDB's `bigint(20) unsigned`.
fn without_display_width(kind: &str) -> String {
    match (kind.split_once('('), kind.split_once(')')) {
        (Some((name, _)), Some((_, rest))) if name.ends_with("int") => format!("{name}{rest}"),
        _ => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::without_display_width;

    #[test]
    fn the_width_of_an_integer_is_left_out() {
        assert_eq!(without_display_width("bigint(20) unsigned"), "bigint unsigned");
        assert_eq!(without_display_width("int"), "int");
        assert_eq!(without_display_width("varchar(9)"), "varchar(9)");
    }
}
