//! Where the log ends: its head (behind the newest whole record), and whether a clean unmount is what ended
//! it.
//!
//! The log is a ring. Blocks before the head carry the newest cycle, those behind it the cycle before (or 0,
//! where the log was never written so far):
//! ```text
//! block 0                       head                        end
//! | cycle n  n  n  n  n  n  n  n | n-1  n-1  n-1  n-1  n-1  n-1 |
//! ```
//! A crash blurs this: up to [`IN_FLIGHT_BLOCKS`] may have been in flight, and were written in any order,
//! so that blocks of the older cycle are left as holes before the head. Everything after the first hole
//! counts as not written; so is a last record that is not whole, whose header is bad, or (v5) whose checksum is wrong.
//! Records before the tail that the newest one names are needed by nobody: whatever became of them takes nothing along.
//!
//! Bounds: reads about `log2(blocks)` single blocks, [`IN_FLIGHT_BLOCKS`] in chunks, and a few dozen records
//! at most.

use super::record::{
    BLOCK_SIZE, LogIdentity, MAX_RECORD_SIZE, RECORD_MAGIC, RecordHeader, UUID, block_cycle,
    is_unmount_record, verify_checksum,
};
use crate::error::FormatError;
use crate::types::Lsn;

const LOG: &str = "log";
/// The most blocks in flight at a crash: eight buffers of 256 KiB.
const IN_FLIGHT_BLOCKS: u32 = 8 * (MAX_RECORD_SIZE / BLOCK_SIZE as u32);
/// Most blocks of a record, headers included.
const RECORD_BLOCKS_MAX: u32 = MAX_RECORD_SIZE / BLOCK_SIZE as u32 + 8;
/// The most records in flight at a crash, all of which are examined.
const RECORDS_IN_FLIGHT: u32 = 8;
/// Blocks read at once when many are looked at.
const CHUNK_BLOCKS: u32 = 64;

/// The newest record, and what it tells about the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnds {
    /// Block where the next record would go.
    pub head: u32,
    /// Block of the newest record's header. `None`: the log was never written.
    pub last_record: Option<u32>,
    /// The newest record's LSN.
    pub lsn: Lsn,
    /// The oldest record that recovery must begin with; the newest's own if the log is clean.
    pub tail: Lsn,
    /// Whether nothing is to be replayed: the log ends with an unmount record, or was never written.
    pub clean: bool,
    /// `h_size` of the newest record, in bytes. The next records must have the same. 0: there is
    /// none.
    pub record_size: u32,
    /// Whether something lies behind the newest whole record: one that is torn, or a header of another log.
    pub is_torn: bool,
}

impl LogEnds {
    /// The LSN that the next record would have. A log that was never written, or is all zeroes, begins with cycle 1.
    pub fn head_lsn(&self) -> Lsn {
        let Some(last) = self.last_record else { return Lsn(1 << 32) };
        let cycle = (self.lsn.0 >> 32) + u64::from(self.head <= last);
        Lsn(cycle << 32 | u64::from(self.head))
    }
}

/// Finds the ends of a log of `blocks` blocks of 512 bytes. `read` fills a buffer (a multiple of 512 bytes)
/// from a block of the log on; it is never asked for anything behind the log's end.
pub fn find_ends<E, F>(blocks: u32, identity: &LogIdentity, read: F) -> Result<LogEnds, E>
where
    E: From<FormatError>,
    F: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    if blocks < 4 {
        return Err(FormatError::value(LOG, "size", blocks.into()).into());
    }
    let mut log = Log { blocks, identity: *identity, read };
    let Some(head) = log.head_by_cycle()? else {
        return Ok(LogEnds {
            head: 0,
            last_record: None,
            lsn: Lsn::default(),
            tail: Lsn::default(),
            clean: true,
            record_size: 0,
            is_torn: false,
        });
    };
    let mut last = log.last_whole_record(head)?;
    if identity.v5 {
        last = log.without_torn_records(last)?;
    }
    let ends = log.ends(&last)?;
    Ok(LogEnds { is_torn: ends.head != head, ..ends })
}

struct Log<F> {
    blocks: u32,
    identity: LogIdentity,
    read: F,
}

/// A record by its place.
#[derive(Clone, Copy)]
struct Placed {
    at: u32,
    header: RecordHeader,
}

/// A block that begins as a record's header does.
struct Found {
    at: u32,
    header: Result<RecordHeader, FormatError>,
}

impl Found {
    fn new(at: u32, block: &[u8], identity: &LogIdentity) -> Self {
        let header = RecordHeader::check(block, identity).copied().and_then(|header| {
            let (found, expected) = (header.lsn(), lsn(header.cycle.get(), at));
            if found == expected {
                Ok(header)
            } else {
                Err(FormatError::mismatch(LOG, "LSN", found.0, expected.0))
            }
        });
        Self { at, header }
    }

    /// Whether this can be the record before another one. A bad header does not say.
    fn may_precede(&self, next: &Placed) -> bool {
        self.header.as_ref().map_or(true, |header| header.lsn() < next.header.lsn())
    }
}

fn lsn(cycle: u32, block: u32) -> Lsn {
    Lsn(u64::from(cycle) << 32 | u64::from(block))
}

impl<E, F> Log<F>
where
    E: From<FormatError>,
    F: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    fn cycle_at(&mut self, block: u32) -> Result<u32, E> {
        let mut bytes = [0; BLOCK_SIZE];
        (self.read)(block, &mut bytes)?;
        Ok(block_cycle(&bytes).unwrap_or(0))
    }

    /// The head as the cycle numbers tell it: `None` if the log was never written.
    fn head_by_cycle(&mut self) -> Result<Option<u32>, E> {
        let (first, last) = (self.cycle_at(0)?, self.cycle_at(self.blocks - 1)?);
        if first == 0 {
            return Ok(None);
        }
        if first == last {
            // The log was written exactly to its end, or there are holes at the end.
            let from = self.blocks.saturating_sub(IN_FLIGHT_BLOCKS);
            let hole = self.first_of_cycle(from, self.blocks, first.wrapping_sub(1))?;
            return Ok(Some(hole.unwrap_or(0)));
        }
        let head = self.first_older(last)?;
        let hole = self.first_of_cycle(head.saturating_sub(IN_FLIGHT_BLOCKS), head, last)?;
        if let Some(across) = IN_FLIGHT_BLOCKS.checked_sub(head).filter(|_| last > 0) {
            // Writes in flight went past the log's end: holes there have an even older cycle.
            let from = self.blocks.saturating_sub(across).max(head);
            if let Some(hole) = self.first_of_cycle(from, self.blocks, last - 1)? {
                return Ok(Some(hole));
            }
        }
        Ok(Some(hole.unwrap_or(head)))
    }

    /// The border between the first block's cycle and `last`, that of the last block.
    fn first_older(&mut self, last: u32) -> Result<u32, E> {
        let (mut newer, mut older) = (0, self.blocks - 1);
        while older - newer > 1 {
            let middle = newer + (older - newer) / 2;
            if self.cycle_at(middle)? == last {
                older = middle;
            } else {
                newer = middle;
            }
        }
        Ok(older)
    }

    /// First block of `from..to` that carries `cycle`.
    fn first_of_cycle(&mut self, from: u32, to: u32, cycle: u32) -> Result<Option<u32>, E> {
        let mut chunk = vec![0; CHUNK_BLOCKS as usize * BLOCK_SIZE];
        let mut at = from;
        while at < to {
            let count = CHUNK_BLOCKS.min(to - at);
            let bytes = chunk.get_mut(..count as usize * BLOCK_SIZE).unwrap_or_default();
            (self.read)(at, bytes)?;
            let mut blocks = bytes.chunks_exact(BLOCK_SIZE);
            if let Some(index) = blocks.position(|block| block_cycle(block) == Some(cycle)) {
                return Ok(Some(at + index as u32));
            }
            at += count;
        }
        Ok(None)
    }

    /// Reads `count` blocks from `at` on, round the log's end if need be.
    fn read_round(&mut self, at: u32, count: u32) -> Result<Vec<u8>, E> {
        if count > self.blocks {
            return Err(
                FormatError::mismatch(LOG, "length of a record", count.into(), self.blocks.into()).into()
            );
        }
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        let before_end = count.min(self.blocks - at) as usize * BLOCK_SIZE;
        let (left, right) = bytes.split_at_mut(before_end);
        (self.read)(at, left)?;
        if !right.is_empty() {
            (self.read)(0, right)?;
        }
        Ok(bytes)
    }

    /// `back` blocks before `at`, round the log's start if need be. `back` is at most `blocks`.
    fn before(&self, at: u32, back: u32) -> u32 {
        if back <= at { at - back } else { self.blocks - (back - at) }
    }

    /// The nearest record header before `head`. Those between may have lost their magic.
    fn record_before(&mut self, head: u32) -> Result<Found, E> {
        let reach = (RECORDS_IN_FLIGHT * RECORD_BLOCKS_MAX).min(self.blocks);
        let mut looked = 0;
        while looked < reach {
            let count = CHUNK_BLOCKS.min(reach - looked);
            let from = self.before(head, looked + count);
            let bytes = self.read_round(from % self.blocks, count)?;
            for (index, block) in bytes.chunks_exact(BLOCK_SIZE).enumerate().rev() {
                if block.starts_with(&RECORD_MAGIC.to_be_bytes()) {
                    let at = (from % self.blocks + index as u32) % self.blocks;
                    return Ok(Found::new(at, block, &self.identity));
                }
            }
            looked += count;
        }
        Err(FormatError::value(LOG, "records: none before the head", head.into()).into())
    }

    fn end_of(&self, record: &Placed) -> u32 {
        ((u64::from(record.at) + u64::from(record.header.total_blocks())) % u64::from(self.blocks)) as u32
    }

    /// The newest complete record, going back from `head`. The log of another volume is refused by its newest record, as
    /// a kernel does.
    fn last_whole_record(&mut self, head: u32) -> Result<Placed, E> {
        let problem = self.record_before(head)?.header.err();
        if let Some(problem) = problem.clone().filter(|problem| problem.check == UUID) {
            return Err(problem.into());
        }
        self.whole_record_before(head).map_err(|error| problem.map_or(error, E::from))
    }

    /// The nearest complete record before `head`.
    fn whole_record_before(&mut self, mut head: u32) -> Result<Placed, E> {
        for _ in 0..=RECORDS_IN_FLIGHT {
            let Found { at, header } = self.record_before(head)?;
            if let Ok(header) = header {
                let record = Placed { at, header };
                if self.end_of(&record) == head {
                    return Ok(record);
                }
            }
            head = at;
        }
        Err(FormatError::value(LOG, "end: no whole record", head.into()).into())
    }

    /// The newest record that has only good records before it, as far back as it needs them and as a crash can reach.
    fn without_torn_records(&mut self, last: Placed) -> Result<Placed, E> {
        let (mut newest_good, mut record) = (last, last);
        let mut looked_at = 1;
        while looked_at <= RECORDS_IN_FLIGHT {
            let good = self.has_right_checksum(&record)?;
            let is_reached = looked_at < RECORDS_IN_FLIGHT;
            if good && (!is_reached || record.header.lsn() <= self.tail_of(&newest_good)?) {
                return Ok(newest_good);
            }
            // The log's first record has none before it.
            let previous = self.record_before(record.at).ok().filter(|found| found.may_precede(&record));
            let Some(previous) = previous else {
                return if good {
                    Ok(newest_good)
                } else {
                    Err(FormatError::value(LOG, "records: none with a right checksum", record.at.into())
                        .into())
                };
            };
            // A record that has lost its magic is not found at all, and leaves a gap.
            let touches = previous
                .header
                .as_ref()
                .is_ok_and(|&header| self.end_of(&Placed { at: previous.at, header }) == record.at);
            let torn = !good || !touches;
            looked_at += 1;
            record = match previous.header {
                Ok(header) => Placed { at: previous.at, header },
                Err(problem) if !is_reached => return Err(problem.into()),
                Err(_) => {
                    looked_at += 1;
                    self.whole_record_before(previous.at)?
                }
            };
            if torn {
                newest_good = record;
            }
        }
        Ok(newest_good)
    }

    fn has_right_checksum(&mut self, record: &Placed) -> Result<bool, E> {
        let blocks = record.header.total_blocks();
        if blocks > self.blocks {
            return Ok(false);
        }
        let bytes = self.read_round(record.at, blocks)?;
        Ok(verify_checksum(&record.header, &bytes, &self.identity).is_ok())
    }

    /// Whether a record is that of a clean unmount.
    fn is_unmount(&mut self, record: &Placed) -> Result<bool, E> {
        let first_data = (record.at + record.header.header_blocks()) % self.blocks;
        let mut block = [0; BLOCK_SIZE];
        (self.read)(first_data, &mut block)?;
        Ok(is_unmount_record(&record.header, &block))
    }

    /// The oldest record that is needed if this is the newest one. Behind a clean unmount none is, whatever it names.
    fn tail_of(&mut self, newest: &Placed) -> Result<Lsn, E> {
        Ok(if self.is_unmount(newest)? { newest.header.lsn() } else { newest.header.tail_lsn() })
    }

    fn ends(&mut self, last: &Placed) -> Result<LogEnds, E> {
        let (lsn, clean, tail) = (last.header.lsn(), self.is_unmount(last)?, self.tail_of(last)?);
        let record_size = last.header.size.get();
        let (head, last_record) = (self.end_of(last), Some(last.at));
        Ok(LogEnds { head, last_record, lsn, tail, clean, record_size, is_torn: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_in_the_next_cycle_once_the_log_wrapped() {
        let ends = |head, last_record, lsn| LogEnds {
            head,
            last_record,
            lsn,
            tail: lsn,
            clean: true,
            record_size: 0,
            is_torn: false,
        };
        let lsn = |cycle: u64, block: u64| Lsn(cycle << 32 | block);
        assert_eq!(ends(9, Some(7), lsn(3, 7)).head_lsn(), lsn(3, 9));
        assert_eq!(ends(0, Some(7), lsn(3, 7)).head_lsn(), lsn(4, 0));
        assert_eq!(ends(0, None, Lsn(0)).head_lsn(), lsn(1, 0));
    }
    use crate::log::{OpHeader, pack};
    use crate::types::Uuid;
    use zerocopy::{FromZeros, IntoBytes};

    const IDENTITY: LogIdentity = LogIdentity { v5: true, uuid: Uuid([7; 16]) };

    /// A ring that records are written to as a kernel would.
    struct Ring {
        bytes: Vec<u8>,
        at: u32,
        cycle: u32,
        /// What records name as the tail.
        tail: u64,
    }

    impl Ring {
        fn new(blocks: u32) -> Self {
            Self { bytes: vec![0; blocks as usize * BLOCK_SIZE], at: 0, cycle: 1, tail: 0 }
        }

        fn blocks(&self) -> u32 {
            (self.bytes.len() / BLOCK_SIZE) as u32
        }

        /// Appends a record of `data` blocks and returns its place and length.
        fn append(&mut self, data: u32, unmount: bool) -> (u32, u32) {
            self.append_of_size(data, unmount, 32 << 10)
        }

        fn append_of_size(&mut self, data: u32, unmount: bool, size: u32) -> (u32, u32) {
            let mut header = RecordHeader::new_zeroed();
            header.magic.set(RECORD_MAGIC);
            header.cycle.set(self.cycle);
            header.version.set(2);
            header.len.set(data * 512);
            header.lsn.set(u64::from(self.cycle) << 32 | u64::from(self.at));
            header.tail_lsn.set(self.tail);
            header.num_logops.set(if unmount { 1 } else { 2 });
            header.fmt.set(1);
            header.fs_uuid = IDENTITY.uuid.0;
            header.size.set(size);
            let headers = size.div_ceil(32 << 10);
            let mut record = header.as_bytes().to_vec();
            record.resize(512 * headers as usize, 0);
            let op = OpHeader {
                tid: 1.into(),
                len: 8.into(),
                clientid: 0xaa,
                flags: if unmount { 0x20 } else { 0 },
                res2: 0.into(),
            };
            record.extend(op.as_bytes());
            let total = headers + data;
            record.resize(512 * total as usize, 0);
            let room = self.blocks() - self.at;
            let wrap = (room < total).then_some(room as usize);
            pack(&mut record, wrap).unwrap();
            let placed = (self.at, total);
            for block in record.chunks_exact(BLOCK_SIZE) {
                let at = self.at as usize * BLOCK_SIZE;
                self.bytes[at..at + BLOCK_SIZE].copy_from_slice(block);
                self.at += 1;
                if self.at == self.blocks() {
                    (self.at, self.cycle) = (0, self.cycle + 1);
                }
            }
            placed
        }

        fn ends(&self) -> LogEnds {
            self.found().unwrap()
        }

        fn found(&self) -> Result<LogEnds, FormatError> {
            find_ends(self.blocks(), &IDENTITY, |at, buf| {
                let at = at as usize * BLOCK_SIZE;
                buf.copy_from_slice(&self.bytes[at..at + buf.len()]);
                Ok(())
            })
        }

        /// Appends records until a few rounds are written, and then `count` whose places it returns.
        fn with_last(count: usize) -> (Self, Vec<u32>) {
            let mut ring = Self::new(700);
            for n in 0..60 {
                ring.append(n % 20 + 1, false);
            }
            let last = (0..count).map(|n| ring.append(n as u32 % 4 + 2, false).0).collect();
            (ring, last)
        }

        /// This ring with one bit of a block turned.
        fn damaged(&self, block: u32, byte: usize) -> Self {
            let mut bytes = self.bytes.clone();
            bytes[(block % self.blocks()) as usize * BLOCK_SIZE + byte] ^= 0x20;
            Self { bytes, ..*self }
        }
    }

    #[test]
    fn a_log_never_written_is_clean() {
        assert!(Ring::new(1000).ends().clean);
    }

    #[test]
    fn the_head_is_found_after_every_record_of_many_rounds() {
        let mut ring = Ring::new(613);
        for n in 0..400u32 {
            let unmount = n % 5 == 0;
            let (at, _) = ring.append(if unmount { 1 } else { n % 29 + 1 }, unmount);
            let ends = ring.ends();
            assert_eq!((ends.head, ends.last_record, ends.clean), (ring.at, Some(at), unmount), "{n}");
        }
    }

    #[test]
    fn the_size_of_records_is_that_of_the_newest() {
        let mut ring = Ring::new(613);
        assert_eq!(ring.ends().record_size, 0, "there is no record");
        for size in [16 << 10, 32 << 10, 16 << 10] {
            ring.append_of_size(3, false, size);
            assert_eq!(ring.ends().record_size, size);
        }
    }

    #[test]
    fn lost_blocks_of_the_last_records_move_the_head_back() {
        // Logs that are longer and shorter than what can be in flight, at several places of the ring.
        for (blocks, warm_up) in [(613, 90), (613, 117), (6000, 20), (6000, 1100)] {
            let mut ring = Ring::new(blocks);
            for n in 0..warm_up {
                ring.append(n % 29 + 1, false);
            }
            for lost in 0..9 {
                let before = Ring { bytes: ring.bytes.clone(), ..ring };
                ring.append(1, true);
                let clean = Ring { bytes: ring.bytes.clone(), ..ring };
                let (at, total) = ring.append(8, false);
                // One block of the record stays as it was.
                let block = ((at + lost % total) % blocks) as usize * BLOCK_SIZE;
                ring.bytes[block..block + BLOCK_SIZE]
                    .copy_from_slice(&clean.bytes[block..block + BLOCK_SIZE]);
                let ends = ring.ends();
                assert_eq!((ends.head, ends.clean), (at, true), "{blocks} {warm_up} {lost}");
                ring = before;
                ring.append(lost + 2, false);
            }
        }
    }

    /// Regression: damage to a record that nobody needed cut off all that was written after it, as if it had been torn.
    #[test]
    fn a_wrong_checksum_before_the_tail_takes_nothing_along() {
        let mut ring = Ring::new(700);
        for n in 0..60 {
            ring.append(n % 20 + 1, false);
        }
        let (dead, _) = ring.append(3, false);
        let (before, _) = ring.append(4, false);
        ring.tail = u64::from(ring.cycle) << 32 | u64::from(before);
        let (last, _) = ring.append(2, false);
        let flip = |ring: &mut Ring, at: u32| ring.bytes[((at + 2) % 700) as usize * BLOCK_SIZE + 9] ^= 0x40;
        flip(&mut ring, dead);
        let ends = ring.ends();
        assert_eq!((ends.head, ends.last_record), (ring.at, Some(last)));
        // The record before that one needs what is bad.
        flip(&mut ring, last);
        assert_eq!(ring.ends().head, dead);
    }

    #[test]
    fn a_wrong_checksum_takes_the_records_behind_it_along() {
        let mut ring = Ring::new(700);
        for n in 0..60 {
            ring.append(n % 20 + 1, false);
        }
        let (good, _) = ring.append(3, false);
        let (torn, _) = ring.append(4, false);
        ring.append(2, false);
        let at = ((torn + 2) % 700) as usize * BLOCK_SIZE + 9;
        ring.bytes[at] ^= 0x40;
        let ends = ring.ends();
        assert_eq!((ends.head, ends.last_record), (torn, Some(good)));
    }

    /// A byte of each field of a header that a record can be wrong in, and what it is.
    const FIELDS: [(usize, &str); 10] = [
        (2, "magic"),
        (11, "version"),
        (13, "length, too large"),
        (14, "length"),
        (22, "LSN"),
        (29, "tail"),
        (33, "checksum"),
        (303, "byte order"),
        (310, "UUID"),
        (321, "size"),
    ];
    const UUID_BYTE: usize = 310;
    const MAGIC_BYTE: usize = 2;

    /// Regression: only a wrong checksum counted as torn. A header that was bad otherwise was an error, or hid its record.
    #[test]
    fn a_bad_header_among_the_last_records_takes_those_behind_it_along() {
        let (ring, last) = Ring::with_last(9);
        for (byte, field) in FIELDS {
            for torn in 1..9 {
                // As the newest, the first is refused, and the second takes the record before it along, as in a kernel.
                if torn == 8 && [UUID_BYTE, MAGIC_BYTE].contains(&byte) {
                    continue;
                }
                let ends = ring.damaged(last[torn], byte).found().map(|ends| (ends.head, ends.last_record));
                assert_eq!(ends, Ok((last[torn], Some(last[torn - 1]))), "{field} of record {torn}");
            }
        }
    }

    /// Regression: the header before a record that had lost its magic was too far away to be found, and the log refused.
    #[test]
    fn a_large_record_that_is_gone_takes_those_behind_it_along() {
        let mut ring = Ring::new(20480);
        let last: Vec<u32> = (0..60).map(|_| ring.append_of_size(504, false, 256 << 10).0).skip(51).collect();
        for torn in 1..8 {
            let ends = ring.damaged(last[torn], MAGIC_BYTE).ends();
            assert_eq!((ends.head, ends.last_record), (last[torn], Some(last[torn - 1])), "record {torn}");
        }
        // The newest takes the one before it along, as in a kernel.
        let ends = ring.damaged(last[8], MAGIC_BYTE).ends();
        assert_eq!((ends.head, ends.last_record), (last[7], Some(last[6])));
    }

    #[test]
    fn a_record_of_another_volume_is_refused_as_the_newest_and_torn_before_it() {
        let (ring, last) = Ring::with_last(9);
        assert_eq!(ring.damaged(last[8], UUID_BYTE).found().unwrap_err().check, UUID);
        assert_eq!(ring.damaged(last[7], UUID_BYTE).ends().head, last[7]);
    }

    #[test]
    fn a_bad_header_before_the_tail_takes_nothing_along() {
        let (mut ring, last) = Ring::with_last(5);
        ring.tail = u64::from(ring.cycle) << 32 | u64::from(last[3]);
        let (newest, _) = ring.append(2, false);
        for (byte, field) in FIELDS {
            let ends = ring.damaged(last[2], byte).ends();
            assert_eq!((ends.head, ends.last_record), (ring.at, Some(newest)), "{field}");
            // Its own tail is needed.
            let ends = ring.damaged(last[3], byte).ends();
            assert_eq!((ends.head, ends.last_record), (last[3], Some(last[2])), "{field}");
        }
    }

    /// Regression: a change of the UUID leaves records of the old one before the record of a clean unmount, which may name
    /// one of them as its tail. The log counted as torn.
    #[test]
    fn a_clean_unmount_needs_no_record_before_it() {
        let (mut ring, last) = Ring::with_last(5);
        ring.tail = u64::from(ring.cycle) << 32 | u64::from(last[3]);
        let (newest, _) = ring.append(1, true);
        for (byte, field) in FIELDS {
            let ends = ring.damaged(last[4], byte).ends();
            assert_eq!((ends.head, ends.last_record), (ring.at, Some(newest)), "{field}");
            assert!(ends.clean, "{field}");
        }
    }

    /// Regression: the ninth record counted as torn if its header was bad, and was left out with those behind it. A kernel
    /// refuses the log, and so does whoever reads the records.
    #[test]
    fn a_bad_header_further_back_than_a_crash_reaches_is_left_where_it_is() {
        let (ring, last) = Ring::with_last(12);
        for (byte, field) in FIELDS {
            for damaged in 0..4 {
                let ends = ring.damaged(last[damaged], byte).ends();
                assert_eq!((ends.head, ends.last_record), (ring.at, Some(last[11])), "{field} of {damaged}");
            }
        }
        // Nothing good is left to end the log with.
        let ring = ring.damaged(last[4], 33).damaged(last[3], 11);
        assert_eq!(ring.found().unwrap_err().check, "version");
    }

    #[test]
    fn rubbish_is_an_error_or_an_end_but_no_panic() {
        let mut ring = Ring::new(100);
        for n in 0..9 {
            ring.append(n + 1, false);
        }
        let mut state = 0x1234_5678_9abc_def1u64;
        for _ in 0..20_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = (state >> 16) as usize % ring.bytes.len();
            let old = ring.bytes[at];
            ring.bytes[at] = state as u8;
            let _ = ring.found();
            if state >> 60 != 0 {
                ring.bytes[at] = old;
            }
        }
    }
}
