//! Log bytes of an intent with one piece of work, for each kind.

use super::work::{IntentBytes, IntentWork};
use smallvec::smallvec;
use xfs_format::log::{
    BmapOp, BmapUpdate, Exchange, ExchangeFlags, Extent, RefcountOp, RefcountUpdate, RmapOp, RmapUpdate,
};
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

const BLOCK: FsBlock = FsBlock(0);
const OFFSET: FileBlock = FileBlock(0);
const INODE: InodeNumber = InodeNumber(0);

/// Frees one extent.
pub(in crate::trans) fn free_bytes() -> IntentBytes {
    IntentWork::Free(smallvec![Extent { start: BLOCK, len: 0 }]).bytes()
}

/// Updates the rmap tree for one mapping.
pub(in crate::trans) fn rmap_bytes() -> IntentBytes {
    let update = RmapUpdate {
        op: RmapOp::Map,
        owner: 0,
        start: BLOCK,
        offset: OFFSET,
        len: 0,
        attr_fork: false,
        bmbt_block: false,
        unwritten: false,
    };
    IntentWork::Rmap(smallvec![update]).bytes()
}

/// Changes the refcounts of one run.
pub(in crate::trans) fn count_bytes() -> IntentBytes {
    let update = RefcountUpdate { op: RefcountOp::Increase, start: BLOCK, len: 0 };
    IntentWork::Count(smallvec![update]).bytes()
}

/// One mapping enters or leaves a map.
pub(in crate::trans) fn map_bytes() -> IntentBytes {
    let update = BmapUpdate {
        op: BmapOp::Map,
        ino: INODE,
        start: BLOCK,
        offset: OFFSET,
        len: 0,
        attr_fork: false,
        unwritten: false,
        realtime: false,
    };
    IntentWork::Map(smallvec![update]).bytes()
}

/// An exchange of mappings.
pub(in crate::trans) fn exchange_bytes() -> IntentBytes {
    let exchange = Exchange {
        inodes: [INODE; 2],
        generations: [0; 2],
        offsets: [OFFSET; 2],
        blocks: 0,
        flags: ExchangeFlags::empty(),
        sizes: [0; 2],
    };
    IntentWork::Exchange(exchange).bytes()
}
