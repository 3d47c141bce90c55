//! Reading the B+trees of an allocation group.
//!
//! A [`Cursor`] is a path from the root to a leaf. It moves through its path, never through sibling pointers, and every
//! step must give a larger record than the one before. So a damaged tree ends it with an error, and can neither send it
//! round in circles nor below the leaves.

pub mod edit;

use crate::buf::{Buf, BufCache};
use crate::error::{Error, Result};
use crate::group::Root;
use xfs_format::btree::{Node, Tree};
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::types::{AgBlock, AgNumber};

/// One block of the path, and its next child or record.
#[derive(Debug)]
struct Step {
    buf: Buf,
    next: usize,
}

/// A position in a tree of one group.
#[derive(Debug)]
pub struct Cursor<'a, T: Tree> {
    bufs: &'a BufCache,
    geometry: &'a Geometry,
    ag: AgNumber,
    path: Vec<Step>,
    last: Option<T::Rank>,
}

impl<'a, T: Tree> Cursor<'a, T> {
    /// Positioned before the last record whose rank is at most `rank`, or before the first one if there is none.
    pub fn seek(
        bufs: &'a BufCache,
        geometry: &'a Geometry,
        ag: AgNumber,
        root: Root,
        rank: Option<T::Rank>,
    ) -> Result<Self> {
        let path = Vec::with_capacity(root.levels as usize);
        let mut cursor = Self { bufs, geometry, ag, path, last: None };
        let mut block = root.block;
        for level in (0..root.levels).rev() {
            let buf = cursor.read(block, level)?;
            let node = cursor.node(&buf)?;
            // The last child or record that is not beyond `rank`.
            let behind = rank.map_or(0, |rank| {
                if level == 0 {
                    node.records().partition_point(|record| T::record_rank(record) <= rank)
                } else {
                    node.keys().partition_point(|key| T::key_rank(key) <= rank)
                }
            });
            let index = behind.saturating_sub(1);
            if level == 0 {
                cursor.path.push(Step { buf, next: index });
            } else {
                block = cursor.child(&buf, index)?;
                cursor.path.push(Step { buf, next: index + 1 });
            }
        }
        Ok(cursor)
    }

    /// The next record.
    pub fn next_record(&mut self) -> Result<Option<T::Record>> {
        loop {
            let Some(step) = self.path.last_mut() else { return Ok(None) };
            let node = Node::<T>::view(&step.buf, self.geometry.v5)
                .map_err(|problem| Error::corrupt_block(step.buf.daddr(), None, problem))?;
            let level = node.level();
            if level == 0 {
                if let Some(record) = node.records().get(step.next).copied() {
                    step.next += 1;
                    let rank = T::record_rank(&record);
                    if self.last.is_some_and(|last| last >= rank) {
                        return Err(self.corrupt("order of records"));
                    }
                    self.last = Some(rank);
                    return Ok(Some(record));
                }
                self.path.pop();
                continue;
            }
            if step.next >= node.count() {
                self.path.pop();
                continue;
            }
            let (index, buf) = (step.next, step.buf.clone());
            step.next += 1;
            let block = self.child(&buf, index)?;
            let buf = self.read(block, u32::from(level) - 1)?;
            self.path.push(Step { buf, next: 0 });
        }
    }

    /// How many blocks a tree has. Its leaves are counted without reading them.
    pub fn blocks(bufs: &'a BufCache, geometry: &'a Geometry, ag: AgNumber, root: Root) -> Result<u32> {
        let cursor = Self { bufs, geometry, ag, path: Vec::new(), last: None };
        let (mut row, mut total) = (vec![root.block], 1);
        for level in (1..root.levels).rev() {
            let mut below = Vec::new();
            for block in row {
                let buf = cursor.read(block, level)?;
                for index in 0..cursor.node(&buf)?.count() {
                    below.push(cursor.child(&buf, index)?);
                }
                if below.len() > geometry.ag_blocks as usize {
                    return Err(cursor.corrupt("number of blocks"));
                }
            }
            // At most as many as a group has blocks, on each of a few levels.
            total += below.len() as u32;
            row = below;
        }
        Ok(total)
    }

    fn node<'b>(&self, buf: &'b Buf) -> Result<Node<'b, T>> {
        Node::view(buf, self.geometry.v5).map_err(|problem| Error::corrupt_block(buf.daddr(), None, problem))
    }

    /// The block of a child, which must lie in the group.
    fn child(&self, buf: &Buf, index: usize) -> Result<AgBlock> {
        let pointer = self.node(buf)?.pointer(index);
        let length = self.geometry.ag_blocks_of(self.ag);
        pointer
            .and_then(|pointer| u32::try_from(pointer).ok())
            .filter(|&pointer| pointer != 0 && pointer < length)
            .map(AgBlock)
            .ok_or_else(|| {
                let found = pointer.unwrap_or_default();
                let problem = FormatError::mismatch(T::NAME, "child pointer", found, length.into());
                Error::corrupt_block(buf.daddr(), None, problem)
            })
    }

    /// Reads the block that should be at `level`. Only a root may be empty.
    fn read(&self, block: AgBlock, level: u32) -> Result<Buf> {
        let daddr = self.geometry.daddr_of(self.ag, block);
        let buf = self.bufs.read(daddr, self.geometry.block_size.into(), T::verifier())?;
        let node = self.node(&buf)?;
        let wrap = |problem| Err(Error::corrupt_block(daddr, None, problem));
        if u32::from(node.level()) != level {
            return wrap(FormatError::mismatch(T::NAME, "level", node.level().into(), level.into()));
        }
        if let Some(owner) = node.owner()
            && owner != u64::from(self.ag.0)
        {
            return wrap(FormatError::mismatch(T::NAME, "owner", owner, self.ag.0.into()));
        }
        if node.count() == 0 && (level != 0 || !self.path.is_empty()) {
            return wrap(FormatError::value(T::NAME, "record count", 0));
        }
        Ok(buf)
    }

    fn corrupt(&self, check: &'static str) -> Error {
        let problem = FormatError::new(T::NAME, check);
        match self.path.last() {
            Some(step) => Error::corrupt_block(step.buf.daddr(), None, problem),
            None => Error::Corrupt { daddr: None, inode: None, problem },
        }
    }
}
