//! Holding parts of two files at once, or two parts of one file.
//!
//! Invariants: the file with the lower inode number is held first, and within one file everything between the two parts
//! is held at once, so there is no deadlock. An overwrite in a queue ends when its thread takes it out, and that thread
//! may wait for what is held here: so each wait is short, and everything is released between two attempts (`still`).

use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::still;
use fileio::{Failure, HeldToChange};
use std::cmp::Ordering;
use std::ops::Range;
use std::time::Duration;
use xfs::iomap::FileMap;

/// A part of a file to hold.
#[derive(Clone, Debug)]
pub(crate) struct LockedPart<'a> {
    pub(crate) file: &'a File,
    /// Whole blocks.
    pub(crate) bytes: Range<u64>,
    /// Whether it will be changed. If not, readers can go on.
    pub(crate) changes: bool,
}

/// Both parts, held until this is dropped.
pub(crate) struct HeldBoth<'a> {
    held: Vec<HeldPart<'a>>,
}

/// An inode number, and the hold on its file.
type HeldPart<'a> = (u64, HeldToChange<'a, FileMap>);

impl HeldBoth<'_> {
    /// The size of a file on the device when its part was held. If its end lies in that part, it cannot change.
    pub(crate) fn size(&self, file: &File) -> u64 {
        let ino = file.node.ino();
        let held = self.held.iter().find(|(held, _)| *held == ino);
        held.map_or_else(|| file.size(), |(_, held)| held.size())
    }
}

/// Holds both parts. [`ErrorKind::Busy`] if overwrites in a queue stay in the way. If dirty pages cannot be written
/// back, it fails with that error at once.
pub(crate) fn hold<'a>(one: LockedPart<'a>, other: LockedPart<'a>) -> Result<HeldBoth<'a>> {
    let parts = match one.file.node.ino().cmp(&other.file.node.ino()) {
        Ordering::Less => vec![one, other],
        Ordering::Greater => vec![other, one],
        Ordering::Equal => {
            let (start, end) = (one.bytes.start.min(other.bytes.start), one.bytes.end.max(other.bytes.end));
            vec![LockedPart { bytes: start..end, changes: one.changes || other.changes, file: one.file }]
        }
    };
    let held = still::patiently(|patience| try_hold(&parts, patience))
        .map_err(|ino| Error::new(ErrorKind::Busy, format!("writes to inode {ino} are still in a queue")))?;
    Ok(HeldBoth { held: held? })
}

/// One attempt; fails with the number of the inode that takes too long.
fn try_hold<'a>(
    parts: &[LockedPart<'a>],
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
