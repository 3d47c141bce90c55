//! The fuzz targets, as plain functions of their input: a finding is replayed without the fuzzer, and can
//! become a test.
//!
//! What every target holds the parsers to: no panic (with overflow checks on), no endless loop, memory in
//! proportion to the input, and the invariants that the parsers' own documentation promises. Checksums,
//! magics and identities are put right where the input asks for it, so that damage gets past them.
#![forbid(unsafe_code)]

pub mod ag;
pub mod attr;
pub mod change;
pub mod dir;
pub mod image;
pub mod inode;
pub mod intents;
pub mod log;
pub mod recovery;
pub mod seal;
pub mod superblock;
pub mod today;
