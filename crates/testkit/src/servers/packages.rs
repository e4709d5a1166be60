//! The packages of each server, and how to run programs from them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::apt::{self, Release};
use super::call::{Call, on_path};
use super::origin::Kind;
use super::{cache, erlang, maven};

/// A set of packages unpacked into one folder of the cache.
struct Plan {
    folder: &'static str,
    release: Release,
    candidates: &'static [&'static [&'static str]],
}

/// Debian 12 and 13 have no MySQL, `sid` has one; Ubuntu puts the version into the package's name.
const MYSQL: Plan = Plan {
    folder: "mysql",
    release: Release::Sid,
    candidates: &[
        &["mysql-server-core", "mysql-client-core"],
        &["mysql-server-core-8.4", "mysql-client-core-8.4"],
        &["mysql-server-core-8.0", "mysql-client-core-8.0"],
    ],
};
const MARIADB: Plan = Plan {
    folder: "mariadb",
    release: Release::Own,
    candidates: &[&["mariadb-server-core"], &["mariadb-server-core-10.6"]],
};
/// Debian 12 has RabbitMQ 3.10, which is no longer supported.
const RABBITMQ: Plan = Plan { folder: "rabbitmq-server", release: Release::Sid, candidates: &[&["rabbitmq-server"]] };
const GALERA: Plan = Plan { folder: "galera", release: Release::Own, candidates: &[&["galera-4"]] };
const PROMETHEUS: Plan = Plan { folder: "prometheus", release: Release::Own, candidates: &[&["prometheus"]] };

const ALERTMANAGER: Plan =
    Plan { folder: "alertmanager", release: Release::Own, candidates: &[&["prometheus-alertmanager"]] };

/// Whether packages for this kind of server are available here.
pub(super) fn available(kind: Kind) -> bool {
    if kind == Kind::Kafka { maven::available() } else { apt::available() }
}

/// The unpacked packages of a server, downloaded the first time. Blocking.
pub(super) fn root(kind: Kind) -> Result<Root> {
    match kind {
        Kind::MySql => unpacked(&MYSQL),
        Kind::MariaDb => unpacked(&MARIADB),
        Kind::RabbitMq => unpacked(&RABBITMQ),
        Kind::Kafka => maven::jars().map(Root::plain),
    }
}

/// The call for Prometheus' `promtool`: the one on the PATH, or the one of the unpacked packages. Blocking.
///
/// # Errors
/// When it is not installed and cannot be downloaded.
pub fn promtool(args: &[&str]) -> Result<std::process::Command> {
    Ok(of_prometheus("promtool")?.args(args).command())
}

/// The call for a program of Prometheus. Blocking.
pub(super) fn of_prometheus(program: &str) -> Result<Call> {
    Ok(match on_path(program) {
        Some(program) => Call::new(program),
        None => unpacked(&PROMETHEUS)?.program(&format!("usr/bin/{program}")),
    })
}

/// The call for Alertmanager. Debian's program reads a file of its package under `/usr/share`. So the unpacked one sees
/// the package's folder there, in a mount namespace of its own. Blocking.
pub(super) fn alertmanager() -> Result<Call> {
    const SHARED: &str = r#"mount --bind "$0/usr/share" /usr/share && exec "$0/usr/bin/prometheus-alertmanager" "$@""#;
    if let Some(program) = on_path("prometheus-alertmanager").or_else(|| on_path("alertmanager")) {
        return Ok(Call::new(program));
    }
    let root = unpacked(&ALERTMANAGER)?;
    let namespace = ["--user", "--map-root-user", "--mount", "sh", "-c", SHARED];
    Ok(Call::new("unshare").args(namespace).arg(root.path))
}

/// The call for Alertmanager's `amtool`: the one on the PATH, or the one of the unpacked packages. Blocking.
///
/// # Errors
/// When it is not installed and cannot be downloaded.
pub fn amtool(args: &[&str]) -> Result<std::process::Command> {
    let call = match on_path("amtool") {
        Some(program) => Call::new(program),
        None => unpacked(&ALERTMANAGER)?.program("usr/bin/amtool"),
    };
    Ok(call.args(args).command())
}

/// The call for the command line client `mysql`: the one on the PATH, or the one of the unpacked packages. Blocking.
///
/// # Errors
/// When it is not installed and cannot be downloaded.
pub fn mysql_client(args: &[&str]) -> Result<std::process::Command> {
    let call = match on_path("mysql") {
        Some(program) => Call::new(program),
        None => unpacked(&MYSQL)?.program("usr/bin/mysql"),
    };
    Ok(call.args(args).command())
}

/// The library of Galera for MariaDB. Blocking.
pub(super) fn galera() -> Result<PathBuf> {
    Ok(unpacked(&GALERA)?.join("usr/lib/galera/libgalera_smm.so"))
}

/// Whether `program` is really this kind of server: MariaDB installs a `mysqld` too.
pub(super) fn is(kind: Kind, program: &Path) -> bool {
    match kind {
        Kind::MySql => version(&Call::new(program)).is_ok_and(|version| !version.contains("MariaDB")),
        _ => true,
    }
}

/// The third word of `mysqld --version`: `mysqld  Ver 9.7.0 for Linux …`.
pub(super) fn version(program: &Call) -> Result<String> {
    let text = program.clone().arg("--version").output()?;
    let mut words = text.split_whitespace().skip_while(|word| *word != "Ver");
    words.nth(1).map(str::to_owned).with_context(|| format!("no version in {text:?}"))
}

fn unpacked(plan: &Plan) -> Result<Root> {
    let path = cache::entry(plan.folder, |target| {
        tracing::info!(folder = plan.folder, "downloading and unpacking packages");
        apt::unpack(plan.release, plan.candidates, target)?;
        erlang::relocate(target, loader(target).as_ref())
    })?;
    let loader = loader(&path);
    Ok(Root { path, loader })
}

/// A folder with unpacked programs.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    /// The loader of the unpacked C library and the folder of its libraries, if there is one: programs of a newer
    /// release need it.
    loader: Option<(PathBuf, PathBuf)>,
}

impl Root {
    fn plain(path: PathBuf) -> Self {
        Self { path, loader: None }
    }

    pub(super) fn join(&self, relative: &str) -> PathBuf {
        self.path.join(relative)
    }

    /// The call for an unpacked program, which must not look for its libraries in the system only.
    pub(super) fn program(&self, relative: &str) -> Call {
        let program = self.join(relative);
        match &self.loader {
            Some((loader, libraries)) => Call::new(loader).arg("--library-path").arg(libraries).arg(program),
            None => Call::new(program).env("LD_LIBRARY_PATH", self.libraries()),
        }
    }

    /// The call for an unpacked script. It also runs programs of the system, which an unpacked C library would break.
    /// If there is one, the script's own programs must come with it.
    pub(super) fn script(&self, relative: &str) -> Call {
        let call = Call::new(self.join(relative));
        if self.loader.is_some() { call } else { call.env("LD_LIBRARY_PATH", self.libraries()) }
    }

    fn libraries(&self) -> std::ffi::OsString {
        std::env::join_paths(library_folders(&self.path)).unwrap_or_default()
    }
}

fn loader(root: &Path) -> Option<(PathBuf, PathBuf)> {
    library_folders(root).into_iter().find_map(|folder| {
        let files = fs::read_dir(&folder).ok()?;
        let mut paths = files.filter_map(|file| Some(file.ok()?.path()));
        let loader =
            paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux")))?;
        Some((loader, folder))
    })
}

/// `usr/lib/<triplet>` of the unpacked packages; the triplet depends on the processor.
fn library_folders(root: &Path) -> Vec<PathBuf> {
    let folders = ["usr/lib", "lib"].into_iter().filter_map(|base| fs::read_dir(root.join(base)).ok()).flatten();
    let paths = folders.filter_map(|folder| Some(folder.ok()?.path()));
    paths.filter(|path| path.to_string_lossy().contains("-linux-gnu")).collect()
}
