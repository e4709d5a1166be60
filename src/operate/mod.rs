//! An operator's questions to the tables: reads and verdicts as plain functions, for the command line and for programs. All texts from
//! outside are escaped, see [`shown`].

pub mod dead;
pub mod shown;
pub mod why;
