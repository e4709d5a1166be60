//! The channels of a connection: a place for each, and a count of those that are open.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lapin::{Channel, Connection, Error, ErrorKind, options::ConfirmSelectOptions, types::ShortString};
use tokio::{
    runtime::Handle,
    sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout_at},
};

use super::session::{ChannelFailure, in_time, soft};

/// The pause before lapin is asked again for a channel.
const PAUSE: Duration = Duration::from_millis(10);
/// The time for which an ended channel counts. RabbitMQ counts those of a user by events: behind their ends by
/// milliseconds on an idle node, and no answer tells when.
const COUNTED: Duration = Duration::from_secs(1);

/// An open channel, which counts for a second after it is dropped.
pub(super) struct OpenChannel {
    pub(super) channel: Channel,
    counted: Option<OwnedSemaphorePermit>,
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        if let (Some(counted), Ok(runtime)) = (self.counted.take(), Handle::try_current()) {
            runtime.spawn(async move {
                sleep(COUNTED).await;
                drop(counted);
            });
        }
    }
}

/// The channels of a connection.
pub(crate) struct Channels {
    /// Each is used by one round of messages at a time.
    places: Vec<Mutex<Option<OpenChannel>>>,
    free: Arc<Semaphore>,
    most: usize,
    /// The channels that were open when the broker refused another.
    limit: AtomicUsize,
    /// The numbers that channels may have. lapin cannot use one again after the broker has ended its channel.
    numbers: usize,
    /// The channels that the broker has ended.
    ended: AtomicUsize,
    /// The channels that were left, and have not ended yet.
    left: Arc<AtomicUsize>,
}

impl Channels {
    /// Makes this number of places, but at most `most`, for a connection whose channels have these numbers.
    pub(super) fn new(places: usize, most: usize, numbers: u16) -> Self {
        let numbers = usize::from(numbers);
        let most = most.min(numbers);
        let places = (0..places.min(most).max(1)).map(|_| Mutex::default()).collect();
        let limit = AtomicUsize::new(usize::MAX);
        let ended = AtomicUsize::new(0);
        let left = Arc::default();
        Self { places, free: Arc::new(Semaphore::new(most)), most, limit, numbers, ended, left }
    }

    /// Returns the number of places.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns the places.
    pub(super) fn places(&self) -> &[Mutex<Option<OpenChannel>>] {
        &self.places
    }

    /// Notes that the broker has ended a channel.
    pub(super) fn has_ended(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether fewer numbers or channels remain than places: another connection is needed.
    pub(super) fn are_spent(&self) -> bool {
        let [ended, left] = [&self.ended, &*self.left].map(|count| count.load(Ordering::SeqCst) + self.places.len());
        ended > self.numbers || left > self.most
    }

    /// Ends a channel that confirms nothing; messages on it may still arrive. It counts until the broker has ended it,
    /// which a queue that does not answer holds up for as long as the connection lasts.
    pub(super) fn leave(&self, open: OpenChannel) {
        let left = Arc::clone(&self.left);
        left.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            if let Err(error) = open.channel.close(200, ShortString::default()).await {
                tracing::debug!(%error, "a channel to RabbitMQ did not end");
            }
            drop(open);
            left.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Whether as many are open as may be.
    pub(super) fn is_full(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// Returns how many the broker allows, if it has refused one: it ends the connection then.
    pub(super) fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::SeqCst)).filter(|limit| *limit < usize::MAX)
    }

    /// Returns a place without messages in flight, or waits for one.
    pub(super) async fn idle(&self, deadline: Instant) -> Result<MutexGuard<'_, Option<OpenChannel>>, ChannelFailure> {
        let first = self.places.first().ok_or(ChannelFailure::Busy)?;
        match self.places.iter().find_map(|place| place.try_lock().ok()) {
            Some(place) => Ok(place),
            None => timeout_at(deadline.into(), first.lock()).await.map_err(|_elapsed| ChannelFailure::Busy),
        }
    }

    /// Opens a channel in each place: one after the other, or together, which does not show how many the broker allows.
    pub(super) async fn open_all(
        &self,
        connection: &Connection,
        is_together: bool,
        deadline: Instant,
    ) -> Result<(), ChannelFailure> {
        let at_once = if is_together { self.places.len() } else { 1 };
        let open = async |place: &Mutex<Option<OpenChannel>>| {
            self.open(&mut *place.lock().await, connection, deadline).await.map(drop)
        };
        for places in self.places.chunks(at_once) {
            // All of them: another channel's error may come before the one that names the limit.
            join_all(places.iter().map(open)).await.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    /// Returns the channel in this place, opened if necessary.
    pub(super) async fn open(
        &self,
        place: &mut Option<OpenChannel>,
        connection: &Connection,
        deadline: Instant,
    ) -> Result<Channel, ChannelFailure> {
        if let Some(open) = place.as_ref().filter(|open| open.channel.status().connected()) {
            return Ok(open.channel.clone());
        }
        *place = None;
        let counted = timeout_at(deadline.into(), Arc::clone(&self.free).acquire_owned()).await;
        let counted = counted.ok().and_then(Result::ok).ok_or(ChannelFailure::Busy)?;
        let channel = loop {
            match opened(connection, deadline).await {
                // lapin still counts a channel that has ended.
                Err(ChannelFailure::Error(error))
                    if matches!(error.kind(), ErrorKind::ChannelsLimitReached) && Instant::now() < deadline =>
                {
                    sleep(PAUSE).await;
                }
                // It is the error of an ended channel, whose number lapin gives once more.
                Err(ChannelFailure::Error(error)) if soft(&error).is_some() => {
                    self.ended.store(self.numbers, Ordering::SeqCst);
                    return Err(ChannelFailure::Busy);
                }
                opened => break opened.inspect_err(|failure| self.refused(failure))?,
            }
        };
        *place = Some(OpenChannel { channel: channel.clone(), counted: Some(counted) });
        Ok(channel)
    }

    /// Notes a limit of the broker: for the user, or for the node.
    fn refused(&self, failure: &ChannelFailure) {
        if let ChannelFailure::Error(error) = failure
            && is_limit(error)
        {
            let opened = self.most.saturating_sub(self.free.available_permits() + 1);
            self.limit.store(opened, Ordering::SeqCst);
        }
    }
}

async fn opened(connection: &Connection, deadline: Instant) -> Result<Channel, ChannelFailure> {
    let channel = in_time(deadline, connection.create_channel()).await?;
    in_time(deadline, channel.confirm_select(ConfirmSelectOptions::default())).await?;
    Ok(channel)
}

fn is_limit(error: &Error) -> bool {
    error.to_string().contains("number of channels opened")
}
