//! Another program answers in place of a server, or none does: the check ends in time and reports its finding.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use testkit::{
    consume::Broker,
    servers::{Flavor, MySqlOptions},
};

use crate::check::{self, Finding};

/// The findings if the answer is from no server of that kind.
const NO_DATABASE: &str =
    "the database cannot be reached: what answers there is no MySQL or MariaDB: correct host and port in the URL";
const NO_AMQP: &str = "unavailable: what answers there does not speak AMQP 0-9-1: correct host and port, or use \
                       amqps:// where it expects TLS (failed to parse";

/// A program in place of a server.
#[derive(Debug, Clone, Copy)]
enum Impostor {
    /// It takes connections and does not answer: a handshake that never ends.
    Silent,
    /// A web server.
    Http,
    /// A program that expects TLS answers everything else with an alert.
    Tls,
}

impl Impostor {
    /// Starts it; returns its address. It ends with the process.
    fn start(self) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                match self {
                    Self::Silent => silent.push(stream),
                    Self::Http => answer(stream, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
                    Self::Tls => answer(stream, &[0x15, 3, 1, 0, 2, 2, 70]),
                }
            }
        });
        Ok(address)
    }
}

/// Waits for bytes, and then answers. Answers even without any, because a client may wait for a greeting.
fn answer(mut stream: TcpStream, answer: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_millis(500))).ok();
    let _heard = stream.read(&mut [0; 1024]).unwrap_or_default();
    // The client may have hung up.
    stream.write_all(answer).ok();
}

/// Returns the problem that `check --connect` finds.
fn refused(finding: Finding) -> Result<String> {
    ensure!(!finding.ok, "{}", finding.detail);
    Ok(finding.detail)
}

fn database(url: &str) -> Result<String> {
    refused(check::database(url)?)
}

fn rabbitmq(url: &str) -> Result<String> {
    refused(check::rabbitmq(url, None)?)
}

fn kafka(brokers: &str, protocol: &str) -> Result<String> {
    refused(check::kafka(brokers, &format!("\"security.protocol\" = \"{protocol}\""))?)
}

/// The texts of drivers end with parts that differ from run to run.
fn says(found: &str, expected: &str) {
    assert!(found.starts_with(expected), "{found}");
}

#[test]
fn a_handshake_that_never_ends_is_given_up() -> Result<()> {
    let address = Impostor::Silent.start()?;
    says(&database(&format!("mysql://relay@{address}/shop"))?, "the database did not answer in time");
    for scheme in ["amqp", "amqps"] {
        let found = rabbitmq(&format!("{scheme}://relay:x@{address}/%2f"))?;
        assert_eq!(found, "unavailable: RabbitMQ did not answer in time");
    }
    for protocol in ["plaintext", "ssl"] {
        says(&kafka(&address, protocol)?, "unavailable: no broker answer");
    }
    Ok(())
}

#[test]
fn a_web_server_is_not_taken_for_another() -> Result<()> {
    let address = Impostor::Http.start()?;
    let found = database(&format!("mysql://relay@{address}/shop"))?;
    says(&found, &format!("{NO_DATABASE} (error communicating with database: expected to read 5526600 bytes"));
    says(&rabbitmq(&format!("amqp://relay:x@{address}/%2f"))?, NO_AMQP);
    let found = kafka(&address, "plaintext")?;
    let expected = format!(
        "unavailable: no broker answers: what answers there does not speak Kafka's protocol: correct `brokers`, \
         or \"security.protocol\" where it expects TLS ({address}/bootstrap: Receive failed: Invalid response size \
         1213486160"
    );
    says(&found, &expected);
    Ok(())
}

#[test]
fn plain_text_to_a_port_with_tls_is_named() -> Result<()> {
    let address = Impostor::Tls.start()?;
    let found = database(&format!("mysql://relay@{address}/shop"))?;
    says(&found, &format!("{NO_DATABASE} (error communicating with database: expected to read 66325 bytes"));
    says(&rabbitmq(&format!("amqp://relay:x@{address}/%2f"))?, NO_AMQP);
    says(&kafka(&address, "plaintext")?, "unavailable: no broker answers: ");
    Ok(())
}

#[tokio::test]
async fn tls_to_a_plain_port_is_named() -> Result<()> {
    let bootstrap = Broker::Kafka.address().await?;
    let amqp = Broker::RabbitMq.address().await?;
    let found = kafka(&bootstrap, "ssl")?;
    let expected = format!(
        "unavailable: no broker answers: this listener has no TLS: correct `brokers`, or \"security.protocol\" in the \
         sink's properties (ssl://{bootstrap}/bootstrap: "
    );
    says(&found, &expected);
    let found = rabbitmq(&amqp.replace("amqp://", "amqps://"))?;
    let expected = "unavailable: what answers there does not speak TLS: correct the port, or use amqp:// where the \
                    network is trusted (IO error: received corrupt message of type InvalidContentType)";
    assert_eq!(found, expected);
    let server = testkit::servers::mysql_url(Flavor::MariaDb).await?;
    for mode in ["required", "verify_identity"] {
        let found = database(&format!("{server}shop?ssl-mode={mode}"))?;
        let expected = "the database cannot be reached: the server has no TLS: give it a certificate, or set \
                        ssl-mode=disabled in `database.url` and database.plaintext = true where the network is trusted \
                        (error occurred while attempting to establish a TLS connection: server does not support TLS)";
        assert_eq!(found, expected);
    }
    Ok(())
}

#[tokio::test]
async fn a_login_that_is_refused_is_told_without_its_password() -> Result<()> {
    let bootstrap = Broker::Kafka.address().await?;
    let amqp = Broker::RabbitMq.address().await?;
    let sasl = "\"security.protocol\" = \"sasl_plaintext\", \"sasl.mechanism\" = \"PLAIN\", \"sasl.username\" \
                = \"relay\", \"sasl.password\" = \"canary-5bd1e995\"";
    let found = refused(check::kafka(&bootstrap, sasl)?)?;
    says(&found, "unavailable: no broker answers: this listener knows no SASL: correct `brokers`");
    ensure!(!found.contains("canary"), "{found}");
    let (_, place) = amqp.split_once('@').context("no login")?;
    let found = rabbitmq(&format!("amqp://relay:canary-5bd1e995@{place}"))?;
    ensure!(found.starts_with("unavailable: user or password is wrong") && found.contains("ACCESS_REFUSED"), "{found}");
    ensure!(found.contains("ACCESS_REFUSED") && !found.contains("canary"), "{found}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_only_looks_like_mysql_is_named() -> Result<()> {
    let server = MySqlOptions::new(Flavor::MariaDb).arg("--version=8.0.11-TiDB-v8.5.1").start().await?;
    let url = format!("{}mysql", server.url());
    let found = check::database(&url)?;
    ensure!(!found.ok && found.detail.contains("The server is TiDB"), "{}", found.detail);
    ensure!(check::doctor(&url)?.contains(&"server_version".to_owned()), "the doctor finds nothing");
    Ok(())
}
