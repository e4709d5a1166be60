//! Reports to systemd: readiness, the state in a line, and the watchdog. The protocol is that of `sd_notify(3)`.

use std::{
    env,
    ffi::OsStr,
    io,
    os::unix::net::{SocketAddr, UnixDatagram},
    sync::Arc,
    time::{Duration, Instant},
};

use outbox_relay::observe::health::Health;

/// Longest pause between two looks at the state.
const PAUSE: Duration = Duration::from_secs(1);

/// The way to the supervisor that started this process.
pub(super) struct Notifier {
    socket: UnixDatagram,
    supervisor: SocketAddr,
    /// Without a sign of life for this time the supervisor ends the process.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Returns the way to the supervisor; `None` if it listens to no reports.
    pub(super) fn from_environment() -> io::Result<Option<Self>> {
        let variable = |name| env::var(name).ok();
        let watchdog = watchdog(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id());
        env::var_os("NOTIFY_SOCKET").map(|name| Self::new(&name, watchdog)).transpose()
    }

    fn new(name: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        let supervisor = address(name)?;
        // A supervisor that is busy must not hold up the relay.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, supervisor, watchdog })
    }

    /// Reports until the process ends. Without progress of the relay's own loops there is no sign of life.
    pub(super) async fn run(self: Arc<Self>, health: Arc<Health>) {
        let every = self.watchdog.map(|time| time / 3);
        let mut is_started = false;
        let mut told = String::new();
        let mut signed = None::<Instant>;
        loop {
            let reasons = health.reasons();
            let stuck = health.stuck();
            is_started = is_started || reasons.is_empty() && self.send("READY=1");
            let now = status(&stuck, &reasons, &health.sinks_down());
            if now != told && self.send(&format!("STATUS={now}")) {
                told = now;
            }
            let is_due = every.is_some_and(|every| signed.is_none_or(|at| at.elapsed() >= every));
            if is_due && stuck.is_empty() && self.send("WATCHDOG=1") {
                signed = Some(Instant::now());
            }
            tokio::time::sleep(every.map_or(PAUSE, |every| every.min(PAUSE))).await;
        }
    }

    /// Reports that the relay stops.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Returns whether the report was sent. One that was not is tried again at the next look.
    fn send(&self, report: &str) -> bool {
        let sent = self.socket.send_to_addr(report.as_bytes(), &self.supervisor);
        sent.inspect_err(|error| tracing::debug!(%error, "a report to systemd was not sent")).is_ok()
    }
}

/// Returns the address of the supervisor's socket: a path, or after `@` a name that is in no file system.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    {
        use std::os::{linux::net::SocketAddrExt as _, unix::ffi::OsStrExt as _};
        if let Some(name) = name.as_bytes().strip_prefix(b"@") {
            return SocketAddr::from_abstract_name(name);
        }
    }
    SocketAddr::from_pathname(name)
}

/// Returns the time of the watchdog, if there is one for this process.
fn watchdog(micros: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    let is_own = pid.is_none_or(|pid| pid == own.to_string());
    let micros: u64 = micros?.parse().ok()?;
    (is_own && micros > 0).then(|| Duration::from_micros(micros))
}

/// Returns the state in a line.
fn status(stuck: &[String], reasons: &[String], down: &[String]) -> String {
    let state = if reasons.is_empty() { "ready" } else { "not ready" };
    let parts = [&[state.to_owned()], stuck, reasons, down].concat();
    parts.join("; ").replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use outbox_relay::observe::metrics::Metrics;

    struct Supervisor {
        socket: tokio::net::UnixDatagram,
        health: Arc<Health>,
        _folder: TempDir,
    }

    /// Starts the reports to a socket of this test.
    fn supervisor() -> Supervisor {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("notify");
        let socket = tokio::net::UnixDatagram::bind(&name).unwrap();
        let health = Health::new(Metrics::new().unwrap());
        let notifier = Notifier::new(name.as_os_str(), Some(Duration::from_millis(30))).unwrap();
        tokio::spawn(Arc::new(notifier).run(Arc::clone(&health)));
        Supervisor { socket, health, _folder: folder }
    }

    impl Supervisor {
        async fn next(&self) -> String {
            let mut report = vec![0; 1000];
            let length = self.socket.recv(&mut report).await.unwrap();
            String::from_utf8_lossy(&report[..length]).into_owned()
        }

        /// Returns the next report that is no sign of life.
        async fn news(&self) -> String {
            loop {
                let report = self.next().await;
                if report != "WATCHDOG=1" {
                    return report;
                }
            }
        }
    }

    #[tokio::test]
    async fn readiness_is_reported_once_and_each_change_of_the_state() {
        let supervisor = supervisor();
        assert_eq!(supervisor.news().await, "STATUS=not ready; database: not reached yet");
        supervisor.health.dependency("database", Ok(()));
        assert_eq!(supervisor.news().await, "READY=1");
        assert_eq!(supervisor.news().await, "STATUS=ready");
        supervisor.health.sink("kafka", Some("down\nREADY=1".to_owned()));
        assert_eq!(supervisor.news().await, "STATUS=ready; sink kafka: down READY=1");
    }

    #[tokio::test]
    async fn there_is_no_sign_of_life_while_a_loop_is_stuck() {
        let supervisor = supervisor();
        while supervisor.next().await != "WATCHDOG=1" {}
        supervisor.health.stall("renew");
        // A sign of the look before may be on its way.
        while !supervisor.next().await.contains("the loop renew has not come round") {}
        for _ in 0..20 {
            supervisor.health.sink("kafka", Some(rand::random::<u64>().to_string()));
            let report = supervisor.next().await;
            assert!(report.starts_with("STATUS=") && report.contains("kafka"), "{report}");
        }
        supervisor.health.loop_ok("renew");
        while supervisor.next().await != "WATCHDOG=1" {}
    }

    #[test]
    fn a_watchdog_of_another_process_is_none() {
        let text = |text: &str| Some(text.to_owned());
        let second = Some(Duration::from_secs(1));
        for (micros, pid, expected) in [
            (text("1000000"), None, second),
            (text("1000000"), text("7"), second),
            (text("1000000"), text("8"), None),
            (text("0"), None, None),
            (text("soon"), None, None),
            (None, None, None),
        ] {
            assert_eq!(watchdog(micros.clone(), pid.clone(), 7), expected, "{micros:?} {pid:?}");
        }
    }
}
