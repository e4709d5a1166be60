//! An operator's questions and orders: reads, verdicts, plans and jobs as plain functions, for the command line and for
//! programs. Texts from outside are given as they are: a program that prints them escapes them, see [`shown::shown`].

pub mod audit;
pub mod controls;
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
