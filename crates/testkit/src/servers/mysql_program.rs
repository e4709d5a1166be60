//! The server programs of MySQL and MariaDB, and data folders for them.
//!
//! Initialising a data folder takes seconds, copying it a fraction of a second: the cache has one per version.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::call::Call;
use super::mysql::Flavor;
use super::packages::{Root, version};
use super::{cache, system};

/// The tests connect by TCP, without resolving host names: `root@localhost` alone would not let them in.
const ROOT_BY_TCP: &str =
    "CREATE USER 'root'@'127.0.0.1';\nGRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n";

/// The files that MariaDB's own installer feeds to a server in bootstrap mode, in its order. The prefix changed in
/// version 11.
const SYSTEM_TABLES: [&str; 6] = [
    "{}_system_tables.sql",
    "{}_performance_tables.sql",
    "{}_system_tables_data.sql",
    "fill_help_tables.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "{}_sys_schema.sql",
];

/// A server program and its installation.
pub(super) struct Program {
    flavor: Flavor,
    call: Call,
    version: Call,
    share: Option<PathBuf>,
}

impl Program {
    pub(super) fn unpacked(flavor: Flavor, root: &Root) -> Self {
        let program = if flavor == Flavor::MySql { "usr/sbin/mysqld" } else { "usr/sbin/mariadbd" };
        let version = root.program(program);
        let plugins = root.join("usr/lib/mysql/plugin");
        let call =
            version.clone().arg("--no-defaults").option("basedir", root.join("usr")).option("plugin-dir", plugins);
        Self::new(flavor, call, version, share(&root.join("usr")))
    }

    pub(super) fn installed(flavor: Flavor, program: &Path) -> Self {
        let program = fs::canonicalize(program).unwrap_or_else(|_| program.to_path_buf());
        let version = Call::new(&program);
        let share = program.ancestors().nth(2).and_then(share);
        Self::new(flavor, version.clone().arg("--no-defaults"), version, share)
    }

    /// Both servers refuse to run as root without an option for it, and must find their messages.
    fn new(flavor: Flavor, call: Call, version: Call, share: Option<PathBuf>) -> Self {
        let call = if system::is_root() { call.arg("--user=root") } else { call };
        let call = match &share {
            Some(share) => call.option("lc-messages-dir", share),
            None => call,
        };
        Self { flavor, call, version, share }
    }

    /// The call of the server on a data folder, without any other setting.
    pub(super) fn call(&self, data: &Path) -> Call {
        self.call.clone().option("datadir", data)
    }

    /// An initialised data folder of this version, to be copied. Each list of arguments that matter at initialisation
    /// has its own.
    pub(super) fn data(&self, initial: &[&str]) -> Result<PathBuf> {
        let name = format!("data-{}-{}{}", self.flavor.kind().name(), version(&self.version)?, initial.concat());
        let entry = cache::entry(&name, |target| {
            let data = target.join("data");
            match self.flavor {
                Flavor::MySql => self.initialize(target, &data, initial)?,
                Flavor::MariaDb => self.bootstrap(&data, initial)?,
            }
            forget_identity(&data)
        });
        Ok(entry?.join("data"))
    }

    fn initialize(&self, folder: &Path, data: &Path, initial: &[&str]) -> Result<()> {
        let init = folder.join("init.sql");
        fs::write(&init, ROOT_BY_TCP)?;
        self.call(data).args(initial).arg("--initialize-insecure").option("init-file", &init).output().map(drop)
    }

    /// The steps of `mariadb-install-db`; the script itself needs more programs than the server's package has.
    fn bootstrap(&self, data: &Path, initial: &[&str]) -> Result<()> {
        fs::create_dir_all(data.join("mysql"))?;
        let call = self.call(data).option("tmpdir", data).args(initial);
        let call = call.args(["--bootstrap", "--max-allowed-packet=8M"]);
        let mut server = call.command();
        let mut server = server.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut input = server.stdin.take().context("the server has no input")?;
        input.write_all(self.system_tables()?.as_bytes())?;
        drop(input);
        let output = server.wait_with_output()?;
        ensure!(output.status.success(), "cannot initialise MariaDB: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn system_tables(&self) -> Result<String> {
        let share = self.share.as_ref().context("MariaDB's installation has no SQL files")?;
        let mut sql = String::from("USE mysql;\nSET @auth_root_socket=NULL;\n");
        for file in SYSTEM_TABLES {
            let named = |prefix: &str| fs::read_to_string(share.join(file.replace("{}", prefix)));
            sql += &named("mysql").or_else(|_| named("mariadb")).with_context(|| format!("cannot read {file}"))?;
        }
        Ok(sql)
    }
}

/// The folder with messages and SQL files below an installation's prefix.
fn share(prefix: &Path) -> Option<PathBuf> {
    let folders = ["share/mysql", "share/mariadb", "share/mysql-8.4", "share/mysql-8.0", "share"]
        .map(|folder| prefix.join(folder));
    folders.into_iter().find(|folder| folder.join("english").is_dir())
}

/// Copies must not share a server's UUID, and start without replayable files.
fn forget_identity(data: &Path) -> Result<()> {
    for file in fs::read_dir(data)? {
        let file = file?;
        let name = file.file_name();
        let name = name.to_string_lossy();
        if name == "auto.cnf" || name.starts_with("binlog.") {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}
