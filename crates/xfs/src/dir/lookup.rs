//! Finding one name by its hash, with a few block reads, however large the directory is.
//!
//! Names of one hash are adjacent in the index, possibly across leaves. Each candidate's name is compared in its data
//! block. On volumes that ignore case, the exact name wins over other matches.

use super::hash_collisions::LastData;
use super::{DirDataBlock, FileType, NAME, hash_index, parse_short};
use crate::da::{check_owner, descend, next_leaf};
use crate::error::{Error, Result};
use crate::fork::Fork;
use xfs_format::da::{ascii_ci_fold, ascii_ci_hash, name_hash};
use xfs_format::dir::{DataKind, INDEX, Leaf, LeafEntry, LeafKind, is_valid_name};
use xfs_format::error::FormatError;
use xfs_format::types::{FileBlock, InodeNumber};

type Found = (InodeNumber, FileType);

/// Finds `name` by its hash, with a few block reads, however large the directory is.
pub fn lookup(fork: &dyn Fork, name: &[u8]) -> Result<Option<Found>> {
    if !is_valid_name(name) {
        return Ok(None);
    }
    let mut search = Search::new(fork, name);
    search.run()?;
    Ok(search.found)
}

/// A search in progress.
struct Search<'a> {
    fork: &'a dyn Fork,
    name: &'a [u8],
    hash: u32,
    ignore_case: bool,
    /// The entry of the exact name, or the first one that matches except for case.
    found: Option<Found>,
    /// Whether there can be no better match.
    done: bool,
    last: LastData,
}

impl<'a> Search<'a> {
    fn new(fork: &'a dyn Fork, name: &'a [u8]) -> Self {
        let ignore_case = fork.geometry().ascii_ci;
        let hash = if ignore_case { ascii_ci_hash(name) } else { name_hash(name) };
        let last = LastData::default();
        Self { fork, name, hash, ignore_case, found: None, done: false, last }
    }

    fn run(&mut self) -> Result<()> {
        let fork = self.fork;
        if let Some(local) = fork.local() {
            return self.short(local);
        }
        match fork.next_mapped(FileBlock(fork.geometry().dir_block_blocks().into()))? {
            None => self.block(),
            Some(_) => self.index(),
        }
    }

    /// Compares one entry with the wanted name.
    fn offer(&mut self, name: &[u8], found: Found) {
        if name == self.name {
            self.found = Some(found);
            self.done = true;
        } else if self.ignore_case && self.found.is_none() && equal_but_for_case(name, self.name) {
            self.found = Some(found);
        }
    }

    fn short(&mut self, local: &[u8]) -> Result<()> {
        let inode = self.fork.inode();
        let corrupt = |problem| Error::corrupt_inode(inode, problem);
        let dir = parse_short(self.fork, local)?;
        self.offer(b".", (inode, FileType::Directory));
        self.offer(b"..", (dir.parent, FileType::Directory));
        for entry in dir.entries() {
            if self.done {
                break;
            }
            let entry = entry.map_err(corrupt)?;
            self.offer(entry.name, (entry.inode, entry.file_type.into()));
        }
        Ok(())
    }

    fn block(&mut self) -> Result<()> {
        let fork = self.fork;
        let data = DirDataBlock::read(fork, FileBlock(0))?;
        let block = data.view(fork)?;
        if block.kind != DataKind::Block {
            return Err(data.corrupt(fork, FormatError::new(NAME, "index: there is none")));
        }
        for entry in block.index_from_hash(self.hash) {
            if self.done || entry.hash.get() != self.hash {
                break;
            }
            if entry.is_stale() {
                continue;
            }
            let offset = usize::try_from(entry.data_offset()).unwrap_or(usize::MAX);
            let entry = block.entry_at(offset).map_err(|problem| data.corrupt(fork, problem))?;
            self.offer(entry.name, (entry.inode, entry.file_type.into()));
        }
        Ok(())
    }

    fn index(&mut self) -> Result<()> {
        let fork = self.fork;
        let geometry = fork.geometry();
        let index = hash_index(geometry);
        let Some(mut at) = descend(fork, &index, Some(self.hash))? else {
            return Ok(());
        };
        let first = at.at;
        loop {
            let leaf = Leaf::parse(&at.buf, geometry.v5)
                .map_err(|problem| Error::corrupt_block(at.buf.daddr(), Some(fork.inode()), problem))?;
            check_owner(fork, at.buf.daddr(), INDEX.name, leaf.header.owner)?;
            for entry in leaf.from_hash(self.hash) {
                if entry.hash.get() != self.hash {
                    return Ok(());
                }
                self.candidate(entry)?;
                if self.done {
                    return Ok(());
                }
            }
            let goes_on = leaf.entries.last().is_some_and(|last| last.hash.get() == self.hash);
            if leaf.kind == LeafKind::Single || !goes_on {
                return Ok(());
            }
            match next_leaf(fork, &index, first, &at, &leaf.header)? {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
    }

    /// Compares the entry that an index entry points to.
    fn candidate(&mut self, entry: &LeafEntry) -> Result<()> {
        if entry.is_stale() {
            return Ok(());
        }
        let fork = self.fork;
        let mut last = std::mem::take(&mut self.last);
        let (data, within) = last.read(fork, entry)?;
        let entry = data.view(fork)?.entry_at(within).map_err(|problem| data.corrupt(fork, problem))?;
        self.offer(entry.name, (entry.inode, entry.file_type.into()));
        self.last = last;
        Ok(())
    }
}

fn equal_but_for_case(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| ascii_ci_fold(a) == ascii_ci_fold(b))
}
