//! Named points at which a test may let the process die. Release builds have none.

/// Dies here, without any clean-up, if the environment variable `RELAY_CRASH_POINT` names this point; panics if `RELAY_PANIC_POINT`
/// does.
#[inline]
pub(crate) fn point(name: &str) {
    if is(name) {
        std::process::abort();
    }
    assert!(!panics(name), "a panic at {name} was asked for");
}

/// Whether the task is to panic at this point.
#[cfg(debug_assertions)]
fn panics(name: &str) -> bool {
    use std::sync::LazyLock;
    static POINT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("RELAY_PANIC_POINT").ok());
    POINT.as_deref() == Some(name)
}

/// Release builds never panic on purpose.
#[cfg(not(debug_assertions))]
const fn panics(_name: &str) -> bool {
    false
}

/// Whether the process is to die at this point.
#[cfg(debug_assertions)]
pub(crate) fn is(name: &str) -> bool {
    use std::sync::LazyLock;
    static POINT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("RELAY_CRASH_POINT").ok());
    POINT.as_deref() == Some(name)
}

/// Release builds never die on purpose.
#[cfg(not(debug_assertions))]
pub(crate) const fn is(_name: &str) -> bool {
    false
}
