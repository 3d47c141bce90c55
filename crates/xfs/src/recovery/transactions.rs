//! Assembles transactions from operations that lie in any number of records, among those of others.
//!
//! Invariants: a transaction is passed on when its commit is seen, not before. One without a commit is never seen. Its
//! LSN is that of the record with its start. Memory is bounded by the size of the log.

use std::collections::HashMap;
use std::ops::Range;
use xfs_format::error::FormatError;
use xfs_format::log::{ItemType, LogItem, Op, OpFlags, TransHeader};
use xfs_format::types::Lsn;

const NAME: &str = "log operation";

/// Bytes that are kept contiguous: a transaction of many megabytes does not move as it grows.
const CHUNK: usize = 256 << 10;

/// A transaction: its regions, one after the other.
pub(super) struct Transaction {
    /// The LSN of its start, with which its changes are stamped.
    pub(super) lsn: Lsn,
    chunks: Vec<Vec<u8>>,
    /// Each lies within one chunk.
    regions: Vec<(usize, Range<usize>)>,
}

/// An item of a transaction: its format structure, and the regions after that.
#[derive(Clone, Copy)]
pub(super) struct Item<'t> {
    pub(super) kind: ItemType,
    pub(super) format: LogItem<'t>,
    transaction: &'t Transaction,
    first: usize,
    count: usize,
}

impl<'t> Item<'t> {
    /// The regions after the format structure.
    pub(super) fn regions(&self) -> impl Iterator<Item = &'t [u8]> + use<'t> {
        let item = *self;
        (0..self.count).map_while(move |index| item.region(index))
    }

    /// A region after the format structure, counted from 0.
    pub(super) fn region(&self, index: usize) -> Option<&'t [u8]> {
        (index < self.count).then(|| self.transaction.region(self.first + index)).flatten()
    }
}

impl Transaction {
    fn region(&self, index: usize) -> Option<&[u8]> {
        let (chunk, range) = self.regions.get(index)?;
        self.chunks.get(*chunk)?.get(range.clone())
    }

    /// Adds a region.
    fn add(&mut self, data: &[u8]) {
        let chunk = self.chunk_for(data.len());
        let begin = self.chunks[chunk].len();
        self.chunks[chunk].extend_from_slice(data);
        self.regions.push((chunk, begin..begin + data.len()));
    }

    /// Extends the last region. Returns `false` if there is none.
    fn go_on(&mut self, data: &[u8]) -> bool {
        let Some((chunk, range)) = self.regions.pop() else { return false };
        // The region is the last one in its chunk.
        let room = self.chunks[chunk].capacity() - range.end;
        if room >= data.len() {
            self.chunks[chunk].extend_from_slice(data);
            self.regions.push((chunk, range.start..range.end + data.len()));
        } else {
            let begun = self.chunks[chunk].split_off(range.start);
            let whole = [&begun, data].concat();
            // Reserve twice the size, so that a region that is continued often does not move each time.
            self.chunks.push(Vec::with_capacity(CHUNK.max(2 * whole.len())));
            self.add(&whole);
        }
        true
    }

    /// Makes a last chunk with room for this many bytes.
    fn chunk_for(&mut self, bytes: usize) -> usize {
        if self.chunks.last().is_none_or(|chunk| chunk.capacity() - chunk.len() < bytes) {
            self.chunks.push(Vec::with_capacity(CHUNK.max(bytes)));
        }
        self.chunks.len() - 1
    }

    /// Its items in log order.
    pub(super) fn items(&self) -> Result<Vec<Item<'_>>, FormatError> {
        let mut items = Vec::new();
        let Some(header) = self.region(0) else { return Ok(items) };
        TransHeader::parse(header)?;
        let mut at = 1;
        while let Some(region) = self.region(at) {
            let (kind, regions, format) = LogItem::parse(region)?;
            let (first, count) = (at + 1, usize::from(regions) - 1);
            at = first + count;
            if at > self.regions.len() {
                let left = self.regions.len() - first;
                return Err(FormatError::mismatch(
                    "log item",
                    "number of regions",
                    count as u64,
                    left as u64,
                ));
            }
            items.push(Item { kind, format, transaction: self, first, count });
        }
        Ok(items)
    }
}

/// Assembles transactions.
#[derive(Default)]
pub(super) struct TransactionBuilder {
    open: HashMap<u32, Transaction>,
    dropped: u64,
}

impl TransactionBuilder {
    /// Processes an operation of a record with this LSN. Returns the transaction that it commits.
    pub(super) fn take(&mut self, lsn: Lsn, op: &Op<'_>) -> Result<Option<Transaction>, FormatError> {
        if op.flags.contains(OpFlags::START) {
            let new = Transaction { lsn, chunks: Vec::new(), regions: Vec::new() };
            // The number may be that of a transaction that an earlier crash cut off.
            self.dropped += u64::from(self.open.insert(op.tid, new).is_some());
            return Ok(None);
        }
        if op.flags.contains(OpFlags::UNMOUNT) {
            return Ok(None);
        }
        if op.flags.contains(OpFlags::COMMIT) {
            return Ok(self.open.remove(&op.tid));
        }
        // What began before the tail is on disk.
        let Some(transaction) = self.open.get_mut(&op.tid) else { return Ok(None) };
        if !op.flags.contains(OpFlags::WAS_CONT) {
            transaction.add(op.data);
        } else if !transaction.go_on(op.data) {
            return Err(FormatError::value(NAME, "flags", op.flags.bits().into()));
        }
        Ok(None)
    }

    /// How many transactions began and were never committed.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped + self.open.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xfs_format::log::Client;
    use zerocopy::IntoBytes;

    fn op(tid: u32, flags: OpFlags, data: &[u8]) -> Op<'_> {
        Op { tid, client: Client::Transaction, flags, data }
    }

    #[test]
    fn transactions_lie_between_each_other() {
        let mut gather = TransactionBuilder::default();
        let header = TransHeader::checkpoint(1, 1);
        let header = header.as_bytes();
        let efi = {
            let mut bytes = vec![0; xfs_format::log::free_intent_bytes(1)];
            let extent = xfs_format::log::Extent { start: xfs_format::types::FsBlock(9), len: 2 };
            xfs_format::log::encode_free_intent(false, 77, &[extent], &mut bytes);
            bytes
        };
        let none = OpFlags::empty();
        let (left, right) = efi.split_at(5);
        for (lsn, op) in [
            (1, op(9, none, b"of one that began before the tail")),
            (1, op(1, OpFlags::START, &[])),
            (1, op(1, none, header)),
            (2, op(2, OpFlags::START, &[])),
            (2, op(1, OpFlags::CONTINUE, left)),
            (2, op(2, none, header)),
            (3, op(1, OpFlags::WAS_CONT | OpFlags::END, right)),
            (3, op(9, OpFlags::COMMIT, &[])),
        ] {
            assert!(gather.take(Lsn(lsn), &op).unwrap().is_none());
        }
        let done = gather.take(Lsn(4), &op(1, OpFlags::COMMIT, &[])).unwrap().unwrap();
        assert_eq!(done.lsn, Lsn(1));
        let items = done.items().unwrap();
        assert!(matches!(items[0].format, LogItem::FreeIntent(intent) if intent.id == 77));
        assert_eq!((items.len(), gather.dropped()), (1, 1));
        let stray = op(2, OpFlags::WAS_CONT, b"x");
        assert!(gather.take(Lsn(5), &op(2, OpFlags::START, &[])).unwrap().is_none());
        assert!(gather.take(Lsn(5), &stray).is_err(), "a region that never began");
    }

    /// Continued regions are contiguous, whatever was in front of them.
    #[test]
    fn regions_go_on_over_the_end_of_a_chunk() {
        let mut transaction = Transaction { lsn: Lsn(1), chunks: Vec::new(), regions: Vec::new() };
        assert!(!transaction.go_on(b"of none"));
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for number in 0..40_u8 {
            let parts: Vec<Vec<u8>> =
                (0..number % 5 + 1).map(|part| vec![number ^ part; 9_000 * usize::from(part + 1)]).collect();
            transaction.add(&parts[0]);
            assert!(parts[1..].iter().all(|part| transaction.go_on(part)));
            expected.push(parts.concat());
        }
        transaction.add(&[]);
        for _ in 0..100 {
            assert!(transaction.go_on(&[7; 10_000]));
        }
        expected.push(vec![7; 1_000_000]);
        assert!(expected.iter().enumerate().all(|(index, region)| transaction.region(index) == Some(region)));
        assert!(transaction.region(expected.len()).is_none());
        let kept: usize = transaction.chunks.iter().map(Vec::capacity).sum();
        assert!(kept < 4 * expected.iter().map(Vec::len).sum::<usize>(), "{kept}");
    }
}
