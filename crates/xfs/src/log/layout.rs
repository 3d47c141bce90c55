//! The layout of one log: where it lies, how long its records are, and what they cost besides their
//! content.
//!
//! A place in the log is a [`Pos`]: a count of 512-byte blocks that never goes back, cycle after cycle. LSNs are
//! the same thing in the format's terms.
//!
//! What a checkpoint takes of the log, in the terms that reservations are made in:
//! ```text
//! base     start, transaction header, commit, the last record's header and padding
//! bytes    vectors, with an operation header a region
//! headers  in proportion to bytes: a record's header, what is left unused at its end, and the operation header
//!          of a region that goes on in the next record
//! ```
//! Invariant, checked in debug builds: no checkpoint takes more than its transactions paid for it.

use super::vector::OP_BYTES;
use crate::error::{Error, Result};
use xfs_format::error::FormatError;
use xfs_format::log::{BLOCK_SIZE, LogEnds, MAX_RECORD_SIZE, RECORD_MAGIC, TransHeader};
use xfs_format::superblock::Superblock;
use xfs_format::types::{Lsn, Uuid};

/// Bytes of data whose cycle words fit into one header block.
const HEADER_SPAN: u32 = 32 << 10;
/// A region that does not fit into its record is split only if at least this much of it fits.
pub(super) const CUT_LEAST: usize = 256;
/// The record size of a kernel that is given no other (`logbsize`), if the stripe unit is no larger.
const RECORD_USUAL: u32 = 32 << 10;
/// The minimum record size that a kernel accepts.
const RECORD_LEAST: u32 = 16 << 10;
/// Cycles from here on are refused, because they could look like the magic of a record.
const CYCLE_LIMIT: u32 = RECORD_MAGIC & 0xffff_0000;
/// Maximum length of the log that may be written and not flushed, in blocks: the range that recovery checks for holes.
const UNFLUSHED_BLOCKS: u32 = 4096;
/// Maximum number of records that may be written and not flushed: those whose checksums recovery doubts.
const UNFLUSHED_RECORDS: u32 = 7;

/// Maximum bytes of records that are written together.
const RUN_BYTES: u32 = 256 << 10;

/// A position in the log, in 512-byte blocks since the beginning of cycle 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pos(pub(super) u64);

/// The layout of one log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogLayout {
    /// First byte on the device.
    pub(super) start: u64,
    /// Length in 512-byte blocks.
    pub(super) blocks: u32,
    /// Records are padded to multiples of this many bytes.
    pub(super) round: u32,
    /// `h_size`: size of a record buffer in bytes.
    pub(super) size: u32,
    /// The volume's UUID.
    pub(super) uuid: Uuid,
}

impl LogLayout {
    /// The layout of a volume's log on a device with this sector size. Its records have size `record_size` if the log
    /// supports that.
    pub(super) fn new(superblock: &Superblock, device_sector: u32, record_size: u32) -> Result<Self> {
        let raw = superblock.raw();
        let sector = device_sector.max(raw.logsectsize.get().into()).max(BLOCK_SIZE as u32);
        let round = raw.logsunit.get().max(1).next_multiple_of(sector);
        let bytes = superblock.log_bytes();
        let problem = |check, found| {
            Error::corrupt_block(superblock.log_daddr(), None, FormatError::value("log", check, found))
        };
        let blocks = u32::try_from(bytes / BLOCK_SIZE as u64).map_err(|_| problem("size", bytes))?;
        let size = RECORD_USUAL.max(round);
        let start = superblock.log_daddr().0 * BLOCK_SIZE as u64;
        let layout = Self { start, blocks, round, size, uuid: superblock.uuid() };
        if size > MAX_RECORD_SIZE {
            return Err(problem("stripe unit", round.into()));
        }
        if bytes < 8 * u64::from(size) || layout.payload() == 0 {
            return Err(problem("size", bytes));
        }
        let size = if layout.takes(record_size) { record_size } else { size };
        Ok(Self { size, ..layout })
    }

    /// Whether a kernel supports records of this size in this log.
    fn takes(&self, record_size: u32) -> bool {
        let size = u64::from(record_size);
        record_size.is_multiple_of(BLOCK_SIZE as u32)
            && (RECORD_LEAST.max(self.round)..=MAX_RECORD_SIZE).contains(&record_size)
            && 8 * size <= self.bytes()
    }

    /// Bytes of the log.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_SIZE as u64
    }

    /// Bytes of a record's header blocks.
    pub(super) fn header(&self) -> u32 {
        self.size.div_ceil(HEADER_SPAN) * BLOCK_SIZE as u32
    }

    /// Maximum bytes of a whole record.
    pub(super) fn record_max(&self) -> u32 {
        self.size / self.round * self.round
    }

    /// Maximum bytes of data in a record.
    pub(super) fn data_max(&self) -> usize {
        (self.record_max() - self.header()) as usize
    }

    /// Bytes of a record with this many bytes of data.
    pub(super) fn record_bytes(&self, data: usize) -> u32 {
        (self.header() + data as u32).next_multiple_of(self.round)
    }

    /// Bytes of a full record that may hold something other than vectors.
    fn record_overhead(&self) -> u64 {
        u64::from(self.header()) + CUT_LEAST as u64 + 2 * OP_BYTES as u64
    }

    /// Bytes of vectors that fit into a full record in every case.
    fn payload(&self) -> u64 {
        u64::from(self.record_max()).saturating_sub(self.record_overhead())
    }

    /// Log space of a checkpoint, however small.
    pub(super) fn base(&self) -> u64 {
        let operations = 3 * OP_BYTES + size_of::<TransHeader>();
        operations as u64 + 2 * (self.record_overhead() + u64::from(self.round))
    }

    /// Log space of this many bytes of vectors with their share of headers.
    pub(super) fn charge(&self, bytes: u64) -> u64 {
        bytes + (bytes * self.record_overhead()).div_ceil(self.payload())
    }

    /// The unit reservation for this many bytes. Every transaction may be the one that pays for its checkpoint.
    pub(super) fn unit_reservation(&self, bytes: u32) -> u64 {
        self.charge(bytes.into()) + self.base()
    }

    /// Bytes that can be reserved together. The rest has room for a record that only says that the tail has moved, and
    /// for the unmount record.
    pub(super) fn capacity(&self) -> u64 {
        self.bytes() - 2 * u64::from(self.record_max())
    }

    /// How many of these bytes can be promised. When nothing more can be written back, the log also holds intents,
    /// whose space is promised: in one checkpoint that has all of them, and in another that is about to replace it.
    pub(super) fn promisable(&self) -> u64 {
        self.capacity().saturating_sub(2 * self.base())
    }

    /// Bytes of changes that a checkpoint should gather.
    pub(super) fn checkpoint_limit(&self) -> u64 {
        (self.bytes() / 8).min(32 << 20)
    }

    /// Records that may be written and not flushed.
    pub(super) fn unflushed_max(&self) -> u32 {
        let blocks = UNFLUSHED_BLOCKS.min(self.blocks / 4);
        (blocks / (self.record_max() / BLOCK_SIZE as u32)).clamp(1, UNFLUSHED_RECORDS)
    }

    /// Maximum number of records written by one request. Another such run may be under way meanwhile, and one more
    /// record.
    pub(super) fn run_max(&self) -> usize {
        let others = self.unflushed_max().saturating_sub(1) / 2;
        others.min(RUN_BYTES / self.record_max()).max(1) as usize
    }

    /// Maximum bytes of such a run.
    pub(super) fn run_bytes(&self) -> usize {
        self.run_max() * self.record_max() as usize
    }

    /// Blocks behind the head where a crash may have left traces, as far as the log is free: whole sectors.
    pub(super) fn doubtful_blocks(&self) -> u32 {
        UNFLUSHED_BLOCKS.min(self.blocks) & !7
    }

    /// Position of the next record, and the block of the last one (`u32::MAX` if there is none).
    pub(super) fn head(&self, ends: &LogEnds, device_sector: u32) -> Result<(Pos, u32), FormatError> {
        let Some(last) = ends.last_record else { return Ok((Pos(self.blocks.into()), u32::MAX)) };
        let cycle = (ends.lsn.0 >> 32) as u32;
        if cycle >= CYCLE_LIMIT {
            return Err(FormatError::value("log", "cycle", cycle.into()));
        }
        if ends.head >= self.blocks || !(ends.head * BLOCK_SIZE as u32).is_multiple_of(device_sector) {
            return Err(FormatError::value("log", "head", ends.head.into()));
        }
        let wrapped = u64::from(ends.head <= last);
        Ok((Pos((u64::from(cycle) + wrapped) * u64::from(self.blocks) + u64::from(ends.head)), last))
    }

    /// The LSN of a position.
    pub(super) fn lsn(&self, pos: Pos) -> Lsn {
        let blocks = u64::from(self.blocks);
        Lsn(((pos.0 / blocks) << 32) | (pos.0 % blocks))
    }

    /// The position of an LSN.
    pub(super) fn pos(&self, lsn: Lsn) -> Pos {
        Pos((lsn.0 >> 32) * u64::from(self.blocks) + (lsn.0 & 0xffff_ffff))
    }

    /// For a record at `at` that wraps around: which of its blocks lies at the start of the log.
    pub(super) fn wrap(&self, at: Pos, bytes: u32) -> Option<usize> {
        let room = (self.blocks - self.block(at)) as usize;
        (room * BLOCK_SIZE < bytes as usize).then_some(room)
    }

    /// The block of a position.
    pub(super) fn block(&self, pos: Pos) -> u32 {
        (pos.0 % u64::from(self.blocks)) as u32
    }
}

impl Pos {
    /// The position this many bytes (whole blocks) later.
    pub(super) fn after(self, bytes: u32) -> Self {
        Self(self.0 + u64::from(bytes) / BLOCK_SIZE as u64)
    }

    /// Bytes from an earlier position to here.
    pub(super) fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) * BLOCK_SIZE as u64
    }
}

#[cfg(test)]
impl LogLayout {
    /// A log of this many blocks at the start of a device.
    pub(super) fn for_tests(blocks: u32, round: u32, size: u32) -> Self {
        Self { start: 0, blocks, round, size, uuid: Uuid([7; 16]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_lsns_are_the_same_thing() {
        let layout = LogLayout::for_tests(1000, 512, 32 << 10);
        for pos in [1000, 1999, 2000, 123_456].map(Pos) {
            let lsn = layout.lsn(pos);
            assert_eq!(layout.pos(lsn), pos);
            assert!(layout.lsn(Pos(pos.0 + 1)) > lsn);
        }
        assert_eq!(layout.lsn(Pos(2017)), Lsn(2 << 32 | 17));
    }

    #[test]
    fn records_have_a_size_that_a_kernel_can_be_told() {
        let (log, striped) = (LogLayout::for_tests(4096, 512, 0), LogLayout::for_tests(4096, 64 << 10, 0));
        for size in [16 << 10, 32 << 10, 256 << 10] {
            assert!(log.takes(size), "{size}");
            assert_eq!(striped.takes(size), size >= 64 << 10, "{size}");
        }
        for size in [0, 512, 8 << 10, (32 << 10) + 1, 512 << 10] {
            assert!(!log.takes(size), "{size}");
        }
        assert!(!LogLayout::for_tests(4095, 512, 0).takes(256 << 10), "eight of them are more than the log");
    }

    #[test]
    fn the_head_goes_on_behind_the_last_record() {
        let layout = LogLayout::for_tests(1000, 512, 32 << 10);
        let ends = |head, last, cycle: u64| LogEnds {
            head,
            last_record: Some(last),
            lsn: Lsn(cycle << 32 | u64::from(last)),
            tail: Lsn(0),
            clean: true,
            record_size: 0,
            is_torn: false,
        };
        assert_eq!(layout.head(&ends(2, 0, 1), 512), Ok((Pos(1002), 0)));
        assert_eq!(layout.head(&ends(0, 990, 3), 512), Ok((Pos(4000), 990)));
        assert_eq!(layout.head(&ends(5, 990, 3), 512), Ok((Pos(4005), 990)));
        assert!(layout.head(&ends(5, 990, 3), 4096).is_err());
        assert!(layout.head(&ends(2, 0, 0xfeed_babd), 512).is_err());
    }
}
