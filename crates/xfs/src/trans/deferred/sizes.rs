//! How much of the log an intent for one piece of each kind takes.

use super::work::{IntentBytes, Promise};
use smallvec::smallvec;
use xfs_format::log::{
    BmapOp, BmapUpdate, Exchange, ExchangeFlags, Extent, RefcountOp, RefcountUpdate, RmapOp, RmapUpdate,
};
use xfs_format::types::{FileBlock, FsBlock, InodeNumber};

const BLOCK: FsBlock = FsBlock(0);
const OFFSET: FileBlock = FileBlock(0);
const INODE: InodeNumber = InodeNumber(0);

/// For the freeing of one extent.
pub(in crate::trans) fn free_bytes() -> IntentBytes {
    Promise::Free(smallvec![Extent { start: BLOCK, len: 0 }]).bytes()
}

/// For one mapping that the reverse map is told of.
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
    Promise::Rmap(smallvec![update]).bytes()
}

/// For the counts of one run.
pub(in crate::trans) fn count_bytes() -> IntentBytes {
    let update = RefcountUpdate { op: RefcountOp::Increase, start: BLOCK, len: 0 };
    Promise::Count(smallvec![update]).bytes()
}

/// For one mapping that comes into a map or goes.
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
    Promise::Map(smallvec![update]).bytes()
}

/// For an exchange.
pub(in crate::trans) fn exchange_bytes() -> IntentBytes {
    let exchange = Exchange {
        inodes: [INODE; 2],
        generations: [0; 2],
        offsets: [OFFSET; 2],
        blocks: 0,
        flags: ExchangeFlags::empty(),
        sizes: [0; 2],
    };
    Promise::Exchange(exchange).bytes()
}
