//! The program `relay` from outside, without a database: its output, and its end.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Nothing listens there: port 1 is reserved.
const GOOD: &str = "[database]\nurl = \"mysql://relay:hunter2@127.0.0.1:1/shop\"\n[sinks.main]\ntype = \"null\"\n\
    [[routes]]\ntopics = \"*\"\nsink = \"main\"\n";

fn folder(configuration: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("relay.toml"), configuration).unwrap();
    folder
}

fn command(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relay"));
    command.args(arguments).current_dir(folder.path()).env_clear().stdin(Stdio::null());
    command
}

/// Returns exit code, standard output and standard error.
fn relay(configuration: &str, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(&folder(configuration), arguments).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn what_needs_no_database_needs_no_configuration_either() {
    for (arguments, part) in [
        (&["--version"][..], "relay "),
        (&["--help"], "Usage: relay"),
        (&["config", "example"], "[database]"),
        (&["config", "schema"], "\"claim_messages\""),
        (&["migrate", "sql"], "CREATE TABLE outbox_messages"),
        (&["completions", "bash"], "complete -F _relay"),
        (&["completions", "zsh"], "#compdef relay"),
    ] {
        let (code, out, err) = relay("not TOML", arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        assert!(out.contains(part), "{arguments:?}: {out}");
    }
}

#[test]
fn a_purge_without_a_dry_run_is_refused_and_the_error_says_who_purges() {
    let (code, _, err) = relay(GOOD, &["purge"]);
    assert_eq!(code, 2, "{err}");
    for part in ["--dry-run", "relays purge by themselves", "keys of `retention`"] {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = folder("not TOML");
    assert!(command(&folder, &["man", "."]).status().unwrap().success());
    for (page, part) in [("relay.1", "relay\\-dead(1)"), ("relay-dead-retry.1", "relay dead retry 1523")] {
        let text = fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(text.contains(part), "{page}: {text}");
    }
    let (code, out, err) = relay("", &["man", "nowhere"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("the folder nowhere cannot be used"), "{err}");
}

#[test]
fn wrong_arguments_and_configurations_end_with_2() {
    for arguments in [
        &["--no-such-flag"][..],
        &["why", "nonsense"],
        &["dead", "list", "--after", "7"],
        &["api", "--listen", "127.0.0.1:1"],
        &["api", "--set", "api.listen=off"],
        &["api", "--set", "api.listen=0.0.0.0:1"],
        &["status", "--via", "nonsense"],
        &["check", "--via", "http://127.0.0.1:1"],
    ] {
        assert_eq!(relay(GOOD, arguments).0, 2, "{arguments:?}");
    }
    let (code, out, err) = relay("[relay]\nleese = 1\n", &["check"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with("relay.toml:2:1: unknown key `relay.leese`: did you mean `relay.lease`?\n"), "{err}");
    assert_eq!(err.lines().count(), 4, "all problems at once: {err}");
}

#[cfg(feature = "kafka")]
#[test]
fn a_property_that_librdkafka_does_not_know_is_found_without_a_broker() {
    let kafka = "[sinks.k]\ntype = \"kafka\"\nbrokers = \"127.0.0.1:1\"\nproperties = { \"linger.mss\" = 1 }\n";
    let (code, _, err) = relay(&format!("{GOOD}{kafka}"), &["check"]);
    assert_eq!((code, err.as_str()), (2, "configuration: sink k: librdkafka has no property `linger.mss`\n"));
}

#[test]
fn a_usage_error_names_no_argument_that_a_variable_gives() {
    let folder = folder("");
    let output =
        command(&folder, &["messages", "list", "--nonsense"]).env("RELAY_CONFIG", "relay.toml").output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(told.contains("Usage: relay messages list") && !told.contains("--config <FILE>"), "{told}");
}

#[test]
fn check_says_that_the_configuration_can_be_used_and_asks_the_rest_only_when_told_to() {
    let (code, out, err) = relay(GOOD, &["check"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, "CHECKED        OK    DETAIL\nconfiguration  true  can be used\n");
    let (code, out, _) = relay(GOOD, &["check", "--connect", "--format", "json"]);
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    let ok: Vec<_> = found.as_array().unwrap().iter().map(|row| (&row["checked"], &row["ok"])).collect();
    assert_eq!(
        ok,
        [
            (&"configuration".into(), &true.into()),
            (&"database".into(), &false.into()),
            (&"sink main".into(), &true.into())
        ]
    );
    assert_eq!(code, 3);
}

#[test]
fn an_inbox_that_forgets_before_sent_messages_are_purged_is_told() {
    let (code, out, _) = relay(&format!("{GOOD}[retention]\nsent = \"30d\"\n"), &["check"]);
    assert_eq!(code, 3);
    assert!(
        out.contains("inbox window   false  the inbox forgets a message after 168 h, but it can come again for 720 h"),
        "{out}"
    );
    assert_eq!(relay(&format!("{GOOD}[retention]\nsent = \"30d\"\ninbox = \"30d\"\n"), &["check"]).0, 0);
}

#[test]
fn a_database_that_cannot_be_reached_ends_with_1() {
    let (code, out, err) = relay(GOOD, &["status"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("the database cannot be reached: "), "{err}");
}

#[test]
fn the_password_is_in_no_output() {
    for arguments in [
        &["config", "show"][..],
        &["config", "show", "--format", "json"],
        &["check", "--connect"],
        &["status"],
        &["recover"],
        &["why", "1"],
        &["dead", "list"],
        &["migrate", "up"],
        &["run", "--listen", "nonsense"],
    ] {
        let (_, out, err) = relay(GOOD, arguments);
        assert!(!(out.contains("hunter2") || err.contains("hunter2")), "{arguments:?}: {out}{err}");
    }
}

/// A running relay; killed when dropped.
struct Running(Child, u16, TempDir);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().unwrap_or_default();
    }
}

impl Running {
    fn start() -> Self {
        Self::with(GOOD)
    }

    fn with(configuration: &str) -> Self {
        Self::beside(configuration, &[])
    }

    fn beside(configuration: &str, environment: &[(&str, &str)]) -> Self {
        let port = testkit::servers::free_port().unwrap();
        let folder = folder(configuration);
        let mut command = command(&folder, &["run", "--listen", &format!("0.0.0.0:{port}")]);
        command.envs(environment.iter().copied());
        let running = Self(command.stderr(Stdio::piped()).spawn().unwrap(), port, folder);
        let until = Instant::now() + testkit::servers::PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the relay does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.1)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: relay\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_relay_without_database_lives_is_not_ready_and_stops_at_sigterm() {
    let mut running = Running::start();
    assert!(running.get("/livez").starts_with("HTTP/1.1 200"));
    let unready = running.get("/readyz");
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("\r\n\r\ndatabase: "), "{unready}");
    let folder = folder(GOOD);
    let listen = format!("0.0.0.0:{}", running.1);
    assert!(command(&folder, &["healthcheck", "--listen", &listen]).status().unwrap().success());
    let pid = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("waiting for the database") && !log.contains("hunter2"), "{log}");
    assert!(log.contains("not on loopback, and there is no authentication"), "{log}");
    assert_eq!(command(&folder, &["healthcheck", "--listen", &listen]).output().unwrap().status.code(), Some(1));
}

/// Returns the next report that is for this line.
fn reported(supervisor: &UnixDatagram, wanted: &str) -> String {
    let mut report = [0; 4096];
    loop {
        let length = supervisor.recv(&mut report).unwrap();
        let text = String::from_utf8_lossy(report.get(..length).unwrap_or_default());
        assert_ne!(text, "READY=1", "its database is down");
        if text.starts_with(wanted) {
            return text.into_owned();
        }
    }
}

#[test]
fn systemd_is_told_of_a_relay_that_waits_for_its_database_and_of_its_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let named = UnixDatagram::bind(&path).unwrap();
    let name = format!("@{}", path.display());
    let abstract_address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
    let unnamed = UnixDatagram::bind_addr(&abstract_address).unwrap();
    for (supervisor, name) in [(named, &name[1..]), (unnamed, &name)] {
        supervisor.set_read_timeout(Some(testkit::servers::PATIENCE)).unwrap();
        let environment = [("NOTIFY_SOCKET", name), ("WATCHDOG_USEC", "300000")];
        let mut running = Running::beside(GOOD, &environment);
        let status = reported(&supervisor, "STATUS=");
        assert!(status.starts_with("STATUS=not ready; database: ") && !status.contains("hunter2"), "{status}");
        reported(&supervisor, "WATCHDOG=1");
        reported(&supervisor, "WATCHDOG=1");
        let pid = rustix::process::Pid::from_child(&running.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        reported(&supervisor, "STOPPING=1");
        assert_eq!(running.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_relay_that_waits_for_its_database_takes_a_hangup_and_reads_the_level_again() {
    let level = |level| format!("{GOOD}[log]\nlevel = \"{level}\"\n");
    let mut running = Running::with(&level("off"));
    let pid = rustix::process::Pid::from_child(&running.0);
    let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines();
    for (level, shown) in
        [(level("warn"), "SIGHUP: the log's level was read again"), (level("a=b=c"), "SIGHUP: the configuration")]
    {
        fs::write(running.2.path().join("relay.toml"), level).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        let line = log.by_ref().map(Result::unwrap).find(|line| !line.contains("waiting for the database")).unwrap();
        assert!(line.contains(shown), "{line}");
    }
    assert!(running.get("/livez").starts_with("HTTP/1.1 200"));
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_port_in_use_is_named_with_what_to_change() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, err) = relay(GOOD, &["run", "--listen", &address]);
    assert_eq!(code, 1);
    let expected = format!("cannot listen on {address}: change `http.listen`, or stop what listens there: ");
    assert!(err.contains(&expected), "{err}");
}
