//! The blocks of a regular file: allocation, conversion, removal, moving.
//!
//! Everything here is in whole blocks and changes only metadata; `fileio` keeps others off the bytes by its range lock.
//! A call on many extents takes many transactions, each of which leaves a sound file. A crash in between leaves the
//! work partly done, but never half an extent. For a move this means that a part of the file has moved, as in a kernel.
//! Refusals come before the first transaction (`limits`).
//!
//! Invariants:
//! - new blocks are unwritten until they are converted, so no reader sees their old content;
//! - shared blocks are neither written nor made unwritten; giving them up decrements their refcount. A file without the
//!   reflink flag must have no shared blocks, which is checked for all of them before anything changes;
//! - blocks past the end of the file are unwritten or do not exist, except for the rest of the last block, and for what
//!   a crash or another program left there. That is freed before the end of the file moves.

mod allocate;
mod cow;
mod delalloc;
mod exchange;
mod limits;
mod reflink;
mod remove;
mod resize;
mod shared;
mod shift;
mod times;

pub use allocate::{
    AllocatedRuns, allocate_blocks, convert_unwritten, fill_blocks, mark_unwritten, prepare_blocks, take_back,
};
pub use cow::{allocate_cow, end_cow};
pub(crate) use cow::{
    cancel_all_cow, cancel_cow, cancel_cow_claims, cancel_unused_cow, check_room_with_copies, staged_copy,
};
pub(crate) use delalloc::{abandon_delalloc, end_delalloc, owe_blocks};
pub use delalloc::{cancel_delalloc, convert_delalloc, convert_written_back, reserve_delalloc};
pub use exchange::{ExchangeBlocks, check_exchanging, exchange_blocks};
pub use limits::check_block_change;
pub use reflink::{Reflink, ReflinkEnd, check_sharing, reflink_blocks};
pub(crate) use remove::{free_all, free_eof_blocks};
pub use remove::{free_data_behind_end, has_data_behind_end, remove_blocks, truncate_blocks};
pub use resize::{set_size, space_set_aside};
pub(crate) use shared::known_run;
pub use shift::{collapse_blocks, insert_blocks};
pub(crate) use times::has_name;
pub use times::{log_all_times, log_times};

use crate::error::{Error, Result, ShutdownReason};
use crate::inode::{InodeEntry, Life};
use crate::trans::Trans;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::types::FileBlock;

/// A run of a file's blocks.
pub type FileBlocks = Range<FileBlock>;

/// In how many parts a write's claims are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapUpdate {
    /// All at once.
    AtOnce,
    /// In any parts and any order, by write-back.
    InParts,
}

impl MapUpdate {
    /// Blocks that the map may need for this in addition to what a conversion at once needs. Each part may leave one
    /// more record, and leaves that were split are half full, with at least 16 records.
    fn more_blocks(self, claim: &FileBlocks) -> u64 {
        match (self, claim.end.0 - claim.start.0) {
            (Self::AtOnce, _) | (Self::InParts, 0 | 1) => 0,
            (Self::InParts, blocks) => blocks.div_ceil(8),
        }
    }
}

/// The end of the block numbers of a file.
const BLOCKS_END: FileBlock = FileBlock(1 << xfs_format::bmbt::STARTOFF_BITS);

/// Locks and joins a regular file that must exist.
fn join_file(trans: &mut Trans<'_>, entry: &Arc<InodeEntry>) -> Result<()> {
    trans.join_inode(Arc::clone(entry), entry.ilock())?;
    let inode = trans.inode(entry.ino());
    if inode.is_free() {
        return Err(Error::NoSuchInode(entry.ino()));
    }
    if !inode.is_file() {
        return Err(Error::WrongType { inode: entry.ino(), wanted: "regular file" });
    }
    Ok(())
}

/// Joins an inode whose file of this life is being freed. Between two transactions, closing the volume may have done
/// the rest. If the close failed, the inode may belong to another file by now.
pub(crate) fn join_ending(trans: &mut Trans<'_>, entry: &Arc<InodeEntry>, life: Life) -> Result<()> {
    trans.join_inode(Arc::clone(entry), entry.ilock())?;
    if trans.inode(entry.ino()).life() != life {
        return Err(Error::Shutdown(ShutdownReason::Closed));
    }
    Ok(())
}

#[cfg(all(test, not(shuttle)))]
mod tests;
