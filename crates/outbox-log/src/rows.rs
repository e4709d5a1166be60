//! The rows of the outbox in the log. Columns are found by their names, and their types compared with those of the migrations.

use std::collections::HashMap;

use mysql_async::{
    Conn, Value,
    binlog::{events::TableMapEvent, row::BinlogRow, value::BinlogValue},
    consts::ColumnType,
    prelude::Queryable as _,
};

use crate::{
    Ended,
    conditions::{Reason, Refused},
};

/// A row of `outbox_pending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// The lane.
    pub lane: u16,
    /// The message.
    pub id: u64,
    /// The hash of its key; 0 without a key.
    pub key_hash: u64,
    /// Bytes of its contents.
    pub bytes: u32,
    /// Spent attempts.
    pub attempts: u16,
    /// Claims that were taken over with it.
    pub takeovers: u8,
}

/// A row of `outbox_delayed` or of `outbox_dead`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The lane.
    pub lane: u16,
    /// The message.
    pub id: u64,
    /// The hash of its key; 0 without a key.
    pub key_hash: u64,
    /// Whether later messages of its key wait for it.
    pub holds_key: bool,
}

/// A change of the outbox. An update is a removal and an insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A message is pending.
    Pending(Pending),
    /// It is pending no more.
    Removed(Pending),
    /// A message is delayed or dead.
    Waits(Waiting),
    /// It is so no more.
    WaitsNoMore(Waiting),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pending,
    Waiting,
}

/// The columns that are read, in the order of the fields.
type Wanted = &'static [(&'static str, ColumnType)];

const TABLES: [(&str, Kind, Wanted); 3] = [
    (
        "outbox_pending",
        Kind::Pending,
        &[
            ("lane", ColumnType::MYSQL_TYPE_SHORT),
            ("id", ColumnType::MYSQL_TYPE_LONGLONG),
            ("key_hash", ColumnType::MYSQL_TYPE_LONGLONG),
            ("bytes", ColumnType::MYSQL_TYPE_LONG),
            ("attempts", ColumnType::MYSQL_TYPE_SHORT),
            ("takeovers", ColumnType::MYSQL_TYPE_TINY),
        ],
    ),
    ("outbox_delayed", Kind::Waiting, WAITING),
    ("outbox_dead", Kind::Waiting, WAITING),
];

const WAITING: Wanted = &[
    ("lane", ColumnType::MYSQL_TYPE_SHORT),
    ("id", ColumnType::MYSQL_TYPE_LONGLONG),
    ("key_hash", ColumnType::MYSQL_TYPE_LONGLONG),
    ("holds_key", ColumnType::MYSQL_TYPE_TINY),
];

/// The columns of the outbox.
#[derive(Debug)]
pub(crate) struct Columns {
    /// The name of the schema, as the server has it.
    schema: String,
    /// The columns of each table, in their order.
    tables: HashMap<String, Vec<String>>,
}

/// A table as the log describes it.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    kind: Kind,
    places: Vec<usize>,
    columns: usize,
}

/// Reads the columns, which the account must see.
pub(crate) async fn columns(connection: &mut Conn, schema: &str) -> Result<Columns, Refused> {
    let sql = "SELECT CAST(table_schema AS CHAR), CAST(table_name AS CHAR), CAST(column_name AS CHAR) FROM information_schema.columns \
               WHERE table_schema = ? AND LEFT(table_name, 7) = 'outbox_' ORDER BY table_name, ordinal_position";
    let rows: Vec<(String, String, String)> = connection.exec(sql, (schema,)).await?;
    let (mut name, mut tables) = (String::new(), HashMap::<_, Vec<String>>::new());
    for (schema, table, column) in rows {
        name = schema;
        tables.entry(table).or_default().push(column);
    }
    let sees = |(table, _, wanted): &(&str, Kind, Wanted)| {
        let columns = tables.get(*table);
        wanted.iter().all(|(column, _)| columns.is_some_and(|columns| columns.iter().any(|it| it == column)))
    };
    match TABLES.iter().find(|table| !sees(table)) {
        Some((table, ..)) => {
            let text =
                format!("{schema}.{table} is not there as the migrations make it, or the account may not read it");
            Err(Refused::new(Reason::Privilege, text))
        }
        None => Ok(Columns { schema: name, tables }),
    }
}

impl Columns {
    /// Whether this is the name of the outbox's schema.
    pub(crate) fn is_of(&self, schema: &[u8]) -> bool {
        schema == self.schema.as_bytes()
    }

    /// Whether a statement may be about the outbox: one of this schema, or one that names it.
    pub(crate) fn are_named(&self, text: &[u8], is_of_schema: bool) -> bool {
        let has = |word: &str| text.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word.as_bytes()));
        has("outbox_") && (is_of_schema || has(&self.schema))
    }

    /// A table of the outbox; `None` if it is another one.
    pub(crate) fn table(&self, map: &TableMapEvent<'_>) -> Option<Result<Table, Ended>> {
        if !self.is_of(map.database_name_raw()) {
            return None;
        }
        let name = map.table_name();
        let (table, kind, wanted) = TABLES.iter().find(|(table, ..)| *table == name)?;
        let columns = self.tables.get(*table)?;
        let wrong = |what: &str| Ended::Unreadable(format!("{table}{what} is not as the migrations make it"));
        if u64::try_from(columns.len()).ok() != Some(map.columns_count()) {
            return Some(Err(wrong("")));
        }
        let place = |(column, wanted): &(&str, ColumnType)| {
            let place = columns.iter().position(|it| it == column);
            let place = place.filter(|place| matches!(map.get_raw_column_type(*place), Ok(Some(it)) if it == *wanted));
            place.ok_or_else(|| wrong(&format!(".{column}")))
        };
        let places: Result<_, _> = wanted.iter().map(place).collect();
        Some(places.map(|places| Table { kind: *kind, places, columns: columns.len() }))
    }
}

impl Table {
    /// Adds the changes of a row.
    pub(crate) fn changed(
        &self,
        before: Option<&BinlogRow>,
        after: Option<&BinlogRow>,
        changes: &mut Vec<Change>,
    ) -> Result<(), Ended> {
        for (row, is_new) in [(before, false), (after, true)] {
            let Some(row) = row else { continue };
            if row.len() != self.columns {
                return Err(Ended::Unreadable("a row lacks a column (binlog_row_image)".to_owned()));
            }
            changes.push(match (self.kind, is_new) {
                (Kind::Pending, true) => Change::Pending(self.pending(row)?),
                (Kind::Pending, false) => Change::Removed(self.pending(row)?),
                (Kind::Waiting, true) => Change::Waits(self.waiting(row)?),
                (Kind::Waiting, false) => Change::WaitsNoMore(self.waiting(row)?),
            });
        }
        Ok(())
    }

    fn pending(&self, row: &BinlogRow) -> Result<Pending, Ended> {
        Ok(Pending {
            lane: self.number(row, 0)?,
            id: self.number(row, 1)?,
            key_hash: self.number(row, 2)?,
            bytes: self.number(row, 3)?,
            attempts: self.number(row, 4)?,
            takeovers: self.number(row, 5)?,
        })
    }

    fn waiting(&self, row: &BinlogRow) -> Result<Waiting, Ended> {
        Ok(Waiting {
            lane: self.number(row, 0)?,
            id: self.number(row, 1)?,
            key_hash: self.number(row, 2)?,
            holds_key: self.number::<u8>(row, 3)? > 0,
        })
    }

    fn number<T: Unsigned>(&self, row: &BinlogRow, field: usize) -> Result<T, Ended> {
        let value = self.places.get(field).and_then(|place| row.as_ref(*place));
        let number = match value {
            Some(BinlogValue::Value(Value::UInt(number))) => Some(*number),
            // Without the metadata of columns the log does not say that a number has no sign.
            Some(BinlogValue::Value(Value::Int(number))) => Some(number.cast_unsigned()),
            _ => None,
        };
        number.map(T::cut).ok_or_else(|| Ended::Unreadable("a number is none".to_owned()))
    }
}

/// A number of which the log gives the bits.
trait Unsigned {
    fn cut(bits: u64) -> Self;
}

macro_rules! unsigned {
    ($($number:ident),+) => {$(
        impl Unsigned for $number {
            #[expect(clippy::cast_possible_truncation, reason = "the column has no more bits")]
            fn cut(bits: u64) -> Self {
                bits as Self
            }
        }
    )+};
}

unsigned!(u8, u16, u32);

impl Unsigned for u64 {
    fn cut(bits: u64) -> Self {
        bits
    }
}
