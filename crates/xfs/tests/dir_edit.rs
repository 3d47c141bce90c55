//! Directories that are changed, in all forms, against a map of what they should hold.
//!
//! Replay a run with the seed that a failure prints: `XFS_TEST_SEED=… cargo test -p uxfs-xfs --test dir_edit NAME`.
#![forbid(unsafe_code)]

mod samples;

use samples::seed;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use xfs::dir::{
    EntryReservation, FileType, NewEntry, add, add_needs, init, is_empty, lookup, remove, replace, walk,
};
use xfs::fork::Fork;
use xfs::testing::{EditFork, geometry};
use xfs_format::da::{Node, name_hash};
use xfs_format::dir::{
    BESTFREE_NONE, DataBlock, DataEdit, DataItem, DataKind, FREE, FREE_SPACE, FreeBlock, INDEX, LEAF_SPACE,
    Leaf, LeafKind, data_verifier,
};
use xfs_format::types::{FileBlock, InodeNumber};

type Model = BTreeMap<Vec<u8>, (InodeNumber, FileType)>;

const TYPES: [FileType; 8] = [
    FileType::Unknown,
    FileType::Regular,
    FileType::Directory,
    FileType::CharDevice,
    FileType::BlockDevice,
    FileType::Fifo,
    FileType::Socket,
    FileType::Symlink,
];

/// What is checked of the structure itself: what `xfs_repair` would check. The form that the directory has.
fn check_structure(fork: &EditFork) -> String {
    let geometry = fork.geometry();
    let (v5, ftype) = (geometry.v5, geometry.ftype);
    if fork.local().is_some() {
        return "short".into();
    }
    let blocks = geometry.dir_block_blocks();
    let size = geometry.dir_block_size() as usize;
    let mut bestfree: BTreeMap<u64, u16> = BTreeMap::new();
    let mut places: BTreeSet<(u32, u64)> = BTreeSet::new();
    let mut block_form = None;
    for (at, _, bytes) in fork.buffers().filter(|(at, ..)| at.0 < LEAF_SPACE >> geometry.block_log) {
        fork.read(at, blocks, data_verifier(ftype)).unwrap();
        let view = DataBlock::parse(&bytes, v5, ftype).unwrap();
        let db = at.0 / u64::from(blocks);
        let (mut unused, mut before) = (Vec::new(), false);
        for item in view.items() {
            match item.unwrap() {
                DataItem::Unused { len, .. } => {
                    assert!(!before, "unused pieces touch");
                    before = true;
                    unused.push(len as u16);
                }
                DataItem::Entry(entry) => {
                    before = false;
                    let offset = db * size as u64 + entry.offset as u64;
                    places.insert((name_hash(entry.name), offset));
                }
            }
        }
        unused.sort_unstable_by(|a, b| b.cmp(a));
        unused.resize(3, 0);
        assert_eq!(view.largest_free().map(|(_, len)| len)[..], unused[..3], "data block {db}");
        assert!(usize::from(unused[0]) < DataEdit::longest_when_empty(size, v5), "data block {db} is empty");
        bestfree.insert(db, unused[0]);
        if view.kind == DataKind::Block {
            assert_eq!(db, 0);
            let live = view.index.iter().filter(|entry| !entry.is_stale());
            block_form =
                Some(live.map(|entry| (entry.hash.get(), entry.data_offset())).collect::<BTreeSet<_>>());
        }
    }
    let last = bestfree.last_key_value().map(|(&db, _)| db).expect("the first data block");
    assert_eq!(fork.size(), (last + 1) * size as u64, "the size");
    if let Some(index) = block_form {
        assert_eq!(index, places);
        assert_eq!(fork.buffers().count(), 1);
        return "block".into();
    }
    let mut tree = Tree { fork, v5, blocks, index: BTreeSet::new(), seen: 0, levels: BTreeMap::new() };
    let root = FileBlock(LEAF_SPACE >> geometry.block_log);
    let (level, _) = tree.walk(root, None);
    let index_blocks =
        fork.buffers().filter(|(at, ..)| (root.0..FREE_SPACE >> geometry.block_log).contains(&at.0)).count();
    assert_eq!(tree.seen, index_blocks, "every index block is in the tree");
    assert_eq!(tree.index, places, "the index has every entry, and no other");
    for (level, chain) in &tree.levels {
        for (nth, &(at, forw, back)) in chain.iter().enumerate() {
            let near = |nth: Option<usize>| nth.and_then(|nth| chain.get(nth)).map_or(0, |&(at, ..)| at);
            assert_eq!(u64::from(forw), near(Some(nth + 1)), "block {at} of level {level} forward");
            assert_eq!(u64::from(back), near(nth.checked_sub(1)), "block {at} of level {level} backward");
        }
    }
    let root_bytes = fork.read(root, blocks, &INDEX).unwrap();
    let leaf = Leaf::parse(&root_bytes, v5).ok();
    let told = |table: &[u16], first: u64, into: &mut BTreeMap<u64, u16>| {
        assert!(
            table.last().is_none_or(|&last| last != BESTFREE_NONE),
            "the table ends in a block that is there"
        );
        into.extend((first..).zip(table.iter().copied()).filter(|&(_, best)| best != BESTFREE_NONE));
    };
    let mut all = BTreeMap::new();
    let free: Vec<_> = fork.buffers().filter(|(at, ..)| at.0 >= FREE_SPACE >> geometry.block_log).collect();
    if let Some(leaf) = leaf.filter(|leaf| leaf.kind == LeafKind::Single) {
        assert!(free.is_empty());
        told(&leaf.bestfree.iter().map(|best| best.get()).collect::<Vec<_>>(), 0, &mut all);
        assert_eq!(all, bestfree);
        return "leaf".into();
    }
    for (at, _, bytes) in free {
        fork.read(at, blocks, &FREE).unwrap();
        let view = FreeBlock::parse(&bytes, v5).unwrap();
        let fdb = (at.0 - (FREE_SPACE >> geometry.block_log)) / u64::from(blocks);
        assert_eq!(u64::from(view.first_db), fdb * (size as u64 - if v5 { 64 } else { 16 }) / 2);
        let table: Vec<u16> = view.bestfree.iter().map(|best| best.get()).collect();
        assert_eq!(view.used as usize, table.iter().filter(|&&best| best != BESTFREE_NONE).count());
        assert!(view.used > 0, "a free block that tells of nothing");
        told(&table, view.first_db.into(), &mut all);
    }
    assert_eq!(all, bestfree);
    format!("node {level}")
}

struct Tree<'a> {
    fork: &'a EditFork,
    v5: bool,
    blocks: u32,
    index: BTreeSet<(u32, u64)>,
    seen: usize,
    levels: BTreeMap<u16, Vec<(u64, u32, u32)>>,
}

impl Tree<'_> {
    /// Walks a subtree: its level and its last hash.
    fn walk(&mut self, at: FileBlock, due: Option<u16>) -> (u16, u32) {
        let bytes = self.fork.read(at, self.blocks, &INDEX).unwrap();
        self.seen += 1;
        let (level, header, last) = if let Ok(node) = Node::parse(&bytes, self.v5) {
            for entry in node.entries {
                let (_, last) = self.walk(FileBlock(entry.before.get().into()), Some(node.level - 1));
                assert_eq!(entry.hash.get(), last, "the hash that a node has for its child");
            }
            assert!(due.is_some() || node.entries.len() > 1, "a root with one child");
            (node.level, node.header, node.entries.last().unwrap().hash.get())
        } else {
            let leaf = Leaf::parse(&bytes, self.v5).unwrap();
            let live = leaf.live();
            assert!(!live.is_empty(), "an empty leaf");
            for entry in live {
                assert!(self.index.insert((entry.hash.get(), entry.data_offset())), "an entry comes twice");
            }
            (0, leaf.header, leaf.entries.last().unwrap().hash.get())
        };
        assert!(due.is_none_or(|due| due == level));
        self.levels.entry(level).or_default().push((at.0, header.forw, header.back));
        (level, last)
    }
}

/// Compares the directory with the model through the reading side.
fn check_names(fork: &EditFork, parent: InodeNumber, model: &Model) {
    let (mut found, mut next) = (Model::new(), 0);
    walk(fork, 0, &mut |entry| {
        assert!(entry.next > next, "positions ascend");
        next = entry.next;
        match entry.name {
            b"." => assert_eq!(entry.inode, fork.inode()),
            b".." => assert_eq!(entry.inode, parent),
            name => assert!(found.insert(name.to_vec(), (entry.inode, entry.file_type)).is_none()),
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(&found, model);
    assert_eq!(is_empty(fork).unwrap(), model.is_empty());
    assert_eq!(lookup(fork, b"..").unwrap().unwrap().0, parent);
    for (name, &found) in model.iter().step_by((model.len() / 50).max(1)) {
        assert_eq!(lookup(fork, name).unwrap(), Some(found), "{}", name.escape_ascii());
    }
}

/// One shape of volume and of names.
#[derive(Clone, Copy, Debug)]
struct Case {
    v5: bool,
    ftype: bool,
    block_log: u8,
    dir_block_log: u8,
    capacity: usize,
    /// Longest name.
    name_max: usize,
    /// Most names.
    names: usize,
    /// Names of this many different hashes only, if not 0.
    hashes: u32,
}

const V5: Case = Case {
    v5: true,
    ftype: true,
    block_log: 12,
    dir_block_log: 0,
    capacity: 336,
    name_max: 40,
    names: 900,
    hashes: 0,
};

/// A name whose hash is one of a few: the last five bytes can undo whatever the others did.
fn colliding(random: &mut fastrand::Rng, hashes: u32, len: usize) -> Vec<u8> {
    loop {
        let mut name: Vec<u8> = (0..len.max(6) - 5).map(|_| random.u8(1..=255)).collect();
        let want = random.u32(0..hashes).wrapping_mul(0x1234_5677);
        let base =
            name.iter().fold(0u32, |hash, &byte| hash.rotate_left(7) ^ u32::from(byte)).rotate_left(35 - 32);
        // Five bytes at shifts 28, 21, 14, 7, 0 reach all bits; of the first only the low four.
        let rest = base ^ want;
        name.extend([28, 21, 14, 7, 0].map(|shift| ((rest >> shift) & 0x7f) as u8));
        if name.iter().all(|&byte| byte != 0 && byte != b'/') && name_hash(&name) == want {
            return name;
        }
    }
}

fn run(case: Case, steps: usize, seed: u64) -> BTreeSet<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut shape = geometry(case.v5, case.block_log, case.dir_block_log);
    shape.ftype = case.ftype;
    let mut fork = EditFork::new(shape, InodeNumber(131), case.capacity);
    let mut parent = InodeNumber(128);
    init(&mut fork, parent).unwrap();
    let mut model = Model::new();
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut forms = BTreeSet::new();
    let inode = |random: &mut fastrand::Rng| match random.u8(0..20) {
        0 => InodeNumber(random.u64(1 << 32..1 << 50)),
        _ => InodeNumber(random.u64(129..=u32::MAX.into())),
    };
    let kind = |random: &mut fastrand::Rng| {
        if case.ftype { TYPES[random.usize(..TYPES.len())] } else { FileType::Unknown }
    };
    let mut growing = true;
    let mut target = case.names;
    for step in 0..steps {
        if growing && model.len() >= target {
            growing = false;
            target = if random.bool() { 0 } else { random.usize(..=model.len()) };
        } else if !growing && model.len() <= target {
            growing = true;
            target = if random.u8(..) < 60 { case.names } else { random.usize(1..=case.names) };
        }
        let bias = if growing { 80 } else { 15 };
        match random.u8(0..100) {
            choice if choice < bias || names.is_empty() => {
                let len = match random.u8(0..12) {
                    0 => case.name_max,
                    1 => 1,
                    _ => random.usize(1..=case.name_max),
                };
                let name = if case.hashes > 0 {
                    colliding(&mut random, case.hashes, len)
                } else {
                    (0..len).map(|_| random.u8(b'0'..=b'z')).collect()
                };
                if model.contains_key(&name) || name == b"." || name == b".." {
                    continue;
                }
                let (ino, ftype) = (inode(&mut random), kind(&mut random));
                let needs = add_needs(&fork).unwrap();
                add(&mut fork, NewEntry { name: &name, ino, ftype }).unwrap();
                let settled = fork.settle();
                assert!(
                    settled.maps <= needs.maps && needs.maps <= EntryReservation::MAPS_MAX,
                    "{settled:?} {needs:?}"
                );
                assert!(settled.buffers <= needs.buffers, "{settled:?} {needs:?}");
                assert!(needs.buffers <= EntryReservation::BUFFERS_MAX);
                model.insert(name.clone(), (ino, ftype));
                names.push(name);
            }
            choice if choice < 95 => {
                let name = names.swap_remove(random.usize(..names.len()));
                let (ino, _) = model.remove(&name).unwrap();
                assert_eq!(remove(&mut fork, &name).unwrap(), ino);
                let settled = fork.settle();
                assert_eq!(settled.maps, 0);
                assert!(settled.buffers <= EntryReservation::BUFFERS_MAX);
                assert_eq!(lookup(&fork, &name).unwrap(), None);
            }
            choice if choice < 99 => {
                let name = &names[random.usize(..names.len())];
                let new = (inode(&mut random), kind(&mut random));
                let old = model.insert(name.clone(), new).unwrap();
                assert_eq!(replace(&mut fork, name, new.0, new.1).unwrap(), old.0);
                fork.settle();
                assert_eq!(lookup(&fork, name).unwrap(), Some(new));
            }
            _ => {
                let new = inode(&mut random);
                assert_eq!(replace(&mut fork, b"..", new, FileType::Directory).unwrap(), parent);
                fork.settle();
                parent = new;
            }
        }
        // Often enough to meet a form that is passed in a few dozen steps.
        if step % 23 == 0 || (model.len() < 12 && step % 3 == 0) {
            forms.insert(check_structure(&fork));
            check_names(&fork, parent, &model);
        }
    }
    // And all the way down again.
    while !names.is_empty() {
        let name = names.swap_remove(random.usize(..names.len()));
        assert_eq!(remove(&mut fork, &name).unwrap(), model.remove(&name).unwrap().0);
        fork.settle();
        if names.len().is_multiple_of(151) || names.len() < 3 {
            forms.insert(check_structure(&fork));
            check_names(&fork, parent, &model);
        }
    }
    assert!(fork.local().is_some(), "an empty directory lies in the inode");
    forms
}

fn check(case: Case, steps: usize, expected: &[&str]) {
    let seed = seed();
    println!("seed {seed}, {case:?}");
    let forms = run(case, steps, seed);
    let missing: Vec<_> = expected.iter().filter(|form| !forms.contains(**form)).collect();
    assert!(missing.is_empty(), "{missing:?} not seen, but {forms:?}");
}

#[test]
fn blocks_of_4_kib() {
    check(V5, 4_000, &["short", "block", "leaf"]);
}

#[test]
fn a_tree_of_two_levels_in_small_blocks() {
    let case = Case { block_log: 10, names: 2_500, name_max: 20, ..V5 };
    check(case, 8_000, &["short", "leaf", "node 1"]);
}

#[test]
fn longest_names() {
    let case = Case { block_log: 10, name_max: 255, names: 600, ..V5 };
    check(case, 6_000, &["short", "leaf", "node 1"]);
}

#[test]
fn names_of_few_hashes() {
    let case = Case { block_log: 10, hashes: 3, name_max: 12, names: 500, ..V5 };
    check(case, 2_000, &["short", "leaf", "node 1"]);
}

#[test]
fn directory_blocks_of_several_blocks() {
    let case = Case { block_log: 10, dir_block_log: 2, names: 1_500, ..V5 };
    check(case, 4_000, &["short", "leaf", "node 1"]);
}

#[test]
fn directory_blocks_of_64_kib() {
    let case = Case { dir_block_log: 4, names: 1_500, name_max: 200, ..V5 };
    check(case, 2_500, &["short", "block", "leaf"]);
}

#[test]
fn large_inodes() {
    let case = Case { block_log: 10, capacity: 1_800, name_max: 12, names: 300, ..V5 };
    check(case, 5_000, &["short", "leaf"]);
}

#[test]
fn v4_with_blocks_of_512_bytes() {
    for ftype in [false, true] {
        let case = Case { v5: false, ftype, block_log: 9, capacity: 150, name_max: 30, names: 2_000, ..V5 };
        check(case, 5_000, &["short", "leaf", "node 1"]);
    }
}
