//! Explains why a server cannot be used, in one sentence that names the cause and the remedy.

use outbox_core::{sqlx, store::error_number};

/// An error as a driver reports it.
#[derive(Clone, Copy)]
pub enum Trouble<'a> {
    /// An error of sqlx.
    Database(&'a sqlx::Error),
    /// librdkafka's text about a connection.
    #[cfg(feature = "kafka")]
    Kafka(&'a str),
    /// An error of lapin.
    #[cfg(feature = "rabbitmq")]
    RabbitMq(&'a lapin::Error),
    /// The text of an error of RabbitMQ's management API.
    #[cfg(feature = "rabbitmq")]
    Management(&'a str),
}

/// Words in the error of a destination to which the relay may not write, by which operators get their remedy.
pub(crate) const FORBIDDEN: &str = "may not write";

/// No server's greeting has more bytes.
const LONGEST_GREETING: u32 = 1 << 16;

/// Returns the cause and the remedy, followed by the driver's own words. Returns the words alone if no remedy is known.
#[must_use]
pub fn explain(trouble: Trouble<'_>) -> String {
    let (known, words) = match trouble {
        Trouble::Database(error) => of_database(error),
        #[cfg(feature = "kafka")]
        Trouble::Kafka(words) => (find(KAFKA, words), words.to_owned()),
        #[cfg(feature = "rabbitmq")]
        Trouble::RabbitMq(error) => of_rabbitmq(error),
        #[cfg(feature = "rabbitmq")]
        Trouble::Management(words) => (find(MANAGEMENT, words), words.to_owned()),
    };
    with_cause(known, words)
}

/// Does the same for the errors of a sink that has this table of words and sentences.
#[cfg(feature = "http")]
pub(crate) fn told(table: &[(&str, &'static str)], words: &str) -> String {
    with_cause(find(table, words), words.to_owned())
}

fn with_cause(known: Option<&'static str>, words: String) -> String {
    match known {
        Some(known) => format!("{known} ({words})"),
        None => words,
    }
}

/// Returns the sentence whose text is in the driver's words.
fn find(table: &[(&str, &'static str)], words: &str) -> Option<&'static str> {
    table.iter().find(|(text, _)| words.contains(text)).map(|(_, sentence)| *sentence)
}

fn of_database(error: &sqlx::Error) -> (Option<&'static str>, String) {
    let words = match error.as_database_error() {
        // Cut, because it may quote a statement.
        Some(refused) => {
            let message: String = refused.message().chars().take(200).collect();
            match error_number(error).and_then(of_number) {
                Some(known) => return (Some(known), format!("{}: {message}", error_number(error).unwrap_or_default())),
                None => {
                    return (None, format!("the server refused: {} ({message})", refused.code().unwrap_or_default()));
                }
            }
        }
        None => error.to_string(),
    };
    if is_foreign(&words) {
        return (Some("what answers there is no MySQL or MariaDB: correct host and port in the URL"), words);
    }
    (find(DATABASE, &words), words)
}

/// Explains the server's error number. MariaDB has numbers of its own for the same errors.
fn of_number(number: u16) -> Option<&'static str> {
    Some(match number {
        1045 | 1698 => {
            "user or password is wrong, \
             or the account demands TLS and this connection has none: correct `database.url` or \
             `database.password`, and look at SHOW CREATE USER"
        }
        1044 => "the account may not use this database: correct its name in `database.url`, or run deploy/grants",
        1142 | 1143 | 1227 => "the account lacks a privilege: run deploy/grants",
        1049 => "the database does not exist: create it, or correct its name in `database.url`",
        1040 => "the server has no connection left: raise its max_connections, or close others",
        1203 | 1226 => "the account has no connection left: raise its MAX_USER_CONNECTIONS, or close others",
        1129 => "the server has blocked this host after broken connections: FLUSH HOSTS, and look for what breaks them",
        1130 => "the server lets no account in from this host: make one for it, as in 'relay'@'10.0.0.%'",
        1251 | 1524 => {
            "the server and this driver share no way to log in to the account: ALTER USER … IDENTIFIED WITH \
             caching_sha2_password, or on MariaDB mysql_native_password"
        }
        1820 | 1862 => "the account's password has expired: ALTER USER … IDENTIFIED BY a new one",
        3118 | 4151 => "the account is locked: ALTER USER … ACCOUNT UNLOCK",
        3955 => "the account is blocked after failed logins: correct the password, then ALTER USER … ACCOUNT UNLOCK",
        1290 | 1836 => "the server is read-only, as a replica is: let `database.url` name the primary",
        3032 | 4312 | 4313 => {
            "the server is in offline mode: when its maintenance is over, SET GLOBAL offline_mode = OFF"
        }
        1064 => {
            "what answers does not know the relay's statements: a proxy that takes only one statement in a text, or a \
             server before MySQL 8.0.13 or MariaDB 10.6: allow multi-statements in the proxy, or let `database.url` \
             name a server"
        }
        1461 => {
            "the server has no prepared statement left: look for a client that does not close its own \
             (performance_schema.prepared_statements_instances), or SET GLOBAL max_prepared_stmt_count to more"
        }
        1665 => "the server logs statements, and rows are needed at READ COMMITTED: SET GLOBAL binlog_format = ROW",
        3159 => "the server demands TLS (require_secure_transport): remove ssl-mode from `database.url`",
        _ => return None,
    })
}

const DATABASE: &[(&str, &str)] = &[
    (
        "unknown authentication plugin",
        "the driver does not know the account's authentication plugin: ALTER USER … IDENTIFIED WITH \
         caching_sha2_password, or on \
         MariaDB IDENTIFIED VIA mysql_native_password USING PASSWORD('…')",
    ),
    (
        "mysql_cleartext_plugin disabled",
        "the account takes its password in clear text (IAM, PAM, LDAP), which goes over verified TLS alone: set \
         ssl-mode=VERIFY_IDENTITY in `database.url`, and ssl-ca=/path for an authority of your own",
    ),
    (
        "server does not support TLS",
        "the server has no TLS: give it a certificate, or set ssl-mode=disabled in `database.url` and \
         database.plaintext = true where the network is trusted",
    ),
    (
        "UnknownIssuer",
        "the server's certificate is of an authority that is not trusted here: name the authority's file in \
         `database.url`, ssl-ca=/path",
    ),
    (
        "not valid for name",
        "the server's certificate is for another name: use that name in `database.url`, or give the server one for \
         this name",
    ),
    ("certificate expired", "the server's certificate has expired: renew it"),
    (
        "CertificateRequired",
        "the server demands a certificate: name one in `database.url`, ssl-cert=/path and ssl-key=/path",
    ),
    ("Connection refused", "nothing listens there: start the server, or correct host and port in `database.url`"),
    ("No such file", "there is no such file or socket: start the server, or correct the paths in `database.url`"),
    ("failed to lookup address", "the host's name is not known here: correct it in `database.url`"),
];

/// Whether the first bytes of another protocol, letters or those of TLS, were taken for the length of a packet:
/// "expected to read 5526600 bytes, got 43 bytes at EOF".
fn is_foreign(words: &str) -> bool {
    let rest = words.split_once("expected to read ").map(|(_, rest)| rest);
    let expected = rest.and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    expected.is_some_and(|bytes| bytes > LONGEST_GREETING)
}

/// librdkafka takes the first bytes of a foreign answer for its length, and advises raising a limit.
#[cfg(feature = "kafka")]
const KAFKA: &[(&str, &str)] = &[
    (
        "Invalid response size",
        "what answers there does not speak Kafka's protocol: correct `brokers`, or \"security.protocol\" where it \
         expects TLS",
    ),
    (
        "acquire SASL OAUTHBEARER token",
        "the issuer gives no token: correct \"sasl.oauthbearer.token.endpoint.url\" and the client's id and secret in \
         the sink's properties, or start the issuer",
    ),
    (
        "invalid_token",
        "the broker does not take the issuer's token: compare its issuer, audience and keys with the broker's \
         sasl.oauthbearer.expected.issuer, …expected.audience and …jwks.endpoint.url, and both clocks",
    ),
    (
        "SASL authentication error",
        "user or password is wrong: correct \"sasl.username\" and \"sasl.password\" in the sink's properties",
    ),
    (
        "Unsupported SASL mechanism",
        "the broker has no such SASL mechanism: correct \"sasl.mechanism\" in the sink's properties",
    ),
    (
        "SASL authentication mechanism",
        "this listener knows no SASL: correct `brokers`, or \"security.protocol\" in the sink's properties",
    ),
    (
        "not valid in current SASL state",
        "this listener knows no SASL: correct `brokers`, or \"security.protocol\" in the sink's properties",
    ),
    (
        "certificate verify failed",
        "the broker's certificate is not trusted, expired or for another name: name its authority \
         in \"ssl.ca.location\", and the broker as in its certificate",
    ),
    (
        "connecting to a PLAINTEXT broker listener",
        "this listener has no TLS: correct `brokers`, or \"security.protocol\" in the sink's properties",
    ),
    // The same error, if the broker has hung up before its answer was read.
    (
        "in state SSL_HANDSHAKE",
        "this listener has no TLS: correct `brokers`, or \"security.protocol\" in the sink's properties",
    ),
    ("Connection refused", "nothing listens there: start the broker, or correct `brokers`"),
    (
        "Topic authorization failed",
        "the relay may not write to this topic: allow its user Describe and Write (kafka-acls.sh)",
    ),
    ("Failed to resolve", "the host's name is not known here: correct `brokers`"),
];

#[cfg(feature = "rabbitmq")]
fn of_rabbitmq(error: &lapin::Error) -> (Option<&'static str>, String) {
    use lapin::ErrorKind::{InvalidProtocolVersion, ParsingError};
    let words = error.to_string();
    let foreign =
        "what answers there does not speak AMQP 0-9-1: correct host and port, or use amqps:// where it expects TLS";
    match error.kind() {
        ParsingError(_) | InvalidProtocolVersion(_) => (Some(foreign), words),
        _ => (find(RABBITMQ, &words), words),
    }
}

#[cfg(feature = "rabbitmq")]
const RABBITMQ: &[(&str, &str)] = &[
    (
        "Login was refused",
        "user or password is wrong, or it is guest from another machine: correct `url` or `password` of the sink",
    ),
    (
        "write access to",
        "the relay may not write to this exchange: give its user the right (`rabbitmqctl set_permissions`; amq.default \
         is the default exchange)",
    ),
    (
        "internal exchange",
        "the exchange is internal and takes no messages of clients: correct the route, or declare it again, not \
         internal",
    ),
    (
        "number of channels opened",
        "the broker has no channel left for this user or node: raise its limit (`rabbitmqctl set_user_limits`, \
         max-channels), or close others",
    ),
    (
        "connection limit",
        "the broker has no connection left for this user or virtual host: raise its limit, or close others",
    ),
    (
        "vhost",
        "there is no such virtual host, or the user may not use it: correct it in `url`, or `rabbitmqctl \
         set_permissions`",
    ),
    (
        "InvalidContentType",
        "what answers there does not speak TLS: correct the port, or use amqp:// where the network is trusted",
    ),
    (
        "native certificates",
        "no authority is known: set `ca_file` of the sink, install the system's certificates, or name a file with some \
         in SSL_CERT_FILE",
    ),
    (
        "UnknownIssuer",
        "the broker's certificate is of an authority that is not trusted here: name its file in `ca_file` of the sink",
    ),
    (
        "not valid for name",
        "the broker's certificate is for another name: use that name in `url`, or give the broker one for this name",
    ),
    ("certificate expired", "the broker's certificate has expired: renew it"),
    ("CertificateRequired", "the broker demands a certificate: set `certificate_file` and `key_file` of the sink"),
    ("Connection refused", "nothing listens there: start the broker, or correct `url` of the sink"),
    ("failed to lookup address", "the host's name is not known here: correct `url` of the sink"),
];

#[cfg(feature = "rabbitmq")]
const MANAGEMENT: &[(&str, &str)] = &[
    ("Connection refused", "nothing listens there: enable rabbitmq_management, or correct `management_url`"),
    ("failed to lookup address", "the host's name is not known here: correct `management_url`"),
    ("host not found", "the host's name is not known here: correct `management_url`"),
    ("timeout", "the management API did not answer in time: look at the load of its node"),
    ("request limit", "an exchange has too many bindings to be read"),
    (
        "InvalidContentType",
        "what answers there does not speak TLS: correct the port of `management_url`, or use http://",
    ),
    (
        "UnknownIssuer",
        "the certificate of the management API is of an authority that is not trusted here: name its file in `ca_file` \
         of the sink",
    ),
    (
        "not valid for name",
        "the certificate of the management API is for another name: use that name in `management_url`",
    ),
    ("certificate expired", "the certificate of the management API has expired: renew it"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_without_multi_statements_and_exhausted_prepared_statements_are_told() {
        assert!(of_number(1064).is_some_and(|told| told.contains("allow multi-statements in the proxy")));
        assert!(of_number(1461).is_some_and(|told| told.contains("max_prepared_stmt_count")));
    }

    /// For servers that no test can start here; the others are in tests/connect/login.rs.
    #[test]
    fn a_login_that_the_driver_cannot_do_is_told_with_its_remedy() {
        for (words, remedy) in [
            ("unknown authentication plugin: client_ed25519", "IDENTIFIED VIA mysql_native_password"),
            ("unknown authentication plugin: parsec", "IDENTIFIED VIA mysql_native_password"),
            ("mysql_cleartext_plugin disabled", "set ssl-mode=VERIFY_IDENTITY"),
        ] {
            let told = explain(Trouble::Database(&sqlx::Error::Protocol(words.to_owned())));
            assert!(told.contains(remedy) && told.contains(words), "{told}");
        }
        assert_eq!(explain(Trouble::Database(&sqlx::Error::WorkerCrashed)), sqlx::Error::WorkerCrashed.to_string());
    }
}
