//! Connects to the database.

use std::sync::Arc;

use outbox_core::{
    sqlx::{
        self, ConnectOptions as _, MySqlConnection,
        mysql::{MySqlConnectOptions, MySqlSslMode},
    },
    store::session,
};
use url::Url;

use crate::settings::{Database, is_local};

/// The login of a program to its database.
#[derive(Clone)]
pub enum Login {
    /// As configured. Secrets in files are read at every connect, so that they can be changed.
    Configured(Database),
    /// With the options of a service.
    Given(Arc<MySqlConnectOptions>),
}

impl Login {
    /// Returns the options to connect with now.
    pub fn options(&self) -> Result<MySqlConnectOptions, sqlx::Error> {
        match self {
            Self::Configured(database) => options(database),
            Self::Given(options) => Ok(MySqlConnectOptions::clone(options)),
        }
    }
}

/// Returns the options of a database URL. Without `ssl-mode=`, a remote server is reached by TLS with its name
/// verified. A server on loopback or a socket is reached by TLS if it has TLS, and otherwise in plain text.
///
/// In plain text the driver encrypts the password, if the server asks for it, under any key that the server sends. The
/// driver has no option against that. So a password goes in plain text only to this machine, unless
/// `database.plaintext` is set.
pub fn options(database: &Database) -> Result<MySqlConnectOptions, sqlx::Error> {
    let wrong = |text: &str| sqlx::Error::Configuration(text.into());
    let url = Url::parse(&database.url.current()).map_err(|_secret| wrong("it does not read as a URL"))?;
    let mut options = MySqlConnectOptions::from_url(&url)?.disable_statement_logging();
    let log_password = database.log.as_ref().and_then(|log| log.password.as_ref());
    let has_password = url.password().is_some() || database.password.is_some() || log_password.is_some();
    if let Some(password) = &database.password {
        options = options.password(&password.current());
    }
    let is_near = options.get_socket().is_some() || is_local(options.get_host());
    if !url.query_pairs().any(|(name, _)| matches!(&*name, "ssl-mode" | "sslmode")) {
        options = options.ssl_mode(if is_near { MySqlSslMode::Preferred } else { MySqlSslMode::VerifyIdentity });
    }
    let mode = options.get_ssl_mode();
    let may_be_plain = matches!(mode, MySqlSslMode::Disabled | MySqlSslMode::Preferred);
    if may_be_plain && !is_near && has_password && !database.plaintext {
        return Err(wrong(
            "the password would go to another machine without TLS, under a key that nothing vouches for: remove \
             ssl-mode (TLS, verified), set ssl-mode=REQUIRED (TLS, not verified), use a socket or a tunnel to this \
             machine, or set database.plaintext = true where the network is trusted",
        ));
    }
    // IAM tokens and the like go in clear text, so only to a server whose name is verified.
    Ok(options.enable_cleartext_plugin(matches!(mode, MySqlSslMode::VerifyIdentity)))
}

/// Returns [`Login::options`]. The files of secrets are read on a thread that may block.
pub(crate) async fn current(login: &Login) -> Result<MySqlConnectOptions, sqlx::Error> {
    let login = login.clone();
    let read = tokio::task::spawn_blocking(move || login.options());
    read.await.map_err(|error| sqlx::Error::Configuration(error.into()))?
}

/// Opens a connection and sets it up for the relay.
pub async fn connect(login: &Login) -> Result<MySqlConnection, sqlx::Error> {
    let mut connection = current(login).await?.connect().await?;
    session::prepare(&mut connection).await?;
    Ok(connection)
}
