//! Named points at which a test may let the process die, panic or stand still. Release builds have none.

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

    /// Dies here, without any clean-up, if the environment variable `RELAY_CRASH_POINT` names this point; panics if
    /// `RELAY_PANIC_POINT` does; if `RELAY_PAUSE_POINT` does, it stands still, once, until it gets SIGCONT.
    pub(crate) fn point(name: &str) {
        if CRASH.as_deref() == Some(name) {
            process::abort();
        }
        assert!(PANIC.as_deref() != Some(name), "a panic at {name} was asked for");
        if PAUSE.as_deref() == Some(name) && !PAUSED.swap(true, Ordering::AcqRel) {
            kill_process(getpid(), Signal::STOP).ok();
            // Another thread may be the one that takes the signal, and until then this one goes on.
            while is_pending(Signal::STOP) {
                thread::yield_now();
            }
        }
    }

    /// Whether a signal to this process has not struck yet.
    fn is_pending(signal: Signal) -> bool {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        pending.is_some_and(|set| set >> (signal.as_raw() - 1) & 1 == 1)
    }

    /// Whether the process is to die or to stand still at this point.
    pub(crate) fn is(name: &str) -> bool {
        CRASH.as_deref() == Some(name) || PAUSE.as_deref() == Some(name)
    }
}

/// Release builds never do it.
#[cfg(not(debug_assertions))]
pub(crate) const fn point(_name: &str) {}

/// Release builds never do it.
#[cfg(not(debug_assertions))]
pub(crate) const fn is(_name: &str) -> bool {
    false
}
