//! Named points at which a test can let the process die, panic or stop. Release builds have none.

#[cfg(debug_assertions)]
pub(crate) use asked::{is, point};

#[cfg(debug_assertions)]
mod asked {
    use std::{
        env, fs, process,
        sync::{
            LazyLock,
            atomic::{AtomicBool, Ordering},
        },
        thread,
    };

    use rustix::process::{Signal, getpid, kill_process};

    static CRASH: LazyLock<Option<String>> = LazyLock::new(|| env::var("RELAY_CRASH_POINT").ok());
    static PANIC: LazyLock<Option<String>> = LazyLock::new(|| env::var("RELAY_PANIC_POINT").ok());
    static PAUSE: LazyLock<Option<String>> = LazyLock::new(|| env::var("RELAY_PAUSE_POINT").ok());
    static PAUSED: AtomicBool = AtomicBool::new(false);

    /// Dies here, without any clean-up, if the environment variable `RELAY_CRASH_POINT` names this point. Panics if
    /// `RELAY_PANIC_POINT` names it. If `RELAY_PAUSE_POINT` names it, the process stops once, until it gets SIGCONT.
    pub(crate) fn point(name: &str) {
        if CRASH.as_deref() == Some(name) {
            process::abort();
        }
        assert!(PANIC.as_deref() != Some(name), "a panic at {name} was asked for");
        if PAUSE.as_deref() == Some(name) && !PAUSED.swap(true, Ordering::AcqRel) {
            kill_process(getpid(), Signal::STOP).ok();
            // Another thread may take the signal, and this one runs on until then.
            while is_pending(Signal::STOP) {
                thread::yield_now();
            }
        }
    }

    /// Whether a signal to this process is still pending.
    fn is_pending(signal: Signal) -> bool {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        pending.is_some_and(|set| set >> (signal.as_raw() - 1) & 1 == 1)
    }

    /// Whether the process dies or stops at this point.
    pub(crate) fn is(name: &str) -> bool {
        CRASH.as_deref() == Some(name) || PAUSE.as_deref() == Some(name)
    }
}

/// Does nothing in release builds.
#[cfg(not(debug_assertions))]
pub(crate) const fn point(_name: &str) {}

/// Never true in release builds.
#[cfg(not(debug_assertions))]
pub(crate) const fn is(_name: &str) -> bool {
    false
}
