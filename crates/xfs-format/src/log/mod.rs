//! The journal on disk: records, the operations inside them, and the log items that those carry.
//!
//! Three byte orders meet here, and each type says which it has:
//! - record headers and operation headers are **big-endian** (`h_crc` alone is little-endian);
//! - log items are in the **byte order of the host that wrote them**, which the record's `h_fmt` names. Only
//!   little-endian hosts are handled: [`RecordHeader::check`] refuses the others, so every item type may use
//!   [`host`] without a check;
//! - other structures inside an item (buffer contents, dquots, inode creation) are as on disk: big-endian.
//!
//! How a record lies in the log:
//! ```text
//! block 0            1 … n-1                   n                    …
//! +---------------+-----------------------+--------------------+--------------------+
//! | record header | extended headers      | data block         | data block         |
//! | cycle_data[64]| cycle_data[64] each   | first word: cycle  | first word: cycle  |
//! +---------------+-----------------------+--------------------+--------------------+
//! ```
//! Every 512-byte block begins with the cycle number it was written in (a header block with the magic, and
//! the cycle behind it); the words that this displaces are kept in `cycle_data`. [`unpack`] puts them back.

mod buffer;
mod ends;
mod inode;
mod intent;
mod item;
mod op;
mod quota;
mod record;

pub use buffer::{BufFlags, BufFormat, BufHeader, BufType, CHUNK_SIZE as BUF_CHUNK_SIZE, ChunkRun};
pub use ends::{LogEnds, find_ends};
pub use inode::{InodeCreate, InodeFields, InodeFormat, LogDinode, LogTime};
pub use intent::{
    AttrChange, AttrIntent, AttrOp, BmapIntent, BmapOp, BmapUpdate, Done, Exchange, ExchangeFlags,
    ExchangeIntent, Extent, Extents, FreeIntent, RefcountIntent, RefcountOp, RefcountUpdate, RmapIntent,
    RmapOp, RmapUpdate, Update, UpdateIntent, encode_free_intent, free_intent_bytes,
};
pub use item::{ItemType, LogItem};
pub use op::{Client, Op, OpFlags, OpHeader, RecordOps, TransHeader, is_unmount_op, unmount_op};
pub use quota::{DquotFormat, QuotaOff};
pub use record::{
    BLOCK_SIZE, ExtHeader, LogIdentity, MAX_RECORD_SIZE, RECORD_MAGIC, RecordHeader, block_cycle, checksum,
    clear, give_to, is_cleared, is_unmount_record, pack, unpack, verify_checksum,
};

/// Integers in the byte order of the host that wrote the log. The record header was checked: it is
/// little-endian.
pub mod host {
    pub use zerocopy::little_endian::{I32, I64, U16, U32, U64};
}
