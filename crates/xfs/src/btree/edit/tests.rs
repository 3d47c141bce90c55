//! Random histories against a map, on trees of several kinds and block sizes; and damage.

use super::memory::MemoryStore;
use super::*;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use xfs_format::bmbt::{BmbtKey, BmbtRecord, Extent};
use xfs_format::btree::{Bmbt, Bnobt, Cntbt, Inobt, Refcountbt, Rmapbt};
use xfs_format::node_mut::same;
use xfs_format::records::{AllocRecord, InobtRecord, RefcountRecord, RmapRecord};
use xfs_format::types::{FileBlock, FsBlock};

/// Maximum number of blocks that inserting one record can allocate in a tree of this many levels, counting a root
/// within an inode: every block of a path is split, and the root as well.
const fn blocks_to_insert(levels: u32) -> u32 {
    levels + 1
}

/// Maximum number of blocks that deleting one record can free.
const fn blocks_freed_by_delete(levels: u32) -> u32 {
    levels
}

/// A tree whose records can be made from a number that orders them and another number.
trait Sample: Tree {
    fn sample(order: u32, content: u32) -> Self::Record;
}

impl Sample for Bnobt {
    fn sample(order: u32, content: u32) -> AllocRecord {
        AllocRecord { startblock: order.into(), blockcount: content.into() }
    }
}
impl Sample for Cntbt {
    fn sample(order: u32, _content: u32) -> AllocRecord {
        AllocRecord { blockcount: (order / 7).into(), startblock: (order % 7).into() }
    }
}
impl Sample for Inobt {
    fn sample(order: u32, content: u32) -> InobtRecord {
        InobtRecord { startino: order.into(), counts: [0; 4], free: u64::from(content).into() }
    }
}
impl Sample for Refcountbt {
    fn sample(order: u32, content: u32) -> RefcountRecord {
        RefcountRecord { startblock: order.into(), blockcount: 1.into(), refcount: content.into() }
    }
}
impl Sample for Rmapbt {
    fn sample(order: u32, content: u32) -> RmapRecord {
        let offset = u64::from(content);
        let blockcount = (content % 1000 + 1).into();
        RmapRecord { startblock: order.into(), blockcount, owner: 131.into(), offset: offset.into() }
    }
}
impl Sample for Bmbt {
    fn sample(order: u32, content: u32) -> BmbtRecord {
        let (startoff, startblock) = (FileBlock(order.into()), FsBlock(content.into()));
        Extent { startoff, startblock, blockcount: 1, unwritten: content % 2 == 1 }.pack()
    }
}

/// The parameters of a history.
#[derive(Clone, Copy)]
struct History {
    seed: u64,
    ops: u32,
    /// Ranks are below this.
    span: u32,
    /// The whole tree is checked after every this many changes.
    check_every: u32,
}

type Map<T> = BTreeMap<<T as Tree>::Rank, <T as Tree>::Record>;

fn equal<T: Tree>(found: Option<T::Record>, expected: Option<&T::Record>) -> bool {
    match (found, expected) {
        (Some(found), Some(expected)) => same(&found, expected),
        (None, None) => true,
        _ => false,
    }
}

/// The tree has the same content as the map, and is sound.
fn compare<T: Sample>(store: &mut MemoryStore<T>, map: &Map<T>) -> Census {
    store.settle();
    let blocks = store.blocks();
    let mut expected = map.values();
    let census = check(store, |record| {
        assert!(equal::<T>(Some(*record), expected.next()), "{record:?}");
    })
    .unwrap();
    assert_eq!((census.records, census.blocks), (map.len() as u64, blocks));
    census
}

/// Changes a tree and a map in phases that grow and shrink them, at random places, upwards and downwards.
fn run<T: Sample>(mut store: MemoryStore<T>, history: History) -> u32 {
    let mut rng = fastrand::Rng::with_seed(history.seed);
    let mut map = Map::<T>::new();
    let mut editor = BtreeCursor::new(&mut store);
    let (mut deepest, mut grow, mut style, mut next) = (0, 80, 0, 0);
    for op in 0..history.ops {
        if op % 4096 == 0 {
            (grow, style) = (*rng.choice(&[95, 70, 50, 30, 5]).unwrap(), rng.u32(0..4));
            next = rng.u32(0..history.span);
        }
        let order = match style {
            0 => next.wrapping_add(1) % history.span,
            1 => next.checked_sub(1).unwrap_or(history.span - 1),
            _ => rng.u32(0..history.span),
        };
        next = order;
        let record = T::sample(order, rng.u32(..));
        let rank = T::record_rank(&record);
        let before = editor.store().blocks();
        let levels = editor.levels().unwrap();
        if rng.u32(0..100) < grow {
            if map.contains_key(&rank) {
                assert!(equal::<T>(editor.seek_eq(rank).unwrap(), map.get(&rank)));
                editor.update(record).unwrap();
            } else {
                // Half of the time from wherever the cursor is.
                if rng.bool() {
                    assert!(editor.seek_eq(rank).unwrap().is_none());
                }
                editor.insert(record).unwrap();
                let allocated = editor.store().blocks() - before;
                assert!(allocated <= u64::from(blocks_to_insert(levels)));
            }
            map.insert(rank, record);
            assert!(equal::<T>(editor.get().unwrap(), Some(&record)));
        } else {
            let found = editor.seek_ge(rank).unwrap();
            let expected = map.range(rank..).next().map(|(rank, record)| (*rank, *record));
            assert!(equal::<T>(found, expected.as_ref().map(|(_, record)| record)));
            if let Some((rank, record)) = expected {
                assert!(equal::<T>(editor.delete().unwrap(), Some(&record)));
                map.remove(&rank);
                assert!(before - editor.store().blocks() <= u64::from(blocks_freed_by_delete(levels)));
                assert!(editor.get().unwrap().is_none());
                let behind = map.range((Bound::Excluded(rank), Bound::Unbounded)).next();
                let ahead = map.range(..rank).next_back();
                if rng.bool() {
                    assert!(equal::<T>(editor.next().unwrap(), behind.map(|(_, record)| record)));
                    assert!(equal::<T>(editor.prev().unwrap(), ahead.map(|(_, record)| record)));
                } else {
                    assert!(equal::<T>(editor.prev().unwrap(), ahead.map(|(_, record)| record)));
                    assert!(equal::<T>(editor.next().unwrap(), behind.map(|(_, record)| record)));
                }
            }
        }
        let probe = T::record_rank(&T::sample(rng.u32(0..history.span), 0));
        let expected = map.range(..=probe).next_back().map(|(_, record)| record);
        assert!(equal::<T>(editor.seek_le(probe).unwrap(), expected));
        if expected.is_none() {
            assert!(equal::<T>(editor.next().unwrap(), map.values().next()));
        }
        if op % 3 == 0 {
            let [before, behind] = editor.around(probe).unwrap();
            assert!(equal::<T>(before, expected));
            let next = map.range((Bound::Excluded(probe), Bound::Unbounded)).next().map(|(_, record)| record);
            assert!(equal::<T>(behind, next));
        }
        if op % history.check_every == 0 {
            deepest = deepest.max(compare(editor.store_mut(), &map).levels);
        }
    }
    assert!(equal::<T>(editor.first().unwrap(), map.values().next()));
    for expected in map.values().skip(1) {
        assert!(equal::<T>(editor.next().unwrap(), Some(expected)));
    }
    assert!(editor.next().unwrap().is_none());
    assert!(equal::<T>(editor.last().unwrap(), map.values().next_back()));
    for expected in map.values().rev().skip(1) {
        assert!(equal::<T>(editor.prev().unwrap(), Some(expected)));
    }
    assert!(editor.prev().unwrap().is_none());
    // Down to nothing, from either end.
    while let Some(record) = if rng.bool() { editor.first().unwrap() } else { editor.last().unwrap() } {
        editor.delete().unwrap();
        map.remove(&T::record_rank(&record));
        if (map.len() as u32).is_multiple_of(history.check_every) {
            compare(editor.store_mut(), &map);
        }
    }
    assert_eq!(editor.store().blocks(), 1);
    deepest
}

/// Runs all kinds of trees through histories of this many steps.
fn run_all(seed: u64, ops: u32, check_every: u32, block_log: u8) {
    println!("btree histories: seed {seed}, {ops} steps, blocks of 2^{block_log}");
    let history = History { seed, ops, span: 20_000, check_every };
    assert!(run(MemoryStore::<Bnobt>::with_block_root(block_log), history) > 1);
    assert!(run(MemoryStore::<Cntbt>::with_block_root(block_log), history) > 1);
    assert!(run(MemoryStore::<Inobt>::with_block_root(block_log), history) > 1);
    assert!(run(MemoryStore::<Refcountbt>::with_block_root(block_log), history) > 1);
    assert!(run(MemoryStore::<Rmapbt>::with_block_root(block_log), history) > 1);
    let key = BmbtKey { startoff: 0.into() };
    for bytes in [24, 100, 336] {
        assert!(run(MemoryStore::<Bmbt>::with_inline_root(block_log, bytes, &key), history) > 1);
    }
}

#[test]
fn random_histories_in_small_blocks() {
    run_all(1, 12_000, 197, 10);
}

#[test]
fn random_histories_in_large_blocks() {
    run_all(2, 12_000, 499, 12);
}

/// `cargo test --release -p uxfs-xfs --lib long_histories -- --ignored --nocapture`; `BTREE_SEED` replays a run, and
/// `BTREE_STEPS` sets its length.
#[test]
#[ignore = "takes long"]
fn long_histories() {
    let number = |name| std::env::var(name).ok().map(|value: String| value.parse().expect("a number"));
    let seed = number("BTREE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let ops = number("BTREE_STEPS").unwrap_or(400_000) as u32;
    for block_log in [10, 12, 16] {
        run_all(seed, ops, 4999, block_log);
    }
}

#[test]
fn records_that_come_in_order_fill_blocks() {
    for upwards in [true, false] {
        let mut store = MemoryStore::<Bnobt>::with_block_root(10);
        let mut editor = BtreeCursor::new(&mut store);
        for nth in 0..20_000 {
            let order = if upwards { nth } else { 20_000 - nth };
            editor.insert(Bnobt::sample(order, 1)).unwrap();
        }
        let census = check(&mut store, |_| ()).unwrap();
        let full = 20_000_u64.div_ceil((1024 - 56) / 8);
        assert!(census.blocks < full * 21 / 20, "{} blocks for {full}", census.blocks);
    }
}

#[test]
fn a_record_twice_is_damage() {
    let mut store = MemoryStore::<Bnobt>::with_block_root(10);
    let mut editor = BtreeCursor::new(&mut store);
    editor.insert(Bnobt::sample(5, 1)).unwrap();
    assert!(matches!(editor.insert(Bnobt::sample(5, 2)), Err(Error::Corrupt { .. })));
    editor.insert(Bnobt::sample(9, 2)).unwrap();
    assert!(matches!(editor.update(Bnobt::sample(5, 2)), Err(Error::Corrupt { .. })));
}

#[test]
fn no_more_blocks_is_an_error() {
    let mut store = MemoryStore::<Inobt>::with_block_root(10);
    store.left = 2;
    let mut editor = BtreeCursor::new(&mut store);
    let failed = (0..500).find(|&order| editor.insert(Inobt::sample(order, 0)).is_err());
    assert!(failed.is_some());
}

#[test]
fn a_root_within_an_inode_makes_room_and_gives_up() {
    let mut store = MemoryStore::<Bmbt>::with_inline_root(10, 336, &BmbtKey { startoff: 0.into() });
    let mut editor = BtreeCursor::new(&mut store);
    for order in 0..900 {
        editor.insert(Bmbt::sample(order, 1)).unwrap();
    }
    assert_eq!(editor.levels().unwrap(), 2);
    let fork = editor.fit_root(68).unwrap();
    assert_eq!(editor.levels().unwrap(), 3);
    editor.store_mut().set_root(RootRef::Inline(&fork)).unwrap();
    for order in 900..2000 {
        editor.insert(Bmbt::sample(order, 1)).unwrap();
    }
    assert_eq!(check(editor.store_mut(), |_| ()).unwrap().records, 2000);
    assert!(editor.uproot().is_err());
    while editor.last().unwrap().is_some_and(|record| record.startoff() > 5) {
        editor.delete().unwrap();
    }
    editor.uproot().unwrap();
    assert_eq!(editor.store().blocks(), 0);
}

#[test]
fn damage_is_an_error_and_never_a_circle() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut store = MemoryStore::<Bmbt>::with_inline_root(10, 100, &BmbtKey { startoff: 0.into() });
        let mut editor = BtreeCursor::new(&mut store);
        for _ in 0..1500 {
            let record = Bmbt::sample(rng.u32(0..100_000), 1);
            if editor.seek_eq(record.startoff()).unwrap().is_none() {
                editor.insert(record).unwrap();
            }
        }
        let blocks = store.blocks() as usize;
        for _ in 0..rng.usize(1..4) {
            let other = store.block_mut(rng.usize(0..blocks)).unwrap().clone();
            let block = store.block_mut(rng.usize(0..blocks)).unwrap();
            match rng.u32(0..3) {
                0 => *block = other,
                1 => block[rng.usize(0..1024)] ^= 1 << rng.u32(0..8),
                _ => block[rng.usize(4..72)] = rng.u8(..),
            }
        }
        let mut editor = BtreeCursor::new(&mut store);
        for _ in 0..3000 {
            let order = rng.u32(0..100_000);
            let done = if rng.bool() {
                editor.insert(Bmbt::sample(order, 1))
            } else {
                editor.seek_ge(order.into()).and_then(|_| editor.delete()).map(|_| ())
            };
            if done.is_err() {
                break;
            }
        }
        let mut steps = 0;
        let _ = editor.first();
        while let Ok(Some(_)) = editor.next() {
            steps += 1;
            assert!(steps < 100_000, "seed {seed}");
        }
    }
}

/// A tree with many leaves and inner blocks, in small blocks.
fn three_levels() -> MemoryStore<Rmapbt> {
    let mut store = MemoryStore::<Rmapbt>::with_block_root(9);
    let mut editor = BtreeCursor::new(&mut store);
    for order in 0..500 {
        editor.insert(Rmapbt::sample(order, 0)).unwrap();
    }
    assert_eq!(editor.levels().unwrap(), 3);
    store
}

/// The pointers of an inner block, behind header and keys, and their number.
fn pointers(block: &mut [u8]) -> (&mut [[u8; 4]], usize) {
    let at = Rmapbt::header_len(true) + Rmapbt::max_children(512 - Rmapbt::header_len(true)) * 40;
    let count = usize::from(u16::from_be_bytes([block[6], block[7]]));
    (block[at..].as_chunks_mut().0, count)
}

fn level(block: &[u8]) -> u16 {
    u16::from_be_bytes([block[4], block[5]])
}

#[test]
fn a_visit_shows_what_is_wanted_in_order() {
    let mut store = three_levels();
    let editor = BtreeCursor::new(&mut store);
    let mut shown = Vec::new();
    let wanted = |key: &xfs_format::records::RmapKeyPair| {
        key.low.startblock.get() <= 300 && key.high.startblock.get() >= 200
    };
    let show = |record: &RmapRecord| {
        shown.push(record.startblock.get());
        Ok(if record.startblock.get() == 250 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    editor.visit(wanted, show).unwrap();
    assert!(shown.is_sorted() && shown.first() <= Some(&200) && shown.last() == Some(&250));
    // Whole leaves, but no more of them than have such records.
    assert!(shown.len() < 51 + 19, "{}", shown.len());
}

#[test]
fn a_visit_meets_no_block_twice() {
    let sound = three_levels();
    let inner = |store: &mut MemoryStore<Rmapbt>, wanted: u16| -> Vec<usize> {
        let blocks = 0..store.blocks() as usize;
        blocks.filter(|&nth| level(store.block_mut(nth).unwrap()) == wanted).collect()
    };
    let visit = |store: &mut MemoryStore<Rmapbt>| {
        let mut shown = 0;
        let done = BtreeCursor::new(store).visit(
            |_| true,
            |_| {
                shown += 1;
                Ok(ControlFlow::Continue(()))
            },
        );
        done.map(|()| shown)
    };
    assert_eq!(visit(&mut sound.clone()).unwrap(), 500);
    // All child pointers are the same.
    let mut store = sound.clone();
    for nth in inner(&mut store, 1) {
        let (pointers, count) = pointers(store.block_mut(nth).unwrap());
        let first = pointers[0];
        pointers[..count].fill(first);
    }
    assert!(visit(&mut store).is_err());
    // The last child of one block is another block's first, which its own block's keys do not rule out.
    let mut store = sound.clone();
    let root = inner(&mut store, 2)[0];
    let below = pointers(store.block_mut(root).unwrap()).0[..2].to_vec();
    let mut children = Vec::new();
    for pointer in below {
        let block = store.modify(u32::from_be_bytes(pointer).into(), &[]).unwrap();
        children.push(pointers(block).0[0]);
    }
    let first = u32::from_be_bytes(pointers(store.block_mut(root).unwrap()).0[0]);
    let (of_first, count) = pointers(store.modify(first.into(), &[]).unwrap());
    of_first[count - 1] = children[1];
    assert!(visit(&mut store).is_err());
}
