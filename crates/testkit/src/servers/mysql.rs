//! MySQL and MariaDB.

use std::path::{Path, PathBuf};

use anyhow::Result;
use sqlx::{Connection, MySqlConnection};

use super::call::Call;
use super::docker::Compose;
use super::host::{Host, blocking, folder};
use super::mysql_program::Program;
use super::origin::{Kind, Origin, origin, own_process};
use crate::clock::Clock;

use super::{cache, hostile, odd, packages, ports};

/// The two server families that the outbox supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// MySQL.
    MySql,
    /// MariaDB.
    MariaDb,
}

impl Flavor {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::MySql => Kind::MySql,
            Self::MariaDb => Kind::MariaDb,
        }
    }

    /// The sessions in the default database, to select `id`, `user` and `command` from. (`MySQL` refuses
    /// `information_schema.processlist` while a session's statement has bytes that are no text.)
    #[must_use]
    pub fn sessions(self) -> &'static str {
        match self {
            Self::MySql => {
                "(SELECT CAST(processlist_id AS SIGNED) AS id, processlist_user AS user, \
                 processlist_command AS command \
                  FROM performance_schema.threads WHERE processlist_db = DATABASE()) AS sessions"
            }
            Self::MariaDb => {
                "(SELECT CAST(id AS SIGNED) AS id, user, command FROM information_schema.processlist \
                  WHERE db = DATABASE()) AS sessions"
            }
        }
    }

    /// A query of the connections that read the binary log for the default database.
    #[must_use]
    pub fn streams(self) -> String {
        format!("SELECT id FROM {} WHERE command LIKE 'Binlog Dump%'", self.sessions())
    }
}

/// The options of a test that differ from the defaults.
#[derive(Debug, Clone)]
pub struct MySqlOptions {
    flavor: Flavor,
    buffer_pool_mib: u32,
    args: Vec<String>,
    zone: Option<String>,
    environment: Vec<(&'static str, String)>,
    data: Option<PathBuf>,
    hostile: bool,
}

impl MySqlOptions {
    /// The defaults: durable commits, a binary log of rows, 500 connections, a buffer pool of 1 GiB (used memory grows
    /// with the data).
    #[must_use]
    pub fn new(flavor: Flavor) -> Self {
        let args = Vec::new();
        let environment = Vec::new();
        Self { flavor, buffer_pool_mib: 1024, args, zone: None, environment, data: None, hostile: false }
    }

    /// The size of `InnoDB`'s buffer pool in MiB.
    #[must_use]
    pub fn buffer_pool_mib(mut self, size: u32) -> Self {
        self.buffer_pool_mib = size;
        self
    }

    /// Adds an argument of the server, for example `--max-allowed-packet=1M`. It overrides a default of the same name.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// The time zone of the server process (its variable `TZ`), for example `Asia/Tokyo`; by default the machine's. A
    /// session's `time_zone` does not show it.
    #[must_use]
    pub fn zone(mut self, zone: &str) -> Self {
        self.zone = Some(zone.to_owned());
        self
    }

    /// The clocks of the server process.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.environment.extend(clock.variables());
        self
    }

    /// Sets a variable of the server process.
    #[must_use]
    pub(super) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// A data folder to start with a copy of, instead of an empty one.
    #[must_use]
    pub(super) fn data(mut self, folder: &Path) -> Self {
        self.data = Some(folder.to_path_buf());
        self
    }

    /// Sets everything as some users have it and no stock server: see `odd.rs`. Later calls can override each setting.
    #[must_use]
    pub fn odd(mut self) -> Self {
        let flavor = self.flavor;
        self.args.extend(odd::args(flavor).map(str::to_owned));
        self.zone(odd::zone(flavor))
    }

    /// Sets also what a session inherits to the worst legal values: see `hostile.rs`.
    #[must_use]
    pub fn hostile(mut self) -> Self {
        self.hostile = true;
        self.args.extend(hostile::args(self.flavor).iter().map(|&arg| arg.to_owned()));
        self.odd()
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// When there is no server to start (the error names the alternatives), or it does not answer; then with the end of
    /// its log.
    pub async fn start(self) -> Result<MySql> {
        let (host, port, origin) = blocking(move || self.launch()).await?;
        let mut server = MySql { host, port, origin };
        server.ready().await?;
        Ok(server)
    }

    fn launch(&self) -> Result<(Host, u16, Origin)> {
        let kind = self.flavor.kind();
        // The service in Docker has its own settings.
        let stock = self.args.is_empty() && self.zone.is_none() && self.environment.is_empty();
        let origin = if stock { origin(kind)? } else { own_process(kind)? };
        let program = match &origin {
            Origin::Docker => {
                let compose = Compose::up(kind)?;
                let port = compose.port;
                return Ok((Host::Compose(compose), port, origin));
            }
            Origin::Path(path) => Program::installed(self.flavor, path),
            Origin::Packages => Program::unpacked(self.flavor, &packages::root(kind)?),
        };
        let folder = folder(kind.name())?;
        let data = folder.path().join("data");
        match &self.data {
            Some(from) => cache::copy(from, &data)?,
            None => cache::copy(&program.data(&self.initial())?, &data)?,
        }
        let port = ports::free_port()?;
        let call = self.settings(program.call(&data), folder.path(), port);
        let call = if self.hostile {
            let file = folder.path().join("hostile.sql");
            hostile::write(self.flavor, &file)?;
            call.option("init-file", file)
        } else {
            call
        };
        let call = match &self.zone {
            Some(zone) => call.env("TZ", odd::tz(zone)?),
            None => call,
        };
        let call = self.environment.iter().fold(call, |call, (name, value)| call.env(name, value));
        Ok((Host::start(call, folder)?, port, origin))
    }

    /// The arguments that a server takes when it initialises a data folder, and demands again at each start.
    fn initial(&self) -> Vec<&str> {
        let is_initial = |arg: &str| {
            arg.starts_with("--innodb-page-size=")
                || self.flavor == Flavor::MySql && arg.starts_with("--lower-case-table-names=")
        };
        self.args.iter().map(String::as_str).filter(|arg| is_initial(arg)).collect()
    }

    fn settings(&self, call: Call, folder: &Path, port: u16) -> Call {
        // MariaDB deletes at its start what other servers have in a shared folder for temporary tables, and these
        // crash.
        let call = call
            .option("tmpdir", folder)
            .option("socket", folder.join("socket"))
            .option("pid-file", folder.join("pid"))
            .option("log-bin", "binlog")
            .arg(format!("--port={port}"))
            .arg(format!("--innodb-buffer-pool-size={}M", self.buffer_pool_mib))
            .args([
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--server-id=1",
                "--binlog-format=ROW",
                "--sync-binlog=1",
                "--innodb-flush-log-at-trx-commit=1",
                "--max-connections=500",
            ]);
        let own: &[&str] = match self.flavor {
            Flavor::MySql => &["--mysqlx=OFF", "--secure-file-priv=NULL"],
            // The default from 11.6.2 on. Older servers that have the setting are then as strict.
            Flavor::MariaDb => &["--loose-innodb-snapshot-isolation=ON"],
        };
        call.args(own).args(&self.args)
    }
}

/// A running MySQL or MariaDB server with its own data. Drop kills it and removes its data.
#[derive(Debug)]
pub struct MySql {
    host: Host,
    port: u16,
    origin: Origin,
}

impl MySql {
    /// Starts a server with the default options.
    ///
    /// # Errors
    /// As [`MySqlOptions::start`].
    pub async fn start(flavor: Flavor) -> Result<Self> {
        MySqlOptions::new(flavor).start().await
    }

    /// Its address, for `root` without a password and without a database.
    #[must_use]
    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/", self.port)
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    async fn ready(&mut self) -> Result<()> {
        let url = self.url();
        self.host.ready(|| answers(url.clone())).await
    }
}

super::host_methods!(MySql);

async fn answers(url: String) -> Result<()> {
    Ok(MySqlConnection::connect(&url).await?.close().await?)
}
