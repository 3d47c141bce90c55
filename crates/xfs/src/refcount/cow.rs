//! Staging extents for copy-on-write: allocated, written, and not part of a file until the write is done.

use super::record::{self, Counted, Domain, Merged};
use super::{CountStore, check_absent, check_run, corrupt_at, window};
use crate::alloc::AgExtent;
use crate::btree::edit::BtreeCursor;
use crate::error::Result;
use xfs_format::btree::{Refcountbt, Tree};
use xfs_format::error::FormatError;
use xfs_format::types::AgBlock;

/// Maximum number of tree changes for adding or removing a staging extent.
pub const COW_CHANGES: u32 = 2;

/// Records that blocks which were just allocated are staged for copy-on-write. If they are shared or staged already,
/// that is corruption.
pub fn add_cow<S: CountStore>(editor: &mut BtreeCursor<S>, run: AgExtent) -> Result<()> {
    check_run(editor, run)?;
    check_absent(editor, Domain::Shared, run)?;
    check_absent(editor, Domain::Cow, run)?;
    // Nothing lies within: at most the neighbours.
    let old = window::touching(editor, Domain::Cow, run, 2)?;
    let (before, behind): (Vec<_>, Vec<_>) = old.iter().partition(|counted| counted.run.start < run.start);
    let mut new = Merged::default();
    new.extend(before);
    new.push(Counted { run, count: 1 });
    new.extend(behind);
    window::replace(editor, Domain::Cow, &old, &new.0)?;
    Ok(())
}

/// Removes blocks from the staging records; one record must have all of them. They go to a file, or will be freed.
pub fn remove_cow<S: CountStore>(editor: &mut BtreeCursor<S>, run: AgExtent) -> Result<()> {
    check_run(editor, run)?;
    let mut staged = window::touching(editor, Domain::Cow, run, 3)?;
    staged.retain(|counted| counted.run.common(run).is_some());
    let old = match staged.first() {
        Some(counted) if counted.run.common(run) == Some(run) => *counted,
        // The first block that this record, if there is one, does not have.
        first => {
            let missing = first
                .filter(|counted| counted.run.start <= run.start)
                .map_or(run.start, |counted| AgBlock(counted.run.end().try_into().unwrap_or(run.start.0)));
            let problem = FormatError::value(
                Refcountbt::NAME,
                "blocks that are not staged for copy-on-write",
                missing.0.into(),
            );
            return Err(corrupt_at(editor, missing, problem));
        }
    };
    let rest: Vec<_> = [old.before(run.start.0.into()), old.from(run.end())].into_iter().flatten().collect();
    window::replace(editor, Domain::Cow, &[old], &rest)?;
    Ok(())
}

/// The first staging extent at or after `from`. After a crash all of them must be removed and freed, once the intents
/// in the log are done.
pub fn first_cow<S: CountStore>(editor: &mut BtreeCursor<S>, from: AgBlock) -> Result<Option<AgExtent>> {
    let Some(found) = editor.seek_ge(Domain::Cow.rank(from.0))? else { return Ok(None) };
    let (domain, counted) = record::read(editor, &found)?;
    Ok((domain == Domain::Cow).then_some(counted.run))
}
