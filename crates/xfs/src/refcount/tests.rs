//! Histories against a model that knows the owners of each block; interruptions at every piece; and damage.

use super::record::{Counted, Domain, Merged};
use super::*;
use crate::btree::edit::check;
use crate::btree::edit::memory::MemoryStore;
use proptest::prelude::*;
use xfs_format::node_mut::same;

type Store = MemoryStore<Refcountbt>;

/// Smaller blocks than the format allows, so that trees get three levels from some thousand records on.
const BLOCK_LOG: u8 = 9;

/// The state of a block in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Owners(u32),
    Staged,
}

/// The blocks of a part of the group, from block 1 on.
#[derive(Clone, Debug)]
struct Model(Vec<Use>);

impl Model {
    fn run(from: usize, len: usize) -> AgExtent {
        AgExtent::new(from as u32 + 1, len as u32)
    }

    /// The records, merged as far as possible.
    fn records(&self) -> Vec<RefcountRecord> {
        let (mut shared, mut staged) = (Merged::default(), Merged::default());
        for (at, state) in self.0.iter().enumerate() {
            let run = Self::run(at, 1);
            match *state {
                Use::Owners(count) if count > 1 => shared.push(Counted { run, count }),
                Use::Staged => staged.push(Counted { run, count: 1 }),
                _ => {}
            }
        }
        let shared = shared.0.into_iter().map(|counted| counted.record(Domain::Shared));
        shared.chain(staged.0.into_iter().map(|counted| counted.record(Domain::Cow))).collect()
    }

    /// How many blocks from `from`, and at most `len`, have this state.
    fn reach(&self, from: usize, len: usize, wanted: impl Fn(Use) -> bool) -> usize {
        self.0[from..].iter().take(len).take_while(|state| wanted(**state)).count()
    }

    /// The length of the first `limit` stretches with equal count.
    fn pieces(&self, mut from: usize, len: usize, limit: u32) -> usize {
        let (start, end) = (from, from + len);
        for _ in 0..limit {
            if from < end {
                let state = self.0[from];
                from += self.reach(from, end - from, |other| other == state);
            }
        }
        from - start
    }

    /// Changes counts. Returns the blocks that are free now, and those that have a single owner left.
    fn adjust(&mut self, from: usize, len: usize, how: Adjust) -> (Vec<AgExtent>, Vec<AgExtent>) {
        let (mut freed, mut single) = (Vec::new(), Vec::new());
        for at in from..from + len {
            let Use::Owners(count) = self.0[at] else { panic!("block without owner") };
            self.0[at] = match (count, how) {
                (u32::MAX, _) => Use::Owners(u32::MAX),
                (count, Adjust::Increase) => Use::Owners(count + 1),
                (1, Adjust::Decrease) => {
                    freed.push(Self::run(at, 1));
                    Use::Free
                }
                (count, Adjust::Decrease) => {
                    if count == 2 {
                        single.push(Self::run(at, 1));
                    }
                    Use::Owners(count - 1)
                }
            };
        }
        AgExtent::normalize(&mut freed);
        AgExtent::normalize(&mut single);
        (freed, single)
    }

    fn set(&mut self, from: usize, len: usize, state: Use) {
        self.0[from..from + len].fill(state);
    }
}

/// A tree with these records, its blocks as full as possible.
fn store_of(records: &[RefcountRecord]) -> Store {
    let mut store = Store::with_block_root(BLOCK_LOG);
    let mut editor = BtreeCursor::new(&mut store);
    for record in records {
        editor.insert(*record).unwrap();
    }
    store.settle();
    store
}

fn records_of(store: &mut Store) -> Vec<RefcountRecord> {
    let mut records = Vec::new();
    store.settle();
    check(store, |record| records.push(*record)).unwrap();
    records
}

fn assert_same(found: &[RefcountRecord], expected: &[RefcountRecord]) {
    assert_eq!(found.len(), expected.len(), "{found:?} is not {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(same(found, expected), "{found:?} is not {expected:?}");
    }
}

/// Checks that changes log no more blocks than announced.
fn assert_room(store: &Store, levels: u32, changes: u32) {
    let room = blocks_of_changes(store.geometry(), levels, changes) as usize;
    let changed = store.changed_blocks();
    assert!(changed <= room, "{changed} blocks, and room for {room}: {levels} levels, {changes} changes");
}

/// One step of a history. Its numbers are adjusted to fit.
#[derive(Clone, Debug)]
enum Step {
    Adjust {
        from: usize,
        len: usize,
        how: Adjust,
        pieces: u32,
    },
    /// Free blocks get an owner. The tree does not know that.
    Allocate {
        from: usize,
        len: usize,
    },
    AddCow {
        from: usize,
        len: usize,
    },
    RemoveCow {
        from: usize,
        len: usize,
        to_file: bool,
    },
    FindShared {
        from: usize,
        len: usize,
        whole: bool,
    },
}

/// Applies a step to both, and compares everything that can be seen.
fn apply(store: &mut Store, model: &mut Model, step: &Step) {
    let at = |from: &usize| from % model.0.len();
    match step {
        Step::Adjust { from, len, how, pieces } => {
            let mut from = at(from);
            let mut left = model.reach(from, *len, |state| matches!(state, Use::Owners(_)));
            let mut transactions = 0;
            while left > 0 {
                let levels = BtreeCursor::new(&mut *store).levels().unwrap();
                let expected = model.pieces(from, left, (*pieces).max(1));
                let run = Model::run(from, left);
                let adjusted = adjust(&mut BtreeCursor::new(&mut *store), run, *how, *pieces).unwrap();
                assert_room(store, levels, changes_of_adjust((*pieces).max(1)));
                let (freed, single) = model.adjust(from, expected, *how);
                assert_eq!(adjusted.done as usize, expected);
                assert_eq!(adjusted.freed.to_vec(), freed);
                assert_eq!(adjusted.single.len().min(1), single.len().min(1));
                let mut found = adjusted.single.to_vec();
                AgExtent::normalize(&mut found);
                assert_eq!(found, single);
                assert!(adjusted.freed.len() as u32 <= (*pieces).max(1));
                assert!(adjusted.changes <= changes_of_adjust((*pieces).max(1)), "{adjusted:?}");
                // Whenever it is interrupted, it is as if this had been everything.
                if model.0.len() < 1000 || transactions % 16 == 0 {
                    assert_same(&records_of(store), &model.records());
                }
                store.settle();
                (from, left) = (from + expected, left - expected);
                transactions += 1;
                assert!(transactions <= len + 1);
            }
        }
        Step::Allocate { from, len } => {
            let from = at(from);
            let len = model.reach(from, *len, |state| state == Use::Free);
            model.set(from, len, Use::Owners(1));
        }
        Step::AddCow { from, len } => {
            let from = at(from);
            let len = model.reach(from, *len, |state| state == Use::Free);
            if len > 0 {
                let levels = BtreeCursor::new(&mut *store).levels().unwrap();
                add_cow(&mut BtreeCursor::new(&mut *store), Model::run(from, len)).unwrap();
                assert_room(store, levels, COW_CHANGES);
                model.set(from, len, Use::Staged);
            }
        }
        Step::RemoveCow { from, len, to_file } => {
            let from = at(from);
            let len = model.reach(from, *len, |state| state == Use::Staged);
            if len > 0 {
                let levels = BtreeCursor::new(&mut *store).levels().unwrap();
                remove_cow(&mut BtreeCursor::new(&mut *store), Model::run(from, len)).unwrap();
                assert_room(store, levels, COW_CHANGES);
                model.set(from, len, if *to_file { Use::Owners(1) } else { Use::Free });
            }
        }
        Step::FindShared { from, len, whole } => {
            let from = at(from);
            let len = (*len).min(model.0.len() - from);
            let is_shared = |state| matches!(state, Use::Owners(count) if count > 1);
            let skipped = model.reach(from, len, |state| !is_shared(state));
            let expected = (skipped < len).then(|| {
                let (first, left) = (from + skipped, len - skipped);
                let blocks = if *whole {
                    model.reach(first, left, is_shared)
                } else {
                    model.reach(first, left, |state| state == model.0[first])
                };
                Model::run(first, blocks)
            });
            let run = Model::run(from, len);
            assert_eq!(find_shared(&mut BtreeCursor::new(&mut *store), run, *whole).unwrap(), expected);
        }
    }
    assert_same(&records_of(store), &model.records());
    assert_eq!(leftovers(store), staging(model));
}

/// All staging extents, one after the other.
fn leftovers(store: &mut Store) -> Vec<AgExtent> {
    let mut editor = BtreeCursor::new(store);
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(run) = first_cow(&mut editor, AgBlock(from)).unwrap() {
        found.push(run);
        from = run.end() as u32;
    }
    found
}

fn staging(model: &Model) -> Vec<AgExtent> {
    let mut runs: Vec<_> =
        (0..model.0.len()).filter(|at| model.0[*at] == Use::Staged).map(|at| Model::run(at, 1)).collect();
    AgExtent::normalize(&mut runs);
    runs
}

fn any_use() -> impl Strategy<Value = Use> {
    prop_oneof![
        3 => Just(Use::Free),
        6 => (1_u32..4).prop_map(Use::Owners),
        2 => (COUNT_MAX - 2..=COUNT_MAX).prop_map(Use::Owners),
        2 => Just(Use::Staged),
    ]
}

fn any_model(stretches: std::ops::Range<usize>) -> impl Strategy<Value = Model> {
    prop::collection::vec((any_use(), 1_usize..4), stretches).prop_map(|stretches| {
        Model(stretches.into_iter().flat_map(|(state, len)| std::iter::repeat_n(state, len)).collect())
    })
}

/// Some thousand stretches: too many for reducing failures one by one.
fn large_model(seed: u64) -> Model {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = Model(Vec::new());
    for _ in 0..5_000 {
        let state = match rng.u32(0..12) {
            0 => Use::Free,
            1 => Use::Staged,
            2 => Use::Owners(COUNT_MAX),
            count => Use::Owners(count / 3 + 1),
        };
        let blocks = model.0.len() + rng.usize(1..4);
        model.0.resize(blocks, state);
    }
    model
}

fn any_step(longest: usize) -> impl Strategy<Value = Step> {
    let place = (0_usize..1 << 20, 1..=longest);
    prop_oneof![
        6 => (place.clone(), prop::bool::ANY, prop_oneof![4 => 0_u32..5, 1 => 5_u32..200]).prop_map(|((from, len), up, pieces)| {
            Step::Adjust { from, len, how: if up { Adjust::Increase } else { Adjust::Decrease }, pieces }
        }),
        1 => place.clone().prop_map(|(from, len)| Step::Allocate { from, len }),
        2 => place.clone().prop_map(|(from, len)| Step::AddCow { from, len }),
        2 => (place.clone(), prop::bool::ANY)
            .prop_map(|((from, len), to_file)| Step::RemoveCow { from, len, to_file }),
        2 => (place, prop::bool::ANY).prop_map(|((from, len), whole)| Step::FindShared { from, len, whole }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn trees_are_what_the_owners_of_each_block_make_them(
        mut model in any_model(1..30),
        steps in prop::collection::vec(any_step(20), 1..30),
    ) {
        let mut store = store_of(&model.records());
        for step in &steps {
            apply(&mut store, &mut model, step);
        }
    }

    /// Between two of its own transactions the kernel leaves records that could be merged.
    #[test]
    fn records_that_could_be_one_are_counted_all_the_same(
        model in any_model(1..20),
        cuts in prop::collection::vec(prop::bool::ANY, 60),
        place in (0_usize..60, 1_usize..30),
        up in prop::bool::ANY,
        pieces in 1_u32..5,
    ) {
        let mut model = model;
        let mut records = Vec::new();
        for record in model.records() {
            let mut rest = record;
            for (at, cut) in cuts.iter().enumerate().take(record.blockcount.get() as usize).skip(1) {
                let start = record.startblock.get() + at as u32;
                if *cut {
                    let end = rest.startblock.get() + rest.blockcount.get();
                    records.push(RefcountRecord { blockcount: (start - rest.startblock.get()).into(), ..rest });
                    rest = RefcountRecord { startblock: start.into(), blockcount: (end - start).into(), ..rest };
                }
            }
            records.push(rest);
        }
        let mut store = store_of(&records);
        let from = place.0 % model.0.len();
        let len = model.reach(from, place.1, |state| matches!(state, Use::Owners(_)));
        if len > 0 {
            let how = if up { Adjust::Increase } else { Adjust::Decrease };
            let adjusted =
                adjust(&mut BtreeCursor::new(&mut store), Model::run(from, len), how, pieces).unwrap();
            prop_assert!(adjusted.changes <= changes_of_adjust(pieces));
            prop_assert!(adjusted.done > 0);
            let (freed, _) = model.adjust(from, adjusted.done as usize, how);
            let mut found = adjusted.freed.to_vec();
            AgExtent::normalize(&mut found);
            prop_assert_eq!(found, freed);
        }
        let mut shared = vec![1; model.0.len()];
        for record in records_of(&mut store) {
            if record.startblock.get() & RefcountRecord::COW == 0 {
                let start = record.startblock.get() as usize - 1;
                shared[start..start + record.blockcount.get() as usize].fill(record.refcount.get());
            }
        }
        for (state, count) in model.0.iter().zip(shared) {
            prop_assert_eq!(if let Use::Owners(owners) = state { *owners } else { 1 }, count);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn trees_of_three_levels_are_what_the_owners_make_them(
        seed in any::<u64>(),
        steps in prop::collection::vec(any_step(100), 1..6),
    ) {
        let mut model = large_model(seed);
        let mut store = store_of(&model.records());
        let deepest = check(&mut store, |_| ()).unwrap().levels;
        prop_assert_eq!(deepest, 3);
        for step in &steps {
            apply(&mut store, &mut model, step);
        }
        // Down to nothing: all owners are removed, and everything that is staged.
        while let Some(run) = leftovers(&mut store).first() {
            remove_cow(&mut BtreeCursor::new(&mut store), *run).unwrap();
        }
        let mut editor = BtreeCursor::new(&mut store);
        while let Some(first) = editor.first().unwrap() {
            let (run, pieces) = (AgExtent::new(first.startblock.get(), first.blockcount.get()), 1);
            if first.refcount.get() > 4 {
                editor.delete().unwrap();
                continue;
            }
            adjust(&mut editor, run, Adjust::Decrease, pieces).unwrap();
        }
        prop_assert_eq!(store.blocks(), 1);
    }
}

fn shared(start: u32, len: u32, count: u32) -> RefcountRecord {
    Counted { run: AgExtent::new(start, len), count }.record(Domain::Shared)
}

fn staged(start: u32, len: u32) -> RefcountRecord {
    Counted { run: AgExtent::new(start, len), count: 1 }.record(Domain::Cow)
}

/// The error, and the group's block that it names. The tree stays as it was.
fn refused<R: std::fmt::Debug>(
    records: &[RefcountRecord],
    change: impl FnOnce(&mut BtreeCursor<&mut Store>) -> Result<R>,
) -> (&'static str, u64) {
    let mut store = store_of(records);
    let error = change(&mut BtreeCursor::new(&mut store)).unwrap_err();
    assert_same(&records_of(&mut store), records);
    let Error::Corrupt { daddr: Some(daddr), problem, .. } = error else { panic!("{error:?}") };
    let first = store.geometry().daddr_of(AgNumber(store.owner() as u32), AgBlock(0));
    (problem.check, (daddr.0 - first.0) / (store.geometry().block_size as u64 / 512))
}

#[test]
fn what_is_shared_is_not_staged() {
    let both = "blocks that are shared and staged for copy-on-write";
    let already = "blocks that are staged for copy-on-write already";
    let run = AgExtent::new(10, 10);
    for how in [Adjust::Increase, Adjust::Decrease] {
        assert_eq!(refused(&[staged(19, 3)], |tree| adjust(tree, run, how, 9)), (already, 19));
        assert_eq!(refused(&[staged(7, 30)], |tree| adjust(tree, run, how, 9)), (already, 10));
    }
    assert_eq!(refused(&[shared(5, 6, 2)], |tree| add_cow(tree, run)), (both, 10));
    assert_eq!(refused(&[shared(15, 1, 2)], |tree| add_cow(tree, run)), (both, 15));
    assert_eq!(refused(&[staged(5, 6)], |tree| add_cow(tree, run)), (already, 10));
    assert_eq!(refused(&[staged(12, 1), staged(19, 9)], |tree| add_cow(tree, run)), (already, 12));
}

#[test]
fn what_is_not_staged_cannot_be_taken_from_the_staging_area() {
    let missing = "blocks that are not staged for copy-on-write";
    let run = AgExtent::new(10, 10);
    assert_eq!(refused(&[], |tree| remove_cow(tree, run)), (missing, 10));
    assert_eq!(refused(&[staged(5, 5), staged(20, 5)], |tree| remove_cow(tree, run)), (missing, 10));
    assert_eq!(refused(&[staged(5, 14)], |tree| remove_cow(tree, run)), (missing, 19));
    assert_eq!(refused(&[staged(11, 20)], |tree| remove_cow(tree, run)), (missing, 10));
    assert_eq!(refused(&[shared(10, 10, 2)], |tree| remove_cow(tree, run)), (missing, 10));
}

#[test]
fn runs_lie_in_the_group() {
    let store = Store::with_block_root(BLOCK_LOG);
    let blocks = store.geometry().ag_blocks_of(AgNumber(store.owner() as u32));
    let last = AgExtent::new(blocks - 1, 1);
    let mut store = store_of(&[]);
    let mut tree = BtreeCursor::new(&mut store);
    adjust(&mut tree, last, Adjust::Increase, 1).unwrap();
    assert_eq!(find_shared(&mut tree, AgExtent::new(1, blocks - 1), false).unwrap(), Some(last));
    for run in [
        AgExtent::new(blocks - 1, 2),
        AgExtent::new(blocks, 1),
        AgExtent::new(5, u32::MAX),
        AgExtent::new(0, 1),
    ] {
        let refusal = ("end of an extent", run.start.0.into());
        assert_eq!(refused(&[], |tree| adjust(tree, run, Adjust::Increase, 1)), refusal);
        assert_eq!(refused(&[], |tree| add_cow(tree, run)), refusal);
        assert_eq!(refused(&[], |tree| remove_cow(tree, run)), refusal);
        assert_eq!(refused(&[], |tree| find_shared(tree, run, true)), refusal);
    }
    assert_eq!(refused(&[], |tree| find_shared(tree, AgExtent::new(9, 0), true)), ("end of an extent", 9));
}

#[test]
fn damaged_records_are_met_before_anything_changes() {
    // The leaf of a tree with one block.
    let leaf = 8;
    let run = AgExtent::new(8, 40);
    let up = |tree: &mut BtreeCursor<&mut Store>| adjust(tree, run, Adjust::Increase, 99);
    assert_eq!(refused(&[shared(10, 5, 2), shared(20, 5, 1)], up), ("reference count", leaf));
    assert_eq!(refused(&[shared(10, 5, 2), shared(14, 5, 3)], up), ("start of an extent", leaf));
    assert_eq!(refused(&[shared(10, 5, 2), shared(20, 0, 3)], up), ("end of an extent", leaf));
    assert_eq!(refused(&[shared(10, 5, 2), shared(20, 1 << 30, 3)], up), ("end of an extent", leaf));
    let two = Counted { run: AgExtent::new(3, 9), count: 2 }.record(Domain::Cow);
    let refusal = ("reference count of a staged extent", leaf);
    assert_eq!(refused(&[two], up), refusal);
    assert_eq!(refused(&[two], |tree| first_cow(tree, AgBlock(0))), refusal);
    assert_eq!(refused(&[two], |tree| remove_cow(tree, run)), refusal);
}

#[test]
fn counts_at_their_limit_stay_there() {
    let full = shared(10, 10, COUNT_MAX);
    for how in [Adjust::Increase, Adjust::Decrease] {
        let mut store = store_of(&[full]);
        let adjusted = adjust(&mut BtreeCursor::new(&mut store), AgExtent::new(12, 3), how, 1).unwrap();
        assert_eq!(adjusted, Adjusted { done: 3, ..Adjusted::default() });
        assert_same(&records_of(&mut store), &[full]);
    }
    let mut store =
        store_of(&[shared(8, 2, COUNT_MAX), shared(10, 4, COUNT_MAX - 1), shared(14, 2, COUNT_MAX)]);
    let adjusted =
        adjust(&mut BtreeCursor::new(&mut store), AgExtent::new(10, 4), Adjust::Increase, 1).unwrap();
    assert_eq!((adjusted.done, adjusted.changes), (4, 3));
    assert_same(&records_of(&mut store), &[shared(8, 8, COUNT_MAX)]);
}

#[test]
fn damaged_blocks_are_errors_and_no_circles() {
    let records: Vec<_> = (0..3000).map(|at| shared(at * 3 + 1, 1 + at % 3, 2 + at % 2)).collect();
    let whole = store_of(&records);
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut store = whole.clone();
        store.unwatched = true;
        for _ in 0..rng.u32(1..4) {
            let nth = rng.usize(0..store.blocks() as usize);
            let block = store.block_mut(nth).unwrap();
            let at = rng.usize(0..block.len());
            block[at] = rng.u8(..);
        }
        let mut editor = BtreeCursor::new(&mut store);
        for _ in 0..8 {
            let run = AgExtent::new(rng.u32(1..9000), rng.u32(1..900));
            let how = if rng.bool() { Adjust::Increase } else { Adjust::Decrease };
            let _ = find_shared(&mut editor, run, true);
            let _ = first_cow(&mut editor, run.start);
            // A failed change may have left the tree broken: its transaction is dropped.
            let failed = adjust(&mut editor, run, how, rng.u32(1..200)).is_err()
                || add_cow(&mut editor, AgExtent::new(20_000 + rng.u32(0..9000) * 2, 1)).is_err();
            if failed {
                break;
            }
        }
    }
}
