//! Walking one B+tree from its root, with every block and every link of it checked.
//!
//! Checked of each block: its verifier, level, owner, siblings (both ways, at every level), at least half full
//! unless it is the root, the key that its parent has of it, and that nothing descends from one block to the next.
//!
//! Why this ends on any input: levels fall on the way down, and a block that is claimed already, by this tree or
//! by anything else, is not gone into.

use super::Check;
use super::owners::Owner;
use super::report::Place;
use crate::error::Result;
use xfs_format::ag::MAX_LEVELS;
use xfs_format::bmbt::BmbtRoot;
use xfs_format::btree::{Bmbt, Node, Tree};
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber, FsBlock, InodeNumber};

/// Whose tree it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    /// A group's.
    Group(AgNumber),
    /// The map of an inode's fork.
    Fork(InodeNumber),
}

/// What a walk saw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walked {
    /// Blocks, the root included where it is one.
    pub(super) blocks: u32,
    /// Whether every record was seen.
    pub(super) whole: bool,
}

/// The last block of a level: its number, and its right sibling.
#[derive(Clone, Copy, Debug)]
enum Last {
    /// No block of the level was seen yet.
    None,
    /// The block before could not be read.
    Unknown,
    /// The block before.
    Block { at: u64, right: u64 },
}

/// A walk under way.
struct Walk<'a, 'c, T: Tree> {
    check: &'a mut Check<'c>,
    home: Home,
    owner: Owner,
    /// Whether blocks are claimed; not so where they were in an earlier walk.
    claim: bool,
    last: [Last; MAX_LEVELS as usize],
    rank: Option<T::Rank>,
    walked: Walked,
    each: &'a mut dyn FnMut(&T::Record),
}

/// Walks a tree of a group; `each` gets its records in order.
pub(super) fn walk_group<T: Tree>(
    check: &mut Check<'_>,
    ag: AgNumber,
    (root, levels): (u32, u32),
    owner: Owner,
    each: &mut dyn FnMut(&T::Record),
) -> Result<Walked> {
    let mut walk = Walk::<T>::new(check, Home::Group(ag), owner, true, each);
    // Its header was checked: there is at least one level, and no more than there can be.
    let level = levels.saturating_sub(1).min(MAX_LEVELS - 1) as u16;
    walk.visit(u64::from(root), level, None, true)?;
    Ok(walk.end())
}

/// Walks a tree of a group whose blocks were claimed, and found to be sound, by an earlier walk.
pub(super) fn walk_group_again<T: Tree>(
    check: &mut Check<'_>,
    ag: AgNumber,
    (root, levels): (u32, u32),
    each: &mut dyn FnMut(&T::Record),
) -> Result<Walked> {
    let mut walk = Walk::<T>::new(check, Home::Group(ag), Owner::SpaceTree, false, each);
    let level = levels.saturating_sub(1).min(MAX_LEVELS - 1) as u16;
    walk.visit(u64::from(root), level, None, true)?;
    Ok(walk.end())
}

/// Walks the map of a fork below its root, which lies in the inode.
pub(super) fn walk_map(
    check: &mut Check<'_>,
    ino: InodeNumber,
    root: &BmbtRoot<'_>,
    (owner, claim): (Owner, bool),
    each: &mut dyn FnMut(&<Bmbt as Tree>::Record),
) -> Result<Walked> {
    let mut walk = Walk::<Bmbt>::new(check, Home::Fork(ino), owner, claim, each);
    let only = root.keys().len() == 1;
    for (key, child) in root.keys().iter().zip(root.pointers()) {
        let level = root.level().saturating_sub(1);
        walk.visit(child.0, level, Some(*key), only)?;
    }
    Ok(walk.end())
}

impl<'a, 'c, T: Tree> Walk<'a, 'c, T> {
    fn new(
        check: &'a mut Check<'c>,
        home: Home,
        owner: Owner,
        claim: bool,
        each: &'a mut dyn FnMut(&T::Record),
    ) -> Self {
        let last = [Last::None; MAX_LEVELS as usize];
        let walked = Walked { blocks: 0, whole: true };
        Self { check, home, owner, claim, last, rank: None, walked, each }
    }

    /// What holds when all blocks were seen: the last of each level has nothing to its right.
    fn end(self) -> Walked {
        for last in self.last {
            if let Last::Block { at, right } = last
                && right != u64::MAX
            {
                let place = self.place(at);
                self.check
                    .report
                    .add(place, FormatError::value(T::NAME, "right sibling of the last block", right));
            }
        }
        self.walked
    }

    fn split(&self, block: u64) -> Option<(AgNumber, AgBlock)> {
        match self.home {
            Home::Group(ag) => {
                let length = self.check.geometry().ag_blocks_of(ag);
                let block = u32::try_from(block).ok().filter(|&block| block != 0 && block < length)?;
                Some((ag, AgBlock(block)))
            }
            Home::Fork(_) => self.check.geometry().split_block(FsBlock(block)),
        }
    }

    fn place(&self, block: u64) -> Place {
        let place = self.split(block).map(|(ag, block)| Place::block(ag, block));
        match self.home {
            Home::Group(ag) => place.unwrap_or(Place::group(ag)),
            Home::Fork(ino) => place.unwrap_or_default().of(ino),
        }
    }

    /// Takes in the subtree at `block`. `lone`: it may be less than half full.
    fn visit(&mut self, block: u64, level: u16, key: Option<T::Key>, lone: bool) -> Result<()> {
        let Some((ag, at)) = self.split(block) else {
            self.lost(level);
            let place = self.place(block);
            self.check.report.add(place, FormatError::value(T::NAME, "child pointer", block));
            return Ok(());
        };
        let place = self.place(block);
        self.walked.blocks = self.walked.blocks.saturating_add(1);
        if self.claim && !self.check.owners.claim(ag, (at.0, 1), self.owner, &mut self.check.report) {
            self.lost(level);
            return Ok(());
        }
        let Some(bytes) = self.check.reader.block((ag, at), T::verifier(), place, &mut self.check.report)?
        else {
            self.lost(level);
            return Ok(());
        };
        let node = match Node::<T>::view(&bytes, self.check.geometry().v5) {
            Ok(node) => node,
            Err(problem) => {
                self.check.report.add(place, problem);
                self.lost(level);
                return Ok(());
            }
        };
        let owner = match self.home {
            Home::Group(ag) => ag.0.into(),
            Home::Fork(ino) => ino.0,
        };
        let report = &mut self.check.report;
        let right_level = report.same(place, T::NAME, "level", node.level(), level);
        let right_owner = node.owner().is_none_or(|found| report.same(place, T::NAME, "owner", found, owner));
        if !right_level || !right_owner {
            self.lost(level);
            return Ok(());
        }
        self.check_siblings(&node, block, level, place);
        self.check_count(&node, lone, place);
        let due = if level == 0 {
            T::span(node.records().iter().map(T::record_key))
        } else {
            T::span(node.keys().iter().copied())
        };
        if let (Some(key), Some(due)) = (key, due)
            && !T::same_key(&key, &due)
        {
            self.check.report.add(place, FormatError::new(T::NAME, "key that the parent has of it"));
        }
        if level == 0 {
            self.records(&node, place);
            return Ok(());
        }
        for (index, key) in node.keys().iter().enumerate() {
            if self.check.report.stopped() {
                break;
            }
            if let Some(child) = node.pointer(index) {
                self.visit(child, level - 1, Some(*key), false)?;
            }
        }
        Ok(())
    }

    fn records(&mut self, node: &Node<'_, T>, place: Place) {
        let mut descends = false;
        for record in node.records() {
            let rank = T::record_rank(record);
            if self.rank.is_some_and(|last| last >= rank) {
                descends = true;
                continue;
            }
            self.rank = Some(rank);
            (self.each)(record);
        }
        if descends {
            self.walked.whole = false;
            self.check.report.add(place, FormatError::new(T::NAME, "order of records"));
        }
    }

    fn check_count(&mut self, node: &Node<'_, T>, lone: bool, place: Place) {
        let body = (self.check.geometry().block_size as usize)
            .saturating_sub(T::header_len(self.check.geometry().v5));
        let most = if node.level() == 0 { T::max_records(body) } else { T::max_children(body) };
        // A root may be emptier, and a leaf that is the root may have no record at all.
        let least = if !lone {
            most / 2
        } else if node.level() == 0 {
            0
        } else {
            1
        };
        if node.count() < least {
            let problem = FormatError::mismatch(T::NAME, "record count", node.count() as u64, least as u64);
            self.check.report.add(place, problem);
        }
    }

    /// The block must be what the one before it on its level has to its right, and have that one to its left.
    fn check_siblings(&mut self, node: &Node<'_, T>, block: u64, level: u16, place: Place) {
        let (left, right) = node.siblings();
        let before = self.last[usize::from(level)];
        let report = &mut self.check.report;
        match before {
            Last::Unknown => {}
            Last::None => {
                report.same(place, T::NAME, "left sibling", left, u64::MAX);
            }
            Last::Block { at, right } => {
                report.same(place, T::NAME, "left sibling", left, at);
                report.same(place, T::NAME, "right sibling of the block before", right, block);
            }
        }
        self.last[usize::from(level)] = Last::Block { at: block, right };
    }

    /// A block could not be read: what lies below it, and its siblings, are not known.
    fn lost(&mut self, level: u16) {
        self.walked.whole = false;
        self.last[..=usize::from(level)].fill(Last::Unknown);
    }
}
