//! How to reach the database.

use std::{
    io::{Error, ErrorKind},
    str::FromStr as _,
};

use outbox_core::{
    sqlx::{
        self, ConnectOptions as _, MySqlConnection,
        mysql::{MySqlConnectOptions, MySqlSslMode},
    },
    store::session,
};

use crate::config::Database;

/// No server greets with more bytes.
const LONGEST_GREETING: u32 = 1 << 16;

/// The options that a database URL stands for. Unless it says otherwise (`ssl-mode=`), a server on this machine is reached in plain
/// text, and one elsewhere by TLS with its name verified: sqlx would fall back to plain text in silence.
pub fn options(database: &Database) -> Result<MySqlConnectOptions, sqlx::Error> {
    let url = database.url.0.as_str();
    let mut options = MySqlConnectOptions::from_str(url)?.disable_statement_logging();
    if let Some(password) = &database.password {
        options = options.password(&password.0);
    }
    if url.contains("ssl-mode=") || url.contains("sslmode=") {
        return Ok(options);
    }
    let host = options.get_host();
    let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    Ok(options.ssl_mode(if local { MySqlSslMode::Disabled } else { MySqlSslMode::VerifyIdentity }))
}

/// Opens a connection and sets it up for the relay.
pub(crate) async fn connect(options: &MySqlConnectOptions) -> Result<MySqlConnection, sqlx::Error> {
    let mut connection = options.connect().await.map_err(explain)?;
    session::prepare(&mut connection).await?;
    Ok(connection)
}

/// An error of connecting, with what to do about it where the driver does not tell.
fn explain(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Io(error) if is_foreign(&error) => {
            let text = format!("what answers there is no MySQL or MariaDB: correct host and port in the URL ({error})");
            sqlx::Error::Io(Error::new(error.kind(), text))
        }
        sqlx::Error::Tls(error) if error.to_string() == "server does not support TLS" => {
            let text = format!(
                "{error}: give it a certificate, or add ssl-mode=disabled to the URL where the network is trusted"
            );
            sqlx::Error::Tls(text.into())
        }
        other => other,
    }
}

/// Whether the first bytes of something else, letters or those of TLS, were taken for the length of a packet.
fn is_foreign(error: &Error) -> bool {
    // "expected to read 5526600 bytes, got 43 bytes at EOF"
    let text = error.to_string();
    let expected = text.strip_prefix("expected to read ").and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    error.kind() == ErrorKind::UnexpectedEof && expected.is_some_and(|bytes| bytes > LONGEST_GREETING)
}
