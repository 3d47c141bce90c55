//! Copy-on-write: which blocks of a write go elsewhere, and what happens to them.
//!
//! Shared blocks are never written. The *CoW fork*, which is only in memory, gives a file other blocks for them. An
//! extent in it is *staged* (its `unwritten` is set), then *written*, and then remapped into the data fork, piece by
//! piece. Staged blocks that are never written are freed later; after a crash the refcount tree tells which are left.
//!
//! This module needs no volume: it is given the forks and returns what to do. Invariants: a write goes only to blocks
//! that the file alone has, or to staged ones. Between any two steps each block of the file reads as before the write
//! or as after it. Only written blocks are remapped.
//!
//! ```text
//! parts        where the blocks of a write go
//! Staging      the blocks to stage for a part of it, by the CoW extent size hint
//! CowFork      stage, mark as written, take out
//! next_remap   what to remap next, once data are written
//! ```

use crate::error::Result;
use crate::ifork::{ExtentList, Mapped};
use crate::refcount::SharedRun;
use std::ops::Range;
use xfs_format::bmbt::{BLOCKCOUNT_BITS, Extent, STARTOFF_BITS};
use xfs_format::types::{FileBlock, FsBlock};

/// Default CoW extent size hint.
pub const DEFAULT_HINT: u32 = 32;
/// Maximum length of an extent.
const EXTENT_BLOCKS_MAX: u64 = (1 << BLOCKCOUNT_BITS) - 1;
/// The end of the block numbers of a file.
const FILE_BLOCKS_MAX: u64 = 1 << STARTOFF_BITS;

/// Where blocks of a write go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CowTarget {
    /// Nothing is mapped: the data fork gets blocks.
    Hole,
    /// To the file's blocks from this one on, which nobody else has.
    InPlace(FsBlock),
    /// To blocks of the CoW fork from this one on.
    Staged(FsBlock),
    /// Elsewhere: the blocks from this one on have other owners, and nothing is staged for them.
    Elsewhere(FsBlock),
}

/// A part of a write whose blocks all have one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritePart {
    /// File blocks.
    pub blocks: Range<FileBlock>,
    /// Where they go.
    pub target: CowTarget,
}

/// Where the blocks of a write go, part by part. `shared` returns what is known of a number of blocks from a block on.
///
/// A staged block with data is written in place. One without data is used only for a shared block: what the file alone
/// has is overwritten. What a write leaves unchanged in its first and last block comes from where it was read before:
/// from the data fork, or from staged blocks with data.
pub fn parts(
    data: &ExtentList,
    cow: &CowFork,
    blocks: Range<FileBlock>,
    mut shared: impl FnMut(FsBlock, u64) -> Result<SharedRun>,
) -> Result<Vec<WritePart>> {
    let mut parts = Vec::new();
    let mut at = blocks.start;
    while at < blocks.end {
        let (staged, mapped) = (cow.0.lookup(at), data.lookup(at));
        let until = blocks.end.min(end_of(&staged)).min(end_of(&mapped));
        let (end, goes) = match (staged, mapped) {
            (Mapped::Extent(staged), _) if !staged.unwritten => {
                (until, CowTarget::Staged(block_at(&staged, at)))
            }
            (_, Mapped::Hole(..)) => (until, CowTarget::Hole),
            // Unwritten blocks are never shared, whatever was known of them before they came to the file.
            (_, Mapped::Extent(extent)) if extent.unwritten => {
                (until, CowTarget::InPlace(block_at(&extent, at)))
            }
            (staged, Mapped::Extent(extent)) => {
                let start = block_at(&extent, at);
                let known = shared(start, until.0 - at.0)?;
                // An empty answer must not cause an endless loop.
                let end = until.min(FileBlock(at.0 + known.blocks.max(1)));
                match staged {
                    _ if !known.shared => (end, CowTarget::InPlace(start)),
                    Mapped::Extent(staged) => (end, CowTarget::Staged(block_at(&staged, at))),
                    Mapped::Hole(..) => (end, CowTarget::Elsewhere(start)),
                }
            }
        };
        parts.push(WritePart { blocks: at..end, target: goes });
        at = end;
    }
    Ok(parts)
}

/// Blocks to stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Blocks that the write needs.
    pub wanted: Range<FileBlock>,
    /// Blocks to ask for.
    pub asked: Range<FileBlock>,
}

impl Staging {
    /// What to ask for if a write needs `wanted`, of which the first block is not staged: all of the areas of `hint`
    /// blocks around it, as far as nothing is staged there and within the maximum length of an extent. Later writes
    /// nearby then find space, and the file stays in few pieces.
    pub fn new(cow: &CowFork, wanted: Range<FileBlock>, hint: u32) -> Self {
        let hint = u64::from(hint).clamp(1, EXTENT_BLOCKS_MAX);
        let before = cow.0.before(wanted.start).map_or(0, |extent| extent.end().0);
        let behind = cow.0.next_beginning(wanted.start).map_or(FILE_BLOCKS_MAX, |extent| extent.startoff.0);
        let start = (wanted.start.0 / hint * hint).max(before);
        let end = wanted.end.0.next_multiple_of(hint).min(behind).min(start + EXTENT_BLOCKS_MAX);
        let wanted = wanted.start..wanted.end.min(FileBlock(end));
        Self { wanted, asked: FileBlock(start)..FileBlock(end) }
    }

    /// The number of blocks to ask for.
    pub fn blocks(&self) -> u64 {
        self.asked.end.0 - self.asked.start.0
    }

    /// Where to place an extent of `got` blocks, which may be fewer than were asked for: it covers the first wanted
    /// block in any case, and all wanted ones if it can.
    pub fn place(&self, startblock: FsBlock, got: u32) -> Extent {
        let got = u64::from(got).min(self.blocks());
        let wanted = self.wanted.end.0 - self.wanted.start.0;
        let start = if got <= wanted {
            self.wanted.start.0
        } else {
            self.asked.start.0.max(self.wanted.end.0.saturating_sub(got))
        };
        Extent { startoff: FileBlock(start), startblock, blockcount: got as u32, unwritten: true }
    }
}

/// The CoW fork of a file. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CowFork(ExtentList);

impl CowFork {
    /// Its extents.
    pub fn extents(&self) -> &ExtentList {
        &self.0
    }

    /// Adds an extent where there is none.
    pub fn stage(&mut self, extent: &Extent) {
        self.0.insert(extent);
    }

    /// Staged blocks have data now. If not `written`, they no longer do: a write of them failed.
    pub fn mark(&mut self, blocks: &Range<FileBlock>, written: bool) {
        for extent in self.cut_out(blocks) {
            self.0.insert(&Extent { unwritten: !written, ..extent });
        }
    }

    /// Removes what is staged for these blocks: it was remapped, or is freed.
    pub fn take(&mut self, blocks: &Range<FileBlock>) -> Vec<Extent> {
        self.cut_out(blocks)
    }

    /// The first unwritten extent in `blocks`, cut to them. It can be freed.
    pub fn next_unused(&self, blocks: &Range<FileBlock>) -> Option<Extent> {
        self.first_in(blocks, true)
    }

    /// The first extent in `blocks`, cut to them, that a write has claimed.
    pub fn next_claimed(&self, blocks: &Range<FileBlock>) -> Option<Extent> {
        self.first_in(blocks, false)
    }

    fn first_in(&self, blocks: &Range<FileBlock>, unwritten: bool) -> Option<Extent> {
        let mut at = blocks.start;
        while let Some(extent) = self.0.ending_behind(at).filter(|extent| extent.startoff < blocks.end) {
            if extent.unwritten == unwritten {
                return common(&extent, blocks);
            }
            at = extent.end();
        }
        None
    }

    fn cut_out(&mut self, blocks: &Range<FileBlock>) -> Vec<Extent> {
        let mut taken = Vec::new();
        while let Some(extent) =
            self.0.ending_behind(blocks.start).filter(|extent| extent.startoff < blocks.end)
        {
            self.0.remove(extent.startoff);
            let rest = [FileBlock(0)..blocks.start, blocks.end..extent.end()];
            for kept in rest.iter().filter_map(|kept| common(&extent, kept)) {
                self.0.insert(&kept);
            }
            taken.extend(common(&extent, blocks));
        }
        taken
    }
}

/// A piece of a file that gets other blocks in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    /// The new extent of the data fork, from the CoW fork.
    pub new: Extent,
    /// The old extent of the data fork, which loses an owner. `None`: a hole.
    pub old: Option<Extent>,
}

/// What to remap first of what was written in `blocks`. The next one comes once this is remapped and removed from the
/// CoW fork.
pub fn next_remap(data: &ExtentList, cow: &CowFork, blocks: &Range<FileBlock>) -> Option<Remap> {
    let written = cow.first_in(blocks, false)?;
    let mapped = data.lookup(written.startoff);
    let new = common(&written, &(written.startoff..end_of(&mapped)))?;
    let old = match mapped {
        Mapped::Extent(extent) => common(&extent, &(new.startoff..new.end())),
        Mapped::Hole(..) => None,
    };
    Some(Remap { new, old })
}

/// Everything to be remapped of what was written in `blocks`, in order.
pub fn remaps(data: &ExtentList, cow: &CowFork, blocks: &Range<FileBlock>) -> impl Iterator<Item = Remap> {
    let mut rest = blocks.clone();
    std::iter::from_fn(move || {
        let next = next_remap(data, cow, &rest)?;
        rest.start = next.new.end();
        Some(next)
    })
}

/// The part of an extent that maps `blocks`.
fn common(extent: &Extent, blocks: &Range<FileBlock>) -> Option<Extent> {
    let (start, end) = (extent.startoff.max(blocks.start), extent.end().min(blocks.end));
    let blockcount = end.0.checked_sub(start.0).filter(|count| *count > 0)? as u32;
    Some(Extent { startoff: start, startblock: block_at(extent, start), blockcount, ..*extent })
}

/// The volume's block for a file block that the extent maps.
fn block_at(extent: &Extent, at: FileBlock) -> FsBlock {
    FsBlock(extent.startblock.0 + (at.0 - extent.startoff.0))
}

/// The end of the extent or hole.
fn end_of(mapped: &Mapped) -> FileBlock {
    match mapped {
        Mapped::Extent(extent) => extent.end(),
        Mapped::Hole(_, end) => end.unwrap_or(FileBlock(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: u64 = 80;

    /// A block of the volume.
    #[derive(Clone, Copy, Debug, Default)]
    struct Physical {
        content: u32,
        owners: u32,
    }

    /// Regression: a block that was known as shared was freed and came back to the file for a hole. The write went
    /// there, and what was staged for it, never written, became part of the file.
    #[test]
    fn what_was_never_written_is_shared_by_nobody() {
        let at = |blocks: Range<u64>, startblock, unwritten| Extent {
            startoff: FileBlock(blocks.start),
            startblock: FsBlock(startblock),
            blockcount: (blocks.end - blocks.start) as u32,
            unwritten,
        };
        let data = ExtentList::from_sorted(&[at(0..4, 100, false).pack(), at(4..8, 104, true).pack()]);
        let mut cow = CowFork::default();
        cow.stage(&at(0..8, 200, true));
        let all_shared = |_, blocks| Ok(SharedRun { blocks, shared: true });
        let parts = parts(&data, &cow, FileBlock(2)..FileBlock(6), all_shared).unwrap();
        let goes: Vec<_> =
            parts.iter().map(|part| (part.blocks.start.0, part.blocks.end.0, part.target)).collect();
        assert_eq!(goes, [(2, 4, CowTarget::Staged(FsBlock(202))), (4, 6, CowTarget::InPlace(FsBlock(104)))]);
    }

    /// A file, block by block, and the copies that others have of it.
    #[derive(Debug)]
    struct File {
        map: Vec<Option<usize>>,
        volume: Vec<Physical>,
        cow: CowFork,
        /// What others read, and where.
        others: Vec<(usize, u32)>,
    }

    impl File {
        fn new() -> Self {
            let map = vec![None; FILE as usize];
            Self { map, volume: vec![Physical::default()], cow: CowFork::default(), others: Vec::new() }
        }

        fn data(&self) -> ExtentList {
            let mut records: Vec<Extent> = Vec::new();
            for (at, physical) in (0..).zip(&self.map) {
                let Some(physical) = physical.map(|physical| FsBlock(physical as u64)) else { continue };
                match records.last_mut() {
                    Some(last) if block_at(last, last.end()) == physical && last.end().0 == at => {
                        last.blockcount += 1
                    }
                    _ => records.push(Extent {
                        startoff: FileBlock(at),
                        startblock: physical,
                        blockcount: 1,
                        unwritten: false,
                    }),
                }
            }
            ExtentList::from_sorted(&records.iter().map(Extent::pack).collect::<Vec<_>>())
        }

        fn allocate(&mut self, blocks: u64) -> usize {
            // A gap, so that not everything is one extent.
            self.volume.push(Physical::default());
            let first = self.volume.len();
            self.volume.resize(first + blocks as usize, Physical::default());
            first
        }

        fn read(&self) -> Vec<u32> {
            self.map
                .iter()
                .map(|physical| physical.map_or(0, |physical| self.volume[physical].content))
                .collect()
        }

        fn plan(&self, blocks: &Range<FileBlock>) -> Vec<WritePart> {
            let shared = |start: FsBlock, blocks: u64| {
                let of = |at: u64| self.volume[at as usize].owners > 1;
                let first = of(start.0);
                let same = (start.0..start.0 + blocks).take_while(|at| of(*at) == first).count() as u64;
                Ok(SharedRun { blocks: same, shared: first })
            };
            let parts = parts(&self.data(), &self.cow, blocks.clone(), shared).unwrap();
            let mut at = blocks.start;
            for part in &parts {
                assert!(part.blocks.start == at && at < part.blocks.end);
                at = part.blocks.end;
            }
            assert_eq!(at, blocks.end);
            parts
        }

        /// Stages what is missing, `most` blocks at a time.
        fn stage(&mut self, blocks: &Range<FileBlock>, hint: u32, most: u64) {
            for _ in 0..=FILE {
                let plan = self.plan(blocks);
                let wanting = plan.into_iter().find(|part| matches!(part.target, CowTarget::Elsewhere(_)));
                let Some(part) = wanting else { return };
                let staging = Staging::new(&self.cow, part.blocks.clone(), hint);
                assert!(staging.asked.start <= part.blocks.start && part.blocks.start < staging.asked.end);
                assert!(staging.wanted == part.blocks, "whatever the write needs is asked for");
                let aligned = |at: FileBlock| {
                    at.0.is_multiple_of(hint.into())
                        || self.cow.0.before(at).is_some_and(|extent| extent.end() == at)
                        || self.cow.0.next_beginning(at).is_some_and(|extent| extent.startoff == at)
                };
                assert!(aligned(staging.asked.start) && aligned(staging.asked.end), "{staging:?}");
                let got = most.min(staging.blocks());
                let first = self.allocate(got);
                let extent = staging.place(FsBlock(first as u64), got as u32);
                assert_eq!(u64::from(extent.blockcount), got);
                assert!(staging.asked.start <= extent.startoff && extent.end() <= staging.asked.end);
                assert!(extent.startoff <= part.blocks.start && part.blocks.start < extent.end());
                assert!(got < part.blocks.end.0 - part.blocks.start.0 || extent.end() >= part.blocks.end);
                // The list itself asserts that nothing is staged twice.
                self.cow.stage(&extent);
            }
            panic!("never enough is staged");
        }

        /// Writes without remapping. If `fails`, the staged blocks get no data.
        fn write(&mut self, blocks: &Range<FileBlock>, content: u32, fails: bool) {
            let mut staged: Vec<Range<FileBlock>> = Vec::new();
            for part in self.plan(blocks) {
                let len = part.blocks.end.0 - part.blocks.start.0;
                let first = match part.target {
                    CowTarget::Hole => {
                        let first = self.allocate(len);
                        for (physical, at) in (first..).zip(part.blocks.start.0..part.blocks.end.0) {
                            self.map[at as usize] = Some(physical);
                            self.volume[physical].owners = 1;
                        }
                        first
                    }
                    CowTarget::InPlace(start) => {
                        let run = &self.volume[start.0 as usize..(start.0 + len) as usize];
                        assert!(run.iter().all(|block| block.owners == 1));
                        start.0 as usize
                    }
                    CowTarget::Staged(start) => {
                        let run = &self.volume[start.0 as usize..(start.0 + len) as usize];
                        assert!(run.iter().all(|block| block.owners == 0));
                        match staged.last_mut() {
                            Some(last) if last.end == part.blocks.start => last.end = part.blocks.end,
                            _ => staged.push(part.blocks.clone()),
                        }
                        if fails {
                            continue;
                        }
                        start.0 as usize
                    }
                    CowTarget::Elsewhere(_) => panic!("nothing is staged for {part:?}"),
                };
                self.volume[first..first + len as usize].iter_mut().for_each(|block| block.content = content);
            }
            // As one piece, whatever the data fork has there.
            for blocks in &staged {
                self.cow.mark(blocks, true);
                if fails {
                    self.cow.mark(blocks, false);
                }
            }
        }

        fn remap(&mut self, blocks: &Range<FileBlock>) -> bool {
            let Some(remap) = next_remap(&self.data(), &self.cow, blocks) else { return false };
            let new = remap.new;
            assert!(blocks.start <= new.startoff && new.end() <= blocks.end && !new.unwritten);
            assert!(
                remap.old.is_none_or(|old| (old.startoff, old.blockcount) == (new.startoff, new.blockcount))
            );
            for at in new.startoff.0..new.end().0 {
                let old = remap.old.map(|old| block_at(&old, FileBlock(at)).0 as usize);
                assert_eq!(self.map[at as usize], old);
                if let Some(old) = old {
                    self.volume[old].owners -= 1;
                }
                let physical = block_at(&new, FileBlock(at)).0 as usize;
                self.volume[physical].owners += 1;
                assert_eq!(self.volume[physical].owners, 1);
                self.map[at as usize] = Some(physical);
            }
            assert_eq!(self.cow.take(&(new.startoff..new.end())), [new]);
            true
        }

        fn check_others(&self) {
            for (physical, content) in &self.others {
                assert_eq!(self.volume[*physical].content, *content, "what others have changed");
            }
            for staged in self.cow.0.iter() {
                let first = staged.startblock.0 as usize;
                assert!(
                    self.volume[first..first + staged.blockcount as usize]
                        .iter()
                        .all(|block| block.owners == 0)
                );
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write {
            hint: u32,
            most: u64,
            fails: bool,
        },
        /// Somebody clones the blocks.
        Clone,
        Punch,
        GiveBack,
    }

    fn any_step() -> impl Strategy<Value = (Step, Range<FileBlock>)> {
        let step = prop_oneof![
            5 => (1_u32..40, 1_u64..50, prop::bool::weighted(0.1))
                .prop_map(|(hint, most, fails)| Step::Write { hint, most, fails }),
            3 => Just(Step::Clone),
            1 => Just(Step::Punch),
            1 => Just(Step::GiveBack),
        ];
        (step, 0..FILE, 1_u64..40)
            .prop_map(|(step, start, len)| (step, FileBlock(start)..FileBlock((start + len).min(FILE))))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_write_changes_what_one_file_reads(steps in prop::collection::vec(any_step(), 1..30)) {
            let mut file = File::new();
            for (content, (step, blocks)) in (1..).zip(&steps) {
                let inside = blocks.start.0 as usize..blocks.end.0 as usize;
                match step {
                    Step::Write { hint, most, fails } => {
                        let before = file.read();
                        file.stage(blocks, *hint, *most);
                        prop_assert_eq!(&file.read(), &before);
                        file.write(blocks, content, *fails);
                        loop {
                            file.check_others();
                            for (at, (now, before)) in file.read().iter().zip(&before).enumerate() {
                                prop_assert!(now == before || *now == content && inside.contains(&at));
                            }
                            if !file.remap(blocks) {
                                break;
                            }
                        }
                        let whole = FileBlock(0)..FileBlock(FILE);
                        prop_assert!(file.cow.first_in(&whole, false).is_none(), "left to be remapped");
                        prop_assert!(*fails || file.read()[inside].iter().all(|now| *now == content));
                    }
                    Step::Clone => {
                        for physical in file.map[inside].iter().flatten() {
                            file.volume[*physical].owners += 1;
                            file.others.push((*physical, file.volume[*physical].content));
                        }
                    }
                    Step::Punch => {
                        for physical in file.map[inside].iter_mut().filter_map(Option::take) {
                            file.volume[physical].owners -= 1;
                        }
                    }
                    Step::GiveBack => {
                        while let Some(unused) = file.cow.next_unused(blocks) {
                            prop_assert_eq!(file.cow.take(&(unused.startoff..unused.end())), [unused]);
                        }
                        prop_assert!(file.cow.extents().ending_behind(blocks.start)
                            .is_none_or(|next| next.startoff >= blocks.end));
                    }
                }
                file.check_others();
            }
        }
    }

    #[test]
    fn copies_are_as_long_as_extents_can_be() {
        let cow = CowFork::default();
        let far = FileBlock(FILE_BLOCKS_MAX - 3)..FileBlock(FILE_BLOCKS_MAX);
        assert_eq!(Staging::new(&cow, far.clone(), u32::MAX).asked.end, far.end);
        assert_eq!(Staging::new(&cow, far.clone(), 0).asked, far);
        let long = FileBlock(70)..FileBlock(70 + (1 << 22));
        let staging = Staging::new(&cow, long, DEFAULT_HINT);
        assert_eq!(staging.asked, FileBlock(64)..FileBlock(64 + EXTENT_BLOCKS_MAX));
        assert_eq!(staging.wanted.end, staging.asked.end);
        let all = staging.place(FsBlock(9), EXTENT_BLOCKS_MAX as u32);
        assert_eq!((all.startoff, u64::from(all.blockcount)), (staging.asked.start, EXTENT_BLOCKS_MAX));
    }
}
