//! Transactions, put together from operations that lie in any number of records, between those of others.
//!
//! Invariants: a transaction is given on when its commit is seen, and not before; what has none is never seen. Its LSN
//! is that of the record that its start lies in. What is kept is never more than the log holds.

use std::collections::HashMap;
use std::ops::Range;
use xfs_format::error::FormatError;
use xfs_format::log::{ItemType, LogItem, Op, OpFlags, TransHeader};
use xfs_format::types::Lsn;

const NAME: &str = "log operation";

/// A transaction: its regions, one behind the other.
pub(super) struct Transaction {
    /// Where it begins: what its changes are stamped with.
    pub(super) lsn: Lsn,
    bytes: Vec<u8>,
    regions: Vec<Range<usize>>,
}

/// An item of a transaction: its format structure, and the regions behind that.
#[derive(Clone, Copy)]
pub(super) struct Item<'t> {
    pub(super) kind: ItemType,
    pub(super) format: LogItem<'t>,
    transaction: &'t Transaction,
    first: usize,
    count: usize,
}

impl<'t> Item<'t> {
    /// A region behind the format structure, from 0 on.
    pub(super) fn region(&self, index: usize) -> Option<&'t [u8]> {
        (index < self.count).then(|| self.transaction.region(self.first + index)).flatten()
    }
}

impl Transaction {
    fn region(&self, index: usize) -> Option<&[u8]> {
        self.bytes.get(self.regions.get(index)?.clone())
    }

    /// Its items, in the order of the log.
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

/// Puts transactions together.
#[derive(Default)]
pub(super) struct Gather {
    open: HashMap<u32, Transaction>,
    dropped: u64,
}

impl Gather {
    /// Takes in an operation of a record with this LSN. Gives the transaction that it commits.
    pub(super) fn take(&mut self, lsn: Lsn, op: &Op<'_>) -> Result<Option<Transaction>, FormatError> {
        if op.flags.contains(OpFlags::START) {
            let new = Transaction { lsn, bytes: Vec::new(), regions: Vec::new() };
            // The number may be that of one which an earlier crash cut off.
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
        let begin = transaction.bytes.len();
        transaction.bytes.extend_from_slice(op.data);
        let end = transaction.bytes.len();
        if op.flags.contains(OpFlags::WAS_CONT) {
            let last = transaction.regions.last_mut();
            last.ok_or(FormatError::value(NAME, "flags", op.flags.bits().into()))?.end = end;
        } else {
            transaction.regions.push(begin..end);
        }
        Ok(None)
    }

    /// How many were begun and never committed.
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
        let mut gather = Gather::default();
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
}
