//! Attribute changes that a kernel logged as intents (ATTRI) and had not finished at the crash.

#[cfg(all(test, not(shuttle)))]
mod tests;

use crate::attr::edit::{new, put_new, take_old};
use crate::bmap::TransFork;
use crate::error::{Error, Result};
use crate::inode::ForkKind;
use crate::trans::{AttrWork, Trans};
use std::sync::Arc;
use xfs_format::error::FormatError;

/// Changes the attribute, in whatever state it is. The inode is joined here, because nobody had it when recovery began.
pub(super) fn change_attr(trans: &mut Trans<'_>, work: &AttrWork) -> Result<()> {
    let (ino, change) = (work.ino(), work.change());
    let damaged = |problem| Error::corrupt_inode(ino, problem);
    work.check(trans.geometry()).map_err(damaged)?;
    let entry = trans.mount().entry(ino)?;
    let locked = entry.ilock();
    trans.join_inode(Arc::clone(&entry), locked)?;
    let generation = trans.inode(ino).core().generation;
    if change.op.is_parent() && change.generation != generation {
        let (found, expected) = (change.generation.into(), generation.into());
        return Err(damaged(FormatError::mismatch("ATTRI", "generation of the inode", found, expected)));
    }
    if trans.inode(ino).has_attrs() {
        take_old(&mut TransFork::new(trans, ino, ForkKind::Attr), &change)?;
    }
    if new(&change).is_some() {
        put_new(&mut TransFork::attr(trans, ino)?, &change)?;
    }
    Ok(())
}
