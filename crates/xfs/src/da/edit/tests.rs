//! The nodes above leaves, with at most two hashes per leaf, compared with a plain set of hashes.

use super::{Block, DaPath, Leaves, Seen, enter_split, find_path, fix_path, free_place, seek, shrink};
use crate::da::{DaIndex, descend};
use crate::error::Result;
use crate::fork::{Fork, ForkMut};
use crate::testing::{MemoryFork, geometry};
use std::collections::BTreeSet;
use xfs_format::da::{DaHeader, Node, block_magic, format_header};
use xfs_format::dir::{INDEX, LEAF_SPACE, LEAFN_MAGIC_V5};
use xfs_format::edit::Image;
use xfs_format::error::FormatError;
use xfs_format::types::{FileBlock, InodeNumber};

/// Maximum hashes per leaf in these tests: few, so that there are many leaves.
const MOST: usize = 2;

struct Few;

impl Leaves for Few {
    fn fill(&self, leaf: &[u8]) -> Result<(usize, usize), FormatError> {
        Ok((hashes(leaf).len(), MOST))
    }

    fn last_hash(&self, leaf: &[u8]) -> Result<Option<u32>, FormatError> {
        Ok(hashes(leaf).last().copied())
    }

    fn join(&self, _: &mut Image, _: &[u8]) -> Result<(), FormatError> {
        unreachable!("leaves are either empty or too full to be joined")
    }
}

fn index(fork: &MemoryFork) -> DaIndex {
    let geometry = fork.geometry();
    let root = LEAF_SPACE >> geometry.block_log;
    DaIndex { root, end: root + 100_000, blocks: geometry.dir_block_blocks(), verifier: &INDEX }
}

fn hashes(bytes: &[u8]) -> Vec<u32> {
    let count = u16::from_be_bytes([bytes[56], bytes[57]]);
    let word = |nth: usize| bytes[64 + nth * 8..].first_chunk::<4>().copied().unwrap();
    (0..count.into()).map(|nth| u32::from_be_bytes(word(nth))).collect()
}

fn put(leaf: &mut Block, hashes: &[u32]) {
    let mut patch = leaf.image.edit();
    patch.put(56, &(hashes.len() as u16).to_be_bytes()).unwrap();
    for (nth, hash) in hashes.iter().enumerate() {
        patch.put(64 + nth * 8, &hash.to_be_bytes()).unwrap();
        patch.put(68 + nth * 8, &7u32.to_be_bytes()).unwrap();
    }
}

fn new_leaf(fork: &mut MemoryFork, index: &DaIndex, at: FileBlock, hashes: &[u32]) -> Result<Block> {
    let mut leaf = Block::map(fork, at, index.blocks, &INDEX)?;
    let stamp = leaf.stamp(fork);
    format_header(&mut leaf.image.edit(), LEAFN_MAGIC_V5, &stamp).unwrap();
    put(&mut leaf, hashes);
    Ok(leaf)
}

/// A fork with an empty leaf as its root.
fn new_fork(block_log: u8, dir_block_log: u8) -> (MemoryFork, DaIndex) {
    let mut fork = MemoryFork::new(geometry(true, block_log, dir_block_log), InodeNumber(131), 0);
    let index = index(&fork);
    new_leaf(&mut fork, &index, FileBlock(index.root), &[]).unwrap().write(&mut fork).unwrap();
    (fork, index)
}

fn insert(fork: &mut MemoryFork, index: &DaIndex, hash: u32) {
    let (path, mut leaf) = find_path(fork, index, hash).unwrap();
    let mut lower = hashes(leaf.bytes());
    lower.insert(lower.partition_point(|&before| before < hash), hash);
    let upper = if lower.len() > MOST { lower.split_off(lower.len() / 2) } else { Vec::new() };
    let lower_hash = lower[lower.len() - 1];
    put(&mut leaf, &lower);
    if upper.is_empty() {
        leaf.write(fork).unwrap();
        return fix_path(fork, index, &path, lower_hash).unwrap();
    }
    let upper_hash = upper[upper.len() - 1];
    let at = free_place(fork, index, hash).unwrap();
    let right = new_leaf(fork, index, at, &upper).unwrap();
    enter_split(fork, index, &path, (leaf, lower_hash), (right, upper_hash)).unwrap();
    for (hashes_there, last) in [(lower, lower_hash), (upper, upper_hash)] {
        let (_, leaf) = find_path(fork, index, last).unwrap();
        assert_eq!(hashes(leaf.bytes()), hashes_there, "the way to {last:x}");
    }
}

fn remove(fork: &mut MemoryFork, index: &DaIndex, hash: u32) {
    let (path, mut leaf) = find_path(fork, index, hash).unwrap();
    let mut all = hashes(leaf.bytes());
    all.retain(|&other| other != hash);
    put(&mut leaf, &all);
    shrink(fork, index, &path, leaf, &Few).unwrap();
}

/// Collects every block below `at`, by level, and checks the invariants.
fn check(fork: &MemoryFork, index: &DaIndex, at: FileBlock, levels: &mut Vec<Vec<FileBlock>>) -> (u16, u32) {
    let buf = fork.read(at, index.blocks, &INDEX).unwrap();
    let (level, last) = if Node::is(block_magic(&buf).unwrap(), true) {
        let node = Node::parse(&buf, true).unwrap();
        assert!(at.0 != index.root || node.entries.len() > 1, "a root with one child");
        for entry in node.entries {
            let below = check(fork, index, FileBlock(entry.before.get().into()), levels);
            assert_eq!(below, (node.level - 1, entry.hash.get()), "level and last hash");
        }
        (node.level, node.entries.last().unwrap().hash.get())
    } else {
        assert!(at.0 == index.root || !hashes(&buf).is_empty(), "an empty leaf");
        (0, hashes(&buf).last().copied().unwrap_or(0))
    };
    levels.resize(levels.len().max(usize::from(level) + 1), Vec::new());
    levels[usize::from(level)].push(at);
    (level, last)
}

fn check_all(fork: &MemoryFork, index: &DaIndex, expected: &BTreeSet<u32>) -> u16 {
    let mut levels = Vec::new();
    let (level, _) = check(fork, index, FileBlock(index.root), &mut levels);
    let blocks: usize = levels.iter().map(Vec::len).sum();
    assert_eq!(blocks * index.blocks as usize, fork.mapped().count(), "nothing is lost");
    let mut found = Vec::new();
    for (nth, chain) in levels.iter().enumerate() {
        let pointer = |at: Option<&FileBlock>| at.map_or(0, |at| at.0 as u32);
        for (place, &at) in chain.iter().enumerate() {
            let buf = fork.read(at, index.blocks, &INDEX).unwrap();
            let header = DaHeader::parse("test", &buf, true).unwrap();
            assert_eq!(header.back, pointer(place.checked_sub(1).and_then(|before| chain.get(before))));
            assert_eq!(header.forw, pointer(chain.get(place + 1)));
            assert_eq!(header.owner, Some(fork.inode()));
            if nth == 0 {
                found.extend(hashes(&buf));
            }
        }
    }
    assert!(found.iter().eq(expected), "the hashes in order");
    level
}

fn random_history(seed: u64, block_log: u8, dir_block_log: u8, rounds: &[(usize, u8)]) -> Vec<u16> {
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut fork, index) = new_fork(block_log, dir_block_log);
    let mut expected = BTreeSet::new();
    let mut levels = Vec::new();
    for &(count, adds) in rounds {
        for _ in 0..count {
            let hash = rng.u32(..);
            if rng.u8(0..10) < adds {
                if expected.insert(hash) {
                    insert(&mut fork, &index, hash);
                }
            } else if let Some(&hash) = expected.range(hash..).next() {
                expected.remove(&hash);
                remove(&mut fork, &index, hash);
            }
        }
        levels.push(check_all(&fork, &index, &expected));
    }
    while let Some(hash) = expected.pop_first() {
        remove(&mut fork, &index, hash);
    }
    assert_eq!(check_all(&fork, &index, &expected), 0);
    assert_eq!(fork.mapped().count() as u32, index.blocks);
    levels
}

#[test]
fn trees_grow_and_shrink_level_by_level() {
    // 120 children per node: a third level begins at 14,400 leaves if the nodes are full, earlier if not.
    let levels = random_history(1, 10, 0, &[(100, 10), (500, 7), (20_000, 10), (12_000, 3), (12_000, 1)]);
    assert_eq!(levels[..3], [1, 2, 3]);
    assert!(levels[4] < 3);
}

#[test]
fn blocks_of_the_index_may_be_several_of_the_volume() {
    let seed = fastrand::u64(..);
    random_history(seed, 10, 1, &[(2000, 8), (3000, 5), (2000, 3), (3000, 8), (3000, 3)]);
}

#[test]
fn ascending_and_descending_hashes() {
    for descending in [false, true] {
        let (mut fork, index) = new_fork(10, 0);
        let mut expected = BTreeSet::new();
        for nth in 1..4000u32 {
            let hash = if descending { u32::MAX - nth } else { nth };
            insert(&mut fork, &index, hash);
            expected.insert(hash);
        }
        assert!(check_all(&fork, &index, &expected) >= 2);
        while let Some(hash) = if descending { expected.pop_last() } else { expected.pop_first() } {
            remove(&mut fork, &index, hash);
            if expected.len().is_multiple_of(500) {
                check_all(&fork, &index, &expected);
            }
        }
    }
}

#[test]
fn a_change_logs_little() {
    let (mut fork, index) = new_fork(12, 0);
    for nth in 0..1000 {
        insert(&mut fork, &index, nth * 1000);
    }
    let before = fork.logged_by_changes();
    insert(&mut fork, &index, 500_001);
    assert!(fork.logged_by_changes() - before <= 8 * 1024, "{}", fork.logged_by_changes() - before);
}

#[test]
fn damage_is_an_error() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut sound, index) = new_fork(10, 0);
    for nth in 0..900 {
        insert(&mut sound, &index, nth * 1000);
    }
    let mut written = MemoryFork::new(geometry(true, 10, 0), InodeNumber(131), 0);
    for (at, daddr, bytes) in sound.written_back() {
        written.map(at, daddr, bytes);
    }
    let mut errors = 0;
    for _ in 0..2000 {
        let mut fork = written.clone();
        let hash = rng.u32(0..900) * 1000 + 1;
        let (path, leaf) = find_path(&mut fork, &index, hash).unwrap();
        let mut near: Vec<FileBlock> = path.nodes.iter().map(|step| step.at).chain([path.leaf]).collect();
        let header = leaf.header(true).unwrap();
        near.extend([header.forw, header.back].map(|at| FileBlock(at.into())).iter().filter(|at| at.0 > 0));
        for _ in 0..rng.usize(1..4) {
            let at = near[rng.usize(0..near.len())];
            let block = fork.block_mut(at).unwrap();
            let place = rng.usize(0..120);
            block[place] = rng.u8(..);
            fork.seal(at, 1);
        }
        let result = attempt(&mut fork, &index, hash);
        errors += u32::from(result.is_err());
        if let Ok(leaf) = descend(&fork, &index, Some(hash)) {
            drop(leaf);
        }
    }
    assert!(errors > 100, "{errors} errors");
}

/// One change that suits the existing leaf, or a walk over all leaves from it on.
fn attempt(fork: &mut MemoryFork, index: &DaIndex, hash: u32) -> Result<()> {
    if hash.is_multiple_of(5) {
        let more = |_: &mut dyn ForkMut, _: &DaPath, _: &Block| Ok(Seen::<()>::More);
        return seek(fork, index, hash, more).map(drop);
    }
    let (path, mut leaf) = find_path(fork, index, hash)?;
    if hash & 2 == 0 {
        put(&mut leaf, &[]);
        return shrink(fork, index, &path, leaf, &Few);
    }
    let at = free_place(fork, index, hash)?;
    let right = new_leaf(fork, index, at, &[hash])?;
    enter_split(fork, index, &path, (leaf, hash - 1), (right, hash))
}
