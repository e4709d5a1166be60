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
    /// A table or a privilege is missing, or the storage fails: all calls of this kind fail until an operator helps.
    Setup,
    /// Something in the call.
    Call,
}

/// Classifies a refusal; `None` if the server did not answer.
#[must_use]
pub fn refusal(error: &sqlx::Error) -> Option<Refusal> {
    super::error_number(error).map(class)
}

const fn class(number: u16) -> Refusal {
    match number {
        // Lock wait time-out, deadlock, also of locks by name; NOWAIT; a row that has changed since this transaction first
        // read (MariaDB from 11.6.2 on); a conflict between members of a group.
        1205 | 1213 | 3058 | 3572 | 1020 | 3101 => Refusal::Contention,
        1305 => Refusal::RolledBack,
        // Too many connections, of all or of this user; no memory, thread or undo log for one more; shutdown; connection
        // killed, "gone", disconnected after a long idle time; a Galera node without its cluster.
        1040 | 1203 | 1226 | 1041 | 1135 | 1637 | 1053 | 1927 | 3169 | 4031 | 1047
        // Read-only: a fail-over, by an option, by the transaction's default, by the server's mode.
        | 1290 | 1792 | 1836 | 1874
        // Disk, file or table space full. (Not 1030, which is also a damaged page: that does not pass.)
        | 1021 | 1026 | 1114
        // No login: wrong password, as while it is changed; host refused or blocked; account expired, locked or blocked.
        | 1045 | 1698 | 1129 | 1130 | 1820 | 1862 | 3118 | 3955 | 4151 => Refusal::Unavailable,
        // An error of a storage engine; access denied to a database, a table, a column, a command; a database or a table
        // is missing, as during a restore.
        1030 | 1044 | 1142 | 1143 | 1227 | 1049 | 1146 => Refusal::Setup,
        _ => Refusal::Call,
    }
}

/// Whether an error passes by itself: its source chain has an [`sqlx::Error`] of the connection or the pool, or a refusal
/// for contention or by a server that is unavailable. A deadlock, a lost connection and a full disk pass; a broken
/// constraint and an I/O error of something else do not.
///
/// The chain is all that can be seen. An error that shows another one as itself (`#[error(transparent)]` of `thiserror`)
/// hides it: of such errors only refusals of the server are found. Give them a text, and the other error as `#[source]` or
/// `#[from]`. [`anyhow::Error`](https://docs.rs/anyhow) shows its chain as `error.as_ref()`.
#[must_use]
pub fn is_passing(error: &(dyn Error + 'static)) -> bool {
    successors(Some(error), source).any(passes)
}

fn source<'a>(error: &&'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    (*error).source()
}

fn passes(error: &(dyn Error + 'static)) -> bool {
    use sqlx::Error as E;
    let known = error.downcast_ref::<E>();
    let known = known.or_else(|| error.downcast_ref::<Box<E>>().map(AsRef::as_ref));
    match known.or_else(|| error.downcast_ref::<Arc<E>>().map(AsRef::as_ref)) {
        Some(E::Io(_) | E::Tls(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed | E::BeginFailed) => true,
        Some(other) => refusal(other).is_some_and(Refusal::passes),
        // The source of an `sqlx::Error`, which may itself be hidden.
        None => error.downcast_ref::<Box<dyn DatabaseError>>().is_some_and(|refused| {
            let number = refused.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
            number.is_some_and(|number| class(number).passes())
        }),
    }
}

impl Refusal {
    fn passes(self) -> bool {
        matches!(self, Self::Contention | Self::Unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_class() {
        let classes = [1213, 1305, 1053, 1045, 1146, 1062].map(class);
        let expected = [
            Refusal::Contention,
            Refusal::RolledBack,
            Refusal::Unavailable,
            Refusal::Unavailable,
            Refusal::Setup,
            Refusal::Call,
        ];
        assert_eq!(classes, expected);
        let passing = [Refusal::Contention, Refusal::Unavailable].map(Refusal::passes);
        let lasting = [Refusal::RolledBack, Refusal::Setup, Refusal::Call].map(Refusal::passes);
        assert_eq!((passing, lasting), ([true; 2], [false; 3]));
    }
}
