use std::fmt::Write as _;

use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, Either, MySqlConnection, SqlSafeStr as _, SqlStr,
    mysql::{MySqlQueryResult, MySqlRow},
};

/// A text of several statements for one round trip. It holds only constants, integers, hexadecimal digits and quoted
/// names.
#[derive(Debug, Default)]
pub(crate) struct Text {
    sql: String,
    /// How often a constant ends a statement and begins another.
    ends: usize,
}

/// The result of one statement of a text.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) rows: Vec<MySqlRow>,
    pub(crate) done: MySqlQueryResult,
}

impl Text {
    pub(crate) fn sql(mut self, constant: &'static str) -> Self {
        self.ends += constant.matches(';').count();
        self.sql.push_str(constant);
        self
    }

    /// The name of a database, quoted.
    pub(crate) fn name(mut self, name: &str) -> Self {
        self.sql.extend(["`", &name.replace('`', "``"), "`"]);
        self
    }

    pub(crate) fn int(mut self, number: impl Into<u64>) -> Self {
        self.push_int(number.into());
        self
    }

    /// `1,2,3`; never empty, because `IN ()` is no SQL: an empty list becomes `0`, which is no id.
    pub(crate) fn ints(mut self, numbers: impl IntoIterator<Item = u64>) -> Self {
        let start = self.sql.len();
        for number in numbers {
            self.push_int(number);
            self.sql.push(',');
        }
        if self.sql.len() == start {
            self.sql.push('0');
        } else {
            self.sql.pop();
        }
        self
    }

    /// `0x…`, a byte string; the empty one is `''`.
    pub(crate) fn hex(self, bytes: &[u8]) -> Self {
        if bytes.is_empty() { self.sql("''") } else { self.sql("0x").digits(bytes) }
    }

    /// The hexadecimal digits of bytes, for `UNHEX` to read.
    pub(crate) fn digits(mut self, bytes: &[u8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for byte in bytes {
            for nibble in [byte >> 4, byte & 15] {
                self.sql.push(char::from(DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0')));
            }
        }
        self
    }

    /// A table `l` of ids to begin a join with; rows joined by `STRAIGHT_JOIN … FORCE INDEX (PRIMARY)` are then found
    /// id by id. With a list in `IN (…)` the optimizer reads a small table whole. A locking statement then waits for
    /// every transaction that has a row there, such as that of a service that has not committed yet.
    pub(crate) fn listed(self, ids: impl IntoIterator<Item = u64>) -> Self {
        self.sql("JSON_TABLE('[").ints(ids).sql("]', '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) l")
    }

    /// A string, whatever the session's character set is.
    pub(crate) fn text(self, text: &str) -> Self {
        self.sql("_utf8mb4 ").hex(text.as_bytes())
    }

    /// A value, or NULL.
    pub(crate) fn maybe<T>(self, value: Option<T>, write: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => write(self, value),
            None => self.sql("NULL"),
        }
    }

    pub(crate) fn signed(self, number: i64) -> Self {
        let text = if number < 0 { self.sql("-") } else { self };
        text.int(number.unsigned_abs())
    }

    pub(crate) fn append(mut self, other: &Self) -> Self {
        self.sql.push_str(&other.sql);
        self.ends += other.ends;
        self
    }

    pub(crate) fn then(self, part: impl FnOnce(Self) -> Self) -> Self {
        part(self)
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

    fn push_int(&mut self, number: u64) {
        // Writing to a String cannot fail.
        if write!(self.sql, "{number}").is_err() {
            self.sql.push('0');
        }
    }

    /// Runs the text and returns the result of each statement. If one fails, the server runs none of the later ones:
    /// the caller rolls back before it does anything else (see [`super::session::rollback`]).
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
    use super::Text;

    #[test]
    fn a_text_holds_only_constants_integers_and_hex() {
        let text = Text::default().sql("a IN (").ints([1, 22]).sql(") b ").hex(b"\x00\xff'").sql(" c ").hex(b"");
        assert_eq!(text.sql, "a IN (1,22) b 0x00ff27 c ''");
    }

    #[test]
    fn an_empty_list_matches_no_id() {
        assert_eq!(Text::default().ints([]).sql, "0");
    }
}
