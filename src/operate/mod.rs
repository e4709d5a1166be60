//! What an operator asks of the tables: reads and verdicts as plain functions, for the command line and for programs.

pub mod shown;
pub mod why;
