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
    BLOCK_SIZE, LogEnds, LogIdentity, Op, RECORD_MAGIC, RecordHeader, RecordOps, block_cycle, is_cleared,
    unpack, verify_checksum,
};
use xfs_format::superblock::Superblock;
use xfs_format::types::{DiskAddr, Lsn};

const NAME: &str = "log record";
/// How many records may have been under way behind the head at the crash.
const IN_FLIGHT_RECORDS: u64 = 8;
/// The least that a record may take, in bytes, whatever size its header says.
const RECORD_LEAST: u32 = 32 << 10;

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

/// What is in a block between the ends.
enum Found {
    /// Something newer: of the next cycle, or what a recovery clears away traces of that with.
    Overwritten,
    /// The header of a record that has its place here, and takes so many blocks.
    Header(u64),
    /// Of the cycle of its place, and no header.
    Data,
    /// Nothing that a log has there.
    Damage,
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
        let in_flight = IN_FLIGHT_RECORDS * u64::from(ends.record_size.max(RECORD_LEAST)) / BLOCK_SIZE as u64;
        records.skip_overwritten(in_flight)?;
        Ok(records)
    }

    /// Skips records at the tail that were overwritten. The tail may have moved on since the last whole record named
    /// it, and records under way at the crash may lie over it. The skipped records are finished: the log was free to
    /// continue there. A bad record of which nothing was overwritten is corruption, as it is anywhere else.
    fn skip_overwritten(&mut self, in_flight: u64) -> Result<()> {
        let doubtful = (self.head + in_flight).saturating_sub(self.blocks.into()).min(self.head);
        let mut bytes = Vec::new();
        let mut at = self.tail;
        while at < doubtful {
            match self.read(at, &mut bytes) {
                Ok(header) => at += u64::from(header.total_blocks()),
                Err(damage @ Error::Corrupt { .. }) => {
                    at = self.behind_overwritten(at)?.ok_or(damage)?;
                    self.tail = at;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Where the next record begins behind one that was overwritten; the head if there is none. `None`: the record at
    /// `at`, or one behind it, is bad and was not overwritten.
    fn behind_overwritten(&self, at: u64) -> Result<Option<u64>> {
        let gone = match self.found_at(at)? {
            Found::Overwritten => true,
            // Blocks are written in any order: the header may be what is left.
            Found::Header(blocks) => self.is_overwritten(at..at + blocks)?,
            Found::Data | Found::Damage => false,
        };
        if !gone {
            return Ok(None);
        }
        for at in at + 1..self.head {
            match self.found_at(at)? {
                Found::Header(_) => return Ok(Some(at)),
                Found::Damage => return Ok(None),
                // The rest of a record whose beginning is gone.
                Found::Data | Found::Overwritten => {}
            }
        }
        Ok(Some(self.head))
    }

    /// Whether some block of a record's place was overwritten.
    fn is_overwritten(&self, place: Range<u64>) -> Result<bool> {
        for at in place {
            if matches!(self.found_at(at)?, Found::Overwritten) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What is in a block between the ends.
    fn found_at(&self, at: u64) -> Result<Found> {
        let mut block = [0; BLOCK_SIZE];
        self.read_round(at, &mut block)?;
        let lsn = self.lsn(at);
        let own = lsn.0 >> 32;
        Ok(match block_cycle(&block).map(u64::from) {
            Some(cycle) if cycle == own + 1 => Found::Overwritten,
            Some(cycle) if cycle != own => Found::Damage,
            _ if is_cleared(&block, lsn) => Found::Overwritten,
            _ if !block.starts_with(&RECORD_MAGIC.to_be_bytes()) => Found::Data,
            _ => match RecordHeader::check(&block, &self.identity) {
                Ok(header) if header.lsn() == lsn => Found::Header(header.total_blocks().into()),
                _ => Found::Damage,
            },
        })
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use blockdev::{Durability, MemoryDevice};
    use xfs_format::log::{OpHeader, pack};
    use xfs_format::types::Uuid;
    use zerocopy::IntoBytes;

    const BLOCKS: u32 = 1000;
    const IDENTITY: LogIdentity = LogIdentity { v5: true, uuid: Uuid([7; 16]) };
    const SIZE: u32 = 32 << 10;
    /// Blocks of each record, its header included.
    const LENGTH: u64 = 10;
    /// Where records begin: in cycle 3, and one of them goes on in cycle 4.
    const TAIL: u64 = 3 * BLOCKS as u64 + 895;
    /// Behind them there is room for five records more.
    const HEAD: u64 = TAIL + BLOCKS as u64 - 5 * LENGTH;

    /// A log that is nearly full.
    struct Ring(MemoryDevice);

    impl Ring {
        fn new() -> Self {
            let ring = Self(MemoryDevice::anonymous(u64::from(BLOCKS) * 512).unwrap());
            for at in (TAIL..HEAD).step_by(LENGTH as usize) {
                ring.write(at, &record(at));
            }
            ring
        }

        fn write(&self, at: u64, bytes: &[u8]) {
            for (at, block) in (at..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
                self.0.write(at % u64::from(BLOCKS) * 512, block, Durability::Volatile).unwrap();
            }
        }

        /// Has one bit of a block be another.
        fn damage(&self, at: u64, byte: usize) {
            let mut block = [0; BLOCK_SIZE];
            self.0.read(at % u64::from(BLOCKS) * 512, &mut block).unwrap();
            block[byte] ^= 0x40;
            self.write(at, &block);
        }

        /// Of what was under way behind the head, these blocks came to the device.
        fn overwrite(&self, behind_head: impl IntoIterator<Item = u64>) {
            for block in behind_head {
                let within = (block % LENGTH) as usize * BLOCK_SIZE;
                let newer = record(HEAD + block - block % LENGTH);
                self.write(HEAD + block, &newer[within..within + BLOCK_SIZE]);
            }
        }

        /// As a kernel does, or as we do.
        fn clear(&self, at: u64, by_kernel: bool) {
            let mut block = [0; BLOCK_SIZE];
            if by_kernel {
                let header = RecordHeader::new(IDENTITY.uuid, lsn(at), lsn(TAIL + LENGTH), 0);
                block[..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
            } else {
                xfs_format::log::clear(&mut block, (lsn(at).0 >> 32) as u32);
            }
            self.write(at, &block);
        }

        /// Which record is the first to be replayed, if `in_flight` blocks may have been under way.
        fn first(&self, in_flight: u64) -> Result<u64> {
            let mut records = Records {
                device: &self.0,
                start: DiskAddr(0),
                blocks: BLOCKS,
                identity: IDENTITY,
                tail: TAIL,
                head: HEAD,
            };
            records.skip_overwritten(in_flight)?;
            records.for_each_op(&mut |_, _| Ok(()))?;
            assert_eq!((records.tail - TAIL) % LENGTH, 0, "a record begins there");
            Ok((records.tail - TAIL) / LENGTH)
        }
    }

    fn lsn(at: u64) -> Lsn {
        let blocks = u64::from(BLOCKS);
        Lsn(((at / blocks) << 32) | (at % blocks))
    }

    fn record(at: u64) -> Vec<u8> {
        let mut header = RecordHeader::new(IDENTITY.uuid, lsn(at), lsn(TAIL), SIZE);
        header.num_logops.set(1);
        header.len.set((LENGTH as u32 - 1) * BLOCK_SIZE as u32);
        let mut bytes = vec![0; LENGTH as usize * BLOCK_SIZE];
        bytes[..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
        let op = OpHeader::transaction(1, 0);
        bytes[BLOCK_SIZE..BLOCK_SIZE + size_of::<OpHeader>()].copy_from_slice(op.as_bytes());
        let room = u64::from(BLOCKS) - at % u64::from(BLOCKS);
        pack(&mut bytes, (room < LENGTH).then_some(room as usize)).unwrap();
        bytes
    }

    /// What is between the head and the tail.
    const FREE: u64 = 5 * LENGTH;
    /// So many blocks reach over the first twenty records, of which the eleventh goes round the log's end.
    const REACH: u64 = FREE + 20 * LENGTH;

    #[test]
    fn a_log_that_is_whole_is_replayed_from_its_tail() {
        assert_eq!(Ring::new().first(REACH).unwrap(), 0);
        let ring = Ring::new();
        ring.overwrite(0..FREE);
        assert_eq!(ring.first(REACH).unwrap(), 0, "the room behind the head");
    }

    #[test]
    fn records_that_were_overwritten_are_left_out() {
        for over in 1..=20 * LENGTH {
            let ring = Ring::new();
            ring.overwrite(0..FREE + over);
            assert_eq!(ring.first(REACH).unwrap(), over.div_ceil(LENGTH), "{over} blocks");
        }
    }

    /// Writes are done in any order, and a block at a time.
    #[test]
    fn a_record_of_which_any_block_was_overwritten_is_left_out_with_those_before_it() {
        for block in 0..20 * LENGTH {
            let ring = Ring::new();
            ring.overwrite([FREE + block]);
            assert_eq!(ring.first(REACH).unwrap(), block / LENGTH + 1, "block {block}");
        }
        let ring = Ring::new();
        ring.overwrite([FREE, FREE + 7, FREE + 33]);
        assert_eq!(ring.first(REACH).unwrap(), 4);
    }

    /// Regression: such a record and all before it were left out, and recovery said that it was done.
    #[test]
    fn a_bad_record_that_was_not_overwritten_is_damage() {
        for block in 0..20 * LENGTH {
            // Magic, cycle, length, LSN, operations: at once the first word of a data block, and its bytes.
            for byte in [0, 1, 7, 14, 23, 43] {
                let ring = Ring::new();
                ring.damage(TAIL + block, byte);
                assert!(ring.first(REACH).is_err(), "byte {byte} of block {block}");
            }
        }
    }

    #[test]
    fn damage_behind_what_was_overwritten_is_found() {
        for byte in [0, 14, 43] {
            let ring = Ring::new();
            ring.overwrite(0..FREE + LENGTH);
            ring.damage(TAIL + LENGTH, byte);
            assert!(ring.first(REACH).is_err(), "byte {byte} of the next header");
        }
        let ring = Ring::new();
        ring.overwrite(0..FREE + LENGTH);
        ring.damage(TAIL + LENGTH + 3, 99);
        assert!(ring.first(REACH).is_err(), "a block of the next record");
    }

    /// Regression: as much was taken to have been under way as the largest records have, whatever the log's had.
    #[test]
    fn what_no_crash_reaches_was_not_overwritten() {
        let ring = Ring::new();
        ring.overwrite([FREE + 3 * LENGTH]);
        assert_eq!(ring.first(FREE + 3 * LENGTH + 1).unwrap(), 4);
        assert!(ring.first(FREE + 3 * LENGTH).is_err());
    }

    /// A recovery that was cut short had cleared away what was under way.
    #[test]
    fn what_a_recovery_has_cleared_was_overwritten() {
        for (over, by_kernel) in (1..=20 * LENGTH).flat_map(|over| [(over, false), (over, true)]) {
            let ring = Ring::new();
            (0..over).for_each(|block| ring.clear(TAIL + block, by_kernel));
            assert_eq!(ring.first(REACH).unwrap(), over.div_ceil(LENGTH), "{over} blocks");
            // It came so far.
            ring.overwrite(FREE + over / 2..FREE + over);
            assert_eq!(ring.first(REACH).unwrap(), over.div_ceil(LENGTH), "{over} blocks, in part");
        }
    }
}
