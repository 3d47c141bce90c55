//! The extents of a fork in memory: a list that readers hold while it changes.
//!
//! It is a B+tree in plain memory whose nodes are shared between versions. Cloning a list costs a reference count, and
//! a change copies only the nodes on its path. Whoever holds a list sees it unchanged. A lookup takes no lock and
//! allocates nothing. A short list is one array.
//!
//! Invariants: extents ascend and do not overlap; no node is empty, except for the root of an empty list; all leaves
//! have the same depth; an inner node has the exact first block of each child.

use super::Mapped;
use std::fmt;
use std::iter::once;
use std::ops::Range;
use std::sync::Arc;
use xfs_format::bmbt::{BmbtRecord, Extent};
use xfs_format::types::FileBlock;

/// Records per leaf: 1 KiB, so that a change copies little, and a lookup among a million extents visits four nodes.
const LEAF_MOST: usize = 64;
/// Children per inner node.
const FAN_MOST: usize = 64;

/// Counts this thread's lookups in lists, for tests that bound them.
#[cfg(test)]
pub(crate) mod looks {
    thread_local! {
        pub(crate) static COUNT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
}

/// The extents of a fork, in order. Cheap to clone.
#[derive(Clone, Default)]
pub struct ExtentList {
    root: Node,
    len: usize,
}

#[derive(Clone)]
enum Node {
    /// In packed form, 16 bytes each.
    Leaf(Arc<[BmbtRecord]>),
    Inner(Arc<Inner>),
}

#[derive(Clone)]
struct Inner {
    /// The first file block below each child.
    firsts: Vec<u64>,
    children: Vec<Node>,
}

impl ExtentList {
    /// A list of records that are in order and do not overlap.
    pub fn from_sorted(records: &[BmbtRecord]) -> Self {
        debug_assert!(
            records.windows(2).all(|pair| pair[0].unpack().end().0 <= pair[1].startoff()),
            "extents out of order"
        );
        let mut nodes: Vec<Node> =
            even_parts(records, LEAF_MOST).map(|part| Node::Leaf(part.into())).collect();
        while nodes.len() > 1 {
            nodes = even_parts(&nodes, FAN_MOST).map(|part| Node::inner(part.to_vec())).collect();
        }
        Self { root: nodes.pop().unwrap_or_default(), len: records.len() }
    }

    /// The mapping of `block`.
    pub fn lookup(&self, block: FileBlock) -> Mapped {
        let (before, behind) = self.around(block);
        match before {
            Some(extent) if block < extent.end() => Mapped::Extent(extent),
            before => Mapped::Hole(before.map_or(FileBlock(0), |extent| extent.end()), behind),
        }
    }

    /// The extent that contains `block`.
    pub fn at(&self, block: FileBlock) -> Option<Extent> {
        self.around(block).0.filter(|extent| block < extent.end())
    }

    /// The last extent that begins at or before `block`, and where the next one begins.
    #[inline]
    fn around(&self, block: FileBlock) -> (Option<Extent>, Option<FileBlock>) {
        #[cfg(test)]
        looks::COUNT.set(looks::COUNT.get() + 1);
        let mut node = &self.root;
        let mut behind = None;
        loop {
            match node {
                Node::Inner(inner) => {
                    let next = inner.firsts.partition_point(|first| *first <= block.0);
                    behind = inner.firsts.get(next).copied().or(behind);
                    // Before the first extent: nothing precedes it.
                    match next.checked_sub(1).and_then(|index| inner.children.get(index)) {
                        Some(child) => node = child,
                        None => return (None, behind.map(FileBlock)),
                    }
                }
                Node::Leaf(records) => {
                    let next = records.partition_point(|record| record.startoff() <= block.0);
                    let before = next.checked_sub(1).and_then(|index| records.get(index));
                    let behind = records.get(next).map(BmbtRecord::startoff).or(behind);
                    return (before.map(BmbtRecord::unpack), behind.map(FileBlock));
                }
            }
        }
    }

    /// The last extent that begins at or before `block`.
    pub fn at_or_before(&self, block: FileBlock) -> Option<Extent> {
        self.around(block).0
    }

    /// The last extent that begins before `block`.
    pub fn before(&self, block: FileBlock) -> Option<Extent> {
        self.around(FileBlock(block.0.checked_sub(1)?)).0
    }

    /// The first extent that ends after `block`: the one that contains it, or the next.
    pub fn ending_behind(&self, block: FileBlock) -> Option<Extent> {
        match self.around(block) {
            (Some(extent), _) if block < extent.end() => Some(extent),
            (_, behind) => self.around(behind?).0,
        }
    }

    /// The first extent that begins at or after `block`.
    pub fn next_beginning(&self, block: FileBlock) -> Option<Extent> {
        match self.around(block) {
            (Some(extent), _) if extent.startoff == block => Some(extent),
            (_, behind) => self.around(behind?).0,
        }
    }

    /// The first mapped block at or after `from`.
    pub fn next_mapped(&self, from: FileBlock) -> Option<FileBlock> {
        match self.lookup(from) {
            Mapped::Extent(_) => Some(from),
            Mapped::Hole(_, end) => end,
        }
    }

    /// The runs of `blocks` that are unwritten.
    pub fn unwritten_runs(&self, blocks: &Range<FileBlock>) -> impl Iterator<Item = Range<FileBlock>> {
        let (mut at, start, end) = (blocks.start, blocks.start, blocks.end);
        std::iter::from_fn(move || {
            loop {
                let extent = self.ending_behind(at).filter(|extent| extent.startoff < end)?;
                at = extent.end();
                if extent.unwritten {
                    return Some(extent.startoff.max(start)..at.min(end));
                }
            }
        })
    }

    /// Whether any of `blocks` is unwritten.
    pub fn has_unwritten(&self, blocks: &Range<FileBlock>) -> bool {
        self.unwritten_runs(blocks).next().is_some()
    }

    /// The first unmapped block at or after `from`.
    pub fn next_unmapped(&self, from: FileBlock) -> FileBlock {
        let mut at = from;
        while let Mapped::Extent(extent) = self.lookup(at) {
            at = extent.end();
        }
        at
    }

    /// The last extent.
    pub fn last(&self) -> Option<Extent> {
        self.at_or_before(FileBlock(u64::MAX))
    }

    /// The block after the last mapped one.
    pub fn end(&self) -> FileBlock {
        self.last().map_or(FileBlock(0), |extent| extent.end())
    }

    /// All extents, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Extent> + '_ {
        self.records().map(|record| record.unpack())
    }

    /// All extents in packed form, in order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = BmbtRecord> + '_ {
        let mut records = Records { stack: Vec::new(), leaf: [].iter(), left: self.len };
        records.go_down(&self.root);
        records
    }

    /// The number of extents.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory, for the cache. Assumes that leaves are at least half full, as they usually are.
    pub(crate) fn weight(&self) -> u64 {
        self.len as u64 * 18 + 128
    }

    /// Inserts an extent where nothing is mapped.
    pub fn insert(&mut self, extent: &Extent) {
        debug_assert!(
            self.ending_behind(extent.startoff).is_none_or(|next| extent.end() <= next.startoff),
            "an extent over another one"
        );
        if let Some(right) = self.root.insert(extent.pack()) {
            let left = std::mem::take(&mut self.root);
            self.root = Node::inner(vec![left, right]);
        }
        self.len += 1;
    }

    /// Removes the extent that begins at `start`.
    pub fn remove(&mut self, start: FileBlock) -> Option<Extent> {
        let removed = self.root.remove(start.0)?;
        self.len -= 1;
        // Each iteration removes a level.
        while let Node::Inner(inner) = &self.root {
            match &inner.children[..] {
                [] => self.root = Node::default(),
                [only] => self.root = only.clone(),
                _ => break,
            }
        }
        Some(removed.unpack())
    }

    /// Replaces the extent that begins at `start` by one that lies between the same neighbours. Returns `false` if
    /// there is none.
    pub fn update(&mut self, start: FileBlock, extent: &Extent) -> bool {
        self.root.update(start.0, extent.pack())
    }
}

impl fmt::Debug for ExtentList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

thread_local! {
    /// The list without extents. Most new inodes have one, and one for all threads would have a count that all write.
    static EMPTY: Arc<[BmbtRecord]> = Arc::from(Vec::new());
}

impl Default for Node {
    fn default() -> Self {
        Node::Leaf(EMPTY.try_with(Arc::clone).unwrap_or_else(|_| Arc::from(Vec::new())))
    }
}

impl Node {
    /// An inner node over non-empty children.
    fn inner(children: Vec<Node>) -> Self {
        let firsts = children.iter().map(Node::first).collect();
        Node::Inner(Arc::new(Inner { firsts, children }))
    }

    /// Its first file block; 0 if it is empty.
    fn first(&self) -> u64 {
        match self {
            Node::Leaf(records) => records.first().map_or(0, BmbtRecord::startoff),
            Node::Inner(inner) => inner.firsts.first().copied().unwrap_or(0),
        }
    }

    fn len(&self) -> usize {
        match self {
            Node::Leaf(records) => records.len(),
            Node::Inner(inner) => inner.children.len(),
        }
    }

    /// Inserts a record. A node that gets too full keeps its front part; the rest is returned.
    fn insert(&mut self, record: BmbtRecord) -> Option<Node> {
        match self {
            Node::Leaf(records) => {
                let at = records.partition_point(|other| other.startoff() < record.startoff());
                let (front, back) = records.split_at(at);
                let all = front.iter().chain(once(&record)).chain(back).copied();
                if records.len() < LEAF_MOST {
                    *records = all.collect();
                    return None;
                }
                // Files grow at their end, so a full leaf there stays full.
                let cut = if back.is_empty() { LEAF_MOST } else { records.len().div_ceil(2) };
                let right = all.clone().skip(cut).collect();
                *records = all.take(cut).collect();
                Some(Node::Leaf(right))
            }
            Node::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let index = inner.child_of(record.startoff());
                let right = inner.children[index].insert(record);
                inner.firsts[index] = inner.children[index].first();
                let right = right?;
                inner.firsts.insert(index + 1, right.first());
                inner.children.insert(index + 1, right);
                if inner.children.len() <= FAN_MOST {
                    return None;
                }
                let cut = if index + 2 == inner.children.len() { FAN_MOST } else { FAN_MOST / 2 };
                let (firsts, children) = (inner.firsts.split_off(cut), inner.children.split_off(cut));
                Some(Node::Inner(Arc::new(Inner { firsts, children })))
            }
        }
    }

    fn remove(&mut self, start: u64) -> Option<BmbtRecord> {
        match self {
            Node::Leaf(records) => {
                let at = records.binary_search_by_key(&start, BmbtRecord::startoff).ok()?;
                let removed = records[at];
                *records = records[..at].iter().chain(&records[at + 1..]).copied().collect();
                Some(removed)
            }
            Node::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let index = inner.child_of(start);
                let removed = inner.children[index].remove(start)?;
                inner.mend(index);
                Some(removed)
            }
        }
    }

    fn update(&mut self, start: u64, record: BmbtRecord) -> bool {
        match self {
            Node::Leaf(records) => {
                let Ok(at) = records.binary_search_by_key(&start, BmbtRecord::startoff) else { return false };
                match Arc::get_mut(records) {
                    Some(records) => records[at] = record,
                    None => {
                        let (front, back) = (&records[..at], &records[at + 1..]);
                        *records = front.iter().chain(once(&record)).chain(back).copied().collect();
                    }
                }
                true
            }
            Node::Inner(inner) => {
                let inner = Arc::make_mut(inner);
                let index = inner.child_of(start);
                let found = inner.children[index].update(start, record);
                inner.firsts[index] = inner.children[index].first();
                found
            }
        }
    }

    /// Appends the content of a node of the same level.
    fn append(&mut self, other: Node) {
        match (self, other) {
            (Node::Leaf(records), Node::Leaf(more)) => {
                *records = records.iter().chain(more.iter()).copied().collect();
            }
            (Node::Inner(inner), Node::Inner(more)) => {
                let inner = Arc::make_mut(inner);
                inner.firsts.extend_from_slice(&more.firsts);
                inner.children.extend_from_slice(&more.children);
            }
            _ => debug_assert!(false, "siblings of different levels"),
        }
    }
}

impl Inner {
    /// The child below which `start` is or would be.
    fn child_of(&self, start: u64) -> usize {
        self.firsts.partition_point(|first| *first <= start).saturating_sub(1)
    }

    /// After a removal below child `index`: removes an empty child, and merges a small one with a neighbour if both fit
    /// into one.
    fn mend(&mut self, index: usize) {
        let len = self.children[index].len();
        if len == 0 {
            self.children.remove(index);
            self.firsts.remove(index);
            return;
        }
        self.firsts[index] = self.children[index].first();
        let most = if matches!(self.children[index], Node::Leaf(_)) { LEAF_MOST } else { FAN_MOST };
        if len > most / 4 {
            return;
        }
        let fits = |other: Option<&Node>| other.is_some_and(|other| other.len() + len <= most * 3 / 4);
        let left = if index > 0 && fits(self.children.get(index - 1)) {
            index - 1
        } else if fits(self.children.get(index + 1)) {
            index
        } else {
            return;
        };
        let right = self.children.remove(left + 1);
        self.firsts.remove(left + 1);
        self.children[left].append(right);
    }
}

/// Splits `all` into as few parts of at most `most` as possible, all about the same length.
fn even_parts<T>(all: &[T], most: usize) -> impl Iterator<Item = &[T]> {
    let parts = all.len().div_ceil(most);
    (0..parts).map(move |part| &all[all.len() * part / parts..all.len() * (part + 1) / parts])
}

struct Records<'a> {
    stack: Vec<std::slice::Iter<'a, Node>>,
    leaf: std::slice::Iter<'a, BmbtRecord>,
    left: usize,
}

impl<'a> Records<'a> {
    fn go_down(&mut self, mut node: &'a Node) {
        loop {
            match node {
                Node::Leaf(records) => {
                    self.leaf = records.iter();
                    return;
                }
                Node::Inner(inner) => {
                    let mut children = inner.children.iter();
                    let Some(first) = children.next() else { return };
                    self.stack.push(children);
                    node = first;
                }
            }
        }
    }
}

impl Iterator for Records<'_> {
    type Item = BmbtRecord;

    fn next(&mut self) -> Option<BmbtRecord> {
        loop {
            if let Some(record) = self.leaf.next() {
                self.left = self.left.saturating_sub(1);
                return Some(*record);
            }
            let children = self.stack.last_mut()?;
            match children.next() {
                Some(child) => self.go_down(child),
                None => {
                    self.stack.pop();
                }
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Records<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use xfs_format::types::FsBlock;

    fn extent(startoff: u64, startblock: u64, blockcount: u32) -> Extent {
        Extent {
            startoff: FileBlock(startoff),
            startblock: FsBlock(startblock),
            blockcount,
            unwritten: false,
        }
    }

    fn list(extents: &[(u64, u64, u32)]) -> ExtentList {
        let records: Vec<_> = extents.iter().map(|&(a, b, c)| extent(a, b, c).pack()).collect();
        ExtentList::from_sorted(&records)
    }

    #[test]
    fn lookups_find_extents_and_the_holes_between() {
        let list = list(&[(5, 100, 3), (8, 200, 2), (20, 300, 1)]);
        assert_eq!(list.lookup(FileBlock(0)), Mapped::Hole(FileBlock(0), Some(FileBlock(5))));
        let Mapped::Extent(extent) = list.lookup(FileBlock(7)) else { panic!("mapped") };
        assert_eq!(extent.startblock, FsBlock(100));
        let Mapped::Extent(extent) = list.lookup(FileBlock(8)) else { panic!("mapped") };
        assert_eq!(extent.startblock, FsBlock(200));
        assert_eq!(list.lookup(FileBlock(15)), Mapped::Hole(FileBlock(10), Some(FileBlock(20))));
        assert_eq!(list.lookup(FileBlock(21)), Mapped::Hole(FileBlock(21), None));
        assert_eq!(list.next_mapped(FileBlock(9)), Some(FileBlock(9)));
        assert_eq!(list.next_mapped(FileBlock(10)), Some(FileBlock(20)));
        assert_eq!(list.next_mapped(FileBlock(21)), None);
        assert_eq!(list.next_unmapped(FileBlock(6)), FileBlock(10));
        assert_eq!(list.next_unmapped(FileBlock(12)), FileBlock(12));
        assert_eq!(list.next_unmapped(FileBlock(20)), FileBlock(21));
        assert_eq!(ExtentList::default().lookup(FileBlock(3)), Mapped::Hole(FileBlock(0), None));
    }

    /// Checks that depths and first blocks are right and that no node is empty or too full.
    fn check(node: &Node, root: bool) -> u32 {
        match node {
            Node::Leaf(records) => {
                assert!(root || !records.is_empty());
                assert!(records.len() <= LEAF_MOST);
                0
            }
            Node::Inner(inner) => {
                assert!(inner.children.len() > usize::from(root) && inner.children.len() <= FAN_MOST);
                let firsts: Vec<_> = inner.children.iter().map(Node::first).collect();
                assert_eq!(firsts, inner.firsts);
                let depths: Vec<_> = inner.children.iter().map(|child| check(child, false)).collect();
                assert!(depths.iter().all(|depth| *depth == depths[0]));
                depths[0] + 1
            }
        }
    }

    #[test]
    fn changes_agree_with_a_map_and_leave_old_versions_alone() {
        let seed = fastrand::u64(..);
        println!("extent list: seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut map = BTreeMap::new();
        let mut list = ExtentList::default();
        let mut kept = (list.clone(), map.clone());
        let (mut grow, mut deepest) = (90, 0);
        for step in 0..60_000 {
            // It grows at first, so that the tree is deep in every run.
            if step % 5_000 == 0 && step >= 20_000 {
                grow = *rng.choice(&[95, 60, 40, 5]).unwrap();
            }
            // Slots of 8 blocks. An extent takes a part of one.
            let slot = rng.u64(0..20_000) * 8;
            let start = slot + rng.u64(0..4);
            let new = extent(start, rng.u64(0..1 << 30), rng.u32(1..5));
            let there = map.range(slot..slot + 8).next().map(|(start, _)| *start);
            if rng.u32(0..100) < grow {
                match there {
                    Some(old) => {
                        assert!(list.update(FileBlock(old), &new));
                        map.remove(&old);
                    }
                    None => list.insert(&new),
                }
                map.insert(start, new);
            } else {
                let found = map.range(slot..).next().map(|(start, _)| *start);
                if let Some(start) = found {
                    assert_eq!(list.remove(FileBlock(start)), map.remove(&start));
                }
                assert_eq!(list.remove(FileBlock(slot + 7)), None);
            }
            let probe = rng.u64(0..170_000);
            let before = map.range(..=probe).next_back().map(|(_, extent)| *extent);
            assert_eq!(list.at_or_before(FileBlock(probe)), before);
            let behind = map.range(probe..).next().map(|(_, extent)| *extent);
            let expected = before.filter(|extent| extent.end().0 > probe).or(behind);
            assert_eq!(list.ending_behind(FileBlock(probe)), expected);
            assert_eq!(list.len(), map.len());
            if step % 1_000 == 0 {
                deepest = deepest.max(check(&list.root, true));
                assert!(list.iter().eq(map.values().copied()));
                assert!(kept.0.iter().eq(kept.1.values().copied()), "a version changed that was kept");
                kept = (list.clone(), map.clone());
                let packed: Vec<_> = list.records().collect();
                let built = ExtentList::from_sorted(&packed);
                check(&built.root, true);
                assert!(built.iter().eq(list.iter()));
            }
        }
        assert!(deepest >= 2);
    }

    #[test]
    fn a_change_of_a_long_list_copies_little() {
        let records: Vec<_> = (0..200_000).map(|nth| extent(nth * 2, nth, 1).pack()).collect();
        let list = ExtentList::from_sorted(&records);
        let mut other = list.clone();
        other.update(FileBlock(100_000), &extent(100_000, 7, 1));
        fn shared(a: &Node, b: &Node) -> (usize, usize) {
            match (a, b) {
                (Node::Leaf(a), Node::Leaf(b)) => (usize::from(Arc::ptr_eq(a, b)), 1),
                (Node::Inner(a), Node::Inner(b)) if Arc::ptr_eq(a, b) => (1, 1),
                (Node::Inner(a), Node::Inner(b)) => a
                    .children
                    .iter()
                    .zip(&b.children)
                    .map(|(a, b)| shared(a, b))
                    .fold((0, 1), |sum, each| (sum.0 + each.0, sum.1 + each.1)),
                _ => (0, 1),
            }
        }
        let (same, all) = shared(&list.root, &other.root);
        assert!(all - same <= 3, "{} of {all} nodes were copied", all - same);
    }
}
