//! Tells whether a log is clean: whether the last thing in it is the record of an unmount.
//!
//! The log is a ring of 512-byte blocks. The first word of each is the cycle in which it was written, except in a
//! record's header, where it is a magic number and the cycle comes second. Cycles count up by one each time round,
//! so the place where the cycle drops, the head, is where the next record would go. It is found by bisection; only
//! a window before it is read as a whole, as the last writes before a crash may have landed out of order.

use crate::error::{Error, Result};
use blockdev::{AlignedBuf, BlockDevice};
use xfs_format::error::FormatError;
use xfs_format::types::DiskAddr;

const MAGIC: u32 = 0xfeed_babe;
const UNMOUNT_TRANS: u8 = 0x20;
/// Bytes of a block of the log.
const BLOCK: u64 = 512;
/// Blocks that may have been in flight at once: eight records of 256 KiB, with their headers.
const WINDOW_BLOCKS: u64 = 8 * (256 << 10) / BLOCK + 8 * 8;
/// Blocks that are read at once.
const CHUNK_BLOCKS: u64 = 256;
/// Data bytes for which one header block holds the cycle data.
const HEADER_COVERS: u32 = 32 << 10;

/// Where the log lies.
#[derive(Clone, Copy, Debug)]
pub struct LogPlace {
    /// Its first block.
    pub daddr: DiskAddr,
    /// Its length in blocks of 512 bytes.
    pub blocks: u64,
}

/// Whether nothing in the log waits to be replayed.
pub fn is_clean(device: &dyn BlockDevice, place: LogPlace) -> Result<bool> {
    let log = Log { device, place };
    let Some(head) = log.find_head()? else { return Ok(true) };
    let Some(record) = log.last_record(head)? else {
        let problem = FormatError::new("log", "record header: none before the head");
        return Err(Error::corrupt_block(place.daddr, None, problem));
    };
    log.is_unmount(&record, head)
}

/// What is needed of a record's header.
#[derive(Clone, Copy, Debug)]
struct Record {
    at: u64,
    header_blocks: u64,
    data_blocks: u64,
    operations: u32,
}

struct Log<'a> {
    device: &'a dyn BlockDevice,
    place: LogPlace,
}

/// A 32-bit field of a block.
fn word(block: &[u8], at: usize) -> u32 {
    block.get(at..).and_then(|rest| rest.first_chunk::<4>()).map_or(0, |raw| u32::from_be_bytes(*raw))
}

/// The cycle in which a block was written; 0: never.
fn cycle_of(block: &[u8]) -> u32 {
    if word(block, 0) == MAGIC { word(block, 4) } else { word(block, 0) }
}

impl Log<'_> {
    /// Reads `count` blocks from `start` on, which do not go beyond the log's end.
    fn read(&self, start: u64, count: u64) -> Result<Vec<u8>> {
        let sector = u64::from(self.device.sector_size()).max(BLOCK);
        let begin = self.place.daddr.0.saturating_add(start).saturating_mul(BLOCK);
        let end = begin.saturating_add(count * BLOCK);
        let aligned = begin / sector * sector;
        let len = end.next_multiple_of(sector) - aligned;
        let mut buf = AlignedBuf::zeroed(usize::try_from(len).unwrap_or(0));
        self.device.read(aligned, &mut buf)?;
        let skip = usize::try_from(begin - aligned).unwrap_or(0);
        let want = usize::try_from(count * BLOCK).unwrap_or(0);
        Ok(buf.get(skip..).and_then(|rest| rest.get(..want)).unwrap_or_default().to_vec())
    }

    fn cycle(&self, block: u64) -> Result<u32> {
        Ok(cycle_of(&self.read(block, 1)?))
    }

    /// The block at which the next record would begin; `None` if the log was never written.
    fn find_head(&self) -> Result<Option<u64>> {
        let last = self.place.blocks.saturating_sub(1);
        let first_cycle = self.cycle(0)?;
        let last_cycle = self.cycle(last)?;
        if first_cycle == 0 {
            return Ok(None);
        }
        // Blocks before the head are of the first block's cycle, those behind it of the last one's.
        let head = if first_cycle == last_cycle {
            self.place.blocks
        } else {
            let (mut new, mut old) = (0, last);
            while old - new > 1 {
                let middle = new + (old - new) / 2;
                if self.cycle(middle)? == first_cycle { new = middle } else { old = middle }
            }
            old
        };
        let head = self.first_stale(head, first_cycle)?.unwrap_or(head);
        Ok(Some(head % self.place.blocks))
    }

    /// The first block in the window before `head` that a write in flight did not reach.
    fn first_stale(&self, head: u64, cycle: u32) -> Result<Option<u64>> {
        let mut at = head.saturating_sub(WINDOW_BLOCKS);
        while at < head {
            let count = CHUNK_BLOCKS.min(head - at);
            let blocks = self.read(at, count)?;
            let stale = blocks.chunks_exact(512).position(|block| cycle_of(block) != cycle);
            if let Some(index) = stale {
                return Ok(Some(at + index as u64));
            }
            at += count;
        }
        Ok(None)
    }

    /// The last record header before `head`, going back round the ring.
    fn last_record(&self, head: u64) -> Result<Option<Record>> {
        let window = WINDOW_BLOCKS.min(self.place.blocks);
        let mut passed = 0;
        let mut end = if head == 0 { self.place.blocks } else { head };
        while passed < window {
            let count = CHUNK_BLOCKS.min(end).min(window - passed);
            let start = end - count;
            let blocks = self.read(start, count)?;
            for (index, block) in blocks.chunks_exact(512).enumerate().rev() {
                if word(block, 0) == MAGIC {
                    return Ok(Some(Record::parse(block, start + index as u64)));
                }
            }
            passed += count;
            end = if start == 0 { self.place.blocks } else { start };
        }
        Ok(None)
    }

    /// Whether `record` is that of an unmount and ends at the head.
    fn is_unmount(&self, record: &Record, head: u64) -> Result<bool> {
        let data = record.at + record.header_blocks;
        if record.operations != 1 || (data + record.data_blocks) % self.place.blocks != head {
            return Ok(false);
        }
        let block = self.read(data % self.place.blocks, 1)?;
        // Operation header: transaction 4, length 4, client 1, flags 1.
        Ok(block.get(9).is_some_and(|flags| flags & UNMOUNT_TRANS != 0))
    }
}

impl Record {
    fn parse(block: &[u8], at: u64) -> Self {
        let version = word(block, 8);
        let len = word(block, 12);
        let size = word(block, 320);
        // Version 2 records that may be long have room for all their cycle data, however long they are.
        let header_blocks =
            if version & 2 != 0 && size > HEADER_COVERS { size.div_ceil(HEADER_COVERS) } else { 1 };
        Self {
            at,
            header_blocks: header_blocks.into(),
            data_blocks: u64::from(len).div_ceil(BLOCK),
            operations: word(block, 40),
        }
    }
}
