//! Random changes of a fork in memory against a plain table of blocks.

use super::*;
use crate::btree::edit::memory::MemoryStore;
use crate::btree::edit::{RootRef, TreeStore, check};
use std::collections::BTreeMap;
use xfs_format::bmbt::BmbtKey;
use xfs_format::btree::Bmbt;

/// A fork whose tree is in memory.
struct MemoryMap {
    blocks: MemoryStore<Bmbt>,
    content: ForkContent,
    nblocks: i64,
    room: usize,
    large: bool,
    kind: ForkKind,
    /// Place and state of each file block, as the store was told.
    told: BTreeMap<u64, (u64, bool)>,
}

impl MemoryMap {
    fn new(block_log: u8, room: usize) -> Self {
        let mut blocks = MemoryStore::with_inline_root(block_log, 24, &BmbtKey { startoff: 0.into() });
        let RootRef::Inline(_) = blocks.root() else { unreachable!("made so") };
        // The leaf that it comes with is not needed.
        blocks.free(8).unwrap();
        let content =
            ForkContent { format: ForkFormat::Extents, bytes: Vec::new(), extents: ExtentList::default() };
        Self { blocks, content, nblocks: 0, room, large: true, kind: ForkKind::Data, told: BTreeMap::new() }
    }
}

impl ForkStore for MemoryMap {
    fn geometry(&self) -> &Geometry {
        self.blocks.geometry()
    }
    fn ino(&self) -> InodeNumber {
        InodeNumber(3)
    }
    fn kind(&self) -> ForkKind {
        self.kind
    }
    fn large_counts(&self) -> bool {
        self.large
    }
    fn room(&self) -> usize {
        self.room
    }
    fn content(&self) -> Result<ForkContent> {
        Ok(self.content.clone())
    }
    fn set_content(&mut self, content: ForkContent, blocks: i64) -> Result<()> {
        self.content = content;
        self.nblocks += blocks;
        Ok(())
    }
    fn read(&self, block: FsBlock) -> Result<Block<'_>> {
        self.blocks.read(block.0)
    }
    fn modify(&mut self, block: FsBlock, ranges: &[Range<usize>]) -> Result<&mut [u8]> {
        self.blocks.modify(block.0, ranges)
    }
    fn create(&mut self, block: FsBlock) -> Result<&mut [u8]> {
        self.blocks.create(block.0)
    }
    fn allocate(&mut self, near: FsBlock) -> Result<FsBlock> {
        self.blocks.allocate(near.0).map(FsBlock)
    }
    fn free(&mut self, block: FsBlock) -> Result<()> {
        self.blocks.free(block.0)
    }
    fn remapped(&mut self, change: RmapUpdateKind) -> Result<()> {
        let (RmapUpdateKind::Unmap(extent) | RmapUpdateKind::Map(extent) | RmapUpdateKind::Convert(extent)) =
            change;
        for nth in 0..u64::from(extent.blockcount) {
            let (block, at) = (extent.startblock.0 + nth, extent.startoff.0 + nth);
            match change {
                RmapUpdateKind::Unmap(_) => {
                    assert_eq!(self.told.remove(&at), Some((block, extent.unwritten)))
                }
                RmapUpdateKind::Map(_) => assert_eq!(self.told.insert(at, (block, extent.unwritten)), None),
                RmapUpdateKind::Convert(_) => {
                    let was = self.told.insert(at, (block, !extent.unwritten));
                    assert_eq!(was, Some((block, extent.unwritten)));
                }
            }
        }
        Ok(())
    }
}

/// The block and unwritten state of each file block.
type Table = Vec<Option<(u64, bool)>>;

fn extent(startoff: u64, startblock: u64, blockcount: u32, unwritten: bool) -> Extent {
    Extent { startoff: FileBlock(startoff), startblock: FsBlock(startblock), blockcount, unwritten }
}

/// The three copies of a map agree with the table, and the fork has the right format.
fn compare(fork: &mut MemoryMap, table: &Table) {
    fork.blocks.settle();
    let content = fork.content.clone();
    let mut mapped = 0;
    let mut found: Table = vec![None; table.len()];
    for extent in content.extents.iter() {
        for nth in 0..u64::from(extent.blockcount) {
            found[(extent.startoff.0 + nth) as usize] = Some((extent.startblock.0 + nth, extent.unwritten));
            mapped += 1;
        }
    }
    assert!(found == *table, "the list differs from the table");
    let mapped_now = (0..).zip(table).filter_map(|(at, block)| block.map(|block| (at, block)));
    assert!(mapped_now.collect::<BTreeMap<_, _>>() == fork.told, "what was told differs from the table");
    let count = content.extents.len();
    match content.format {
        ForkFormat::Extents => {
            assert!(count <= fork.room / 16);
            let bytes: Vec<u8> =
                content.extents.records().flat_map(|record| zerocopy_bytes(&record)).collect();
            assert_eq!(content.bytes, bytes);
            assert_eq!(fork.blocks.blocks(), 0);
        }
        ForkFormat::Btree => {
            assert!(count > fork.room / 16);
            assert_eq!(content.bytes.len(), fork.room);
            let mut list = content.extents.records();
            fork.blocks.set_root(RootRef::Inline(&content.bytes)).unwrap();
            let census = check(&mut fork.blocks, |record| assert_eq!(Some(*record), list.next())).unwrap();
            assert_eq!((census.records, census.blocks), (count as u64, fork.blocks.blocks()));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fork.nblocks, mapped + fork.blocks.blocks() as i64);
}

fn run(seed: u64, block_log: u8, room: usize, span: u64, steps: u32) -> (bool, u64) {
    println!("map edits: seed {seed}, blocks of 2^{block_log}, room for {room} bytes");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut fork = MemoryMap::new(block_log, room);
    let mut table: Table = vec![None; span as usize];
    let (mut had_tree, mut most, mut grow) = (false, 0, 80);
    for step in 0..steps {
        if step % 500 == 0 {
            grow = *rng.choice(&[85, 60, 45, 15]).unwrap();
        }
        let mut editor = MapEditor::new(fork).unwrap();
        let start = rng.u64(0..span - 64);
        let end = start + rng.u64(1..16);
        let range = FileBlock(start)..FileBlock(end);
        match rng.u32(0..100) {
            kind if kind < grow => {
                if let Some(at) = (start..end).find(|at| table[*at as usize].is_none()) {
                    let len = (at..end).take_while(|at| table[*at as usize].is_none()).count() as u32;
                    // Mostly contiguous with what is before or behind.
                    let block = match rng.u32(0..4) {
                        0 => rng.u64(2000..100_000),
                        _ => 100_000 + at,
                    };
                    let unwritten = rng.u32(0..3) == 0;
                    editor.map(extent(at, block, len, unwritten)).unwrap();
                    for nth in 0..u64::from(len) {
                        table[(at + nth) as usize] = Some((block + nth, unwritten));
                    }
                }
            }
            kind if kind % 3 == 0 => {
                let unwritten = rng.bool();
                let mut rest = Some(range);
                while let Some(range) = rest {
                    rest = editor.convert(range, unwritten, rng.usize(1..4)).unwrap();
                }
                for at in start..end {
                    table[at as usize] = table[at as usize].map(|(block, _)| (block, unwritten));
                }
            }
            _ => {
                let mut rest = Some(range.clone());
                let mut freed = 0;
                while let Some(range) = rest {
                    let most = rng.usize(1..4);
                    let done = editor.unmap(range, most).unwrap();
                    assert!(done.freed.len() <= most);
                    for extent in &done.freed {
                        for nth in 0..u64::from(extent.blockcount) {
                            let was = table[(extent.startoff.0 + nth) as usize].take();
                            assert_eq!(was, Some((extent.startblock.0 + nth, extent.unwritten)));
                            freed += 1;
                        }
                    }
                    rest = done.rest;
                }
                assert!(freed <= end - start && (start..end).all(|at| table[at as usize].is_none()));
                // Close the gap that was cut, or open one elsewhere.
                let by = end - start;
                let tail_free = table[(span - by) as usize..].iter().all(Option::is_none);
                if rng.bool() {
                    let mut rest = Some(FileBlock(end)..FileBlock(u64::MAX));
                    while let Some(range) = rest {
                        rest = editor.shift(range, -(by as i64), rng.usize(1..50)).unwrap();
                    }
                    table.drain(start as usize..end as usize);
                    table.resize(span as usize, None);
                } else if tail_free {
                    let at = rng.u64(0..span);
                    editor.split_at(FileBlock(at)).unwrap();
                    let mut rest = Some(FileBlock(at)..FileBlock(u64::MAX));
                    while let Some(range) = rest {
                        rest = editor.shift(range, by as i64, rng.usize(1..50)).unwrap();
                    }
                    table.splice(at as usize..at as usize, (0..by).map(|_| None));
                    table.truncate(span as usize);
                }
            }
        }
        if rng.u32(0..50) == 0 {
            let new = *rng.choice(&[room, room / 2 / 8 * 8, 24]).unwrap();
            editor.fit(new).unwrap();
            editor.store_mut().room = new;
        }
        fork = editor.finish().unwrap();
        had_tree |= fork.content.format == ForkFormat::Btree;
        most = most.max(fork.blocks.blocks());
        if step % 97 == 0 {
            compare(&mut fork, &table);
        }
    }
    let mut editor = MapEditor::new(fork).unwrap();
    while let Some(_rest) = editor.unmap(FileBlock(0)..FileBlock(u64::MAX), 7).unwrap().rest {}
    fork = editor.finish().unwrap();
    assert_eq!((fork.nblocks, fork.blocks.blocks(), fork.content.extents.len()), (0, 0, 0));
    (had_tree, most)
}

#[test]
fn random_changes_agree_with_a_table() {
    let seed = fastrand::u64(..);
    // Small maps cross the border between list and tree all the time.
    let (had_tree, _) = run(seed, 10, 336, 150, 2_500);
    assert!(had_tree);
    let (_, blocks) = run(seed ^ 1, 10, 336, 4_000, 3_000);
    assert!(blocks > 5, "{blocks} blocks are no tree");
}

#[test]
fn extents_grow_to_the_longest_and_no_further() {
    let most = EXTENT_MOST;
    let next = FsBlock(100 + u64::from(most));
    let left = extent(0, 100, most - 1, false);
    let (old, merged) = absorb(Some(left), extent(left.end().0, next.0 - 1, 1, false), None);
    assert_eq!((old, merged.blockcount), (vec![left], most));
    // The two on the left have the maximum length, so the next one stays separate.
    let behind = extent(u64::from(most), next.0, 1, false);
    let (old, merged) = absorb(Some(left), extent(left.end().0, next.0 - 1, 1, false), Some(behind));
    assert_eq!((old, merged.blockcount), (vec![left], most));
    // Too long together with the previous one, but not with the next.
    let full = extent(0, 100, most, false);
    let (old, merged) = absorb(Some(full), behind, Some(extent(u64::from(most) + 1, next.0 + 1, 5, false)));
    assert_eq!((old.len(), merged.blockcount, merged.startoff.0), (1, 6, u64::from(most)));
    for other in [extent(1, 101, 1, true), extent(2, 101, 1, false), extent(1, 102, 1, false)] {
        assert!(!can_merge(&extent(0, 100, 1, false), &other));
    }
}

#[test]
fn counts_have_limits_by_name() {
    assert_eq!(extent_limit(ForkKind::Data, false), 0x7fff_ffff);
    assert_eq!(extent_limit(ForkKind::Attr, false), 0x7fff);
    let mut fork = MemoryMap::new(12, 336);
    (fork.kind, fork.large) = (ForkKind::Attr, false);
    let mut editor = MapEditor::new(fork).unwrap();
    for nth in 0..0x7fff {
        editor.map(extent(2 * nth, 1000 + 2 * nth, 1, false)).unwrap();
    }
    let one_more = editor.map(extent(1 << 20, 1000, 1, false));
    assert!(matches!(one_more, Err(Error::TooManyExtents { limit: 0x7fff, .. })));
    // What needs no further extent is still possible.
    editor.map(extent(2 * 0x7fff - 1, 1000 + 2 * 0x7fff - 1, 1, false)).unwrap();
    editor.map(extent(1, 1001, 1, false)).unwrap();
    assert_eq!(editor.extents().len(), 0x7ffe);
}

#[test]
fn what_is_mapped_is_not_mapped_again() {
    let mut editor = MapEditor::new(MemoryMap::new(12, 336)).unwrap();
    editor.map(extent(10, 1000, 10, false)).unwrap();
    for start in [1, 10, 15, 19] {
        assert!(matches!(editor.map(extent(start, 2000, 10, false)), Err(Error::Corrupt { .. })));
    }
    assert!(matches!(editor.map(extent(30, 1 << 40, 1, false)), Err(Error::Corrupt { .. })));
    let shifted = editor.shift(FileBlock(0)..FileBlock(100), i64::MAX, 9);
    assert!(matches!(shifted, Err(Error::FileTooLarge(_))));
    assert!(editor.shift(FileBlock(0)..FileBlock(100), -11, 9).is_err());
    assert_eq!(editor.extents().len(), 1);
}

/// `cargo test --release -p uxfs-xfs --lib a_million_extents -- --ignored --nocapture` shows times. As in a
/// transaction, each change has its own map editor.
#[test]
#[ignore = "takes long"]
fn a_million_extents() {
    for count in [10_000_u64, 100_000, 1_000_000] {
        let mut fork = MemoryMap::new(12, 336);
        fork.blocks.unwatched = true;
        let started = std::time::Instant::now();
        for nth in 0..count {
            let mut editor = MapEditor::new(fork).unwrap();
            editor.map(extent(2 * nth, 200_000 + nth % 4 * 262_144 % 1000, 1, false)).unwrap();
            fork = editor.finish().unwrap();
        }
        let built = started.elapsed();
        assert_eq!(fork.content.extents.len() as u64, count);
        let blocks = fork.blocks.blocks();
        let mut rest = Some(FileBlock(0)..FileBlock(u64::MAX));
        while let Some(range) = rest {
            let mut editor = MapEditor::new(fork).unwrap();
            rest = editor.unmap(range, 2).unwrap().rest;
            fork = editor.finish().unwrap();
        }
        let each = |time: std::time::Duration| time.as_nanos() as u64 / count;
        let gone = started.elapsed() - built;
        println!(
            "{count} extents in {blocks} blocks: built {built:?}, {} ns each; gone {gone:?}, {} ns each",
            each(built),
            each(gone)
        );
    }
}
