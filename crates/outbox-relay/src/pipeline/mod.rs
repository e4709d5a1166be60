//! The path of a message through the relay, in order: [`claim`], [`read`], [`publish`], [`retry`] after a failure,
//! `settle`. `lanes` starts the claimers.

pub mod claim;
pub(crate) mod lanes;
pub mod publish;
pub mod read;
pub mod retry;
pub(crate) mod settle;
pub(crate) mod tail;
