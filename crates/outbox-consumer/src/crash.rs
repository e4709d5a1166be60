//! Named points at which a test may let the process die.

/// Dies here, without any clean-up, if the environment variable `OUTBOX_CRASH_POINT` names this point.
#[cfg(feature = "crash-points")]
pub(crate) fn point(name: &str) {
    if std::env::var("OUTBOX_CRASH_POINT").is_ok_and(|it| it == name) {
        std::process::abort();
    }
}

#[cfg(not(feature = "crash-points"))]
pub(crate) const fn point(_name: &str) {}
