//! The blocks of a regular file: allocation, conversion, removal, moving.
//!
//! Everything here is in whole blocks and changes metadata alone; who writes bytes (`fileio`) keeps others off them
//! by its range lock. A call on many extents is many transactions, each of which leaves a sound file: what a crash in
//! between leaves is the work half done, never half an extent: a file of which a part has moved, as it does in a kernel.
//! What would be refused is refused before the first of them (`limits`).
//!
//! Invariants:
//! - new blocks are unwritten until somebody says that they hold data: no reader sees what lay there before;
//! - blocks that others have as well are neither written nor made unwritten: who gives them up counts an owner less. Of a
//!   file without the flag for shared blocks none may be shared, which is asked of all of them before anything changes;
//! - blocks behind the end of the file are unwritten or not there, but for the rest of the last block; and but for what a
//!   crash left there, or another program, which goes before the end does.

mod allocate;
mod clone;
mod copies;
mod delayed;
mod exchange;
mod limits;
mod remove;
mod resize;
mod shared;
mod shift;
mod times;

pub use allocate::{
    Given, allocate_blocks, blank_blocks, data_written, fill_blocks, prepare_blocks, take_back,
};
pub use clone::{Share, ShareEnd, check_sharing, share_blocks};
pub(crate) use copies::{
    check_room_with_copies, give_back_all_copies, give_back_copies, give_back_unused_copies, staged_copy,
    unclaim_copies,
};
pub use copies::{stage_copies, take_copies};
pub use delayed::{allocate_promised, data_written_back, promise_blocks, withdraw_blocks};
pub(crate) use delayed::{end_promises, give_up_promised, owe_blocks};
pub use exchange::{ExchangeBlocks, check_exchanging, exchange_blocks};
pub use limits::check_block_change;
pub(crate) use remove::{free_all, free_speculated};
pub use remove::{free_data_behind_end, has_data_behind_end, remove_blocks, truncate_blocks};
pub use resize::{set_size, space_set_aside};
pub(crate) use shared::known_run;
pub use shift::{collapse_blocks, insert_blocks};
pub use times::{log_all_times, log_times};

use crate::error::{Error, Result, ShutdownReason};
use crate::inode::{InodeEntry, Life};
use crate::trans::Trans;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::types::FileBlock;

/// A run of a file's blocks.
pub type Blocks = Range<FileBlock>;

/// In how many parts the map is told of what a write has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// All at once.
    AtOnce,
    /// In any parts, in any order: as it is written back.
    InParts,
}

impl Told {
    /// Blocks that the map may need for that, beyond what it needs if it is told at once: each part may leave a record more,
    /// and leaves that were split are half full, with 16 records at the least.
    fn more_blocks(self, claim: &Blocks) -> u64 {
        match (self, claim.end.0 - claim.start.0) {
            (Self::AtOnce, _) | (Self::InParts, 0 | 1) => 0,
            (Self::InParts, blocks) => blocks.div_ceil(8),
        }
    }
}

/// No file has blocks from here on.
const BLOCKS_END: FileBlock = FileBlock(1 << xfs_format::bmbt::STARTOFF_BITS);

/// Locks and joins a regular file that exists.
fn join_file(trans: &mut Trans<'_>, entry: &Arc<InodeEntry>) -> Result<()> {
    trans.join_inode(Arc::clone(entry), entry.lock())?;
    let inode = trans.inode(entry.ino());
    if inode.is_free() {
        return Err(Error::NoSuchInode(entry.ino()));
    }
    if !inode.is_file() {
        return Err(Error::WrongType { inode: entry.ino(), wanted: "regular file" });
    }
    Ok(())
}

/// Joins an inode that is being freed in this life of it. Between two transactions, who closes the volume may have done
/// the rest, and if the volume was not closed in the end, the inode may be another file by now.
pub(crate) fn join_ending(trans: &mut Trans<'_>, entry: &Arc<InodeEntry>, life: Life) -> Result<()> {
    trans.join_inode(Arc::clone(entry), entry.lock())?;
    if trans.inode(entry.ino()).life() != life {
        return Err(Error::Shutdown(ShutdownReason::Closed));
    }
    Ok(())
}

#[cfg(all(test, not(shuttle)))]
mod tests;
