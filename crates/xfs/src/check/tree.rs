//! Walks one B+tree from its root and checks every block and every link.
//!
//! Checked for each block: its verifier, level, owner, siblings (in both directions, on every level), that it is at
//! least half full unless it is the root, its key in the parent, and that nothing descends from one block to the next.
//!
//! Why this ends on any input: levels decrease on the way down, and a block that is claimed already, by this tree or
//! anything else, is not visited.

use super::Check;
use super::owners::Owner;
use super::report::FindingPlace;
use crate::error::Result;
use xfs_format::ag::MAX_LEVELS;
use xfs_format::bmbt::BmbtRoot;
use xfs_format::btree::{Bmbt, Node, Tree};
use xfs_format::error::FormatError;
use xfs_format::types::{AgBlock, AgNumber, FsBlock, InodeNumber};

/// The owner of a tree.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    /// A group's.
    Group(AgNumber),
    /// The map of an inode's fork.
    Fork(InodeNumber),
}

/// The result of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walked {
    /// Blocks, including the root if it is a block.
    pub(super) blocks: u32,
    /// Whether every record was seen.
    pub(super) whole: bool,
}

/// The last block on a level: its number, and its right sibling.
#[derive(Clone, Copy, Debug)]
enum Last {
    /// No block of the level has been seen yet.
    None,
    /// The previous block could not be read.
    Unknown,
    /// The previous block.
    Block { at: u64, right: u64 },
}

/// A walk in progress.
struct Walk<'a, 'c, T: Tree> {
    check: &'a mut Check<'c>,
    home: Home,
    owner: Owner,
    /// Whether to claim blocks. Not if an earlier walk has done so.
    claim: bool,
    last: [Last; MAX_LEVELS as usize],
    rank: Option<T::Rank>,
    walked: Walked,
    each: &'a mut dyn FnMut(&T::Record),
}

/// Walks a tree of a group. Calls `each` with its records in order.
pub(super) fn walk_group<T: Tree>(
    check: &mut Check<'_>,
    ag: AgNumber,
    (root, levels): (u32, u32),
    owner: Owner,
    each: &mut dyn FnMut(&T::Record),
) -> Result<Walked> {
    let mut walk = Walk::<T>::new(check, Home::Group(ag), owner, true, each);
    // Its header was checked: the number of levels is at least one, and within the maximum.
    let level = levels.saturating_sub(1).min(MAX_LEVELS - 1) as u16;
    walk.visit(u64::from(root), level, None, true)?;
    Ok(walk.end())
}

/// Walks a tree of a group again whose blocks an earlier walk has claimed and found to be sound.
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

/// Walks the map of a fork below its root, which is in the inode.
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

    /// The checks after all blocks were seen: the last block of each level has no right sibling.
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

    fn place(&self, block: u64) -> FindingPlace {
        let place = self.split(block).map(|(ag, block)| FindingPlace::block(ag, block));
        match self.home {
            Home::Group(ag) => place.unwrap_or(FindingPlace::group(ag)),
            Home::Fork(ino) => place.unwrap_or_default().of(ino),
        }
    }

    /// Visits the subtree at `block`. If `lone`, the block may be less than half full.
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

    fn records(&mut self, node: &Node<'_, T>, place: FindingPlace) {
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

    fn check_count(&mut self, node: &Node<'_, T>, lone: bool, place: FindingPlace) {
        let body = (self.check.geometry().block_size as usize)
            .saturating_sub(T::header_len(self.check.geometry().v5));
        let most = if node.level() == 0 { T::max_records(body) } else { T::max_children(body) };
        // A root may have less, and a root leaf may have no records at all.
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

    /// The block must be the right sibling of the previous one on its level, and have that one as its left sibling.
    fn check_siblings(&mut self, node: &Node<'_, T>, block: u64, level: u16, place: FindingPlace) {
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

    /// A block could not be read, so everything below it and its siblings are unknown.
    fn lost(&mut self, level: u16) {
        self.walked.whole = false;
        self.last[..=usize::from(level)].fill(Last::Unknown);
    }
}
