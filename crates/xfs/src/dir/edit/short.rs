//! Directories inside the inode. They are a few hundred bytes, so they are written as a whole.

use super::{DirGeometry, EntryToAdd, block, convert, missing};
use crate::dir::{FileType, NAME, parse_short};
use crate::error::{Error, Result};
use crate::fork::{Fork, ForkMut};
use xfs_format::dir::ShortImage;
use xfs_format::error::FormatError;
use xfs_format::types::InodeNumber;

/// Looks up a name.
pub(super) fn find(fork: &dyn Fork, name: &[u8]) -> Result<Option<(InodeNumber, FileType)>> {
    let dir = parse_short(fork, fork.local().unwrap_or_default())?;
    match name {
        b"." => return Ok(Some((fork.inode(), FileType::Directory))),
        b".." => return Ok(Some((dir.parent, FileType::Directory))),
        _ => {}
    }
    for entry in dir.entries() {
        let entry = entry.map_err(|problem| bad(fork, problem))?;
        if entry.name == name {
            return Ok(Some((entry.inode, entry.file_type.into())));
        }
    }
    Ok(None)
}

pub(super) fn add(fork: &mut dyn ForkMut, new: &EntryToAdd<'_>) -> Result<()> {
    let shape = DirGeometry::of(fork)?;
    let old = load(fork)?;
    let mut dir = old.clone();
    let (inode, file_type) = (new.data.inode, new.data.file_type);
    let fits =
        dir.add(new.data.name, inode, file_type, shape.block_size).map_err(|problem| bad(fork, problem))?;
    if fits && store(fork, &dir)? {
        return Ok(());
    }
    convert::short_to_block(fork, &old)?;
    let block = block::read(fork, &shape)?;
    block::add(fork, block, new)
}

pub(super) fn remove(fork: &mut dyn ForkMut, name: &[u8]) -> Result<()> {
    let mut dir = load(fork)?;
    dir.position(name).and_then(|at| dir.remove(at)).ok_or_else(|| missing(fork))?;
    // Fewer entries, none of them wider: it fits.
    store(fork, &dir)?.then_some(()).ok_or(Error::NoSpace)
}

/// Changes the inode of a name. Returns `false` if the directory left the inode for that; then the name must be looked
/// up there.
pub(super) fn replace(
    fork: &mut dyn ForkMut,
    name: &[u8],
    ino: InodeNumber,
    ftype: FileType,
) -> Result<bool> {
    let old = load(fork)?;
    let mut dir = old.clone();
    if name == b".." {
        dir.parent = ino;
    } else {
        let at = dir.position(name).ok_or_else(|| missing(fork))?;
        let (inode, file_type) = dir.row_mut(at).ok_or_else(|| missing(fork))?;
        (*inode, *file_type) = (ino, ftype.into());
    }
    if store(fork, &dir)? {
        return Ok(true);
    }
    // All numbers become wide at once, which may be too much for the inode.
    convert::short_to_block(fork, &old)?;
    Ok(false)
}

pub(super) fn load(fork: &dyn Fork) -> Result<ShortImage> {
    let geometry = fork.geometry();
    let local = fork.local().unwrap_or_default();
    parse_short(fork, local)?;
    let size = usize::try_from(fork.size()).unwrap_or(usize::MAX).min(local.len());
    ShortImage::parse(local.get(..size).unwrap_or_default(), geometry.v5, geometry.ftype)
        .map_err(|problem| bad(fork, problem))
}

/// Writes a directory into the inode. Returns `false` if it is too large.
pub(super) fn store(fork: &mut dyn ForkMut, dir: &ShortImage) -> Result<bool> {
    match dir.encode().filter(|bytes| bytes.len() <= fork.local_capacity()) {
        Some(bytes) => fork.set_local(&bytes).map(|()| true),
        None => Ok(false),
    }
}

fn bad(fork: &dyn Fork, problem: FormatError) -> Error {
    debug_assert!(!NAME.is_empty());
    Error::corrupt_inode(fork.inode(), problem)
}
