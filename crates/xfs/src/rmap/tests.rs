//! Random histories against a model that knows each block's owners, and what each call refuses.

use super::*;
use crate::btree::edit::check;
use crate::btree::edit::memory::MemoryStore;
use crate::error::Error;
use std::collections::BTreeMap;
use xfs_format::types::{AgBlock, AgNumber, FileBlock, InodeNumber};

type Store = MemoryStore<Rmapbt>;

/// Maximum number of blocks that one call allocates in a tree with this many levels.
///
/// The first inserted record can split a block on each level, and the root as well. The second one meets those halves
/// in the root's children at the latest: levels + 1, and levels - 1.
const fn blocks_to_change(levels: u32) -> u32 {
    2 * levels
}

/// Maximum number of blocks that one call frees.
const fn blocks_freed_by_change(levels: u32) -> u32 {
    2 * levels
}

/// An owner, and the difference between its offsets and the blocks. Adjacent blocks of one line are one record.
type Line = (u64, bool, bool, i64);

fn line_of(mapping: &Mapping) -> Line {
    let owner = mapping.owner;
    let has_offsets = owner.inode().is_some() && !owner.bmbt_block();
    let distance = if has_offsets { owner.offset().0 as i64 - i64::from(mapping.start.0) } else { 0 };
    (owner.number(), owner.attr_fork(), owner.bmbt_block(), distance)
}

fn owner_at((number, attr_fork, bmbt_block, distance): Line, block: u32) -> RmapOwner {
    let ino = InodeNumber(number);
    let offset = FileBlock((i64::from(block) + distance) as u64);
    match (number >> 63, attr_fork, bmbt_block) {
        (0, attr_fork, true) => RmapOwner::bmbt(ino, attr_fork),
        (0, true, false) => RmapOwner::attr(ino, offset),
        (0, false, false) => RmapOwner::data(ino, offset),
        _ => *SPECIAL.iter().find(|owner| owner.number() == number).unwrap(),
    }
}

const SPECIAL: [RmapOwner; 5] = [
    RmapOwner::SPACE_TREES,
    RmapOwner::INODE_TREES,
    RmapOwner::INODES,
    RmapOwner::REFCOUNT_TREE,
    RmapOwner::COW_STAGING,
];

/// Who has which blocks, and whether they are unwritten.
#[derive(Default)]
struct Model(BTreeMap<Line, BTreeMap<u32, bool>>);

impl Model {
    fn blocks(mapping: &Mapping) -> impl Iterator<Item = u32> {
        mapping.start.0..mapping.start.0 + mapping.len
    }

    fn set(&mut self, mapping: &Mapping) {
        let line = self.0.entry(line_of(mapping)).or_default();
        line.extend(Self::blocks(mapping).map(|block| (block, mapping.unwritten)));
    }

    fn clear(&mut self, mapping: &Mapping) {
        let line = self.0.get_mut(&line_of(mapping)).unwrap();
        Self::blocks(mapping).for_each(|block| assert!(line.remove(&block).is_some()));
    }

    /// Whether the line has all of the blocks in this state.
    fn has(&self, mapping: &Mapping) -> bool {
        let line = self.0.get(&line_of(mapping));
        line.is_some_and(|line| {
            Self::blocks(mapping).all(|block| line.get(&block) == Some(&mapping.unwritten))
        })
    }

    /// Whether the line has any of the blocks.
    fn has_any(&self, mapping: &Mapping) -> bool {
        let range = mapping.start.0..mapping.start.0 + mapping.len;
        self.0.get(&line_of(mapping)).is_some_and(|line| line.range(range).next().is_some())
    }

    fn used(&self, mapping: &Mapping) -> bool {
        let range = mapping.start.0..mapping.start.0 + mapping.len;
        self.0.values().any(|line| line.range(range.clone()).next().is_some())
    }

    /// The minimum number of records for it.
    fn records(&self) -> Vec<Mapping> {
        let mut all = Vec::new();
        for (&line, blocks) in &self.0 {
            let mut last: Option<Mapping> = None;
            for (&block, &unwritten) in blocks {
                match &mut last {
                    Some(run) if run.end() == block.into() && run.unwritten == unwritten => run.len += 1,
                    _ => {
                        all.extend(last.take());
                        let owner = owner_at(line, block);
                        last = Some(Mapping { start: AgBlock(block), len: 1, owner, unwritten });
                    }
                }
            }
            all.extend(last);
        }
        all.sort_by_key(Mapping::rank);
        all
    }
}

/// The tree's content, if it is sound: order, keys on both sides, fill.
fn records(store: &mut Store) -> (Vec<Mapping>, u32) {
    store.settle();
    let mut found = Vec::new();
    let census = check(store, |record| found.push(Mapping::of_record(record))).unwrap();
    assert_eq!(census.blocks, store.blocks());
    (found, census.levels)
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Map,
    Unmap,
    Convert,
    MapShared,
    UnmapShared,
    ConvertShared,
}

fn call(editor: &mut BtreeCursor<&mut Store>, call: Call, mapping: &Mapping) -> Result<()> {
    let does = match call {
        Call::Map => map,
        Call::Unmap => unmap,
        Call::Convert => convert,
        Call::MapShared => map_shared,
        Call::UnmapShared => unmap_shared,
        Call::ConvertShared => convert_shared,
    };
    does(editor, mapping)
}

fn damage(error: Error) -> RmapDamage {
    match error {
        Error::ReverseMap(damage) => damage,
        other => panic!("{other}"),
    }
}

fn mapping(start: u32, len: u32, owner: RmapOwner) -> Mapping {
    Mapping { start: AgBlock(start), len, owner, unwritten: false }
}

fn data(ino: u64, offset: u64) -> RmapOwner {
    RmapOwner::data(InodeNumber(ino), FileBlock(offset))
}

/// Blocks below this have one owner each. From here on they are shared.
const SHARED_FROM: u32 = 4000;
const END: u32 = 6000;

/// An owner that can have these blocks. There are few, so that neighbours meet again.
fn somebody(rng: &mut fastrand::Rng, start: u32) -> (RmapOwner, bool) {
    let ino = InodeNumber(131 + rng.u64(0..3));
    let offset = FileBlock(u64::from(start) + rng.u64(0..2) * 7000);
    if start >= SHARED_FROM {
        return (RmapOwner::data(ino, offset), rng.u8(0..4) == 0);
    }
    match rng.u8(0..10) {
        0 => (RmapOwner::attr(ino, offset), false),
        1 => (RmapOwner::bmbt(ino, rng.bool()), false),
        2..4 => (*rng.choice(&SPECIAL).unwrap(), false),
        _ => (RmapOwner::data(ino, offset), rng.bool()),
    }
}

struct History {
    rng: fastrand::Rng,
    model: Model,
    /// Records that are in the tree some of the time.
    known: Vec<Mapping>,
}

impl History {
    /// A mapping to map: where nobody has anything, or where others share it.
    fn fresh(&mut self, most: u32) -> Mapping {
        let rng = &mut self.rng;
        let start = rng.u32(8..END - most);
        let (owner, unwritten) = somebody(rng, start);
        let len = rng.u32(1..=most);
        Mapping { start: AgBlock(start), len, owner, unwritten }
    }

    /// A part of a record at either end or in the middle, or all of it.
    fn part(&mut self) -> Option<Mapping> {
        let rng = &mut self.rng;
        let whole = *rng.choice(&self.known)?;
        let (from, to) = (rng.u32(0..whole.len), rng.u32(0..whole.len));
        let (from, to) = (from.min(to), from.max(to) + 1);
        let (from, to) = match rng.u8(0..4) {
            0 => (0, whole.len),
            1 => (0, to),
            2 => (from, whole.len),
            _ => (from, to),
        };
        let part = whole.from(u64::from(whole.start.0 + from));
        Some(Mapping { len: to - from, ..part })
    }

    /// A call, and whether it should succeed.
    fn next(&mut self, grow: u8) -> Option<(Call, Mapping, bool)> {
        let kind = self.rng.u8(0..100);
        if kind < grow {
            let mapping = self.fresh(12);
            return Some(if mapping.start.0 < SHARED_FROM {
                // Blocks on both sides of the boundary would be mapped in both ways.
                let mapping = Mapping { len: mapping.len.min(SHARED_FROM - mapping.start.0), ..mapping };
                (Call::Map, mapping, !self.model.used(&mapping))
            } else if self.model.has_any(&mapping) {
                let first = Mapping { len: 1, ..mapping };
                // Later ones are not checked.
                if !self.model.has_any(&first) {
                    return None;
                }
                (Call::MapShared, mapping, false)
            } else {
                (Call::MapShared, mapping, true)
            });
        }
        let mut mapping = self.part()?;
        // Now and then something false.
        match self.rng.u8(0..20) {
            0 => mapping.unwritten = !mapping.unwritten,
            1 => mapping.len += self.rng.u32(1..4),
            2 => mapping.owner = somebody(&mut self.rng, mapping.start.0).0,
            _ => {}
        }
        let shared = mapping.start.0 >= SHARED_FROM;
        let has = self.model.has(&mapping);
        let converts =
            mapping.owner.inode().is_some() && !mapping.owner.attr_fork() && !mapping.owner.bmbt_block();
        Some(match (self.rng.bool(), shared) {
            (true, true) => (Call::ConvertShared, mapping, has),
            (true, false) => (Call::Convert, mapping, has && converts),
            (false, true) => (Call::UnmapShared, mapping, has),
            (false, false) => (Call::Unmap, mapping, has),
        })
    }
}

fn run(seed: u64, calls: u32, block_log: u8) -> (u32, u32) {
    let mut store = Store::with_block_root(block_log);
    let mut history =
        History { rng: fastrand::Rng::with_seed(seed), model: Model::default(), known: Vec::new() };
    let (mut deepest, mut refused, mut grow) = (0, 0, 90);
    for nth in 0..calls {
        if nth % 500 == 0 {
            grow = *history.rng.choice(&[90, 80, 60, 40, 20]).unwrap();
        }
        let Some((which, mapping, due)) = history.next(grow) else { continue };
        let (blocks, before) = (store.blocks(), (!due).then(|| records(&mut store).0));
        let mut editor = BtreeCursor::new(&mut store);
        let levels = editor.levels().unwrap();
        let done = call(&mut editor, which, &mapping);
        if let Some(before) = before {
            let found = damage(done.expect_err(&format!("seed {seed}, call {nth}: {which:?} {mapping}")));
            let named = Mapping { unwritten: mapping.unwritten, ..found.mapping };
            assert_eq!((found.ag, named), (AgNumber(3), mapping));
            assert_eq!(records(&mut store).0, before, "seed {seed}, call {nth}: a refusal changed something");
            refused += 1;
            continue;
        }
        done.unwrap_or_else(|error| panic!("seed {seed}, call {nth}: {which:?} {mapping}: {error}"));
        assert!(store.blocks() <= blocks + u64::from(blocks_to_change(levels)));
        assert!(blocks <= store.blocks() + u64::from(blocks_freed_by_change(levels)));
        match which {
            Call::Map | Call::MapShared => history.model.set(&mapping),
            Call::Unmap | Call::UnmapShared => history.model.clear(&mapping),
            Call::Convert | Call::ConvertShared => {
                history.model.set(&Mapping { unwritten: !mapping.unwritten, ..mapping });
            }
        }
        if nth % 7 == 0 {
            let (found, levels) = records(&mut store);
            assert_eq!(found, history.model.records(), "seed {seed}, call {nth}: {which:?} {mapping}");
            history.known = found;
            deepest = deepest.max(levels);
        }
        let probe = history.fresh(30);
        let editor = BtreeCursor::new(&mut store);
        let found = mapping_in(&editor, probe.start, probe.len).unwrap();
        assert_eq!(found.is_some(), history.model.used(&probe));
        let other = other_mapping_in(&editor, probe.start, probe.len, probe.owner).unwrap();
        let lines = history.model.0.iter().filter(|(line, _)| **line != line_of(&probe));
        let range = probe.start.0..probe.end() as u32;
        assert_eq!(
            other.is_some(),
            lines.into_iter().any(|(_, line)| line.range(range.clone()).next().is_some())
        );
    }
    // Down to nothing: every owner of blocks loses them.
    let (all, _) = records(&mut store);
    let mut editor = BtreeCursor::new(&mut store);
    for record in &all {
        call(&mut editor, if record.start.0 < SHARED_FROM { Call::Unmap } else { Call::UnmapShared }, record)
            .unwrap();
    }
    assert_eq!(records(&mut store), (Vec::new(), 1));
    (deepest, refused)
}

#[test]
fn random_histories() {
    for seed in 0..4 {
        println!("reverse map histories: seed {seed}");
        let (deepest, refused) = run(seed, 2500, 9);
        assert!(deepest >= 3, "seed {seed}: {deepest} levels");
        assert!(refused > 100, "seed {seed}: {refused} refusals");
    }
}

/// All ways in which blocks and their neighbours can lie, in one small tree, with or without records of others in
/// between.
#[test]
fn every_conversion() {
    let owner = |start: u32| data(131, u64::from(start));
    let part =
        |from: u32, to: u32, unwritten: bool| Mapping { unwritten, ..mapping(from, to - from, owner(from)) };
    let mut seen = 0;
    for shared in [false, true] {
        for (from, to) in [(20, 30), (20, 24), (24, 30), (24, 26)] {
            for neighbours in 0..9 {
                let (left, right) = (neighbours % 3, neighbours / 3);
                let mut store = Store::with_block_root(9);
                let mut editor = BtreeCursor::new(&mut store);
                let mut model = Model::default();
                let add = if shared { map_shared } else { map };
                // Neighbours in the other state, in the same state, or none; an unwritten extent in the middle.
                let mut parts = vec![part(20, 30, true)];
                parts.extend((left > 0).then(|| part(12, 20, left == 2)));
                parts.extend((right > 0).then(|| part(30, 33, right == 2)));
                if shared {
                    parts.extend(
                        (8..40).map(|block| mapping(block, 40 - block, data(140 + u64::from(block), 3))),
                    );
                    parts.push(mapping(10, 28, data(131, 500)));
                    parts.push(mapping(21, 10, data(128, 21)));
                }
                for one in &parts {
                    add(&mut editor, one).unwrap();
                    model.set(one);
                }
                let call = if shared { convert_shared } else { convert };
                call(&mut editor, &part(from, to, true)).unwrap();
                model.set(&part(from, to, false));
                let (found, _) = records(editor.store_mut());
                assert_eq!(found, model.records(), "{shared} {from}..{to}, neighbours {left} {right}");
                // And back.
                call(&mut editor, &part(from, to, false)).unwrap();
                model.set(&part(from, to, true));
                let (found, _) = records(editor.store_mut());
                assert_eq!(found, model.records(), "{shared} {from}..{to} back, neighbours {left} {right}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 72);
}

fn refused(done: Result<()>) -> RmapProblem {
    damage(done.unwrap_err()).problem
}

#[test]
fn what_is_not_so_is_refused_by_name() {
    let mut store = Store::with_block_root(9);
    let mut editor = BtreeCursor::new(&mut store);
    let file = mapping(100, 10, data(131, 7));
    map(&mut editor, &file).unwrap();
    let tree = mapping(120, 4, RmapOwner::SPACE_TREES);
    map(&mut editor, &tree).unwrap();
    let at = |start: u32, len: u32, owner: RmapOwner| mapping(start, len, owner);
    for (start, len, found) in
        [(95, 6, file), (109, 1, file), (109, 30, file), (90, 60, file), (122, 1, tree)]
    {
        let wanted = at(start, len, data(132, 0));
        assert_eq!(refused(map(&mut editor, &wanted)), RmapProblem::Mapped(found));
    }
    assert_eq!(refused(expect_free(&editor, AgBlock(99), 2)), RmapProblem::Mapped(file));
    expect_free(&editor, AgBlock(110), 10).unwrap();
    for (wanted, found) in [
        (at(50, 5, data(131, 7)), None),
        (at(100, 10, data(131, 8)), Some(file)),
        (at(100, 10, data(132, 7)), Some(file)),
        (at(100, 11, data(131, 7)), Some(file)),
        (at(99, 2, data(131, 6)), Some(file)),
        (at(100, 10, RmapOwner::attr(InodeNumber(131), FileBlock(7))), Some(file)),
        (at(100, 10, RmapOwner::bmbt(InodeNumber(131), false)), Some(file)),
        (at(120, 4, RmapOwner::INODE_TREES), Some(tree)),
        (at(122, 3, RmapOwner::SPACE_TREES), Some(tree)),
    ] {
        assert_eq!(refused(unmap(&mut editor, &wanted)), RmapProblem::NotMapped(found), "{wanted}");
        assert_eq!(refused(unmap_shared(&mut editor, &wanted)), RmapProblem::NotMapped(found), "{wanted}");
    }
    let unwritten = Mapping { unwritten: true, ..file };
    assert_eq!(refused(unmap(&mut editor, &unwritten)), RmapProblem::State);
    assert_eq!(refused(convert(&mut editor, &unwritten)), RmapProblem::State);
    assert_eq!(refused(convert_shared(&mut editor, &unwritten)), RmapProblem::State);
    // The same blocks at the same offset once more: from the first block on, and from within.
    assert_eq!(refused(map_shared(&mut editor, &file)), RmapProblem::Mapped(file));
    assert_eq!(refused(map_shared(&mut editor, &at(104, 9, data(131, 11)))), RmapProblem::Mapped(file));
    let text = unmap(&mut editor, &at(100, 10, data(132, 7))).unwrap_err().to_string();
    assert_eq!(
        text,
        "the reverse map of group 3 is damaged: 10 blocks from 100 of inode 132 (data fork, from block 7): not mapped, \
         but 10 blocks from 100 of inode 131 (data fork, from block 7)"
    );
    assert_eq!(records(&mut store).0, [file, tree]);
}

#[test]
fn what_no_map_can_have_is_refused() {
    let mut store = Store::with_block_root(12);
    let mut editor = BtreeCursor::new(&mut store);
    let (ino, last) = (InodeNumber(131), editor.store().geometry().ag_blocks - 1);
    let unwritten = |owner| Mapping { unwritten: true, ..mapping(100, 1, owner) };
    for (wanted, check) in [
        (mapping(100, 0, data(131, 0)), "length"),
        (mapping(last, 2, data(131, 0)), "end"),
        (mapping(u32::MAX, u32::MAX, data(131, 0)), "end"),
        (mapping(0, 1, data(131, 0)), "owner of headers"),
        (mapping(0, 2, RmapOwner::HEADERS), "owner of headers"),
        (mapping(100, 1, RmapOwner::ANY), "owner"),
        (mapping(100, 1, data(0, 0)), "owner"),
        (mapping(100, 1, data(u64::MAX >> 1, 0)), "owner"),
        (mapping(100, 2, data(131, (1 << 54) - 1)), "offset"),
        (mapping(100, 2, data(131, 1 << 63)), "offset"),
        (unwritten(RmapOwner::attr(ino, FileBlock(0))), "flags"),
        (unwritten(RmapOwner::bmbt(ino, false)), "flags"),
        (unwritten(RmapOwner::INODES), "offset of an owner that has none"),
    ] {
        for call in [map, map_shared, unmap_shared, convert, convert_shared] {
            assert_eq!(refused(call(&mut editor, &wanted)), RmapProblem::Invalid(check), "{wanted}");
        }
    }
    map(&mut editor, &mapping(0, 1, RmapOwner::HEADERS)).unwrap();
    map(&mut editor, &mapping(last, 1, RmapOwner::LOG)).unwrap();
    map(&mut editor, &mapping(100, 1, RmapOwner::attr(ino, FileBlock(0)))).unwrap();
    let attr = mapping(100, 1, RmapOwner::attr(ino, FileBlock(0)));
    assert_eq!(refused(convert(&mut editor, &attr)), RmapProblem::Invalid("flags"));
    // An impossible record is met on the way.
    let bad = Mapping { len: 0, ..mapping(200, 1, data(131, 0)) };
    editor.insert(bad.record()).unwrap();
    assert_eq!(refused(map(&mut editor, &mapping(200, 1, data(132, 0)))), RmapProblem::Invalid("length"));
}

#[test]
fn whoever_it_is_loses_blocks() {
    let any = |start, len| mapping(start, len, RmapOwner::ANY);
    let mut store = Store::with_block_root(9);
    let mut editor = BtreeCursor::new(&mut store);
    let owners = [
        Mapping { unwritten: true, ..mapping(100, 10, data(131, 7)) },
        mapping(110, 10, RmapOwner::bmbt(InodeNumber(131), false)),
        mapping(120, 10, RmapOwner::INODE_TREES),
    ];
    for owner in &owners {
        map(&mut editor, owner).unwrap();
    }
    unmap(&mut editor, &any(50, 50)).unwrap();
    unmap(&mut editor, &any(130, 50)).unwrap();
    for across in [any(99, 2), any(109, 2), any(129, 2), any(99, 32)] {
        assert!(matches!(refused(unmap(&mut editor, &across)), RmapProblem::NotMapped(Some(_))));
    }
    assert_eq!(records(editor.store_mut()).0, owners);
    for start in [103, 113, 123] {
        unmap(&mut editor, &any(start, 4)).unwrap();
        unmap(&mut editor, &any(start, 4)).unwrap();
    }
    let left = owners.iter().flat_map(|owner| {
        let before = owner.until(AgBlock(owner.start.0 + 3));
        [before, owner.from(u64::from(owner.start.0) + 7)]
    });
    assert_eq!(records(editor.store_mut()).0, left.collect::<Vec<_>>());
    // Blocks that two owners share cannot be freed.
    map_shared(&mut editor, &mapping(200, 4, data(131, 50))).unwrap();
    map_shared(&mut editor, &mapping(200, 4, data(132, 50))).unwrap();
    assert!(matches!(refused(unmap(&mut editor, &any(200, 4))), RmapProblem::Mapped(_)));
}

/// A record that now begins later or earlier than another one of the same blocks must change places with it.
#[test]
fn records_pass_each_other_where_blocks_are_shared() {
    let mut store = Store::with_block_root(9);
    let mut editor = BtreeCursor::new(&mut store);
    let long = mapping(100, 400, data(131, 0));
    map_shared(&mut editor, &long).unwrap();
    let short: Vec<_> =
        (0..100).map(|nth| mapping(102 + nth * 3, 2, data(132 + u64::from(nth % 3), 9))).collect();
    for one in &short {
        map_shared(&mut editor, one).unwrap();
    }
    // Moves behind them, and back before them.
    unmap_shared(&mut editor, &mapping(100, 350, data(131, 0))).unwrap();
    assert_eq!(records(editor.store_mut()).0.last(), Some(&mapping(450, 50, data(131, 350))));
    map_shared(&mut editor, &mapping(100, 350, data(131, 0))).unwrap();
    assert_eq!(records(editor.store_mut()).0.first(), Some(&long));
    assert_eq!(records(editor.store_mut()).0[1..], short);
    // The left neighbour is far away in the tree's order.
    map_shared(&mut editor, &mapping(500, 5, data(131, 400))).unwrap();
    assert_eq!(records(editor.store_mut()).0[0].len, 405);
}

#[test]
fn damage_is_an_error_and_never_a_circle() {
    let mut sound = Store::with_block_root(9);
    let mut editor = BtreeCursor::new(&mut sound);
    for nth in 0..400 {
        let one = mapping(8 + nth * 10, 1 + nth * 7 % 9, data(131 + u64::from(nth % 4), u64::from(nth) * 20));
        map_shared(&mut editor, &one).unwrap();
    }
    sound.settle();
    let mut failed = 0;
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut store = sound.clone();
        let blocks = store.blocks() as usize;
        for _ in 0..rng.usize(1..4) {
            let other = store.block_mut(rng.usize(0..blocks)).unwrap().clone();
            let block = store.block_mut(rng.usize(0..blocks)).unwrap();
            match rng.u32(0..3) {
                0 => *block = other,
                1 => block[rng.usize(0..512)] ^= 1 << rng.u32(0..8),
                _ => block[rng.usize(4..200)] = rng.u8(..),
            }
        }
        let mut editor = BtreeCursor::new(&mut store);
        for _ in 0..60 {
            let start = rng.u32(8..5000);
            let one = mapping(start, rng.u32(1..20), data(131 + rng.u64(0..4), start.into()));
            let which = *rng.choice(&[Call::MapShared, Call::UnmapShared, Call::Map, Call::Unmap]).unwrap();
            failed += u32::from(matches!(call(&mut editor, which, &one), Err(Error::Corrupt { .. })));
        }
        let mut shown = 0;
        let _ = editor.visit(
            |_| true,
            |_| {
                shown += 1;
                Ok(std::ops::ControlFlow::Continue(()))
            },
        );
        assert!(shown < 21 * (blocks + 60), "seed {seed}: {shown}");
    }
    assert!(failed > 100, "{failed}");
}
