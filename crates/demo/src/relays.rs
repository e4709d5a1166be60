//! Two relays as child processes.

use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::{Child, Command},
};

use crate::{Options, rabbitmq::EXCHANGE};

/// The relays of the demo.
pub(crate) struct Relays {
    relays: Vec<Relay>,
    folder: PathBuf,
}

struct Relay {
    name: String,
    port: u16,
    child: Child,
    alive: bool,
}

/// What a relay shows of itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    pub(crate) name: String,
    pub(crate) alive: bool,
    pub(crate) claimed: u64,
    pub(crate) published: u64,
    pub(crate) in_flight: u64,
    pub(crate) takeovers: u64,
}

impl Relays {
    /// Starts two relays on the database, and waits until they are ready.
    pub(crate) async fn start(options: &Options, database: &str) -> Result<Self> {
        let program = match &options.relay {
            Some(program) => program.clone(),
            None => std::env::current_exe()?.with_file_name("relay"),
        };
        let folder = std::env::temp_dir().join(format!("outbox-demo-{}", std::process::id()));
        tokio::fs::create_dir_all(&folder).await?;
        let mut relays = Self { relays: Vec::new(), folder };
        for name in ["relay-1", "relay-2"] {
            let relay = relays.start_one(&program, name, options, database).await?;
            relays.relays.push(relay);
        }
        for relay in &relays.relays {
            relay.wait_until_ready().await?;
        }
        Ok(relays)
    }

    async fn start_one(&self, program: &Path, name: &str, options: &Options, database: &str) -> Result<Relay> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let file = self.folder.join(format!("{name}.toml"));
        tokio::fs::write(&file, configuration(name, port, options, database)).await?;
        let log = std::fs::File::create(self.folder.join(format!("{name}.log")))?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&file).arg("run").stdin(Stdio::null()).stderr(log).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
        Ok(Relay { name: name.to_owned(), port, child, alive: true })
    }

    /// Kills the first relay without warning, once.
    pub(crate) async fn kill_first(&mut self) -> Result<()> {
        if let Some(relay) = self.relays.first_mut().filter(|relay| relay.alive) {
            relay.alive = false;
            relay.child.kill().await?;
        }
        Ok(())
    }

    /// What the relays show of themselves.
    pub(crate) async fn look(&self) -> Vec<View> {
        let mut views = Vec::new();
        for relay in &self.relays {
            views.push(relay.look().await);
        }
        views
    }

    pub(crate) fn addresses(&self) -> String {
        let alive = self.relays.iter().filter(|relay| relay.alive);
        alive.map(|relay| format!("http://127.0.0.1:{}/metrics", relay.port)).collect::<Vec<_>>().join(", ")
    }

    /// Ends the relays and removes their files.
    pub(crate) async fn stop(mut self) {
        for relay in &mut self.relays {
            // A relay that has ended already needs no end.
            relay.child.kill().await.ok();
        }
        tokio::fs::remove_dir_all(&self.folder).await.ok();
    }
}

impl Relay {
    async fn wait_until_ready(&self) -> Result<()> {
        for _ in 0..300 {
            if ask(self.port, "/readyz").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("{} was not ready within 30 s", self.name)
    }

    async fn look(&self) -> View {
        let text = ask(self.port, "/metrics").await.unwrap_or_default();
        View {
            name: self.name.clone(),
            alive: self.alive,
            claimed: sum(&text, "outbox_relay_claimed_messages_total"),
            published: sum(&text, "outbox_relay_published_messages_total"),
            in_flight: sum(&text, "outbox_relay_in_flight_messages"),
            takeovers: sum(&text, "outbox_relay_lease_takeovers_total"),
        }
    }
}

/// A short lease, so that the take-over can be watched.
fn configuration(name: &str, port: u16, options: &Options, database: &str) -> String {
    let mut text = format!(
        "[database]\nurl = \"{database}\"\n[relay]\nowner = \"{name}\"\nlease = \"4s\"\npublish_deadline = \"2s\"\n\
         settle_deadline = \"1s\"\nsafety = \"500ms\"\n[http]\nlisten = \"127.0.0.1:{port}\"\n"
    );
    if options.broker.rabbitmq() {
        let sink = format!(
            "[sinks.rabbitmq]\ntype = \"rabbitmq\"\nplaintext = true\nurl = \"{}\"\n[[routes]]\ntopics = \"mail.*\"\nsink = \"rabbitmq\"\n\
             exchange = \"{EXCHANGE}\"\n",
            options.amqp
        );
        text.push_str(&sink);
    }
    if options.broker.kafka() {
        let sink = format!(
            "[sinks.kafka]\ntype = \"kafka\"\nplaintext = true\nbrokers = \"{}\"\n[[routes]]\ntopics = \"*\"\nsink = \"kafka\"\n",
            options.kafka
        );
        text.push_str(&sink);
    }
    text
}

async fn ask(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The sum of a metric over its labels.
fn sum(text: &str, metric: &str) -> u64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(metric)?;
        let rest = if rest.starts_with('{') { rest.split_once('}')?.1 } else { rest };
        rest.strip_prefix(' ')?.parse::<u64>().ok()
    };
    text.lines().filter_map(value).sum()
}
