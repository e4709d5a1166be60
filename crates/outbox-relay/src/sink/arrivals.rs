//! Reads what arrives at a destination, for the canary.

use async_trait::async_trait;

use super::PublishError;

/// The messages that arrive at a destination.
#[async_trait]
pub trait Arrivals: Send {
    /// Waits for the next message, and returns its payload.
    async fn next(&mut self) -> Result<Vec<u8>, PublishError>;

    /// Ends the connection in order.
    async fn close(self: Box<Self>);
}
