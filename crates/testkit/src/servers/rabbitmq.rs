//! RabbitMQ, with its own Erlang port mapper: the system's would be shared with other nodes, and stay behind.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lapin::{Connection, ConnectionProperties};

use super::call::{Call, on_path};
use super::docker::Compose;
use super::host::{Host, blocking, folder};
use super::origin::{Kind, Origin, origin, own_process};
use super::{packages, ports};

/// A running RabbitMQ node with its own data. Drop kills it and its port mapper and removes its data.
#[derive(Debug)]
pub struct RabbitMq {
    host: Host,
    port: u16,
    management: Option<u16>,
    origin: Origin,
    node: Option<Node>,
}

/// The parts of a node that this process started.
#[derive(Debug)]
struct Node {
    _mapper: Host,
    control: Call,
}

impl RabbitMq {
    /// Starts a node and waits until it accepts connections.
    ///
    /// # Errors
    /// When there is no server to start (the error names the alternatives), or it does not answer; then with the end of
    /// its log.
    pub async fn start() -> Result<Self> {
        Self::launched(|| launch(None, &Plugin::default())).await
    }

    /// Starts a node with the management API, which costs about a second and 20 MiB more.
    ///
    /// # Errors
    /// As [`Self::start`], or when there is one in Docker only.
    pub async fn with_management() -> Result<Self> {
        let port = ports::free_port()?;
        let settings = format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
        Self::launched(move || launch(Some(port), &Plugin { name: "rabbitmq_management", settings })).await
    }

    /// Starts a node that takes a token of OAuth 2 as the password: of this public key, and for the audience
    /// `rabbitmq`.
    ///
    /// # Errors
    /// As [`Self::with_management`].
    pub async fn with_tokens(key: &Path) -> Result<Self> {
        let settings = format!(
            "auth_backends.1 = rabbit_auth_backend_oauth2\nauth_backends.2 = internal\n\
             auth_oauth2.resource_server_id = rabbitmq\nauth_oauth2.default_key = 1\n\
             auth_oauth2.signing_keys.1 = {}\n",
            key.display()
        );
        Self::launched(move || launch(None, &Plugin { name: "rabbitmq_auth_backend_oauth2", settings })).await
    }

    async fn launched(launch: impl FnOnce() -> Result<Self> + Send + 'static) -> Result<Self> {
        let mut server = blocking(launch).await?;
        server.ready().await?;
        Ok(server)
    }

    /// The address of its management API, without a user.
    ///
    /// # Errors
    /// When it has none.
    pub fn management_url(&self) -> Result<String> {
        Ok(format!("http://127.0.0.1:{}", self.management.context("the node has no management API")?))
    }

    /// Its address, for the user `guest` and the virtual host `/`.
    #[must_use]
    pub fn amqp_url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Runs `rabbitmqctl` against the node, for example `["set_vm_memory_high_watermark", "0.00001"]`, and returns its
    /// output.
    ///
    /// # Errors
    /// When the command fails; with its output.
    pub async fn ctl(&self, args: &[&str]) -> Result<String> {
        match (&self.host, &self.node) {
            (Host::Compose(compose), _) => compose.run(&[&["exec", "-T", "rabbitmq", "rabbitmqctl"], args].concat()),
            (_, Some(node)) => {
                let control = node.control.clone().args(args);
                blocking(move || control.output()).await
            }
            _ => bail!("there is no rabbitmqctl for this node"),
        }
    }

    /// Suspends a queue of the default virtual host, so that it takes and confirms nothing: like a quorum queue whose
    /// other nodes are away.
    ///
    /// # Errors
    /// When there is no such queue, or as [`Self::ctl`].
    pub async fn suspend_queue(&self, name: &str) -> Result<()> {
        self.tell_queue("suspend", name).await
    }

    /// Resumes a queue.
    ///
    /// # Errors
    /// As [`Self::suspend_queue`].
    pub async fn resume_queue(&self, name: &str) -> Result<()> {
        self.tell_queue("resume", name).await
    }

    async fn tell_queue(&self, what: &str, name: &str) -> Result<()> {
        let queue = format!("rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{name}\">>))");
        self.ctl(&["eval", &format!("{{ok, Q}} = {queue}, sys:{what}(amqqueue:get_pid(Q)).")]).await?;
        Ok(())
    }

    async fn ready(&mut self) -> Result<()> {
        let url = self.amqp_url();
        self.host.ready(|| answers(url.clone())).await
    }
}

super::host_methods!(RabbitMq);

async fn answers(url: String) -> Result<()> {
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    Ok(connection.close(200, "ready".into()).await?)
}

/// A plugin, and the lines of the configuration that it needs.
#[derive(Default)]
struct Plugin {
    name: &'static str,
    settings: String,
}

fn launch(management: Option<u16>, plugin: &Plugin) -> Result<RabbitMq> {
    let origin = if plugin.name.is_empty() { origin(Kind::RabbitMq) } else { own_process(Kind::RabbitMq) }?;
    let programs = match &origin {
        Origin::Docker => {
            let compose = Compose::up(Kind::RabbitMq)?;
            let port = compose.port;
            return Ok(RabbitMq { host: Host::Compose(compose), port, management, origin, node: None });
        }
        Origin::Path(server) => Programs::installed(server)?,
        Origin::Packages => Programs::unpacked(&packages::root(Kind::RabbitMq)?),
    };
    let port = ports::free_port()?;
    let mapper_port = ports::free_port()?;
    let folder = folder("rabbitmq")?;
    let environment = Environment::new(folder.path(), port, mapper_port, plugin)?;
    let mapper = programs.mapper.clone().args(["-address", "127.0.0.1", "-port"]).arg(mapper_port.to_string());
    let mapper = Host::start(mapper, self::folder("epmd")?)?;
    let host = Host::start(environment.of(programs.server), folder)?;
    let node = Some(Node { _mapper: mapper, control: environment.of(programs.control) });
    Ok(RabbitMq { host, port, management, origin, node })
}

/// The three programs of a node.
struct Programs {
    server: Call,
    control: Call,
    mapper: Call,
}

impl Programs {
    fn unpacked(root: &packages::Root) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(root.join("usr/lib/erlang/bin")).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(folders).unwrap_or_default();
        let script = |relative: &str| root.script(relative).env("PATH", path.clone());
        Self {
            server: script("usr/lib/rabbitmq/bin/rabbitmq-server"),
            control: script("usr/lib/rabbitmq/bin/rabbitmqctl"),
            mapper: script("usr/lib/erlang/bin/epmd"),
        }
    }

    /// Debian's programs on the PATH change the user; those behind them do not.
    fn installed(server: &Path) -> Result<Self> {
        let behind = PathBuf::from("/usr/lib/rabbitmq/bin/rabbitmq-server");
        let server = if behind.is_file() { behind } else { fs::canonicalize(server)? };
        let mapper = on_path("epmd").context("Erlang's epmd is not on the PATH")?;
        Ok(Self {
            control: Call::new(server.with_file_name("rabbitmqctl")),
            server: Call::new(server),
            mapper: Call::new(mapper),
        })
    }
}

/// The environment that makes a node our own: its name, ports, folders and cookie.
struct Environment(Vec<(&'static str, String)>);

impl Environment {
    fn new(folder: &Path, port: u16, mapper_port: u16, plugin: &Plugin) -> Result<Self> {
        let at = |name: &str| folder.join(name).display().to_string();
        fs::create_dir_all(folder.join("data"))?;
        fs::create_dir_all(folder.join("log"))?;
        fs::write(folder.join("enabled_plugins"), format!("[{}].\n", plugin.name))?;
        fs::write(folder.join("rabbitmq.conf"), &plugin.settings)?;
        Ok(Self(vec![
            ("HOME", at("")),
            ("ERL_EPMD_PORT", mapper_port.to_string()),
            ("RABBITMQ_NODENAME", format!("outbox{port}@localhost")),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into()),
            ("RABBITMQ_NODE_PORT", port.to_string()),
            ("RABBITMQ_DIST_PORT", ports::free_port()?.to_string()),
            ("RABBITMQ_MNESIA_BASE", at("data")),
            ("RABBITMQ_LOG_BASE", at("log")),
            ("RABBITMQ_LOGS", "-".into()),
            ("RABBITMQ_CONF_ENV_FILE", at("no-environment-file")),
            ("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins")),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".into()),
            // The start script then becomes the node instead of its parent: its process id is the node's.
            ("RUNNING_UNDER_SYSTEMD", "true".into()),
        ]))
    }

    fn of(&self, call: Call) -> Call {
        self.0.iter().fold(call, |call, (name, value)| call.env(name, value))
    }
}
