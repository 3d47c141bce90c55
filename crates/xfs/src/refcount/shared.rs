//! Finding the part of a run that has more than one owner.

use super::record::Domain;
use super::{CountStore, check_run, window};
use crate::alloc::AgExtent;
use crate::btree::edit::BtreeCursor;
use crate::error::Result;

/// The first blocks of `run` that have more than one owner: up to where the count changes, or, if `whole`, up to where
/// there is a single owner.
pub fn find_shared<S: CountStore>(
    editor: &mut BtreeCursor<S>,
    run: AgExtent,
    whole: bool,
) -> Result<Option<AgExtent>> {
    check_run(editor, run)?;
    match window::first_in(editor, Domain::Shared, run)? {
        Some(found) if whole => window::whole(editor, Domain::Shared, run, found).map(Some),
        found => Ok(found),
    }
}
