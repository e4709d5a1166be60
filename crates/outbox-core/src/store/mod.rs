//! Every SQL statement of the project, but for the session of the binary log: a folder for each part of the protocol, one
//! function per change of state.
//!
//! **Not part of the public API**: it changes with any release. The consumer and the relay use it from their own
//! packages, so they require exactly their own version of this one.
//!
//! A statement is one text: static with binds, or a template of `sql!` with named holes where several statements must
//! travel in one round trip, or where a list is in the text (MySQL takes no binds there). A hole takes integers,
//! hexadecimal digits, constants and other templates only. To run a template by hand, replace its holes. Fragments that
//! several statements share are `claim::lease::fence`, `text::listed`, `claim::read::id_list` and `settle::RECEIPT`.
//!
//! The relay's functions expect a session with `READ COMMITTED` and `time_zone = '+00:00'`, see [`session::prepare`].
//! None of them may be cancelled half-way: drop the connection then.

pub mod claim;
pub mod contents;
pub mod enqueue;
pub mod inbox;
pub mod named;
pub mod operate;
pub mod reason;
pub mod refusal;
#[cfg(test)]
mod rolled_back;
pub mod schema;
pub mod session;
pub mod settle;
pub(crate) mod text;

/// The server's number for "duplicate entry for a unique key".
const DUPLICATE_ENTRY: u16 = 1062;
/// The server's number for "savepoint does not exist".
const NO_SUCH_SAVEPOINT: u16 = 1305;
/// The server's number for "value is out of range".
const OUT_OF_RANGE: u16 = 1690;
/// The server's number for "unknown column".
const NO_SUCH_COLUMN: u16 = 1054;
/// The server's number for "table does not exist".
const NO_SUCH_TABLE: u16 = 1146;
/// The server's number for "transaction characteristics cannot be changed while a transaction is in progress".
const TRANSACTION_OPEN: u16 = 1568;
/// The server's number for "lock wait time-out exceeded".
const LOCK_WAIT: u16 = 1205;
/// The server's number for "command denied to user for table".
const NO_SUCH_PRIVILEGE: u16 = 1142;
/// The server's number for "you need the … privilege".
const NO_PRIVILEGE: u16 = 1227;
/// The server's number for "cannot convert a string to another character set".
const NO_TEXT: u16 = 3854;

/// The server's numbers for "view references invalid tables or lacks rights on them", for "the definer does not exist",
/// and for the latter where the account may not know it.
const VIEW_UNUSABLE: [u16; 3] = [1356, 1449, 1045];

/// The server's number of an error, if the server sent one.
#[must_use]
pub fn error_number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
    Some(error.number())
}
