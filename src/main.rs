//! The command `relay`.

fn main() {}
