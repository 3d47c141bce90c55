//! The content of a record: a number of owners for a run of blocks, in one of two domains.

use super::{CountStore, group_blocks};
use crate::alloc::AgExtent;
use crate::btree::edit::BtreeCursor;
use crate::error::Result;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::records::RefcountRecord;

/// The maximum count. A count that has reached it never changes any more, so its blocks are never freed.
pub const COUNT_MAX: u32 = u32::MAX;

/// The kind of blocks that a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Domain {
    /// Those with more than one owner.
    Shared,
    /// Those staged for copy-on-write.
    Cow,
}

impl Domain {
    /// The rank of a block in the order of records.
    pub(super) fn rank(self, block: u32) -> u32 {
        match self {
            Domain::Shared => block,
            Domain::Cow => block | RefcountRecord::COW,
        }
    }
}

/// A run of blocks with the same number of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) run: AgExtent,
    pub(super) count: u32,
}

impl Counted {
    /// The blocks before `block`.
    pub(super) fn before(self, block: u64) -> Option<Self> {
        let run = AgExtent::between(self.run.start.0.into(), self.run.end().min(block))?;
        Some(Self { run, ..self })
    }

    /// The blocks from `block` on.
    pub(super) fn from(self, block: u64) -> Option<Self> {
        let run = AgExtent::between(block.max(self.run.start.0.into()), self.run.end())?;
        Some(Self { run, ..self })
    }

    pub(super) fn record(self, domain: Domain) -> RefcountRecord {
        RefcountRecord {
            startblock: domain.rank(self.run.start.0).into(),
            blockcount: self.run.len.into(),
            refcount: self.count.into(),
        }
    }
}

/// The record at the cursor, checked.
pub(super) fn read<S: CountStore>(
    editor: &BtreeCursor<S>,
    record: &RefcountRecord,
) -> Result<(Domain, Counted)> {
    let start = record.startblock.get();
    let domain = if start & RefcountRecord::COW == 0 { Domain::Shared } else { Domain::Cow };
    let run = AgExtent::new(start & !RefcountRecord::COW, record.blockcount.get());
    let count = record.refcount.get();
    let wrong = if run.len == 0 || run.end() > group_blocks(editor) {
        Some(FormatError::mismatch(Refcountbt::NAME, "end of an extent", run.end(), group_blocks(editor)))
    } else {
        match domain {
            Domain::Shared if count < 2 => {
                Some(FormatError::mismatch(Refcountbt::NAME, "reference count", count.into(), 2))
            }
            Domain::Cow if count != 1 => {
                let what = "reference count of a staged extent";
                Some(FormatError::mismatch(Refcountbt::NAME, what, count.into(), 1))
            }
            _ => None,
        }
    };
    match wrong {
        Some(problem) => Err(editor.damage(0, problem)),
        None => Ok((domain, Counted { run, count })),
    }
}

/// Records in order, assembled from pieces. Adjacent ones with the same count are merged.
#[derive(Debug, Default)]
pub(super) struct Merged(pub(super) Vec<Counted>);

impl Merged {
    /// Adds what follows.
    pub(super) fn push(&mut self, piece: Counted) {
        if let Some(last) = self.0.last_mut()
            && last.count == piece.count
            && last.run.end() == u64::from(piece.run.start.0)
            && let Some(run) = AgExtent::between(last.run.start.0.into(), piece.run.end())
        {
            last.run = run;
            return;
        }
        self.0.push(piece);
    }
}

impl Extend<Counted> for Merged {
    fn extend<I: IntoIterator<Item = Counted>>(&mut self, pieces: I) {
        pieces.into_iter().for_each(|piece| self.push(piece));
    }
}
