//! The nodes above leaves, with leaves of two hashes at most, against a plain set of hashes.

use super::draft::{Draft, identity};
use super::edit::{add_leaf, map_block, remove_leaf, set_last_hash};
use super::{Index, Path, Side, descend};
use crate::fork::{Fork, ForkMut};
use crate::testing::{MemoryFork, geometry};
use std::collections::BTreeSet;
use xfs_format::da::{DaHeader, Node, block_magic, init_index_block};
use xfs_format::dir::{INDEX, LEAF_SPACE, LEAFN_MAGIC_V5};
use xfs_format::types::{FileBlock, InodeNumber};

/// Most hashes of a leaf here: few, so that there are many leaves.
const MOST: usize = 2;

fn index(fork: &MemoryFork) -> Index {
    let geometry = fork.geometry();
    let root = LEAF_SPACE >> geometry.block_log;
    Index { root, end: root + 100_000, blocks: geometry.dir_block_blocks(), verifier: &INDEX }
}

fn hashes(bytes: &[u8]) -> Vec<u32> {
    let count = u16::from_be_bytes([bytes[56], bytes[57]]);
    let word = |nth: usize| bytes[64 + nth * 8..].first_chunk::<4>().copied().unwrap();
    (0..count.into()).map(|nth| u32::from_be_bytes(word(nth))).collect()
}

fn put(bytes: &mut [u8], hashes: &[u32]) {
    bytes[56..58].copy_from_slice(&(hashes.len() as u16).to_be_bytes());
    for (nth, hash) in hashes.iter().enumerate() {
        bytes[64 + nth * 8..][..4].copy_from_slice(&hash.to_be_bytes());
        bytes[68 + nth * 8..][..4].copy_from_slice(&7u32.to_be_bytes());
    }
}

fn create(fork: &mut MemoryFork, index: &Index, at: FileBlock, hashes: &[u32]) {
    let id = identity(fork, at).unwrap();
    let bytes = ForkMut::create(fork, at, index.blocks, &INDEX).unwrap();
    init_index_block(bytes, LEAFN_MAGIC_V5, &id).unwrap();
    put(bytes, hashes);
}

fn insert(fork: &mut MemoryFork, index: &Index, hash: u32) {
    let mut path = Path::to_hash(fork, index, hash).unwrap();
    let mut draft = Draft::read(fork, path.leaf(), index.blocks, &INDEX).unwrap();
    let mut all = hashes(&draft.bytes);
    all.insert(all.partition_point(|&before| before < hash), hash);
    let right = if all.len() > MOST { all.split_off(all.len() / 2) } else { Vec::new() };
    put(&mut draft.bytes, &all);
    draft.store(fork).unwrap();
    if right.is_empty() {
        return set_last_hash(fork, index, &path, all[all.len() - 1]).unwrap();
    }
    let new = map_block(fork, index).unwrap();
    create(fork, index, new, &right);
    add_leaf(fork, index, &mut path, all[all.len() - 1], new, right[right.len() - 1]).unwrap();
    let buf = fork.read(path.leaf(), index.blocks, &INDEX).unwrap();
    assert_eq!(hashes(&buf), all, "the path still leads to the left leaf");
    let beside = path.neighbour(fork, index, Side::Behind).unwrap().expect("the new leaf");
    assert_eq!(beside.leaf(), new);
    assert_eq!(beside.neighbour(fork, index, Side::Before).unwrap(), Some(path));
}

fn remove(fork: &mut MemoryFork, index: &Index, hash: u32) {
    let path = Path::to_hash(fork, index, hash).unwrap();
    let mut draft = Draft::read(fork, path.leaf(), index.blocks, &INDEX).unwrap();
    let mut all = hashes(&draft.bytes);
    all.retain(|&other| other != hash);
    match all.last() {
        None if !path.leaf_is_root() => remove_leaf(fork, index, &path).unwrap(),
        last => {
            put(&mut draft.bytes, &all);
            draft.store(fork).unwrap();
            set_last_hash(fork, index, &path, last.copied().unwrap_or(0)).unwrap();
        }
    }
}

/// Every block below `at`, level by level; fails where an invariant does.
fn check(fork: &MemoryFork, index: &Index, at: FileBlock, levels: &mut Vec<Vec<FileBlock>>) -> (u16, u32) {
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
        (0, hashes(&buf).last().copied().unwrap_or(0))
    };
    levels.resize(levels.len().max(usize::from(level) + 1), Vec::new());
    levels[usize::from(level)].push(at);
    (level, last)
}

fn check_all(fork: &MemoryFork, index: &Index, expected: &BTreeSet<u32>) -> u16 {
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
    let mut fork = MemoryFork::new(geometry(true, block_log, dir_block_log), InodeNumber(131), 0);
    let index = index(&fork);
    let root = map_block(&mut fork, &index).unwrap();
    assert_eq!(root.0, index.root);
    create(&mut fork, &index, root, &[]);
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
    // 120 children a node: the third level begins at 14,400 leaves if the nodes are full, sooner if not.
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
        let mut fork = MemoryFork::new(geometry(true, 10, 0), InodeNumber(131), 0);
        let index = index(&fork);
        let root = map_block(&mut fork, &index).unwrap();
        create(&mut fork, &index, root, &[]);
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
    let mut fork = MemoryFork::new(geometry(true, 12, 0), InodeNumber(131), 0);
    let index = index(&fork);
    let root = map_block(&mut fork, &index).unwrap();
    create(&mut fork, &index, root, &[]);
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
    let mut sound = MemoryFork::new(geometry(true, 10, 0), InodeNumber(131), 0);
    let index = index(&sound);
    let root = map_block(&mut sound, &index).unwrap();
    create(&mut sound, &index, root, &[]);
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
        let path = Path::to_hash(&fork, &index, hash).unwrap();
        let mut near: Vec<FileBlock> = path.steps.iter().map(|step| step.at).chain([path.leaf()]).collect();
        for side in [Side::Before, Side::Behind] {
            near.extend(path.neighbour(&fork, &index, side).unwrap().map(|path| path.leaf()));
        }
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

/// One change, whichever fits the leaf that is there.
fn attempt(fork: &mut MemoryFork, index: &Index, hash: u32) -> crate::error::Result<()> {
    let mut path = Path::to_hash(fork, index, hash)?;
    if hash & 2 == 0 && !path.leaf_is_root() {
        return remove_leaf(fork, index, &path);
    }
    let new = map_block(fork, index)?;
    create(fork, index, new, &[hash]);
    add_leaf(fork, index, &mut path, hash - 1, new, hash)
}
