//! How to reach the database.

use std::str::FromStr as _;

use outbox_core::sqlx::{
    self, ConnectOptions as _,
    mysql::{MySqlConnectOptions, MySqlSslMode},
};

use crate::config::Database;

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
