//! Cuts the operations of a checkpoint into records.
//!
//! Records that one request writes together lie one after the other in one buffer: a [`RecordRun`]. A torn request is
//! no worse than several requests of which only some are done, because recovery looks for holes.
//!
//! Invariants: an operation header is never split. A region is not split if that would leave a stub. A region that
//! continues in the next record is marked as the format demands. Bytes behind a record's data are zero.

use super::layout::{CUT_LEAST, LogLayout, Pos};
use super::vector::OP_BYTES;
use blockdev::AlignedBuf;
use xfs_format::error::FormatError;
use xfs_format::log::{BLOCK_SIZE, OpFlags, OpHeader, RecordHeader, pack};
use zerocopy::IntoBytes;

/// One record of a run.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Its start in the buffer.
    start: usize,
    /// Bytes of data so far.
    used: usize,
    operations: u32,
}

impl Record {
    fn new(start: usize) -> Self {
        Self { start, used: 0, operations: 0 }
    }
}

/// Contiguous records of one checkpoint. The last is being filled.
#[derive(Debug)]
pub(super) struct RecordRun {
    layout: LogLayout,
    buf: AlignedBuf,
    /// Records that are not written yet, at least one.
    records: Vec<Record>,
}

/// The rest of a split region. It goes into the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionRest<'a> {
    data: &'a [u8],
    begun: bool,
}

impl<'a> RegionRest<'a> {
    /// A whole region.
    pub(super) fn whole(data: &'a [u8]) -> Self {
        Self { data, begun: false }
    }
}

/// The position of records, and the block of the record before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPlace {
    pub(super) at: Pos,
    pub(super) previous: u32,
}

impl RecordRun {
    /// An empty record in a buffer of [`LogLayout::run_bytes`].
    pub(super) fn new(layout: &LogLayout, buf: AlignedBuf) -> Self {
        Self { layout: *layout, buf, records: vec![Record::new(0)] }
    }

    /// The buffer, for the next run.
    pub(super) fn into_buf(self) -> AlignedBuf {
        self.buf
    }

    /// How many records there are.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Begins another record. Returns `false` if the run has the maximum number.
    pub(super) fn begin_record(&mut self) -> bool {
        let Some(last) = self.records.last().filter(|_| self.records.len() < self.layout.run_max()) else {
            return false;
        };
        let start = last.start + self.layout.record_bytes(last.used) as usize;
        if start + self.layout.record_max() as usize > self.buf.len() {
            return false;
        }
        self.records.push(Record::new(start));
        true
    }

    /// Bytes that still fit into the last record.
    fn room(&self) -> usize {
        self.records.last().map_or(0, |last| self.layout.data_max() - last.used)
    }

    fn put(&mut self, bytes: &[u8]) {
        let Some(last) = self.records.last_mut() else { return };
        let at = last.start + self.layout.header() as usize + last.used;
        if let Some(place) = self.buf.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        last.used += bytes.len();
    }

    /// Adds a whole operation. Returns `false` if the record has no room for it.
    pub(super) fn operation(&mut self, header: OpHeader, data: &[u8]) -> bool {
        if self.room() < OP_BYTES + data.len() {
            return false;
        }
        self.put(header.as_bytes());
        self.put(data);
        if let Some(last) = self.records.last_mut() {
            last.operations += 1;
        }
        true
    }

    /// Adds as much of a region as fits into the record, and returns the rest.
    pub(super) fn region<'a>(&mut self, tid: u32, rest: RegionRest<'a>) -> Option<RegionRest<'a>> {
        let RegionRest { data, begun } = rest;
        let continued = if begun { OpFlags::WAS_CONT } else { OpFlags::empty() };
        let room = self.room().saturating_sub(OP_BYTES) & !3;
        if data.len() <= room && self.room() >= OP_BYTES {
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
        Some(RegionRest { data: later, begun: true })
    }

    /// Log bytes of the first `count` records.
    pub(super) fn bytes(&self, count: usize) -> u32 {
        self.records.iter().take(count).map(|record| self.layout.record_bytes(record.used)).sum()
    }

    /// Bytes from the first of this many records to the last.
    pub(super) fn last_of(&self, count: usize) -> u32 {
        self.bytes(count.saturating_sub(1))
    }

    /// Writes headers, cycle stamps and checksums of the first `count` records, which name `tail`. Returns these
    /// records.
    pub(super) fn seal(&mut self, count: usize, place: RecordPlace, tail: Pos) -> Result<&[u8], FormatError> {
        let RecordPlace { mut at, mut previous } = place;
        for nth in 0..count {
            self.seal_one(nth, RecordPlace { at, previous }, tail)?;
            previous = self.layout.block(at);
            at = place.at.after(self.bytes(nth + 1));
        }
        let (start, bytes) =
            (self.records.first().map_or(0, |first| first.start), self.bytes(count) as usize);
        self.buf
            .get(start..start + bytes)
            .ok_or_else(|| FormatError::value("log record", "length", bytes as u64))
    }

    fn seal_one(&mut self, nth: usize, place: RecordPlace, tail: Pos) -> Result<(), FormatError> {
        let Self { layout, buf, records } = self;
        let missing = || FormatError::value("log record", "number", nth as u64);
        let record = *records.get(nth).ok_or_else(missing)?;
        let (bytes, head) = (layout.record_bytes(record.used), layout.header() as usize);
        let whole = bytes as usize;
        let mut header = RecordHeader::new(layout.uuid, layout.lsn(place.at), layout.lsn(tail), layout.size);
        header.len.set((whole - head) as u32);
        header.prev_block.set(place.previous);
        header.num_logops.set(record.operations);
        let truncated = || FormatError::value("log record", "length", whole as u64);
        let bytes_of = buf.get_mut(record.start..record.start + whole).ok_or_else(truncated)?;
        let (heads, data) = bytes_of.split_at_mut(head);
        heads.fill(0);
        heads.get_mut(..size_of::<RecordHeader>()).ok_or_else(truncated)?.copy_from_slice(header.as_bytes());
        if let Some(padding) = data.get_mut(record.used..) {
            padding.fill(0);
        }
        debug_assert!(whole.is_multiple_of(BLOCK_SIZE));
        pack(bytes_of, layout.wrap(place.at, bytes))
    }

    /// The first `count` records are written: removes them from the run.
    pub(super) fn written(&mut self, count: usize) {
        self.records.drain(..count.min(self.records.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::log::{LogIdentity, RecordOps, unpack, verify_checksum};

    /// A record's header and its operations.
    type Found = (RecordHeader, Vec<(OpFlags, Vec<u8>)>);

    fn empty(layout: &LogLayout) -> RecordRun {
        let mut buf = AlignedBuf::zeroed(layout.run_bytes());
        buf.fill(0xee);
        RecordRun::new(layout, buf)
    }

    /// Seals the first `count` records of a run and reads them.
    fn read(run: &mut RecordRun, count: usize, place: RecordPlace) -> Vec<Found> {
        let layout = run.layout;
        let identity = LogIdentity { v5: true, uuid: layout.uuid };
        let mut bytes = run.seal(count, place, Pos(100_008)).unwrap().to_vec();
        assert_eq!(bytes.len(), run.bytes(count) as usize);
        let (mut rest, mut found) = (&mut bytes[..], Vec::new());
        while !rest.is_empty() {
            let header = *RecordHeader::check(rest, &identity).unwrap();
            let (record, behind) = rest.split_at_mut(header.total_blocks() as usize * BLOCK_SIZE);
            assert!(record.len() <= layout.record_max() as usize);
            verify_checksum(&header, record, &identity).unwrap();
            let data = unpack(&header, record).unwrap();
            let ops = RecordOps::new(data, header.num_logops.get());
            found.push((header, ops.map(|op| op.map(|op| (op.flags, op.data.to_vec())).unwrap()).collect()));
            rest = behind;
        }
        found
    }

    /// All records of a region that spans several, in full runs.
    fn records_of(layout: &LogLayout, region: &[u8]) -> Vec<Found> {
        let (mut rest, mut found) = (Some(RegionRest::whole(region)), Vec::new());
        let mut place = RecordPlace { at: Pos(100_008), previous: 4 };
        while rest.is_some() {
            let mut run = empty(layout);
            while let Some(now) = rest {
                rest = run.region(9, now);
                if rest.is_some() && !run.begin_record() {
                    break;
                }
            }
            let count = run.len();
            assert!(count <= layout.run_max());
            found.extend(read(&mut run, count, place));
            let last = layout.block(place.at.after(run.last_of(count)));
            place = RecordPlace { at: place.at.after(run.bytes(count)), previous: last };
        }
        found
    }

    #[test]
    fn a_long_region_goes_through_several_records() {
        for (round, size) in [(512, 32 << 10), (4096, 64 << 10), (48 << 10, 48 << 10), (512, 256 << 10)] {
            let layout = LogLayout::for_tests(100_000, round, size);
            let region: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
            let records = records_of(&layout, &region);
            let (mut at, mut previous) = (Pos(100_008), 4);
            for (nth, (header, ops)) in records.iter().enumerate() {
                assert_eq!(ops.len(), 1);
                let first = if nth == 0 { OpFlags::empty() } else { OpFlags::WAS_CONT };
                let last = if nth + 1 == records.len() { OpFlags::END } else { OpFlags::CONTINUE };
                assert_eq!(ops[0].0, first | last);
                assert_eq!(header.lsn.get(), layout.lsn(at).0, "where it lies");
                assert_eq!(header.prev_block.get(), previous, "the one before");
                assert_eq!(header.tail_lsn.get(), layout.lsn(Pos(100_008)).0);
                previous = layout.block(at);
                at = at.after(header.total_blocks() * BLOCK_SIZE as u32);
            }
            let found: Vec<u8> =
                records.into_iter().flat_map(|(_, ops)| ops.into_iter().flat_map(|op| op.1)).collect();
            assert_eq!(found, region);
        }
    }

    #[test]
    fn records_are_written_together_as_far_as_others_may_be_on_their_way() {
        for (blocks, size, most) in [
            (100_000, 32 << 10, 3),
            (100_000, 64 << 10, 3),
            (100_000, 128 << 10, 2),
            (100_000, 256 << 10, 1),
            (600, 32 << 10, 1),
        ] {
            let layout = LogLayout::for_tests(blocks, 512, size);
            assert_eq!(layout.run_max(), most, "{blocks} {size}");
            assert!(most == 1 || 2 * most < layout.unflushed_max() as usize);
        }
    }

    /// Near the tail, each record is written alone.
    #[test]
    fn what_is_left_of_a_run_is_as_it_would_have_been() {
        let layout = LogLayout::for_tests(100_000, 512, 32 << 10);
        let make = || {
            let mut run = empty(&layout);
            for (nth, bytes) in [900, 20_000, 1].into_iter().enumerate() {
                assert!(nth == 0 || run.begin_record());
                assert_eq!(run.region(1, RegionRest::whole(&vec![nth as u8 + 1; bytes])), None);
            }
            assert!(!run.begin_record(), "as many as go together");
            run
        };
        // The second record wraps around the end of the log.
        let at = Pos(199_990);
        let (mut together, mut single, mut bytes) = (make(), make(), Vec::new());
        let mut place = RecordPlace { at, previous: 7 };
        while single.len() > 0 {
            bytes.extend_from_slice(single.seal(1, place, Pos(150_000)).unwrap());
            place = RecordPlace { at: place.at.after(single.bytes(1)), previous: layout.block(place.at) };
            single.written(1);
        }
        assert!(layout.block(place.at) < 1000, "goes on at the start");
        assert!(bytes == together.seal(3, RecordPlace { at, previous: 7 }, Pos(150_000)).unwrap());
    }

    #[test]
    fn what_would_leave_a_stub_is_not_begun() {
        let layout = LogLayout::for_tests(100_000, 512, 32 << 10);
        for left in (0..CUT_LEAST + 40).step_by(4) {
            let mut run = empty(&layout);
            let first = vec![1; layout.data_max() - OP_BYTES - left];
            assert_eq!(run.region(1, RegionRest::whole(&first)), None);
            let region = [7; 1000];
            let rest = run.region(1, RegionRest::whole(&region));
            let (_, ops) = read(&mut run, 1, RecordPlace { at: Pos(100_008), previous: 4 }).remove(0);
            match rest {
                Some(RegionRest { data, begun: false }) => assert_eq!((data.len(), ops.len()), (1000, 1)),
                Some(RegionRest { data, begun: true }) => {
                    assert_eq!(ops[1].1.len() + data.len(), 1000);
                    assert!(ops[1].1.len() >= CUT_LEAST);
                }
                None => panic!("{left} bytes held 1000"),
            }
            let small = run.region(1, RegionRest::whole(&[]));
            let full = rest.is_some_and(|rest| rest.begun) || left < OP_BYTES;
            assert_eq!(small.is_some(), full, "{left}");
        }
    }
}
