//! Cuts the operations of a checkpoint into records.
//!
//! Invariants: an operation header is never cut, nor a region that would leave a stub; a region that goes on in
//! the next record is marked as the format wants it; bytes behind a record's data are zero.

use super::layout::{CUT_LEAST, Layout};
use super::vector::OP_BYTES;
use blockdev::AlignedBuf;
use xfs_format::error::FormatError;
use xfs_format::log::{BLOCK_SIZE, OpFlags, OpHeader, RecordHeader, pack};
use xfs_format::types::Lsn;
use zerocopy::IntoBytes;

/// A record that is being filled.
#[derive(Debug)]
pub(super) struct Record {
    buf: AlignedBuf,
    header: usize,
    /// Bytes of data so far.
    used: usize,
    /// Most bytes of data.
    room: usize,
    operations: u32,
}

/// A region is cut here: the rest goes into the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rest<'a> {
    data: &'a [u8],
    begun: bool,
}

impl<'a> Rest<'a> {
    /// A whole region.
    pub(super) fn whole(data: &'a [u8]) -> Self {
        Self { data, begun: false }
    }
}

impl Record {
    /// An empty record in a buffer of [`Layout::record_max`] bytes.
    pub(super) fn new(layout: &Layout, buf: AlignedBuf) -> Self {
        Self { buf, header: layout.header() as usize, used: 0, room: layout.data_max(), operations: 0 }
    }

    /// The buffer, for the next record.
    pub(super) fn into_buf(self) -> AlignedBuf {
        self.buf
    }

    fn put(&mut self, bytes: &[u8]) {
        let at = self.header + self.used;
        if let Some(place) = self.buf.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.used += bytes.len();
    }

    /// Adds an operation whole; `false` if there is no room for it.
    pub(super) fn operation(&mut self, header: OpHeader, data: &[u8]) -> bool {
        if self.room - self.used < OP_BYTES + data.len() {
            return false;
        }
        self.put(header.as_bytes());
        self.put(data);
        self.operations += 1;
        true
    }

    /// Adds as much of a region as fits; gives what does not.
    pub(super) fn region<'a>(&mut self, tid: u32, rest: Rest<'a>) -> Option<Rest<'a>> {
        let Rest { data, begun } = rest;
        let continued = if begun { OpFlags::WAS_CONT } else { OpFlags::empty() };
        let room = (self.room - self.used).saturating_sub(OP_BYTES) & !3;
        if data.len() <= room && self.room - self.used >= OP_BYTES {
            let end = if begun { OpFlags::END } else { OpFlags::empty() };
            let header = OpHeader::transaction(tid, data.len() as u32).with_flags(continued | end);
            self.operation(header, data);
            return None;
        }
        if room < CUT_LEAST {
            return Some(rest);
        }
        let (now, later) = data.split_at(room);
        let header = OpHeader::transaction(tid, room as u32).with_flags(continued | OpFlags::CONTINUE);
        self.operation(header, now);
        Some(Rest { data: later, begun: true })
    }

    /// Bytes that the whole record takes in the log.
    pub(super) fn bytes(&self, layout: &Layout) -> u32 {
        layout.record_bytes(self.used)
    }

    /// Writes the header, stamps and checksum; gives the whole record. `wrap` is the block of the record that lies
    /// at the start of the log.
    pub(super) fn seal(
        &mut self,
        layout: &Layout,
        lsn: Lsn,
        tail: Lsn,
        previous: u32,
        wrap: Option<usize>,
    ) -> Result<&[u8], FormatError> {
        let whole = self.bytes(layout) as usize;
        let mut header = RecordHeader::new(layout.uuid, lsn, tail, layout.size);
        header.len.set((whole - self.header) as u32);
        header.prev_block.set(previous);
        header.num_logops.set(self.operations);
        let truncated = || FormatError::value("log record", "length", whole as u64);
        let record = self.buf.get_mut(..whole).ok_or_else(truncated)?;
        let (heads, data) = record.split_at_mut(self.header);
        heads.fill(0);
        heads.get_mut(..size_of::<RecordHeader>()).ok_or_else(truncated)?.copy_from_slice(header.as_bytes());
        if let Some(padding) = data.get_mut(self.used..) {
            padding.fill(0);
        }
        pack(record, wrap)?;
        debug_assert!(whole.is_multiple_of(BLOCK_SIZE));
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::log::{LogIdentity, RecordOps, unpack, verify_checksum};

    /// Reads a sealed record's operations.
    fn read(layout: &Layout, record: &mut Record) -> Vec<(OpFlags, Vec<u8>)> {
        let identity = LogIdentity { v5: true, uuid: layout.uuid };
        let mut bytes = record.seal(layout, Lsn(1 << 32 | 8), Lsn(1 << 32 | 8), 4, None).unwrap().to_vec();
        let header = *RecordHeader::check(&bytes, &identity).unwrap();
        verify_checksum(&header, &bytes, &identity).unwrap();
        assert_eq!(header.total_blocks() as usize * BLOCK_SIZE, bytes.len());
        let data = unpack(&header, &mut bytes).unwrap();
        RecordOps::new(data, header.num_logops.get())
            .map(|op| op.map(|op| (op.flags, op.data.to_vec())).unwrap())
            .collect()
    }

    #[test]
    fn a_long_region_goes_through_several_records() {
        for (round, size) in [(512, 32 << 10), (4096, 64 << 10), (48 << 10, 48 << 10)] {
            let layout = Layout::for_tests(100_000, round, size);
            let region: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
            let mut rest = Some(Rest::whole(&region));
            let mut found = Vec::new();
            let mut buf = AlignedBuf::zeroed(layout.record_max() as usize);
            buf.fill(0xee);
            for nth in 0.. {
                let Some(now) = rest else { break };
                let mut record = Record::new(&layout, buf);
                rest = record.region(9, now);
                let ops = read(&layout, &mut record);
                assert_eq!(ops.len(), 1);
                let first = if nth == 0 { OpFlags::empty() } else { OpFlags::WAS_CONT };
                let last = if rest.is_some() { OpFlags::CONTINUE } else { OpFlags::END };
                assert_eq!(ops[0].0, first | last);
                assert!(record.bytes(&layout) <= layout.record_max());
                found.extend_from_slice(&ops[0].1);
                buf = record.into_buf();
            }
            assert_eq!(found, region);
        }
    }

    #[test]
    fn what_would_leave_a_stub_is_not_begun() {
        let layout = Layout::for_tests(100_000, 512, 32 << 10);
        for left in (0..CUT_LEAST + 40).step_by(4) {
            let mut record = Record::new(&layout, AlignedBuf::zeroed(layout.record_max() as usize));
            let first = vec![1; layout.data_max() - OP_BYTES - left];
            assert_eq!(record.region(1, Rest::whole(&first)), None);
            let region = [7; 1000];
            let rest = record.region(1, Rest::whole(&region));
            let ops = read(&layout, &mut record);
            match rest {
                Some(Rest { data, begun: false }) => assert_eq!((data.len(), ops.len()), (1000, 1)),
                Some(Rest { data, begun: true }) => {
                    assert_eq!(ops[1].1.len() + data.len(), 1000);
                    assert!(ops[1].1.len() >= CUT_LEAST);
                }
                None => panic!("{left} bytes held 1000"),
            }
            let small = record.region(1, Rest::whole(&[]));
            let full = rest.is_some_and(|rest| rest.begun) || left < OP_BYTES;
            assert_eq!(small.is_some(), full, "{left}");
        }
    }
}
