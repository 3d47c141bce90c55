//! Many names with the same hash, as in a directory that was made to do harm.
//!
//! Names of one hash have no order, so a name is found by comparing one after the other. The format demands this, and
//! the kernel does the same. But adding or removing all of them would compare each with each. Invariants: no name is
//! added to [`COLLISIONS_MAX`] others of its hash. Whoever removes all names of a directory takes them in the order of
//! the index, from the front, so that each is found at once.

use super::{DirDataBlock, DirEntry, FileType, NAME, hash_index, position};
use crate::da::{LeafBlock, check_owner, descend, next_leaf};
use crate::error::{Error, Result};
use crate::fork::Fork;
use std::ops::ControlFlow;
use xfs_format::dir::{DataKind, INDEX, Leaf, LeafEntry, LeafKind};
use xfs_format::error::FormatError;
use xfs_format::types::FileBlock;

pub use crate::error::COLLISIONS_MAX;

/// With fewer names of one hash, the order of removal does not matter.
const COLLISIONS_MIN: usize = 256;

#[cfg(all(test, not(shuttle)))]
thread_local! {
    /// Number of entries that were compared.
    static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The data block that was read last: names of one hash often lie in the same one.
#[derive(Default)]
pub(super) struct LastData(Option<(FileBlock, DirDataBlock)>);

impl LastData {
    /// The entry that an index entry points to.
    pub(super) fn read(&mut self, fork: &dyn Fork, entry: &LeafEntry) -> Result<(&DirDataBlock, usize)> {
        #[cfg(all(test, not(shuttle)))]
        READS.set(READS.get() + 1);
        let geometry = fork.geometry();
        let size = u64::from(geometry.dir_block_size());
        let (block, offset) = (entry.data_offset() / size, (entry.data_offset() % size) as usize);
        let at = FileBlock(block * u64::from(geometry.dir_block_blocks()));
        let data = match self.0.take() {
            Some((last, data)) if last == at => data,
            _ => DirDataBlock::read(fork, at)?,
        };
        let (_, data) = self.0.insert((at, data));
        Ok((data, offset))
    }
}

/// Whether many names of a directory have one hash.
pub fn has_collisions(fork: &dyn Fork) -> Result<bool> {
    let (mut hash, mut count) = (0, 0);
    let mut crowded = false;
    each_of_index(fork, &mut |entry| {
        (hash, count) = if entry.hash.get() == hash { (hash, count + 1) } else { (entry.hash.get(), 1) };
        crowded = count >= COLLISIONS_MIN;
        Ok(if crowded { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(crowded)
}

/// Calls `each` for the names of a directory in the order of its index, without the dots, until it breaks. For a
/// directory without a separate index, calls it for none.
pub fn walk_index(fork: &dyn Fork, each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
    let mut last = LastData::default();
    each_of_index(fork, &mut |found| {
        let (data, offset) = last.read(fork, found)?;
        let entry = data.view(fork)?.entry_at(offset).map_err(|problem| data.corrupt(fork, problem))?;
        if entry.name == b"." || entry.name == b".." {
            return Ok(ControlFlow::Continue(()));
        }
        let next = position(found.data_offset());
        let file_type = FileType::from(entry.file_type);
        Ok(each(DirEntry { name: entry.name, inode: entry.inode, file_type, next }))
    })
}

/// Goes through the live entries of an index.
fn each_of_index(fork: &dyn Fork, each: &mut dyn FnMut(&LeafEntry) -> Result<ControlFlow<()>>) -> Result<()> {
    let geometry = fork.geometry();
    let step = u64::from(geometry.dir_block_blocks());
    if fork.local().is_some() || fork.next_mapped(FileBlock(step))?.is_none() {
        return Ok(());
    }
    let first_data = DirDataBlock::read(fork, FileBlock(0))?;
    if first_data.view(fork)?.kind == DataKind::Block {
        return Err(first_data.corrupt(fork, FormatError::new(NAME, "block form with further blocks")));
    }
    let index = hash_index(geometry);
    let Some(mut at) = descend(fork, &index, None)? else { return Ok(()) };
    let first = at.at;
    loop {
        let LeafBlock { buf, .. } = &at;
        let leaf = Leaf::parse(buf, geometry.v5)
            .map_err(|problem| Error::corrupt_block(buf.daddr(), Some(fork.inode()), problem))?;
        check_owner(fork, buf.daddr(), INDEX.name, leaf.header.owner)?;
        for entry in leaf.entries.iter().filter(|entry| !entry.is_stale()) {
            if each(entry)?.is_break() {
                return Ok(());
            }
        }
        if leaf.kind == LeafKind::Single {
            return Ok(());
        }
        match next_leaf(fork, &index, first, &at, &leaf.header)? {
            Some(next) => at = next,
            None => return Ok(()),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::dir::{NewEntry, add, find_to_add, init, lookup, remove};
    use crate::namespace::NameProblem;
    use crate::testing::{EditFork, geometry};
    use xfs_format::da::name_hash;
    use xfs_format::types::InodeNumber;

    const DIR: InodeNumber = InodeNumber(128);
    const NAMES: usize = 1500;

    /// Equal words 32 bytes apart cancel each other out in the hash.
    fn name(nth: usize) -> Vec<u8> {
        format!("{nth:032}{nth:032}").into_bytes()
    }

    fn directory(names: usize) -> EditFork {
        let mut fork = EditFork::new(geometry(true, 12, 0), DIR, 300);
        init(&mut fork, DIR).unwrap();
        for nth in 0..names {
            let name = name(nth);
            assert_eq!(name_hash(&name), name_hash(&self::name(0)));
            let entry =
                NewEntry { name: &name, ino: InodeNumber(1000 + nth as u64), ftype: FileType::Regular };
            add(&mut fork, entry).unwrap();
            fork.settle();
        }
        fork
    }

    fn first_of_index(fork: &EditFork) -> Option<Vec<u8>> {
        let mut first = None;
        walk_index(fork, &mut |entry| {
            first = Some(entry.name.to_vec());
            ControlFlow::Break(())
        })
        .unwrap();
        first
    }

    /// Regression: in directory order, each name was compared with all that were left.
    #[test]
    fn names_of_one_hash_are_removed_without_a_look_at_the_others() {
        let mut fork = directory(NAMES);
        assert!(has_collisions(&fork).unwrap());
        READS.set(0);
        let (mut removed, mut walks) = (0, 0);
        while let Some(name) = first_of_index(&fork) {
            walks += 1;
            remove(&mut fork, &name).unwrap();
            fork.settle();
            removed += 1;
        }
        // The rest fits into one block, which has no separate index.
        assert!(removed > NAMES - 100, "{removed} of {NAMES}");
        let compared = READS.get() - walks;
        assert!(compared <= 2 * removed, "{compared} names were compared to remove {removed}");
    }

    #[test]
    fn few_names_of_a_hash_are_no_crowd() {
        let mut fork = directory(COLLISIONS_MIN - 1);
        assert!(!has_collisions(&fork).unwrap());
        assert!(find_to_add(&mut fork, &name(COLLISIONS_MIN)).unwrap().found().is_none());
    }

    #[test]
    fn no_name_is_added_to_too_many_of_its_hash() {
        let mut fork = directory(COLLISIONS_MAX);
        let refused = find_to_add(&mut fork, &name(COLLISIONS_MAX));
        assert!(matches!(refused, Err(Error::Name(NameProblem::TooManyCollisions))), "{refused:?}");
        // Names of other hashes can still be added, and existing ones are found.
        assert!(find_to_add(&mut fork, b"another").unwrap().found().is_none());
        assert!(find_to_add(&mut fork, &name(7)).unwrap().found().is_some());
        assert!(lookup(&fork, &name(COLLISIONS_MAX)).unwrap().is_none());
    }
}
