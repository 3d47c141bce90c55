//! Log records: header, extended headers, checksum, and the cycle stamps of their blocks.
//!
//! Invariants: a [`RecordHeader`] that passed [`RecordHeader::check`] has a length of 1 byte to 256 KiB, a
//! header of 1 to 8 blocks that has a cycle word for each of its data blocks, and a cycle that is not 0. All
//! functions that take a whole record check that its bytes are all there.

use super::op::{OpFlags, OpHeader};
use crate::error::FormatError;
use crate::types::{Lsn, Uuid};
use std::mem::{offset_of, size_of};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, big_endian as be, little_endian as le,
};

/// The unit of the log: 512 bytes, whatever the sector size.
pub const BLOCK_SIZE: usize = 512;
/// First word of a record header.
pub const RECORD_MAGIC: u32 = 0xfeed_babe;
/// The most bytes of data in a record.
pub const MAX_RECORD_SIZE: u32 = 256 * 1024;
/// Cycle words in a header block, and so the data blocks that each header block serves.
const CYCLE_WORDS: usize = 64;
/// Bytes of data that one header block has cycle words for.
const CYCLE_SPAN: u32 = (CYCLE_WORDS * BLOCK_SIZE) as u32;
/// `h_fmt` of a little-endian Linux host.
const FORMAT_LINUX_LE: u32 = 1;
/// Bytes of the header without the padding that 64-bit hosts add: what 32-bit hosts take the checksum over.
const UNPADDED_HEADER: usize = 324;

const RECORD: &str = "log record";
/// The check that a record of another volume fails.
pub(super) const UUID: &str = "UUID";

/// `xlog_rec_header`. Big-endian, except for the checksum.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RecordHeader {
    /// [`RECORD_MAGIC`].
    pub magic: be::U32,
    /// The number of times that the log had wrapped when this record was written, plus one.
    pub cycle: be::U32,
    /// 1, or 2: a bit that says that extended headers may follow and that records are padded to the log's
    /// stripe unit.
    pub version: be::U32,
    /// Bytes of data behind the headers.
    pub len: be::U32,
    /// This record's own LSN.
    pub lsn: be::U64,
    /// The LSN of the oldest record that recovery still needed when this one was written.
    pub tail_lsn: be::U64,
    /// CRC-32C of the record; 0 on v4 volumes of old kernels. Little-endian.
    pub crc: le::U32,
    /// Block of the record before this one.
    pub prev_block: be::U32,
    /// Operations that begin in this record.
    pub num_logops: be::U32,
    /// The words that the cycle numbers displaced, of the first 64 data blocks.
    pub cycle_data: [be::U32; CYCLE_WORDS],
    /// Which kind of host wrote the log items.
    pub fmt: be::U32,
    /// The volume's UUID (the one that users see).
    pub fs_uuid: [u8; 16],
    /// Size of the buffer in memory that the record was written from; fixes how many blocks the headers take.
    pub size: be::U32,
    /// Padding of 64-bit hosts, covered by the checksum.
    pub pad: [u8; 4],
}

/// `xlog_rec_ext_header`: the cycle words of 64 data blocks more. Big-endian.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct ExtHeader {
    /// The record's cycle.
    pub cycle: be::U32,
    /// Displaced words.
    pub cycle_data: [be::U32; CYCLE_WORDS],
}

const _: () = {
    assert!(size_of::<RecordHeader>() == 328);
    assert!(offset_of!(RecordHeader, crc) == 32);
    assert!(offset_of!(RecordHeader, cycle_data) == 44);
    assert!(offset_of!(RecordHeader, fmt) == 300);
    assert!(offset_of!(RecordHeader, fs_uuid) == 304);
    assert!(offset_of!(RecordHeader, size) == 320);
    assert!(offset_of!(RecordHeader, pad) == UNPADDED_HEADER);
    assert!(size_of::<ExtHeader>() == 260);
};

/// What a record must match to belong to this volume's log.
#[derive(Clone, Copy, Debug)]
pub struct LogIdentity {
    /// Whether the volume is v5, so that every record must carry a right checksum.
    pub v5: bool,
    /// The volume's UUID (the one that users see).
    pub uuid: Uuid,
}

impl RecordHeader {
    /// The header at the start of `block`, checked except for its checksum, which needs the whole record.
    pub fn check<'a>(block: &'a [u8], identity: &LogIdentity) -> Result<&'a Self, FormatError> {
        let (header, _) =
            Self::ref_from_prefix(block).map_err(|_| FormatError::new(RECORD, "truncated header"))?;
        header.check_fields(identity)?;
        Ok(header)
    }

    /// The header of a record of version 2 that is about to be written; [`pack`] fills in what depends on its data.
    pub fn new(uuid: Uuid, lsn: Lsn, tail_lsn: Lsn, size: u32) -> Self {
        Self {
            magic: RECORD_MAGIC.into(),
            cycle: ((lsn.0 >> 32) as u32).into(),
            version: 2.into(),
            len: 0.into(),
            lsn: lsn.0.into(),
            tail_lsn: tail_lsn.0.into(),
            crc: 0.into(),
            prev_block: u32::MAX.into(),
            num_logops: 0.into(),
            cycle_data: [0.into(); CYCLE_WORDS],
            fmt: FORMAT_LINUX_LE.into(),
            fs_uuid: uuid.0,
            size: size.into(),
            pad: [0; 4],
        }
    }

    fn check_fields(&self, identity: &LogIdentity) -> Result<(), FormatError> {
        let bad = |check, found: u32, expected: u32| {
            Err(FormatError::mismatch(RECORD, check, found.into(), expected.into()))
        };
        if self.magic.get() != RECORD_MAGIC {
            return bad("magic", self.magic.get(), RECORD_MAGIC);
        }
        if !matches!(self.version.get(), 1..=3) {
            return bad("version", self.version.get(), 2);
        }
        if self.fmt.get() != FORMAT_LINUX_LE {
            return bad("byte order of its host", self.fmt.get(), FORMAT_LINUX_LE);
        }
        if self.fs_uuid != [0; 16] && self.fs_uuid != identity.uuid.0 {
            return Err(FormatError::new(RECORD, UUID));
        }
        if self.cycle.get() == 0 || (self.lsn.get() >> 32) as u32 != self.cycle.get() {
            return bad("cycle", self.cycle.get(), (self.lsn.get() >> 32) as u32);
        }
        if self.len.get() == 0 || self.len.get() > MAX_RECORD_SIZE {
            return bad("length", self.len.get(), MAX_RECORD_SIZE);
        }
        if self.is_v2() && self.size.get() > MAX_RECORD_SIZE {
            return bad("buffer size", self.size.get(), MAX_RECORD_SIZE);
        }
        let room = self.header_blocks() * CYCLE_WORDS as u32;
        if self.data_blocks() > room {
            return bad("length for its header blocks", self.data_blocks(), room);
        }
        Ok(())
    }

    fn is_v2(&self) -> bool {
        self.version.get() & 2 != 0
    }

    /// Blocks that header and extended headers take.
    ///
    /// Old versions of mkfs wrote their record (a single operation) with the default buffer size, however
    /// long its padding was. There the length decides.
    pub fn header_blocks(&self) -> u32 {
        if !self.is_v2() {
            return 1;
        }
        let mut size = self.size.get();
        if self.num_logops.get() == 1 && self.len.get() > size {
            size = self.len.get();
        }
        size.div_ceil(CYCLE_SPAN).max(1)
    }

    /// Blocks of data behind the headers.
    pub fn data_blocks(&self) -> u32 {
        self.len.get().div_ceil(BLOCK_SIZE as u32)
    }

    /// Blocks of the whole record; at most 520.
    pub fn total_blocks(&self) -> u32 {
        self.header_blocks() + self.data_blocks()
    }

    /// This record's LSN.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.lsn.get())
    }

    /// The log's tail when this record was written.
    pub fn tail_lsn(&self) -> Lsn {
        Lsn(self.tail_lsn.get())
    }
}

/// The cycle that a block of the log was written in; 0 if it never was. `None`: not even a word is there.
pub fn block_cycle(block: &[u8]) -> Option<u32> {
    let word = |at: usize| block.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    match word(0)? {
        RECORD_MAGIC => word(4),
        cycle => Some(cycle),
    }
}

/// What a block has behind its cycle that our recovery cleared.
const CLEARED: [u8; 16] = *b"cleared by uxfs.";

/// Makes a block one of an older cycle that has nothing in it: see [`is_cleared`]. It does not begin as a header, so a
/// kernel that looks for its first record at the tail goes past it.
pub fn clear(block: &mut [u8], cycle: u32) {
    block.fill(0);
    let start = cycle.to_be_bytes().into_iter().chain(CLEARED);
    block.iter_mut().zip(start).for_each(|(byte, new)| *byte = new);
}

/// Whether a block was cleared: recovery overwrites what a crash may have left behind the log's head. A kernel's does so
/// with headers of records that have nothing in them. `lsn` is that of a record at its place.
pub fn is_cleared(block: &[u8], lsn: Lsn) -> bool {
    let cycle = (lsn.0 >> 32) as u32;
    let by_us = block_cycle(block) == Some(cycle) && block.get(4..4 + CLEARED.len()) == Some(&CLEARED);
    let by_kernel = RecordHeader::ref_from_prefix(block).is_ok_and(|(header, _)| {
        header.magic.get() == RECORD_MAGIC
            && header.cycle.get() == cycle
            && header.lsn() == lsn
            && (header.len.get(), header.num_logops.get(), header.crc.get()) == (0, 0, 0)
    });
    by_us || by_kernel
}

/// Splits a whole record (packed or not) into its header blocks and its data, both of the length that the
/// header says.
fn split<'a>(header: &RecordHeader, record: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), FormatError> {
    let heads = header.header_blocks() as usize * BLOCK_SIZE;
    let (heads, rest) =
        record.split_at_checked(heads).ok_or(FormatError::new(RECORD, "truncated headers"))?;
    let data = rest.get(..header.len.get() as usize).ok_or(FormatError::new(RECORD, "truncated data"))?;
    Ok((heads, data))
}

/// The checksum of a whole record as it lies in the log (stamped): header with `h_crc` zeroed, the extended
/// headers that its data needs, data. `header_len` is 328, or 324 for records of 32-bit hosts.
fn checksum_with(header: &RecordHeader, record: &[u8], header_len: usize) -> Result<u32, FormatError> {
    let (heads, data) = split(header, record)?;
    let mut clean = *header;
    clean.crc.set(0);
    let mut crc = crc32c::crc32c(clean.as_bytes().get(..header_len).unwrap_or_default());
    if header.is_v2() {
        let used = header.len.get().div_ceil(CYCLE_SPAN) as usize;
        for block in heads.chunks_exact(BLOCK_SIZE).take(used).skip(1) {
            let ext = block.get(..size_of::<ExtHeader>()).unwrap_or_default();
            crc = crc32c::crc32c_append(crc, ext);
        }
    }
    Ok(crc32c::crc32c_append(crc, data))
}

/// The checksum that a whole record (stamped, as it lies in the log) should carry.
pub fn checksum(header: &RecordHeader, record: &[u8]) -> Result<u32, FormatError> {
    checksum_with(header, record, size_of::<RecordHeader>())
}

/// Whether the whole record (stamped, as it lies in the log) carries the right checksum. Records of v4
/// volumes may have none, nor has the one that mkfs writes.
pub fn verify_checksum(
    header: &RecordHeader,
    record: &[u8],
    identity: &LogIdentity,
) -> Result<(), FormatError> {
    let found = header.crc.get();
    let expected = checksum(header, record)?;
    if found == expected || (found == 0 && (!identity.v5 || is_unmount(header, record))) {
        return Ok(());
    }
    if found == checksum_with(header, record, UNPADDED_HEADER)? {
        return Ok(());
    }
    Err(FormatError::mismatch(RECORD, "checksum", found.into(), expected.into()))
}

fn is_unmount(header: &RecordHeader, record: &[u8]) -> bool {
    let first_data = header.header_blocks() as usize * BLOCK_SIZE;
    record.get(first_data..).is_some_and(|data| is_unmount_record(header, data))
}

/// Where in a record the displaced word of data block `index` is kept.
const fn cycle_word_at(index: usize) -> usize {
    let within = (index % CYCLE_WORDS) * 4;
    match index / CYCLE_WORDS {
        0 => offset_of!(RecordHeader, cycle_data) + within,
        ext => ext * BLOCK_SIZE + offset_of!(ExtHeader, cycle_data) + within,
    }
}

/// Puts the displaced words back into the data of a whole record and returns the data.
///
/// Each data block must carry the record's cycle, or the next one where the record goes on at the start of
/// the log; else a part of the record was not written.
pub fn unpack<'a>(header: &RecordHeader, record: &'a mut [u8]) -> Result<&'a [u8], FormatError> {
    let (heads, _) = split(header, record)?;
    let heads = heads.len();
    let cycle = header.cycle.get();
    for index in 0..header.data_blocks() as usize {
        let word = cycle_word_at(index);
        let at = heads + index * BLOCK_SIZE;
        let lost = || FormatError::new(RECORD, "truncated data");
        let stamp = record.get(at..).and_then(block_cycle).ok_or_else(lost)?;
        if stamp != cycle && stamp != next_cycle(cycle) {
            return Err(FormatError::mismatch(RECORD, "cycle of a data block", stamp.into(), cycle.into()));
        }
        let kept: [u8; 4] = record.get(word..word + 4).and_then(|w| w.try_into().ok()).ok_or_else(lost)?;
        record.get_mut(at..at + 4).ok_or_else(lost)?.copy_from_slice(&kept);
    }
    let len = header.len.get() as usize;
    record.get(heads..heads + len).ok_or(FormatError::new(RECORD, "truncated data"))
}

/// Stamps a whole record with its cycle, keeps the displaced words of its data, and writes the checksum. The
/// reverse of [`unpack`]. From block `wrap` of the record on (headers count, the first has a cycle of its own), the
/// record goes on at the start of the log, where the next cycle is.
pub fn pack(record: &mut [u8], wrap: Option<usize>) -> Result<(), FormatError> {
    let lost = || FormatError::new(RECORD, "truncated record");
    let mut header = *RecordHeader::ref_from_prefix(record).map_err(|_| lost())?.0;
    split(&header, record)?;
    let heads = header.header_blocks() as usize;
    let cycle = header.cycle.get();
    let stamp_of = |block: usize| match wrap {
        Some(wrap) if block >= wrap => next_cycle(cycle),
        _ => cycle,
    };
    for ext in 1..heads {
        let at = ext * BLOCK_SIZE;
        record.get_mut(at..at + 4).ok_or_else(lost)?.copy_from_slice(&stamp_of(ext).to_be_bytes());
    }
    for index in 0..header.data_blocks() as usize {
        let at = (heads + index) * BLOCK_SIZE;
        let stamp = stamp_of(heads + index);
        let first = record.get_mut(at..at + 4).ok_or_else(lost)?;
        let kept: [u8; 4] = (&*first).try_into().map_err(|_| lost())?;
        first.copy_from_slice(&stamp.to_be_bytes());
        let word = cycle_word_at(index);
        record.get_mut(word..word + 4).ok_or_else(lost)?.copy_from_slice(&kept);
    }
    header = *RecordHeader::ref_from_prefix(record).map_err(|_| lost())?.0;
    let crc = checksum(&header, record)?;
    let at = offset_of!(RecordHeader, crc);
    record.get_mut(at..at + 4).ok_or_else(lost)?.copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Gives a whole record (stamped, as it lies in the log) to the volume with this UUID. Only its first block changes.
pub fn give_to(record: &mut [u8], uuid: Uuid) -> Result<(), FormatError> {
    let lost = || FormatError::new(RECORD, "truncated record");
    let mut header = *RecordHeader::ref_from_prefix(record).map_err(|_| lost())?.0;
    header.fs_uuid = uuid.0;
    header.crc.set(checksum(&header, record)?);
    record.get_mut(..size_of::<RecordHeader>()).ok_or_else(lost)?.copy_from_slice(header.as_bytes());
    Ok(())
}

/// The cycle behind `cycle`, which is never the magic of a record: a data block could not be told from a
/// header.
const fn next_cycle(cycle: u32) -> u32 {
    match cycle.wrapping_add(1) {
        RECORD_MAGIC => RECORD_MAGIC + 1,
        next => next,
    }
}

/// Whether a record is the one that a clean unmount (or mkfs) leaves: a single operation with the unmount
/// flag. `first_data` is its first data block, stamped or not. The log is clean if this record ends at the
/// log's head.
pub fn is_unmount_record(header: &RecordHeader, first_data: &[u8]) -> bool {
    header.num_logops.get() == 1
        && OpHeader::ref_from_prefix(first_data)
            .is_ok_and(|(op, _)| OpFlags::from_bits_retain(op.flags).contains(OpFlags::UNMOUNT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    const IDENTITY: LogIdentity = LogIdentity { v5: true, uuid: Uuid([7; 16]) };

    /// A whole record of `len` bytes of data, unpacked, every word of its data different.
    fn record(len: u32, size: u32) -> (RecordHeader, Vec<u8>) {
        let mut header = RecordHeader::new_zeroed();
        header.magic.set(RECORD_MAGIC);
        header.cycle.set(5);
        header.version.set(2);
        header.len.set(len);
        header.lsn.set(5 << 32 | 17);
        header.num_logops.set(3);
        header.fmt.set(FORMAT_LINUX_LE);
        header.fs_uuid = IDENTITY.uuid.0;
        header.size.set(size);
        let heads = header.header_blocks() as usize * BLOCK_SIZE;
        let mut bytes = vec![0; header.total_blocks() as usize * BLOCK_SIZE];
        bytes[..328].copy_from_slice(header.as_bytes());
        for (i, word) in bytes[heads..].chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&(i as u32 ^ 0x8000_0000).to_le_bytes());
        }
        (header, bytes)
    }

    #[test]
    fn pack_and_unpack_are_each_others_reverse() {
        for (len, size, wrap) in
            [(512, 32 << 10, None), (32 << 10, 32 << 10, Some(3)), (250 << 10, 256 << 10, Some(499))]
        {
            let (_, plain) = record(len, size);
            let mut packed = plain.clone();
            pack(&mut packed, wrap).unwrap();
            let header = *RecordHeader::check(&packed, &IDENTITY).unwrap();
            verify_checksum(&header, &packed, &IDENTITY).unwrap();
            let heads = header.header_blocks() as usize * BLOCK_SIZE;
            for block in packed[heads..].chunks_exact(BLOCK_SIZE) {
                assert!(matches!(block_cycle(block), Some(5 | 6)));
            }
            assert_eq!(unpack(&header, &mut packed).unwrap(), &plain[heads..heads + len as usize]);
        }
    }

    #[test]
    fn every_flipped_bit_that_counts_fails_the_checksum() {
        let (_, mut bytes) = record(40 << 10, 64 << 10);
        pack(&mut bytes, None).unwrap();
        let header = *RecordHeader::check(&bytes, &IDENTITY).unwrap();
        // Header fields, the second header's words, the first and the last byte of the data.
        for at in [16, 44, 323, 512, 512 + 259, 1024, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let header = RecordHeader::read_from_prefix(&bad).map_or(header, |(h, _)| h);
            assert!(verify_checksum(&header, &bad, &IDENTITY).is_err(), "byte {at}");
        }
        // The bytes after the words of an extended header are unused.
        let mut free = bytes.clone();
        free[512 + 260] ^= 1;
        verify_checksum(&header, &free, &IDENTITY).unwrap();
    }

    #[test]
    fn absurd_lengths_are_refused() {
        for (len, size) in [(0, 32 << 10), (512, u32::MAX), (u32::MAX, 32 << 10), (64 << 10, 32 << 10)] {
            let (mut header, _) = record(512, 32 << 10);
            header.len.set(len);
            header.size.set(size);
            assert!(RecordHeader::check(header.as_bytes(), &IDENTITY).is_err(), "{len} {size}");
        }
    }

    #[test]
    fn a_cleared_block_is_no_record_and_is_known_by_its_place() {
        let (here, elsewhere) = (Lsn(5 << 32 | 17), Lsn(5 << 32 | 18));
        let mut by_kernel = [0; BLOCK_SIZE];
        let header = RecordHeader::new(IDENTITY.uuid, here, Lsn(5 << 32 | 40), 0);
        by_kernel[..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
        assert!(!is_cleared(&by_kernel, elsewhere));
        let mut by_us = [7; BLOCK_SIZE];
        clear(&mut by_us, 5);
        assert!(!by_us.starts_with(&RECORD_MAGIC.to_be_bytes()));
        assert!(!is_cleared(&by_us, Lsn(6 << 32 | 17)), "of another cycle");
        for block in [by_kernel, by_us] {
            assert!(RecordHeader::check(&block, &IDENTITY).is_err());
            assert_eq!(block_cycle(&block), Some(5));
            assert!(is_cleared(&block, here));
        }
        let (mut damaged, _) = record(512, 32 << 10);
        damaged.len.set(0);
        assert!(!is_cleared(damaged.as_bytes(), damaged.lsn()), "it has operations");
        assert!(!is_cleared(&[0; 512], Lsn(0)), "it was never written");
    }

    #[test]
    fn a_foreign_host_and_a_foreign_volume_are_refused() {
        let (mut header, _) = record(512, 32 << 10);
        header.fmt.set(2);
        assert!(RecordHeader::check(header.as_bytes(), &IDENTITY).is_err());
        let (mut header, _) = record(512, 32 << 10);
        header.fs_uuid = [8; 16];
        assert!(RecordHeader::check(header.as_bytes(), &IDENTITY).is_err());
    }

    #[test]
    fn a_block_of_another_cycle_is_a_torn_record() {
        let (_, mut bytes) = record(2048, 32 << 10);
        pack(&mut bytes, None).unwrap();
        bytes[1024..1028].copy_from_slice(&4u32.to_be_bytes());
        let header = *RecordHeader::check(&bytes, &IDENTITY).unwrap();
        assert_eq!(unpack(&header, &mut bytes).unwrap_err().check, "cycle of a data block");
    }
}
