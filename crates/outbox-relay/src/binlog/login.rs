//! The login of a stream: that of the relay's own connections, or another account on the same server.

use std::{path::PathBuf, time::Duration};

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};
use outbox_core::sqlx::{self, mysql::MySqlSslMode};
use url::Url;

use crate::{
    database,
    settings::{Database, Secret},
};

/// The options of a stream, in the order in which they are tried, and the schema. Reads the files of secrets.
pub(crate) fn logins(database: &Database) -> Result<(Vec<Opts>, String), sqlx::Error> {
    let options = database::options(database)?;
    let wrong = |text: &str| sqlx::Error::Configuration(text.into());
    let url = Url::parse(&database.url.current()).map_err(|_secret| wrong("it does not read as a URL"))?;
    let schema = options.get_database().ok_or_else(|| wrong("it names no database"))?.to_owned();
    let own = Opts::from_url(&bare(&url)).map_err(|_secret| wrong("the driver of the binary log does not take it"))?;
    let given = |password: &Option<Secret>| password.as_ref().map(|password| password.current().into_owned());
    let (user, password) = match &database.log {
        Some(log) => (log.user.as_str(), given(&log.password)),
        None => (options.get_username(), given(&database.password).or_else(|| own.pass().map(str::to_owned))),
    };
    let base = OptsBuilder::default()
        .ip_or_hostname(options.get_host().trim_matches(['[', ']']))
        .tcp_port(options.get_port())
        .user(Some(user))
        .pass(password)
        .db_name(Some(&schema))
        .prefer_socket(false)
        .tcp_keepalive(Some(Duration::from_secs(10)))
        .socket(options.get_socket().map(|socket| socket.to_string_lossy().into_owned()));
    let mode = options.get_ssl_mode();
    let base = base.enable_cleartext_plugin(matches!(mode, MySqlSslMode::VerifyIdentity));
    let secure = || Opts::from(base.clone().ssl_opts(tls(&url, mode)));
    let plain = || Opts::from(base.clone());
    let logins = match mode {
        _ if options.get_socket().is_some() => vec![plain()],
        MySqlSslMode::Disabled => vec![plain()],
        MySqlSslMode::Preferred => vec![secure(), plain()],
        _ => vec![secure()],
    };
    Ok((logins, schema))
}

/// The URL without its parameters, which are those of another driver.
fn bare(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    let text = String::from(url);
    // The other driver takes this name, too.
    text.strip_prefix("mariadb:").map_or_else(|| text.clone(), |rest| format!("mysql:{rest}"))
}

fn tls(url: &Url, mode: MySqlSslMode) -> SslOpts {
    let file = |names: [&str; 2]| {
        let value = url.query_pairs().find(|(name, _)| names.contains(&&**name))?.1.into_owned();
        Some(PathBuf::from(value))
    };
    let mut tls = SslOpts::default()
        .with_danger_accept_invalid_certs(matches!(mode, MySqlSslMode::Preferred | MySqlSslMode::Required))
        .with_danger_skip_domain_validation(!matches!(mode, MySqlSslMode::VerifyIdentity));
    if let Some(authority) = file(["ssl-ca", "sslca"]) {
        tls = tls.with_root_certs(vec![authority.into()]);
    }
    if let (Some(certificate), Some(key)) = (file(["ssl-cert", "sslcert"]), file(["ssl-key", "sslkey"])) {
        tls = tls.with_client_identity(Some(ClientIdentity::new(certificate.into(), key.into())));
    }
    tls
}
