//! The program `relay` of a transactional outbox for MySQL: its [`cli`] and its [`config`]. What it runs is in
//! `mysql-outbox-relay`. This crate is no library for others, and changes without notice.

pub mod cli;
pub mod config;
mod doctor;
