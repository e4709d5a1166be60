use std::{io, net::SocketAddr};

use outbox_core::{BoxError, SchemaError};
use tokio::task::JoinError;

/// Why a relay or a worker does not start, or ends before its stop. A passing failure, such as a database or a broker
/// that is down, is no reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A setting cannot be used, or two do not fit together: change it.
    #[error(transparent)]
    Configuration(BoxError),
    /// The listener of `/metrics`, or of the API, cannot be opened.
    #[error("cannot listen on {address}: change `{key}`, or stop what listens there")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The key of the address in the configuration.
        key: &'static str,
        /// The answer of the system.
        source: io::Error,
    },
    /// The tables are those of a later release, or were changed: use a release that knows them.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A bug of this library, or a runtime that is shut down.
    #[error("a part of the relay failed: {0}")]
    Internal(String),
}

impl RunError {
    pub(crate) fn configuration(problem: impl Into<BoxError>) -> Self {
        Self::Configuration(problem.into())
    }
}

impl From<JoinError> for RunError {
    fn from(error: JoinError) -> Self {
        Self::Internal(error.to_string())
    }
}
