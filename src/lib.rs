//! The relay as a library: see the binary `relay` and ARCHITECTURE.md.

pub mod config;
pub mod sink;
