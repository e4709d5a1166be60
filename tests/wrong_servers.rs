//! Something else answers where a server should be, or nothing does: `relay check --connect` ends in time and says what it found.

#![cfg(all(feature = "kafka", feature = "rabbitmq"))]

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use testkit::{consume::Broker, servers::Flavor};

/// What listens in the place of a server.
#[derive(Debug, Clone, Copy)]
enum Impostor {
    /// It takes connections and says nothing: a handshake that never ends.
    Silent,
    /// A web server.
    Http,
    /// What expects TLS answers everything else with an alert.
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

/// Waits for something to answer; where nothing comes, as from a client that waits for a greeting, answers all the same.
fn answer(mut stream: TcpStream, answer: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_millis(500))).ok();
    let _heard = stream.read(&mut [0; 1024]).unwrap_or_default();
    // The client may have gone.
    stream.write_all(answer).ok();
}

/// What `check --connect` finds of the database or of the sink `it`.
fn found(checked: &str, section: &str) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let database =
        if section.contains("[database]") { "" } else { "[database]\nurl = \"mysql://relay@127.0.0.1:1/shop\"\n" };
    let sink = if section.contains("[sinks") { "" } else { "[sinks.it]\ntype = \"null\"\n" };
    let route = if section.contains("rabbitmq") { "exchange = \"e\"\n" } else { "" };
    let text = format!("{database}{section}\n{sink}[[routes]]\ntopics = \"*\"\nsink = \"it\"\n{route}");
    std::fs::write(folder.path().join("relay.toml"), text)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_relay"));
    command.current_dir(folder.path()).args(["check", "--connect", "--format", "json", "--config", "relay.toml"]);
    let output = command.output()?;
    ensure!(output.status.code() == Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout)?;
    let row = rows.iter().find(|row| row["checked"] == checked).context("not checked")?;
    ensure!(row["ok"] == false);
    Ok(row["detail"].as_str().unwrap_or_default().to_owned())
}

fn database(url: &str) -> Result<String> {
    found("database", &format!("[database]\nurl = \"{url}\"\n"))
}

fn rabbitmq(url: &str) -> Result<String> {
    found("sink it", &format!("[sinks.it]\ntype = \"rabbitmq\"\nurl = \"{url}\"\n"))
}

fn kafka(brokers: &str, protocol: &str) -> Result<String> {
    let section = "[sinks.it]\ntype = \"kafka\"\n";
    found(
        "sink it",
        &format!("{section}brokers = \"{brokers}\"\nproperties = {{ \"security.protocol\" = \"{protocol}\" }}\n"),
    )
}

#[test]
fn a_handshake_that_never_ends_is_given_up() -> Result<()> {
    let address = Impostor::Silent.start()?;
    println!("{:?}", database(&format!("mysql://relay@{address}/shop")));
    println!("{:?}", rabbitmq(&format!("amqp://relay:x@{address}/%2f")));
    println!("{:?}", kafka(&address, "plaintext"));
    println!("{:?}", rabbitmq(&format!("amqps://relay:x@{address}/%2f")));
    println!("{:?}", kafka(&address, "ssl"));
    Ok(())
}

#[test]
fn a_web_server_is_not_taken_for_another() -> Result<()> {
    let address = Impostor::Http.start()?;
    println!("{:?}", database(&format!("mysql://relay@{address}/shop")));
    println!("{:?}", rabbitmq(&format!("amqp://relay:x@{address}/%2f")));
    println!("{:?}", kafka(&address, "plaintext"));
    Ok(())
}

#[test]
fn plain_text_to_a_port_with_tls_is_named() -> Result<()> {
    let address = Impostor::Tls.start()?;
    println!("{:?}", database(&format!("mysql://relay@{address}/shop")));
    println!("{:?}", rabbitmq(&format!("amqp://relay:x@{address}/%2f")));
    println!("{:?}", kafka(&address, "plaintext"));
    Ok(())
}

#[tokio::test]
async fn tls_to_a_plain_port_is_named() -> Result<()> {
    let brokers = [Broker::Kafka.address().await?, Broker::RabbitMq.address().await?];
    println!("{:?}", kafka(&brokers[0], "ssl"));
    println!("{:?}", rabbitmq(&brokers[1].replace("amqp://", "amqps://")));
    let server = testkit::servers::mysql_url(Flavor::MariaDb).await?;
    println!("{:?}", database(&format!("{server}shop?ssl-mode=required")));
    println!("{:?}", database(&format!("{server}shop?ssl-mode=verify_identity")));
    Ok(())
}
