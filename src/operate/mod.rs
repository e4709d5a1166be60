//! What an operator asks of the tables: reads and verdicts as plain functions, for the command line and for programs. Texts that come
//! from outside are escaped, see [`shown`].

pub mod dead;
pub mod shown;
pub mod why;
