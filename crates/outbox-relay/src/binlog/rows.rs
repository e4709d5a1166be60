//! The rows of the outbox in the log. Columns are found by their names, and their types compared with those of the
//! migrations.

use std::collections::HashMap;

use mysql_async::{
    Conn, Value,
    binlog::{events::TableMapEvent, row::BinlogRow, value::BinlogValue},
    consts::ColumnType,
    prelude::Queryable as _,
};
use outbox_core::{
    Contents,
    store::{
        claim::{Pending, lease::ClaimLease, read::Stored, tail::ClaimKind},
        contents::headers_from_json,
    },
};
use uuid::Uuid;

use super::{
    StreamEnded,
    conditions::{Reason, Refused},
};

/// A change of the outbox in a lane. An update is a removal and an insert.
#[derive(Debug)]
pub struct RowChange {
    /// The lane.
    pub lane: u16,
    /// The change.
    pub what: What,
}

/// The kind of a change, and its row.
#[derive(Debug)]
pub enum What {
    /// A message is pending. With its contents, if the same transaction has written them, and it has neither a date nor
    /// an expiry.
    Pending(Pending, Option<Box<Stored>>),
    /// This message is pending no more.
    Removed(u64),
    /// A delayed or dead message holds its key.
    Holds(Held),
    /// It does so no more.
    HoldsNoMore(Held),
    /// A claim was made.
    Claimed(ClaimLease, ClaimKind),
    /// A claim has ended.
    ClaimEnded(ClaimLease),
}

/// A message that holds its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The message.
    pub id: u64,
    /// The hash of its key.
    pub key_hash: u64,
}

/// A changed row.
pub(crate) enum LoggedRow {
    Change(RowChange),
    /// A message that a service has written.
    Message(Box<Stored>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowSource {
    Messages,
    Pending,
    Waiting,
    Claims,
}

/// The columns that are read, in the order of the fields.
type WantedColumns = &'static [(&'static str, ColumnType)];

const TABLES: [(&str, RowSource, WantedColumns); 5] = [
    (
        "outbox_messages",
        RowSource::Messages,
        &[
            ("id", ColumnType::MYSQL_TYPE_LONGLONG),
            ("message_id", ColumnType::MYSQL_TYPE_STRING),
            ("topic", ColumnType::MYSQL_TYPE_VARCHAR),
            ("message_key", ColumnType::MYSQL_TYPE_VARCHAR),
            ("event_type", ColumnType::MYSQL_TYPE_VARCHAR),
            ("content_type", ColumnType::MYSQL_TYPE_VARCHAR),
            ("headers", ColumnType::MYSQL_TYPE_BLOB),
            ("payload", ColumnType::MYSQL_TYPE_BLOB),
            ("created_at", ColumnType::MYSQL_TYPE_DATETIME2),
            ("due_at", ColumnType::MYSQL_TYPE_DATETIME2),
            ("expires_at", ColumnType::MYSQL_TYPE_DATETIME2),
        ],
    ),
    (
        "outbox_pending",
        RowSource::Pending,
        &[
            ("lane", ColumnType::MYSQL_TYPE_SHORT),
            ("id", ColumnType::MYSQL_TYPE_LONGLONG),
            ("key_hash", ColumnType::MYSQL_TYPE_LONGLONG),
            ("bytes", ColumnType::MYSQL_TYPE_LONG),
            ("attempts", ColumnType::MYSQL_TYPE_SHORT),
            ("takeovers", ColumnType::MYSQL_TYPE_TINY),
        ],
    ),
    ("outbox_delayed", RowSource::Waiting, WAITING),
    ("outbox_dead", RowSource::Waiting, WAITING),
    (
        "outbox_claims",
        RowSource::Claims,
        &[
            ("lane", ColumnType::MYSQL_TYPE_SHORT),
            ("claim_id", ColumnType::MYSQL_TYPE_LONGLONG),
            ("lease_token", ColumnType::MYSQL_TYPE_LONGLONG),
            ("kind", ColumnType::MYSQL_TYPE_TINY),
        ],
    ),
];

const WAITING: WantedColumns = &[
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
    source: RowSource,
    places: Vec<usize>,
    columns: usize,
}

/// Reads the columns, which the account must see.
pub(crate) async fn columns(connection: &mut Conn, schema: &str) -> Result<Columns, Refused> {
    let sql = "SELECT CAST(table_schema AS CHAR), CAST(table_name AS CHAR), CAST(column_name AS CHAR) \
               FROM information_schema.columns \
               WHERE table_schema = ? AND LEFT(table_name, 7) = 'outbox_' ORDER BY table_name, ordinal_position";
    let rows: Vec<(String, String, String)> = connection.exec(sql, (schema,)).await?;
    let (mut name, mut tables) = (String::new(), HashMap::<_, Vec<String>>::new());
    for (schema, table, column) in rows {
        name = schema;
        tables.entry(table).or_default().push(column);
    }
    let sees = |(table, _, wanted): &(&str, RowSource, WantedColumns)| {
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
    pub(crate) fn table(&self, map: &TableMapEvent<'_>) -> Option<Result<Table, StreamEnded>> {
        if !self.is_of(map.database_name_raw()) {
            return None;
        }
        let name = map.table_name();
        let (table, source, wanted) = TABLES.iter().find(|(table, ..)| *table == name)?;
        let columns = self.tables.get(*table)?;
        let wrong = |what: &str| StreamEnded::Unreadable(format!("{table}{what} is not as the migrations make it"));
        if u64::try_from(columns.len()).ok() != Some(map.columns_count()) {
            return Some(Err(wrong("")));
        }
        let place = |(column, wanted): &(&str, ColumnType)| {
            let place = columns.iter().position(|it| it == column);
            let place = place.filter(|place| matches!(map.get_raw_column_type(*place), Ok(Some(it)) if it == *wanted));
            place.ok_or_else(|| wrong(&format!(".{column}")))
        };
        let places: Result<_, _> = wanted.iter().map(place).collect();
        Some(places.map(|places| Table { source: *source, places, columns: columns.len() }))
    }
}

impl Table {
    /// Returns what a row says, before and after its change.
    pub(crate) fn changed(
        &self,
        before: Option<&BinlogRow>,
        after: Option<&BinlogRow>,
    ) -> Result<[Option<LoggedRow>; 2], StreamEnded> {
        if [before, after].into_iter().flatten().any(|row| row.len() != self.columns) {
            return Err(StreamEnded::Unreadable("a row lacks a column (binlog_row_image)".to_owned()));
        }
        let read = |row: Option<&BinlogRow>, is_new| {
            row.map_or(Ok(None), |row| self.read(&Fields { table: self, row }, is_new))
        };
        Ok([read(before, false)?, read(after, true)?])
    }

    fn read(&self, fields: &Fields<'_>, is_new: bool) -> Result<Option<LoggedRow>, StreamEnded> {
        let what = match (self.source, is_new) {
            (RowSource::Messages, false) => return Ok(None),
            (RowSource::Messages, true) => {
                return Ok(fields.message()?.map(|message| LoggedRow::Message(Box::new(message))));
            }
            (RowSource::Pending, true) => What::Pending(fields.pending()?, None),
            (RowSource::Pending, false) => What::Removed(fields.number(1)?),
            (RowSource::Waiting, _) if fields.number::<u8>(3)? == 0 => return Ok(None),
            (RowSource::Waiting, true) => What::Holds(fields.held()?),
            (RowSource::Waiting, false) => What::HoldsNoMore(fields.held()?),
            (RowSource::Claims, true) => What::Claimed(fields.lease()?, ClaimKind::of(fields.number(3)?)),
            (RowSource::Claims, false) => What::ClaimEnded(fields.lease()?),
        };
        Ok(Some(LoggedRow::Change(RowChange { lane: fields.number(0)?, what })))
    }
}

/// The fields of a row.
struct Fields<'a> {
    table: &'a Table,
    row: &'a BinlogRow,
}

impl Fields<'_> {
    fn pending(&self) -> Result<Pending, StreamEnded> {
        Ok(Pending {
            id: self.number(1)?,
            key_hash: self.number(2)?,
            bytes: self.number(3)?,
            attempts: self.number(4)?,
            takeovers: self.number(5)?,
        })
    }

    fn held(&self) -> Result<Held, StreamEnded> {
        Ok(Held { id: self.number(1)?, key_hash: self.number(2)? })
    }

    fn lease(&self) -> Result<ClaimLease, StreamEnded> {
        Ok(ClaimLease { claim_id: self.number(1)?, lease_token: self.number(2)? })
    }

    /// A message. `None` if it has a date or an expiry, which the clock of the database decides.
    fn message(&self) -> Result<Option<Stored>, StreamEnded> {
        if self.value(9) != Some(&Value::NULL) || self.value(10) != Some(&Value::NULL) {
            return Ok(None);
        }
        let headers = self.text(6)?;
        let headers = headers_from_json(headers.as_deref());
        // Without its trailing zeros.
        let mut message_id = self.bytes(1).unwrap_or_default();
        message_id.resize(16, 0);
        Ok(Some(Stored {
            id: self.number(0)?,
            message_id: Uuid::from_slice(&message_id).map_err(|error| StreamEnded::Unreadable(error.to_string()))?,
            is_readable: headers.is_some(),
            contents: Contents {
                topic: self.text(2)?.unwrap_or_default(),
                key: self.bytes(3),
                event_type: self.text(4)?,
                content_type: self.text(5)?,
                headers: headers.unwrap_or_default(),
                payload: self.bytes(7),
            },
            created_at_micros: self.time(8)?,
            waited_micros: 0,
            expired: false,
            epoch: 0,
            to: None,
        }))
    }

    fn value(&self, field: usize) -> Option<&Value> {
        match self.table.places.get(field).and_then(|place| self.row.as_ref(*place)) {
            Some(BinlogValue::Value(value)) => Some(value),
            _ => None,
        }
    }

    fn bytes(&self, field: usize) -> Option<Vec<u8>> {
        match self.value(field) {
            Some(Value::Bytes(bytes)) => Some(bytes.clone()),
            _ => None,
        }
    }

    fn text(&self, field: usize) -> Result<Option<String>, StreamEnded> {
        let text = self.bytes(field).map(String::from_utf8).transpose();
        text.map_err(|_invalid| StreamEnded::Unreadable("a text that is not UTF-8".to_owned()))
    }

    /// Microseconds since 1970.
    fn time(&self, field: usize) -> Result<i64, StreamEnded> {
        let micros = match self.value(field) {
            Some(&Value::Date(year, month, day, hour, minute, second, micro)) => {
                let month = time::Month::try_from(month);
                let date = month.and_then(|month| time::Date::from_calendar_date(i32::from(year), month, day));
                let at = date.and_then(|date| date.with_hms_micro(hour, minute, second, micro));
                at.ok().and_then(|at| i64::try_from(at.assume_utc().unix_timestamp_nanos() / 1000).ok())
            }
            _ => None,
        };
        micros.ok_or_else(|| StreamEnded::Unreadable("a time is none".to_owned()))
    }

    fn number<T: Unsigned>(&self, field: usize) -> Result<T, StreamEnded> {
        let number = match self.value(field) {
            Some(Value::UInt(number)) => Some(*number),
            // Without the metadata of columns the log does not say that a number has no sign.
            Some(Value::Int(number)) => Some(number.cast_unsigned()),
            _ => None,
        };
        number.map(T::cut).ok_or_else(|| StreamEnded::Unreadable("a number is none".to_owned()))
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
