//! Which part of a run has more than one owner.

use super::record::Domain;
use super::{CountStore, check_run, window};
use crate::alloc::Run;
use crate::btree::edit::Editor;
use crate::error::Result;

/// The first blocks of `run` that have more than one owner: up to where the count changes, or, if `whole`, up to where
/// there is a single owner.
pub fn find_shared<S: CountStore>(editor: &mut Editor<S>, run: Run, whole: bool) -> Result<Option<Run>> {
    check_run(editor, run)?;
    match window::first_in(editor, Domain::Shared, run)? {
        Some(found) if whole => window::whole(editor, Domain::Shared, run, found).map(Some),
        found => Ok(found),
    }
}
