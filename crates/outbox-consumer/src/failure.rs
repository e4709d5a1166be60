use std::{any::Any, error::Error, fmt, time::Duration};

use outbox_core::is_passing;

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a message could not be processed, and its next step. The writes of its handler are rolled back.
///
/// `?` turns every error into [`Failure::Retry`].
#[derive(Debug)]
pub enum Failure {
    /// It may succeed next time: retried after a wait, dead after the last attempt. A passing failure of the database
    /// (a deadlock, a lost connection, a full disk) is retried without end: see [`Failure::is_passing`].
    Retry(BoxError),
    /// It will never succeed: dead now.
    Dead(BoxError),
    /// Another consumer may succeed: RabbitMQ gives it to any consumer of the queue, and later messages of its key go
    /// first. On Kafka it is retried without end, since a partition has one consumer. A worker retries it without end,
    /// in its order.
    Requeue(BoxError),
    /// It is to be tried again after this time, and no attempt is spent. Later messages of its key wait behind it. A
    /// worker puts it off for at most a day ([`Failure::LONGEST_AFTER`]). A consumer keeps it in memory and does not
    /// acknowledge it, so it tries again after ten minutes at most ([`Failure::LONGEST_IN_MEMORY`]). The waits of a
    /// message are not counted: the handler must decide when it is too late. On RabbitMQ the queue's consumer time-out
    /// must be longer (30 minutes by default), or the message goes back, and waits on when it comes again.
    After(Duration),
}

impl Failure {
    /// The longest wait of [`Failure::After`] at a worker: a day.
    pub const LONGEST_AFTER: Duration = Duration::from_secs(86_400);
    /// The longest wait of [`Failure::After`] at a consumer: ten minutes.
    pub const LONGEST_IN_MEMORY: Duration = Duration::from_secs(600);

    /// [`Failure::Dead`] with this error or text.
    pub fn dead(error: impl Into<BoxError>) -> Self {
        Self::Dead(error.into())
    }

    /// [`Failure::Requeue`] with this error or text.
    pub fn requeue(error: impl Into<BoxError>) -> Self {
        Self::Requeue(error.into())
    }

    /// Its variant in one word, for spans.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Retry(_) => "retry",
            Self::Dead(_) => "dead",
            Self::Requeue(_) => "requeue",
            Self::After(_) => "after",
        }
    }

    /// Whether the database caused it, and not the message: somewhere in the chain of sources is an error of the
    /// connection or the pool, or a refusal of the server that passes, such as a deadlock. Such a [`Failure::Retry`]
    /// costs no attempt. [`outbox_core::is_passing`] describes the limits of what can be seen.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Retry(error) if is_passing(error.as_ref()))
    }
}

impl<E: Into<BoxError> + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut error = Some(error);
        let whole: &mut dyn Any = &mut error;
        let report = whole.downcast_mut::<Option<anyhow::Error>>().and_then(Option::take);
        Self::Retry(match (report, error) {
            (Some(report), _) => open(report),
            (None, Some(error)) => error.into(),
            (None, None) => BoxError::from("an unknown error"),
        })
    }
}

/// The error in a report of anyhow. The box that anyhow itself makes hides the type of the error, and the error from
/// its own chain.
fn open(report: anyhow::Error) -> BoxError {
    let boxed = report.downcast::<BoxError>();
    boxed.unwrap_or_else(anyhow::Error::reallocate_into_boxed_dyn_error_without_backtrace)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self {
            Self::Retry(error) | Self::Dead(error) | Self::Requeue(error) => error,
            Self::After(wait) => return write!(f, "to be tried again after {wait:?}"),
        };
        write!(f, "{error}")?;
        let mut cause = error.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// For `?` in a test or a command that calls a handler or [`retry_dead`](crate::retry_dead()). [`Failure`] takes any
/// error by `?`, and so cannot be one itself: it would have to be made of itself.
impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retry(error) | Failure::Dead(error) | Failure::Requeue(error) => Self::from_boxed(error),
            Failure::After(_) => Self::msg(failure.to_string()),
        }
    }
}

/// As for `anyhow`, for a function that returns `Result<_, Box<dyn Error>>`.
impl From<Failure> for Box<dyn Error> {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retry(error) | Failure::Dead(error) | Failure::Requeue(error) => error,
            Failure::After(_) => failure.to_string().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use anyhow::{Context as _, anyhow};
    use outbox_core::{EnqueueError, InboxError, sqlx};

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the order was not booked")]
    struct Wrapper(#[source] BoxError);

    #[derive(Debug, thiserror::Error)]
    #[error("the order was not booked")]
    struct OfBox(#[source] Box<sqlx::Error>);

    fn timed_out() -> sqlx::Error {
        sqlx::Error::PoolTimedOut
    }

    fn cut() -> sqlx::Error {
        sqlx::Error::Io(io::ErrorKind::ConnectionReset.into())
    }

    #[test]
    fn a_passing_error_of_the_database_is_found_however_it_is_wrapped() {
        let reports: [fn(sqlx::Error) -> Failure; 13] = [
            Failure::from,
            |error| BoxError::from(error).into(),
            |error| anyhow::Error::from(error).into(),
            |error| anyhow::Error::from(error).context("outer").into(),
            |error| Err::<(), _>(error).context("inner").context("outer").unwrap_err().into(),
            |error| anyhow!(BoxError::from(error)).into(),
            |error| Wrapper(error.into()).into(),
            |error| Wrapper(Wrapper(error.into()).into()).into(),
            |error| Wrapper(anyhow::Error::from(error).context("inner").into()).into(),
            |error| anyhow::Error::from(Wrapper(error.into())).into(),
            |error| OfBox(Box::new(error)).into(),
            |error| Wrapper(Arc::new(error).into()).into(),
            |error| anyhow::Error::from(EnqueueError::from(error)).into(),
        ];
        for (number, report) in reports.into_iter().enumerate() {
            for error in [timed_out, cut] {
                assert!(report(error()).is_passing(), "{number}: {:?}", report(error()));
            }
            assert!(!report(sqlx::Error::RowNotFound).is_passing(), "{number}");
        }
        assert!(Failure::from(InboxError::from(timed_out())).is_passing());
    }

    #[test]
    fn an_error_of_something_else_does_not_pass() {
        let io = || io::Error::from(io::ErrorKind::ConnectionReset);
        for failure in [Failure::from(io()), anyhow::Error::from(io()).into(), Wrapper(io().into()).into()] {
            assert!(!failure.is_passing(), "{failure:?}");
        }
        assert!(!Failure::dead(timed_out()).is_passing() && !Failure::requeue(timed_out()).is_passing());
    }

    #[test]
    fn a_test_and_a_command_pass_a_failure_on_as_its_error() {
        fn test(failure: Failure) -> anyhow::Result<()> {
            Err(failure)?
        }
        fn command(failure: Failure) -> Result<(), Box<dyn Error>> {
            Err(failure)?
        }
        let wrapped = || Failure::from(Wrapper(timed_out().into()));
        let error = test(wrapped()).unwrap_err();
        assert!(error.root_cause().is::<sqlx::Error>(), "{error:?}");
        assert_eq!(format!("{error:#}"), wrapped().to_string());
        assert!(command(wrapped()).unwrap_err().is::<Wrapper>());
        let after = test(Failure::After(Duration::from_secs(5))).unwrap_err();
        assert_eq!(after.to_string(), "to be tried again after 5s");
    }

    #[test]
    fn a_failure_shows_its_chain() {
        let failure = Failure::from(anyhow::Error::from(timed_out()).context("inner").context("outer"));
        assert_eq!(failure.to_string(), format!("outer: inner: {}", timed_out()));
        assert_eq!(Failure::from("text").to_string(), "text");
        assert_eq!(Failure::After(Duration::from_secs(5)).to_string(), "to be tried again after 5s");
    }
}
