//! The meaning of the server's error numbers: one table for relays, consumers and workers.

use std::{error::Error, iter::successors, sync::Arc};

use sqlx::{error::DatabaseError, mysql::MySqlDatabaseError};

/// The class of a server's refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Other transactions were in the way.
    Contention,
    /// A savepoint is missing: the transaction was rolled back without an error, as on a Galera node. Also a missing
    /// function, which has the same number.
    RolledBack,
    /// The server takes no call of this kind for now, whatever its content.
    Unavailable,
    /// The server ended the call, or had no room for it. Any call may meet that, and a long or large one again and
    /// again: [`Losses`](crate::store::settle::losses::Losses) decide.
    Doubtful,
    /// A table or a privilege is missing, or the storage fails: all calls of this kind fail until an operator helps.
    Setup,
    /// Something in the call.
    Call,
}

/// Classifies a refusal; `None` if the server did not answer.
#[must_use]
pub fn refusal(error: &sqlx::Error) -> Option<Refusal> {
    crate::store::error_number(error).map(class)
}

/// The meaning of the numbers that a statement or a login can get, by the lists of MySQL 9.7 and MariaDB 10.11, of
/// ProxySQL and of other proxies. The two servers share the numbers up to 1887 and from 3000 to 3060. Of the others
/// MariaDB gives 4031, 4081, 4082 and 4094 another meaning, which is rare.
const fn class(number: u16) -> Refusal {
    match number {
        // Lock wait time-out, deadlock, also of locks by name, of services and of XA; NOWAIT; a lock given up for DDL;
        // a row that has changed since this transaction first read (MariaDB from 11.6.2 on); a conflict in a group.
        1205 | 1213 | 1613 | 1614 | 3058 | 3132 | 3133 | 3177 | 3572 | 1689 | 1020 | 3101 | 3197
        // A table was changed since the transaction or the prepared statement began.
        | 1412 | 1615 => Refusal::Contention,
        1305 => Refusal::RolledBack,
        // No connection, thread, file, undo log, temporary tablespace or prepared statement is left, for all or for
        // this user.
        1040 | 1203 | 1226 | 1135 | 1587 | 1637 | 3884 | 1461
        // A Galera node without its cluster; a group that changes its primary or has lost its majority; the server is
        // offline or is not there yet; NDB's temporary error. A proxy that reaches no server.
        | 1047 | 3781..=3783 | 3796..=3799 | 4094 | 3032 | 4312 | 4313 | 3168 | 1297 | 2002 | 2003 | 2005 | 9001 | 9002 | 9004
        // Read-only: a fail-over, by an option, by the transaction's default, by the server's mode, a schema or a
        // table.
        | 1290 | 1792 | 1836 | 1874 | 1881 | 3989 | 1036
        // Disk, file, table space, binary log or temporary files are full. (Not 1030, which is also a damaged page.)
        | 1004 | 1021 | 1026 | 1114 | 1534 | 1598 | 1878 | 3675
        // No login: wrong password, as while it is changed; host refused, blocked or unknown; account expired, locked
        // or blocked; no TLS, or no way to log in that both sides know; `init_connect` failed.
        | 1045 | 1698 | 1042 | 1043 | 1129 | 1130 | 1152 | 1184 | 1251 | 1524 | 1820 | 1862 | 3118 | 3159 | 3955 | 4150 | 4151 => {
            Refusal::Unavailable
        }
        // KILL QUERY, also in a sort; a time limit of statements.
        1028 | 1317 | 1969 | 3024
        // KILL, shutdown, "gone", idle for too long, the network; a proxy lost its server.
        | 1053 | 1154..=1161 | 1927 | 3169 | 4031 | 2006 | 2013 | 2055
        // Memory, locks, the binary log's cache or a group's limit were too small for it; an error during COMMIT or before, as of a
        // Galera node or a member of a group.
        | 1037 | 1038 | 1041 | 3015 | 4081 | 4082 | 1206 | 1197 | 1705 | 3231 | 1180 | 1181 | 3100 => Refusal::Doubtful,
        // An error of a storage engine, a file that cannot be read or written, a damaged table or index, a lost key of
        // an encrypted table.
        1016 | 1017 | 1023 | 1024 | 1030 | 1033 | 1034 | 1035 | 1194 | 1195 | 1296 | 1459 | 1707 | 1712 | 1810..=1812 | 1814 | 1817
        | 1877 | 1932 | 3185
        // Access denied to a database, a table, a column, a routine, a command, or to a view's definer.
        | 1044 | 1142 | 1143 | 1227 | 1345 | 1356 | 1370 | 1449 | 3879
        // A database, a table or a column is missing, as during a restore; a group or binary log that takes no such
        // table.
        | 1049 | 1146 | 1054 | 1665 | 1785 | 3098 => Refusal::Setup,
        _ => Refusal::Call,
    }
}

/// Whether an error passes by itself: its source chain has an [`sqlx::Error`] of the connection or the pool, or a
/// refusal for contention, by a server that is unavailable, or of a call that the server ended. A deadlock, a lost
/// connection, KILL and a full disk pass; a broken constraint and an I/O error of something else do not.
///
/// The chain is all that can be seen. An error that shows another one as itself (`#[error(transparent)]` of
/// `thiserror`) hides it: of such errors only refusals of the server are found. Give them a text, and the other error
/// as `#[source]` or `#[from]`. [`anyhow::Error`](https://docs.rs/anyhow) shows its chain as `error.as_ref()`.
#[must_use]
pub fn is_passing(error: &(dyn Error + 'static)) -> bool {
    successors(Some(error), source).any(passes)
}

/// Whether the source chain of an error has a refusal in doubt: see [`Refusal::Doubtful`].
#[must_use]
pub fn is_doubtful(error: &(dyn Error + 'static)) -> bool {
    successors(Some(error), source).any(|error| refused(error) == Some(Refusal::Doubtful))
}

fn source<'a>(error: &&'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    (*error).source()
}

fn passes(error: &(dyn Error + 'static)) -> bool {
    use sqlx::Error as E;
    match driver(error) {
        Some(E::Io(_) | E::Tls(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed | E::BeginFailed) => true,
        _ => refused(error).is_some_and(Refusal::passes),
    }
}

/// The error of the driver, if this is one, and not its source.
fn driver<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a sqlx::Error> {
    let known = error.downcast_ref::<sqlx::Error>();
    let known = known.or_else(|| error.downcast_ref::<Box<sqlx::Error>>().map(AsRef::as_ref));
    known.or_else(|| error.downcast_ref::<Arc<sqlx::Error>>().map(AsRef::as_ref))
}

fn refused(error: &(dyn Error + 'static)) -> Option<Refusal> {
    match driver(error) {
        Some(error) => refusal(error),
        // The source of an `sqlx::Error`, which may itself be hidden.
        None => {
            let refused = error.downcast_ref::<Box<dyn DatabaseError>>()?.try_downcast_ref::<MySqlDatabaseError>()?;
            Some(class(refused.number()))
        }
    }
}

impl Refusal {
    fn passes(self) -> bool {
        matches!(self, Self::Contention | Self::Unavailable | Self::Doubtful)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_class() {
        let table: [(Refusal, &[u16]); 6] = [
            (Refusal::Contention, &[1205, 1213, 1615, 3101]),
            (Refusal::RolledBack, &[1305]),
            (Refusal::Unavailable, &[1040, 1045, 1114, 1290, 1461, 1598, 3032, 3797, 4313, 9001]),
            (Refusal::Doubtful, &[1038, 1053, 1180, 1197, 1206, 1317, 1927, 1969, 2013, 3024, 3100, 3231]),
            (Refusal::Setup, &[1030, 1054, 1146]),
            (Refusal::Call, &[1048, 1062, 1064, 1105, 1153, 1364, 1406, 1452, 1644, 1690, 3819, 4025]),
        ];
        for (expected, numbers) in table {
            assert!(numbers.iter().all(|number| class(*number) == expected), "{expected:?}");
        }
    }

    #[test]
    fn the_calls_own_errors_and_those_of_the_set_up_do_not_pass() {
        let passing = [Refusal::Contention, Refusal::Unavailable, Refusal::Doubtful].map(Refusal::passes);
        let lasting = [Refusal::RolledBack, Refusal::Setup, Refusal::Call].map(Refusal::passes);
        assert_eq!((passing, lasting), ([true; 3], [false; 3]));
    }
}
