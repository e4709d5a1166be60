//! Which losses are a message's own: a connection or a statement that ends at the same message again and again.

use std::{
    error::Error,
    fmt::Display,
    io::ErrorKind,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::store::refusal::{Refusal, is_doubtful, is_passing, refusal};

/// After this number of losses in a row, each further one spends an attempt.
pub const FREE: u32 = 5;

/// How a call was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The server or a proxy ended it.
    Ended,
    /// Nothing came back in time.
    Silent,
}

/// The finished and the lost messages of a process.
#[derive(Debug, Default)]
pub struct Losses {
    done: AtomicU64,
    lost: AtomicU64,
}

/// The losses in a row of one message.
#[derive(Debug, Default, Clone, Copy)]
pub struct Streak {
    /// Their number, without those of an outage.
    pub length: u32,
    done: u64,
    lost: u64,
}

/// Returns the loss behind this error of a transaction's own call, if it is one.
#[must_use]
pub fn loss(error: &sqlx::Error) -> Option<Loss> {
    match error {
        sqlx::Error::Io(error) if error.kind() == ErrorKind::TimedOut => Some(Loss::Silent),
        sqlx::Error::Io(_) => Some(Loss::Ended),
        error => (refusal(error) == Some(Refusal::Doubtful)).then_some(Loss::Ended),
    }
}

/// Returns the loss behind the error of a handler, whose transaction's roll-back ended with the second error, if with
/// any. Without that it was the loss of another connection, which may lead to another server.
#[must_use]
pub fn loss_of_handler(error: &(dyn Error + 'static), rolled_back: Option<&sqlx::Error>) -> Option<Loss> {
    let own = || rolled_back.and_then(loss).filter(|_| is_passing(error));
    if is_doubtful(error) { Some(Loss::Ended) } else { own() }
}

impl Losses {
    /// Notes that a message is done.
    pub fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes a loss of a message. Returns whether it spends an attempt. The losses of an outage do not count: no
    /// message is done meanwhile, and others are lost, or nothing answers.
    pub fn lost(&self, streak: &mut Streak, loss: Loss) -> bool {
        let done = self.done.load(Ordering::Relaxed);
        let count = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
        let is_alone = count == streak.lost + 1 && loss == Loss::Ended;
        if done > streak.done || is_alone || streak.length == 0 {
            streak.length += 1;
        }
        (streak.done, streak.lost) = (done, count);
        streak.length > FREE
    }
}

impl Streak {
    /// Returns the text of an error that costs the message an attempt.
    #[must_use]
    pub fn tell(&self, error: &impl Display) -> String {
        let times = self.length;
        format!(
            "the connection or the statement ended {times} times in a row at this message, and not at others: {error}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of ten losses of a message spend an attempt.
    fn spent(losses: &Losses, loss: Loss, meanwhile: impl Fn()) -> usize {
        let mut streak = Streak::default();
        let is_spent = |_: &u32| {
            meanwhile();
            losses.lost(&mut streak, loss)
        };
        (0..10).filter(is_spent).count()
    }

    #[test]
    fn a_message_pays_for_its_own_losses_and_not_for_those_of_an_outage() {
        let losses = Losses::default();
        let other = || {
            losses.lost(&mut Streak::default(), Loss::Ended);
        };
        let outages = [spent(&losses, Loss::Ended, other), spent(&losses, Loss::Silent, || ())];
        let alone = spent(&losses, Loss::Ended, || ());
        let beside = [Loss::Ended, Loss::Silent].map(|loss| {
            spent(&losses, loss, || {
                other();
                losses.done();
            })
        });
        assert_eq!((outages, alone, beside), ([0, 0], 5, [5, 5]));
    }
}
