//! One owner more or less for the blocks of a run.
//!
//! The run is divided into *pieces*: each lies in one record, or between two where the blocks have a single owner. A
//! transaction has room for some number of pieces. The rest of the run is left to another one, and the log remembers
//! it. In between, the tree is as if the first part had been everything.

use super::record::{COUNT_MAX, Counted, Domain, Merged};
use super::{CountStore, check_absent, check_run, window};
use crate::alloc::AgExtent;
use crate::btree::edit::BtreeCursor;
use crate::error::Result;
use smallvec::SmallVec;

/// The direction of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjust {
    /// The blocks get one more owner.
    Increase,
    /// The blocks lose an owner.
    Decrease,
}

/// What happened to a run or to its first part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjusted {
    /// Blocks from the run's start that are done: at least one, and all of them if there were no more pieces than
    /// allowed.
    pub done: u32,
    /// Those of them without an owner now, which must be freed: at most as many runs as pieces.
    pub freed: SmallVec<[AgExtent; 2]>,
    /// Those of them that lost an owner and have a single one left.
    pub single: SmallVec<[AgExtent; 2]>,
    /// How often the tree was changed.
    pub changes: u32,
}

/// Maximum number of tree changes for adjusting this many pieces: for each piece a record is inserted, deleted or
/// changed, and at either end a record is split or merged.
pub const fn changes_of_adjust(pieces: u32) -> u32 {
    pieces.saturating_add(2)
}

/// Changes the refcounts of the first `pieces` pieces of `run`, and of at least one. The blocks must be in use. The
/// tree does not know that: blocks that it does not list have one owner.
///
/// Makes at most [`changes_of_adjust`] changes. Blocks that are staged for copy-on-write are corruption.
pub fn adjust<S: CountStore>(
    editor: &mut BtreeCursor<S>,
    run: AgExtent,
    how: Adjust,
    pieces: u32,
) -> Result<Adjusted> {
    check_run(editor, run)?;
    check_absent(editor, Domain::Cow, run)?;
    let pieces = pieces.max(1);
    // One record in front of the pieces, and one behind.
    let old = window::touching(editor, Domain::Shared, run, pieces.saturating_add(2))?;
    let (mut new, mut adjusted) = (Merged::default(), Adjusted::default());
    let replaced = recount(&old, run, (how, pieces), &mut new, &mut adjusted);
    adjusted.changes = window::replace(editor, Domain::Shared, replaced, &new.0)?;
    Ok(adjusted)
}

/// Computes the result for the first pieces of a run and for the records that touch them. Returns these records.
fn recount<'o>(
    old: &'o [Counted],
    run: AgExtent,
    (how, pieces): (Adjust, u32),
    new: &mut Merged,
    adjusted: &mut Adjusted,
) -> &'o [Counted] {
    let start = u64::from(run.start.0);
    let mut at = start;
    let mut behind = old.iter().copied().peekable();
    // What lies in front: a whole record or a part of one.
    new.extend(behind.peek().and_then(|counted| counted.before(start)));
    for _ in 0..pieces {
        while behind.next_if(|counted| counted.run.end() <= at).is_some() {}
        let Some(piece) = next_piece(behind.peek(), at, run.end()) else { break };
        at = piece.run.end();
        match counted_anew(piece.count, how) {
            0 => adjusted.freed.push(piece.run),
            1 => adjusted.single.push(piece.run),
            count => new.push(Counted { count, ..piece }),
        }
    }
    // What lies behind: a part of the last record, or the one that begins there.
    let (touched, _) = old.split_at(old.partition_point(|counted| u64::from(counted.run.start.0) <= at));
    new.extend(touched.last().and_then(|counted| counted.from(at)));
    adjusted.done = (at - start) as u32;
    touched
}

/// The piece that begins at `at`, if `next` is the first record that ends after it.
fn next_piece(next: Option<&Counted>, at: u64, end: u64) -> Option<Counted> {
    let (until, count) = match next {
        Some(counted) if u64::from(counted.run.start.0) <= at => (counted.run.end(), counted.count),
        Some(counted) => (counted.run.start.0.into(), 1),
        None => (end, 1),
    };
    Some(Counted { run: AgExtent::between(at, until.min(end))?, count })
}

fn counted_anew(count: u32, how: Adjust) -> u32 {
    match how {
        _ if count == COUNT_MAX => COUNT_MAX,
        Adjust::Increase => count + 1,
        Adjust::Decrease => count - 1,
    }
}
