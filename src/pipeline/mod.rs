//! The way of a message through the relay, in order: [`lanes`] starts claimers, [`claim`], [`read`], [`publish`], [`retry`] where it failed, [`settle`].

pub mod claim;
pub mod lanes;
pub mod publish;
pub mod read;
pub mod retry;
pub mod settle;
