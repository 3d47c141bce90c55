//! Transactions of a log, put together from its operations.

use super::intents::{Kinds, again};
use std::collections::HashMap;
use xfs_format::log::{
    Client, InodeFields, LogDinode, LogItem, Op, OpFlags, RecordHeader, RecordOps, TransHeader,
};

/// Puts the operations of live transactions together, and checks that each has the regions that it says, as
/// items.
#[derive(Default)]
pub(super) struct Transactions {
    /// How many there were.
    pub(super) count: usize,
    /// Intents and done items.
    pub(super) kinds: Kinds,
    regions: HashMap<u32, Vec<Vec<u8>>>,
}

impl Transactions {
    pub(super) fn feed_record(&mut self, header: &RecordHeader, data: &[u8]) {
        for op in RecordOps::new(data, header.num_logops.get()) {
            self.feed(&op.unwrap());
        }
    }

    fn feed(&mut self, op: &Op<'_>) {
        if op.client != Client::Transaction {
            return;
        }
        if op.flags.contains(OpFlags::START) {
            assert!(self.regions.insert(op.tid, Vec::new()).is_none(), "started twice");
            return;
        }
        // A transaction that began before the tail.
        let Some(regions) = self.regions.get_mut(&op.tid) else { return };
        if op.flags.contains(OpFlags::COMMIT) {
            let regions = self.regions.remove(&op.tid).unwrap();
            self.check(&regions);
        } else if op.flags.contains(OpFlags::WAS_CONT) {
            regions.last_mut().unwrap().extend(op.data);
        } else {
            regions.push(op.data.to_vec());
        }
    }

    fn check(&mut self, regions: &[Vec<u8>]) {
        let (first, rest) = regions.split_first().unwrap();
        let header = TransHeader::parse(first).unwrap();
        assert_eq!(header.num_items.get() as usize, rest.len());
        let mut at = 0;
        while at < rest.len() {
            let (_, count, item) = LogItem::parse(&rest[at]).unwrap();
            let more = &rest[at + 1..at + usize::from(count)];
            if let LogItem::Inode(inode) = item {
                LogDinode::parse(&more[0]).unwrap();
                if inode.fields.intersects(InodeFields::DFORK) {
                    assert_eq!(more[1].len(), usize::from(inode.dsize).next_multiple_of(4));
                }
            } else if let LogItem::Buf(buf) = item {
                let logged: usize = more.iter().map(Vec::len).sum();
                assert_eq!(logged, buf.runs().map(|run| run.len).sum::<usize>(), "{buf:?}");
            }
            again(&rest[at..at + usize::from(count)], &mut self.kinds);
            at += usize::from(count);
        }
        assert_eq!(at, rest.len());
        self.count += 1;
    }
}
