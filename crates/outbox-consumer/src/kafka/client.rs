//! Clients of librdkafka, whose end blocks.

use std::{ops::Deref, sync::Arc, thread, time::Duration};

use tokio::sync::oneshot::{Receiver, channel};

/// The pause while another owner of an ending client is left.
const SHARED: Duration = Duration::from_millis(10);

/// A client that ends on a thread of its own, also in a panic: it waits for its threads, and in a group for the
/// brokers.
pub(super) struct Client<T: Send + Sync + 'static> {
    client: Arc<T>,
    is_ending: bool,
}

impl<T: Send + Sync + 'static> Client<T> {
    pub(super) fn new(client: T) -> Self {
        Self { client: Arc::new(client), is_ending: false }
    }

    /// A handle that must be dropped soon after the client: it delays its end.
    pub(super) fn share(&self) -> Arc<T> {
        Arc::clone(&self.client)
    }

    /// Does this at last, and ends the client. The reply comes after that.
    pub(super) fn end<R: Send + 'static>(mut self, last: impl FnOnce(&T) -> R + Send + 'static) -> Receiver<R> {
        self.is_ending = true;
        end(self.share(), last)
    }
}

impl<T: Send + Sync + 'static> Deref for Client<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.client
    }
}

impl<T: Send + Sync + 'static> Drop for Client<T> {
    fn drop(&mut self) {
        if !self.is_ending {
            drop(end(self.share(), |_| ()));
        }
    }
}

fn end<T, R>(mut client: Arc<T>, last: impl FnOnce(&T) -> R + Send + 'static) -> Receiver<R>
where
    T: Send + Sync + 'static,
    R: Send + 'static,
{
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let reply = last(&client);
        // The last owner ends it.
        while let Err(shared) = Arc::try_unwrap(client) {
            client = shared;
            thread::sleep(SHARED);
        }
        // The caller may wait no longer.
        sender.send(reply).ok();
    });
    receiver
}
