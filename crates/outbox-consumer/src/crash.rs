//! Named points at which a test may let the process die. Release builds have none, even with the feature.

/// Dies here, without any clean-up, if the environment variable `OUTBOX_CRASH_POINT` names this point.
#[cfg(all(feature = "crash-points", debug_assertions))]
pub(crate) fn point(name: &str) {
    if std::env::var("OUTBOX_CRASH_POINT").is_ok_and(|it| it == name) {
        std::process::abort();
    }
}

/// Does nothing in release builds.
#[cfg(not(all(feature = "crash-points", debug_assertions)))]
pub(crate) const fn point(_name: &str) {}
