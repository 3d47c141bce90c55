//! Parts of two files that are held at once, or of one.
//!
//! Invariants: of two files, the one with the lower inode number is held first, and of one file all between the two parts is
//! held at once: nobody waits in a circle. Overwrites in a queue are over when its thread takes them out, and that thread may
//! wait for what is held here already: so each wait is a short one, and all is let go between two of them (`still`).

use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::still;
use fileio::HeldToChange;
use std::ops::Range;
use std::time::Duration;
use xfs::bmap::FileMap;

/// A part of a file that is to be held.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) file: &'a File,
    /// Whole blocks.
    pub(crate) bytes: Range<u64>,
    /// Whether it is to be changed; if not, readers go on.
    pub(crate) changes: bool,
}

/// Both parts, held until this is dropped.
pub(crate) struct HeldBoth<'a> {
    _held: [Option<HeldToChange<'a, FileMap>>; 2],
}

/// Holds both parts. [`ErrorKind::Busy`] if overwrites that are in a queue keep being in the way.
pub(crate) fn hold<'a>(one: Part<'a>, other: Part<'a>) -> Result<HeldBoth<'a>> {
    let held = still::patiently(|patience| {
        if one.file.node.ino() == other.file.node.ino() {
            let (start, end) = (one.bytes.start.min(other.bytes.start), one.bytes.end.max(other.bytes.end));
            let both = Part { bytes: start..end, changes: one.changes || other.changes, file: one.file };
            return Ok(HeldBoth { _held: [Some(try_hold(&both, patience)?), None] });
        }
        let in_order = match one.file.node.ino() < other.file.node.ino() {
            true => [&one, &other],
            false => [&other, &one],
        };
        let first = try_hold(in_order[0], patience)?;
        Ok(HeldBoth { _held: [Some(first), Some(try_hold(in_order[1], patience)?)] })
    });
    held.map_err(|ino: u64| {
        Error::new(ErrorKind::Busy, format!("writes to inode {ino} are still in a queue"))
    })
}

fn try_hold<'a>(part: &Part<'a>, patience: Duration) -> std::result::Result<HeldToChange<'a, FileMap>, u64> {
    let held = part.file.data.hold_within(part.bytes.clone(), part.changes, patience);
    held.ok_or(part.file.node.ino())
}
