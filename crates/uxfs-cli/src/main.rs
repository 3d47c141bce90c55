//! The command `uxfs`.
#![forbid(unsafe_code)]

fn main() {}
