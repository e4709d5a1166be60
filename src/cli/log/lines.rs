//! Writes lines on a thread of its own: a reader of standard error that stops must not stop the relay.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Most lines that wait for the reader. Further ones are lost, and counted.
const WAITING: usize = 10_000;
/// The longest wait for the reader when the process ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes whole lines, and never blocks.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    lines: SyncSender<Vec<u8>>,
    waiting: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Lines {
    /// Starts the thread.
    pub(super) fn to(mut out: impl Write + Send + 'static) -> Self {
        let (sender, lines) = sync_channel::<Vec<u8>>(WAITING);
        let this = Self { lines: sender, waiting: Arc::default(), lost: Arc::default() };
        let waiting = Arc::clone(&this.waiting);
        let lost = Arc::clone(&this.lost);
        thread::spawn(move || {
            for line in lines {
                // A closed pipe has no reader to tell.
                out.write_all(&line).ok();
                waiting.fetch_sub(1, SeqCst);
                let lines = lost.swap(0, SeqCst);
                if lines > 0 {
                    tracing::warn!(lines, "the reader of the log was too slow: lines are missing");
                }
            }
        });
        this
    }

    /// Waits until all lines are written, if the reader takes them.
    pub(super) fn wait(&self) {
        let end = Instant::now() + PATIENCE;
        while self.waiting.load(SeqCst) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.waiting.fetch_add(1, SeqCst);
        if self.lines.try_send(line.to_vec()).is_err() {
            self.waiting.fetch_sub(1, SeqCst);
            self.lost.fetch_add(1, SeqCst);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Takes a line for each signal.
    struct Slow(Receiver<()>, Arc<AtomicU64>);

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.fetch_add(1, SeqCst);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_blocks_no_writer_and_costs_the_lines_beyond_the_limit() {
        let ((reader, signals), written) = (channel(), Arc::default());
        let mut lines = Lines::to(Slow(signals, Arc::clone(&written)));
        // The thread may hold one line more.
        for _ in 0..WAITING + 10 {
            lines.write_all(b"line").unwrap();
        }
        let lost = lines.lost.load(SeqCst);
        assert!((9..=10).contains(&lost), "{lost}");
        (0..WAITING + 10).for_each(|_| reader.send(()).unwrap());
        while lines.waiting.load(SeqCst) > 0 {
            thread::yield_now();
        }
        assert_eq!(written.load(SeqCst), WAITING as u64 + 10 - lost);
    }
}
