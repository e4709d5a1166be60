//! An operator's questions and orders: reads, verdicts, plans and jobs as plain functions, for the command line and for
//! programs. Texts from outside are given as they are: a program that prints them escapes them, see [`shown::shown`].

pub mod audit;
pub mod controls;
pub mod doctor;
pub mod inbox;
pub mod instances;
pub mod jobs;
pub mod keys;
pub mod messages;
pub mod purge;
pub mod replay;
pub mod shown;
pub mod status;
pub mod unsent;
pub mod why;

/// The rights that a question or an order needs. Each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Role {
    /// To look, without keys, headers and payloads.
    Viewer,
    /// To see keys, headers and payloads, too, each with a reason.
    Revealer,
    /// To give orders.
    Operator,
}
