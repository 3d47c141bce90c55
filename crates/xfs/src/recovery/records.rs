//! The records of a log from its tail to its head, one by one, each complete and checked.
//!
//! Finding the ends has already left out what a crash tore at the head. Anything wrong before it is corruption, and the
//! error says where. Nothing after a bad record is believed. Only a few records are in memory at a time: a thread reads
//! and checks the next ones while the caller processes earlier ones.

use super::log_ends;
use crate::error::{Error, Result};
use blockdev::BlockDevice;
use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};
use xfs_format::error::FormatError;
use xfs_format::log::{
    BLOCK_SIZE, LogEnds, LogIdentity, MAX_RECORD_SIZE, Op, RecordHeader, RecordOps, unpack, verify_checksum,
};
use xfs_format::superblock::Superblock;
use xfs_format::types::{DiskAddr, Lsn};

const NAME: &str = "log record";
/// Maximum length of what may have been under way behind the head at the crash, in blocks: eight buffers of 256 KiB.
const IN_FLIGHT_BLOCKS: u64 = 8 * (MAX_RECORD_SIZE as u64 / BLOCK_SIZE as u64);

/// How many records may wait to be processed.
const AHEAD: usize = 8;

/// A record that passed its checks.
struct Record {
    at: u64,
    header: RecordHeader,
    /// All of it, and where its operations are.
    bytes: Vec<u8>,
    data: Range<usize>,
}

/// The part of a log that is to be replayed.
pub(super) struct Records<'d> {
    device: &'d dyn BlockDevice,
    start: DiskAddr,
    blocks: u32,
    identity: LogIdentity,
    /// Start and end, in blocks since the beginning of cycle 0.
    tail: u64,
    head: u64,
}

impl<'d> Records<'d> {
    /// The records between the ends of a volume's log.
    pub(super) fn new(device: &'d dyn BlockDevice, superblock: &Superblock, ends: &LogEnds) -> Result<Self> {
        let start = superblock.log_daddr();
        let blocks = u32::try_from(superblock.log_bytes() / BLOCK_SIZE as u64).unwrap_or(u32::MAX);
        let identity = LogIdentity { v5: superblock.is_v5(), uuid: superblock.uuid() };
        let (cycle, block) = (ends.tail.0 >> 32, ends.tail.0 & 0xffff_ffff);
        let whole = u64::from(blocks);
        let wrapped = u64::from(ends.last_record.is_some_and(|last| ends.head <= last));
        let head = ((ends.lsn.0 >> 32) + wrapped) * whole + u64::from(ends.head);
        let tail = cycle * whole + block;
        // The tail must lie in the log, before the head, and less than one round behind it.
        if block >= whole || tail > head || head - tail > whole {
            let problem = FormatError::mismatch(NAME, "tail", ends.tail.0, ends.lsn.0);
            return Err(Error::corrupt_block(start, None, problem));
        }
        let mut records = Self { device, start, blocks, identity, tail, head };
        records.skip_overwritten()?;
        Ok(records)
    }

    /// Skips records at the tail that were overwritten. The tail may have moved on since the last whole record named
    /// it, and records under way at the crash may lie over it. The skipped records are finished: the log was free to
    /// continue there. Elsewhere a bad record is corruption.
    fn skip_overwritten(&mut self) -> Result<()> {
        let doubtful = (self.head + IN_FLIGHT_BLOCKS).saturating_sub(self.blocks.into()).min(self.head);
        let mut bytes = Vec::new();
        let mut at = self.tail;
        while at < doubtful {
            match self.read(at, &mut bytes) {
                Ok(header) => at += u64::from(header.total_blocks()),
                Err(Error::Corrupt { .. }) => {
                    at = self.next_header(at + 1)?;
                    self.tail = at;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The first place from `at` on where a record of its own cycle begins. The head if there is none.
    fn next_header(&self, at: u64) -> Result<u64> {
        let mut block = [0; BLOCK_SIZE];
        for at in at..self.head {
            self.read_round(at, &mut block)?;
            let header = RecordHeader::check(&block, &self.identity);
            if header.is_ok_and(|header| header.lsn() == self.lsn(at)) {
                return Ok(at);
            }
        }
        Ok(self.head)
    }

    /// Blocks of the log between its ends.
    pub(super) fn len(&self) -> u64 {
        self.head - self.tail
    }

    /// Where the records begin.
    pub(super) fn tail(&self) -> Lsn {
        self.lsn(self.tail)
    }

    /// The size (`h_size`) of the records from this one on.
    pub(super) fn size_at(&self, lsn: Lsn) -> Result<u32> {
        let (cycle, block) = (lsn.0 >> 32, lsn.0 & 0xffff_ffff);
        Ok(self.read(cycle * u64::from(self.blocks) + block, &mut Vec::new())?.size.get())
    }

    /// Calls `each` for every operation in order, with its record's LSN. Returns the number of records.
    pub(super) fn for_each_op(&self, each: &mut dyn FnMut(Lsn, &Op<'_>) -> Result<()>) -> Result<u64> {
        let mut records = 0;
        std::thread::scope(|scope| {
            let (give, take) = sync_channel(AHEAD);
            scope.spawn(move || self.read_all(&give));
            for record in take {
                let Record { at, header, bytes, data } = record?;
                for op in RecordOps::new(bytes.get(data).unwrap_or_default(), header.num_logops.get()) {
                    each(header.lsn(), &op.map_err(|problem| self.damaged(at, problem))?)?;
                }
                records += 1;
            }
            Ok(records)
        })
    }

    /// Reads record after record, until the first bad one or until the receiver is gone.
    fn read_all(&self, to: &SyncSender<Result<Record>>) {
        let mut at = self.tail;
        while at < self.head {
            let record = self.read_whole(at);
            let Ok(Record { header, .. }) = &record else {
                let _ = to.send(record);
                return;
            };
            at += u64::from(header.total_blocks());
            if to.send(record).is_err() {
                return;
            }
        }
    }

    fn read_whole(&self, at: u64) -> Result<Record> {
        let mut bytes = Vec::new();
        let header = self.read(at, &mut bytes)?;
        let len = unpack(&header, &mut bytes).map_err(|problem| self.damaged(at, problem))?.len();
        let start = (header.total_blocks() - header.data_blocks()) as usize * BLOCK_SIZE;
        Ok(Record { at, header, bytes, data: start..start + len })
    }

    /// Reads the record at a place and checks it.
    fn read(&self, at: u64, bytes: &mut Vec<u8>) -> Result<RecordHeader> {
        let damaged = |problem| self.damaged(at, problem);
        bytes.resize(BLOCK_SIZE, 0);
        self.read_round(at, bytes)?;
        let header = *RecordHeader::check(bytes, &self.identity).map_err(damaged)?;
        let lsn = self.lsn(at);
        if header.lsn() != lsn {
            return Err(damaged(FormatError::mismatch(NAME, "LSN", header.lsn().0, lsn.0)));
        }
        let total = header.total_blocks();
        let room = self.head - at;
        if u64::from(total) > room {
            return Err(damaged(FormatError::mismatch(NAME, "length", total.into(), room)));
        }
        bytes.resize(total as usize * BLOCK_SIZE, 0);
        self.read_round(at, bytes)?;
        verify_checksum(&header, bytes, &self.identity).map_err(damaged)?;
        Ok(header)
    }

    /// Reads from a place on, wrapping around the end of the log if necessary.
    fn read_round(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let block = (at % u64::from(self.blocks)) as u32;
        let before_end = ((self.blocks - block) as usize * BLOCK_SIZE).min(bytes.len());
        let (here, there) = bytes.split_at_mut(before_end);
        log_ends::read(self.device, self.start, block, here)?;
        if !there.is_empty() {
            log_ends::read(self.device, self.start, 0, there)?;
        }
        Ok(())
    }

    fn lsn(&self, at: u64) -> Lsn {
        let blocks = u64::from(self.blocks);
        Lsn(((at / blocks) << 32) | (at % blocks))
    }

    /// The error for the record with this LSN.
    pub(super) fn damaged_at(&self, lsn: Lsn, problem: FormatError) -> Error {
        self.damaged(lsn.0 & 0xffff_ffff, problem)
    }

    fn damaged(&self, at: u64, problem: FormatError) -> Error {
        Error::corrupt_block(DiskAddr(self.start.0 + at % u64::from(self.blocks)), None, problem)
    }
}
