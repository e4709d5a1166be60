use std::{
    borrow::Borrow,
    fmt::{self, Display, Formatter},
};

use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, Either, MySqlConnection, SqlSafeStr as _, SqlStr,
    mysql::{MySqlQueryResult, MySqlRow},
};

/// A text of one or more statements for one round trip, made by [`sql!`]. It holds only constants, integers,
/// hexadecimal digits and quoted names.
#[derive(Debug, Default)]
pub(crate) struct Text {
    sql: String,
    /// The number of semicolons in its constants.
    ends: usize,
}

/// The result of one statement of a text.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) rows: Vec<MySqlRow>,
    pub(crate) done: MySqlQueryResult,
}

/// Makes a [`Text`] from a template. Each `{hole}` of it takes a [`Hole`]: `sql!("SELECT {a}, {b}", a, b = 2)`.
macro_rules! sql {
    (@value $hole:ident) => { $hole };
    (@value $hole:ident = $value:expr) => { $value };
    ($template:literal $(, $hole:ident $(= $value:expr)?)* $(,)?) => {
        match ($(&$crate::store::text::sql!(@value $hole $(= $value)?),)*) {
            // A template within `concat!` cannot name variables of its function. So every hole goes through `Filled`.
            ($($hole,)*) => $crate::store::text::Text::filled(
                ::std::format_args!(concat!($template) $(, $hole = $crate::store::text::Filled($hole))*),
                [
                    $crate::store::text::Hole::ends(&$template),
                    $($crate::store::text::Hole::ends($hole),)*
                ],
            ),
        }
    };
}
pub(crate) use sql;

/// A value that cannot change the meaning of a statement.
pub(crate) trait Hole {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result;

    /// The number of semicolons that end a statement.
    fn ends(&self) -> usize {
        0
    }
}

/// Shows a hole.
pub(crate) struct Filled<'a, T>(pub(crate) &'a T);

impl<T: Hole> Display for Filled<'_, T> {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        self.0.write(to)
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {
        $(impl Hole for $integer {
            fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
                self.fmt(to)
            }
        })*
    };
}

integers!(u16 u32 u64 i64);

/// A constant of the program.
impl Hole for &'static str {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str(self)
    }

    fn ends(&self) -> usize {
        self.matches(';').count()
    }
}

/// A part of a statement, or further statements.
impl Hole for Text {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str(&self.sql)
    }

    fn ends(&self) -> usize {
        self.ends
    }
}

/// A value, or NULL.
impl<T: Hole> Hole for Option<T> {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Some(value) => value.write(to),
            None => to.write_str("NULL"),
        }
    }
}

/// `1,2,3`
pub(crate) struct Ids<I>(pub(crate) I);

impl<I: IntoIterator<Item: Borrow<u64>> + Clone> Hole for Ids<I> {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let mut ids = self.0.clone().into_iter();
        ids.next().map_or(Ok(()), |id| id.borrow().fmt(to))?;
        ids.try_for_each(|id| write!(to, ",{}", id.borrow()))
    }
}

/// The hexadecimal digits of bytes, for `UNHEX` to read.
pub(crate) struct Digits<'a>(pub(crate) &'a [u8]);

impl Hole for Digits<'_> {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let digit = |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'a' - 10 + nibble });
        // Formatting each byte by itself takes ten times as long. Iterators would, too, in debug builds.
        self.0.chunks(1 << 10).try_for_each(|bytes| {
            let mut digits = String::with_capacity(2 * bytes.len());
            for byte in bytes {
                digits.push(digit(byte >> 4));
                digits.push(digit(byte & 15));
            }
            to.write_str(&digits)
        })
    }
}

/// `0x…`, a byte string; the empty one is `x''`: `''` is NULL in MariaDB's SQL mode `EMPTY_STRING_IS_NULL`.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl Hole for Hex<'_> {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return to.write_str("x''");
        }
        to.write_str("0x")?;
        Digits(self.0).write(to)
    }
}

/// A string, whatever the session's character set is.
pub(crate) struct Utf8<'a>(pub(crate) &'a str);

impl Hole for Utf8<'_> {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_str("_utf8mb4 ")?;
        Hex(self.0.as_bytes()).write(to)
    }
}

/// The name of a database, quoted.
pub(crate) struct Name<'a>(pub(crate) &'a str);

impl Hole for Name<'_> {
    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        write!(to, "`{}`", self.0.replace('`', "``"))
    }
}

/// A table `l` of ids to begin a join with; rows joined by `STRAIGHT_JOIN … FORCE INDEX (PRIMARY)` are then found id by
/// id. With a list in `IN (…)` the optimizer reads a small table whole. A locking statement then waits for every
/// transaction that has a row there, such as that of a service that has not committed yet.
pub(crate) fn listed(ids: &[u64]) -> Text {
    sql!("JSON_TABLE('[{ids}]', '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) l", ids = Ids(ids))
}

impl Text {
    /// For [`sql!`].
    pub(crate) fn filled<const N: usize>(template: fmt::Arguments<'_>, ends: [usize; N]) -> Self {
        Self { sql: template.to_string(), ends: ends.into_iter().sum() }
    }

    /// The parts, one behind the other.
    pub(crate) fn joined(parts: impl IntoIterator<Item = Self>, separator: &'static str) -> Self {
        let parts = parts.into_iter().enumerate();
        parts.fold(Self::default(), |mut text, (index, part)| {
            if index > 0 {
                text.sql.push_str(separator);
                text.ends += separator.ends();
            }
            text.sql.push_str(&part.sql);
            text.ends += part.ends;
            text
        })
    }

    /// For a call that sends the text itself.
    pub(crate) fn into_sql_str(self) -> SqlStr {
        AssertSqlSafe(self.sql).into_sql_str()
    }

    /// For a test that runs them one by one. No value holds a semicolon.
    #[cfg(test)]
    pub(crate) fn statements(&self) -> Vec<Self> {
        self.sql.split(';').map(|sql| Self { sql: sql.to_owned(), ends: 0 }).collect()
    }

    #[cfg(test)]
    pub(crate) fn contains(&self, words: &str) -> bool {
        self.sql.contains(words)
    }

    /// Runs the text and returns the result of each statement. If one fails, the server runs none of the later ones:
    /// the caller rolls back before it does anything else (see [`crate::store::session::rollback`]).
    pub(crate) async fn run(self, conn: &mut MySqlConnection) -> Result<Vec<Reply>, sqlx::Error> {
        let mut replies = Vec::new();
        self.run_into(conn, &mut replies).await.map(|()| replies)
    }

    /// [`Self::run`] that keeps the replies of the statements before one that failed.
    pub(crate) async fn run_into(
        self,
        conn: &mut MySqlConnection,
        replies: &mut Vec<Reply>,
    ) -> Result<(), sqlx::Error> {
        let statements = self.ends + 1;
        let mut stream = sqlx::raw_sql(AssertSqlSafe(self.sql)).fetch_many(conn);
        let mut rows = Vec::new();
        while let Some(item) = stream.try_next().await? {
            match item {
                Either::Right(row) => rows.push(row),
                Either::Left(done) => replies.push(Reply { rows: std::mem::take(&mut rows), done }),
            }
        }
        drop(stream);
        // Half an answer would read as "no rows", which no statement of these texts may report by mistake.
        if replies.len() == statements && rows.is_empty() {
            return Ok(());
        }
        let answered = replies.len();
        Err(sqlx::Error::Protocol(format!("the server answered {answered} of {statements} statements")))
    }
}

#[cfg(test)]
mod tests {
    use super::{Hex, Ids, Name, Utf8};

    #[test]
    fn a_text_holds_only_constants_integers_hex_and_quoted_names() {
        let ids = Ids([1, 22]);
        let no = Ids([0; 0]);
        let bytes = Hex(b"\x00\xff';");
        let text = sql!("{ids} [{no}] {bytes} {empty} {n}", ids, no, bytes, empty = Hex(b""), n = None::<u64>);
        assert_eq!(text.sql, "1,22 [] 0x00ff273b x'' NULL");
        let text = sql!("{text} {name} {negative}", text = Utf8("a'"), name = Name("a`; b"), negative = -1_i64);
        assert_eq!(text.sql, "_utf8mb4 0x6127 `a``; b` -1");
    }

    #[test]
    fn the_statements_of_a_text_are_counted_by_its_constants() {
        let more = sql!("; SELECT {a}; SELECT {a}", a = 1_u64);
        let text = sql!("USE {name}{more}{end}", name = Name("a;b"), more, end = "; COMMIT");
        assert_eq!((text.sql.as_str(), text.ends), ("USE `a;b`; SELECT 1; SELECT 1; COMMIT", 3));
    }
}
