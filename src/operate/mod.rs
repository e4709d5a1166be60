//! An operator's questions and orders: reads, verdicts, plans and jobs as plain functions, for the command line and for programs. All
//! texts from outside are escaped, see [`shown`].

pub mod audit;
pub mod controls;
pub mod doctor;
pub mod instances;
pub mod jobs;
pub mod replay;
pub mod shown;
pub mod status;
pub mod unsent;
pub mod why;
