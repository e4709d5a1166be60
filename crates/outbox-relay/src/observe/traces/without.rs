//! Without the feature `otlp` there are no spans.

use std::future::Ready;

use outbox_core::store::settle::Settlement;

use super::{ClaimTrace, Systems};
use crate::{error::RunError, settings::Config};

/// There is none.
#[derive(Debug)]
pub(crate) enum Traces {}

/// There is none.
#[derive(Debug)]
pub(crate) enum Link {}

impl Traces {
    pub(crate) fn new(config: &Config, _: &str, _: Systems) -> Result<Option<Self>, RunError> {
        match config.tracing.otlp_endpoint {
            Some(_) => {
                Err(RunError::configuration("this relay was built without OTLP: leave `tracing.otlp_endpoint` out"))
            }
            None => Ok(None),
        }
    }

    pub(crate) fn link(&self, _: &[(String, String)]) -> Option<Link> {
        match *self {}
    }

    pub(crate) fn claim(&self, _: &ClaimTrace, _: &Settlement, _: &'static str) {
        match *self {}
    }

    pub(crate) fn end(&self) -> Ready<()> {
        match *self {}
    }
}
