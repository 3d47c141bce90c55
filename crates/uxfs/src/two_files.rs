//! Parts of two files that are held at once, or of one.
//!
//! Invariants: of two files, the one with the lower inode number is held first, and of one file all between the two parts is
//! held at once: nobody waits in a circle. Overwrites in a queue are over when its thread takes them out, and that thread may
//! wait for what is held here already: so each wait is a short one, and all is let go between two of them (`still`).

use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::still;
use fileio::{Failure, HeldToChange};
use std::cmp::Ordering;
use std::ops::Range;
use std::time::Duration;
use xfs::iomap::FileMap;

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
    held: Vec<HeldPart<'a>>,
}

/// The number of an inode, and what is held of its file.
type HeldPart<'a> = (u64, HeldToChange<'a, FileMap>);

impl HeldBoth<'_> {
    /// The size that a file had on the device when its part was held. Where its end lies in that part, it stays.
    pub(crate) fn size(&self, file: &File) -> u64 {
        let ino = file.node.ino();
        let held = self.held.iter().find(|(held, _)| *held == ino);
        held.map_or_else(|| file.size(), |(_, held)| held.size())
    }
}

/// Holds both parts. [`ErrorKind::Busy`] if overwrites that are in a queue keep being in the way; where what is in memory
/// cannot be written back, it says why, and makes no further attempt.
pub(crate) fn hold<'a>(one: Part<'a>, other: Part<'a>) -> Result<HeldBoth<'a>> {
    let parts = match one.file.node.ino().cmp(&other.file.node.ino()) {
        Ordering::Less => vec![one, other],
        Ordering::Greater => vec![other, one],
        Ordering::Equal => {
            let (start, end) = (one.bytes.start.min(other.bytes.start), one.bytes.end.max(other.bytes.end));
            vec![Part { bytes: start..end, changes: one.changes || other.changes, file: one.file }]
        }
    };
    let held = still::patiently(|patience| try_hold(&parts, patience))
        .map_err(|ino| Error::new(ErrorKind::Busy, format!("writes to inode {ino} are still in a queue")))?;
    Ok(HeldBoth { held: held? })
}

/// One attempt: the number of the inode at which it takes too long.
fn try_hold<'a>(
    parts: &[Part<'a>],
    patience: Duration,
) -> std::result::Result<std::result::Result<Vec<HeldPart<'a>>, Failure>, u64> {
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        let held = part.file.data.hold_within(part.bytes.clone(), part.changes, patience);
        let ino = part.file.node.ino();
        match held.transpose().ok_or(ino)? {
            Ok(held) => all.push((ino, held)),
            Err(failure) => return Ok(Err(failure)),
        }
    }
    Ok(Ok(all))
}
