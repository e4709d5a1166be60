//! The way of a message through the relay, in order: [`claim`], [`read`], [`publish`], [`retry`] where it failed, [`settle`]. [`lanes`]
//! starts the claimers.

pub mod claim;
pub mod lanes;
pub mod publish;
pub mod read;
pub mod retry;
pub mod settle;
