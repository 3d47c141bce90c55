//! Owners of blocks: each block of each group is claimed by exactly one owner, or by as many files as its refcount
//! says.
//!
//! Invariants:
//! - memory grows with what is claimed, not with the size of the volume. A group is a table of chunks of 32,768 blocks,
//!   each unclaimed, claimed completely, or a bitmap. A group is settled when each block has its owner and nothing is
//!   left to compare; then only that fact is kept;
//! - blocks that the refcount tree lists as shared are claimed once for the tree. For files' claims of them, the two
//!   ends of each run are stored, and they are counted when all files have been seen;
//! - on volumes with an rmap tree, each claim is stored as a run for comparison with the tree.
//!
//! This module does not know where claims come from.

use super::report::{FindingPlace, Report};
use std::collections::BTreeMap;
use xfs_format::error::FormatError;
use xfs_format::geometry::Geometry;
use xfs_format::records::RmapRecord;
use xfs_format::types::{AgBlock, AgNumber, InodeNumber};

const NAME: &str = "space";
/// log2 of the blocks of a chunk.
const CHUNK_LOG: u32 = 15;
const CHUNK_BLOCKS: u32 = 1 << CHUNK_LOG;
const WORDS: usize = CHUNK_BLOCKS as usize / 64;
/// Maximum number of runs without an owner that are reported separately for one group. The others are one finding.
const UNOWNED_MAX: u64 = 100;

/// An owner that claims blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The headers of a group.
    Headers,
    /// The log.
    Log,
    /// Nobody: it is in the free space trees.
    Free,
    /// The AGFL.
    Agfl,
    /// A block of a free space tree or of the rmap tree.
    SpaceTree,
    /// A block of an inode tree.
    InodeTree,
    /// A block of the refcount tree.
    RefcountTree,
    /// Inodes.
    Inodes,
    /// An extent that is staged for copy-on-write.
    Staging,
    /// An extent that files share.
    Shared,
    /// A block of a fork's map.
    MapBlock {
        /// The inode.
        ino: InodeNumber,
        /// Whether it belongs to the attribute fork.
        attr: bool,
    },
    /// A fork's content.
    Fork {
        /// The inode.
        ino: InodeNumber,
        /// Whether it is the attribute fork.
        attr: bool,
        /// Its first block in the fork.
        offset: u64,
        /// Whether it is unwritten.
        unwritten: bool,
    },
}

impl Owner {
    /// Owner and offset as in the rmap tree. `None` if the tree does not list such blocks.
    fn rmap(self) -> Option<(u64, u64)> {
        let special = |code: i64| (code.cast_unsigned(), 0);
        Some(match self {
            Self::Free | Self::Shared => return None,
            Self::Headers => special(-3),
            Self::Log => special(-4),
            Self::Agfl | Self::SpaceTree => special(-5),
            Self::InodeTree => special(-6),
            Self::Inodes => special(-7),
            Self::RefcountTree => special(-8),
            Self::Staging => special(-9),
            Self::MapBlock { ino, attr } => {
                (ino.0, RmapRecord::BMBT_BLOCK | if attr { RmapRecord::ATTR_FORK } else { 0 })
            }
            Self::Fork { ino, attr, offset, unwritten } => {
                let flags = if attr { RmapRecord::ATTR_FORK } else { 0 }
                    | if unwritten { RmapRecord::UNWRITTEN } else { 0 };
                (ino.0, offset | flags)
            }
        })
    }

    fn inode(self) -> Option<InodeNumber> {
        match self {
            Self::MapBlock { ino, .. } | Self::Fork { ino, .. } => Some(ino),
            _ => None,
        }
    }

    /// The structure for a finding about the claim.
    fn structure(self) -> &'static str {
        match self {
            Self::Headers => "group headers",
            Self::Log => "log",
            Self::Free => "free space",
            Self::Agfl => "AGFL",
            Self::SpaceTree => "space tree",
            Self::InodeTree => "inode tree",
            Self::RefcountTree => "refcountbt block",
            Self::Inodes => "inode chunk",
            Self::Staging | Self::Shared => "refcountbt block",
            Self::MapBlock { .. } => "bmbt block",
            Self::Fork { .. } => "extent",
        }
    }
}

/// A run of blocks with one owner, as in the rmap tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OwnedRun {
    pub(super) start: u32,
    pub(super) owner: u64,
    /// Offset in the fork, with the flags of the rmap record in the highest bits.
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl OwnedRun {
    const FLAGS: u64 = RmapRecord::ATTR_FORK | RmapRecord::BMBT_BLOCK | RmapRecord::UNWRITTEN;

    /// Whether its offset is meaningless: special owners, whose numbers count down from the maximum, have none, nor
    /// have blocks of a fork's map.
    const fn has_no_offset(&self) -> bool {
        self.owner >> 63 == 1 || self.offset & RmapRecord::BMBT_BLOCK != 0
    }

    /// The difference of block and offset.
    const fn distance(&self) -> u64 {
        if self.has_no_offset() { 0 } else { (self.offset & !Self::FLAGS).wrapping_sub(self.start as u64) }
    }

    /// Whether `next` continues this run, so that the rmap tree may have both as one record.
    fn joins(&self, next: &Self) -> bool {
        let due = if self.has_no_offset() { self.offset } else { self.offset.wrapping_add(self.len.into()) };
        self.owner == next.owner
            && u64::from(self.start) + u64::from(self.len) == u64::from(next.start)
            && due == next.offset
            && self.offset & Self::FLAGS == next.offset & Self::FLAGS
    }
}

/// Sorts runs and merges those that can be one.
pub(super) fn canonical(mut runs: Vec<OwnedRun>) -> Vec<OwnedRun> {
    // Extents that a file shares with itself overlap. Those that can be merged have the same difference of block and
    // offset.
    runs.sort_unstable_by_key(|run| (run.owner, run.offset & OwnedRun::FLAGS, run.distance(), run.start));
    runs.dedup_by(|next, run| {
        let joined = run.joins(next).then(|| run.len.checked_add(next.len)).flatten();
        if let Some(len) = joined {
            run.len = len;
        }
        joined.is_some()
    });
    runs.sort_unstable();
    runs
}

/// A shared run from the refcount tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedRun {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) count: u32,
}

enum Chunk {
    None,
    All,
    Some(Box<Bitmap>),
}

/// A chunk of which some blocks are claimed.
struct Bitmap {
    unclaimed: u32,
    words: [u64; WORDS],
}

#[derive(Default)]
struct Group {
    /// Number of its blocks.
    blocks: u32,
    chunks: Vec<Chunk>,
    shared: Vec<SharedRun>,
    /// Where files' claims of shared blocks begin (+1) and end (-1).
    ends: Vec<(u32, i32)>,
    runs: Vec<OwnedRun>,
}

/// The claims of all groups.
pub(super) struct Owners {
    geometry: Geometry,
    groups: BTreeMap<AgNumber, Group>,
    settled: Settled,
}

/// Settled groups, one bit each.
#[derive(Default)]
struct Settled(Vec<u64>);

impl Settled {
    fn insert(&mut self, ag: AgNumber) {
        let index = ag.0 as usize / 64;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] |= 1 << (ag.0 % 64);
    }

    fn contains(&self, ag: AgNumber) -> bool {
        self.0.get(ag.0 as usize / 64).is_some_and(|word| word >> (ag.0 % 64) & 1 == 1)
    }
}

impl Owners {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self { geometry: geometry.clone(), groups: BTreeMap::new(), settled: Settled::default() }
    }

    fn group(&mut self, ag: AgNumber) -> &mut Group {
        self.groups.entry(ag).or_default()
    }

    /// Whether all blocks of a group have their owner, and none is shared.
    pub(super) fn is_whole(&self, ag: AgNumber) -> bool {
        self.groups.get(&ag).is_some_and(|group| {
            group.shared.is_empty() && group.chunks.iter().all(|chunk| matches!(chunk, Chunk::All))
        })
    }

    /// Settles a group: from now on, only that it is complete is known.
    pub(super) fn settle(&mut self, ag: AgNumber) {
        self.groups.remove(&ag);
        self.settled.insert(ag);
    }

    pub(super) fn is_settled(&self, ag: AgNumber) -> bool {
        self.settled.contains(ag)
    }

    /// Claims blocks of a group for an owner. Returns `false` if they do not all lie in the group, or some have another
    /// owner. That is a finding, and the caller should not use the blocks further.
    pub(super) fn claim(
        &mut self,
        ag: AgNumber,
        (start, len): (u32, u32),
        owner: Owner,
        report: &mut Report,
    ) -> bool {
        let place = FindingPlace { ag: Some(ag), block: Some(AgBlock(start)), inode: owner.inode() };
        let length = self.geometry.ag_blocks_of(ag);
        let end = u64::from(start) + u64::from(len);
        if len == 0 || end > u64::from(length) {
            let problem =
                FormatError::mismatch(owner.structure(), "block behind the group's end", end, length.into());
            report.add(place, problem);
            return false;
        }
        let rmapbt = self.geometry.rmapbt;
        let (count, first) = if self.is_settled(ag) {
            (len, start)
        } else {
            let group = self.group(ag);
            if group.chunks.is_empty() {
                let chunks = length.div_ceil(CHUNK_BLOCKS);
                group.chunks = std::iter::repeat_with(|| Chunk::None).take(chunks as usize).collect();
                group.blocks = length;
            }
            if rmapbt && let Some((owner, offset)) = owner.rmap() {
                group.runs.push(OwnedRun { start, owner, offset, len });
            }
            group.set(start, len)
        };
        // The recovery that is still to be finished may release the blocks from their other owner, or count them as
        // shared.
        let is_on_its_way = report.is_unfinished() && matches!(owner, Owner::Fork { .. });
        if count > 0 && !is_on_its_way {
            let place = FindingPlace { block: Some(AgBlock(first)), ..place };
            let problem =
                FormatError::value(owner.structure(), "blocks that have another owner", count.into());
            report.add(place, problem);
        }
        count == 0
    }

    /// Claims a run that the refcount tree lists as shared.
    pub(super) fn share(&mut self, ag: AgNumber, run: SharedRun, report: &mut Report) {
        self.claim(ag, (run.start, run.len), Owner::Shared, report);
        self.group(ag).shared.push(run);
    }

    /// Claims an extent of a file, parts of which may be shared. Returns how many blocks are.
    pub(super) fn claim_file(
        &mut self,
        ag: AgNumber,
        (start, len): (u32, u32),
        owner: Owner,
        report: &mut Report,
    ) -> u64 {
        let end = start.saturating_add(len);
        let (mut at, mut shared) = (start, 0);
        let mut index =
            self.group(ag).shared.partition_point(|run| run.start.saturating_add(run.len) <= start);
        let part = |from: u32| match owner {
            Owner::Fork { ino, attr, offset, unwritten } => {
                Owner::Fork { ino, attr, offset: offset + u64::from(from - start), unwritten }
            }
            other => other,
        };
        while at < end {
            let run = self.group(ag).shared.get(index).copied().filter(|run| run.start < end);
            let Some(run) = run else {
                self.claim(ag, (at, end - at), part(at), report);
                break;
            };
            if run.start > at {
                self.claim(ag, (at, run.start - at), part(at), report);
                at = run.start;
            }
            let stop = run.start.saturating_add(run.len).min(end);
            if stop > at {
                shared += u64::from(stop - at);
                let rmapbt = self.geometry.rmapbt;
                let group = self.group(ag);
                group.ends.extend([(at, 1), (stop, -1)]);
                if rmapbt && let Some((owner, offset)) = part(at).rmap() {
                    group.runs.push(OwnedRun { start: at, owner, offset, len: stop - at });
                }
                at = stop;
            }
            index += 1;
        }
        shared
    }

    /// Reports unclaimed blocks of a group.
    pub(super) fn report_unowned(&mut self, ag: AgNumber, report: &mut Report) {
        let length = self.geometry.ag_blocks_of(ag);
        let group = self.group(ag);
        let (mut at, mut runs, mut blocks) = (0, 0, 0);
        while let Some((start, len)) = group.next_unclaimed(at, length) {
            runs += 1;
            if runs <= UNOWNED_MAX {
                let place = FindingPlace::block(ag, AgBlock(start));
                report.add(place, FormatError::value(NAME, "blocks without an owner", len.into()));
            } else {
                blocks += u64::from(len);
            }
            at = start + len;
        }
        if blocks > 0 {
            let problem = FormatError::value(NAME, "further blocks without an owner", blocks);
            report.add(FindingPlace::group(ag), problem);
        }
    }

    /// Compares files' claims of shared blocks with the refcounts.
    pub(super) fn report_shared(&mut self, ag: AgNumber, report: &mut Report) {
        let group = self.group(ag);
        let mut ends = std::mem::take(&mut group.ends);
        ends.sort_unstable();
        let mut ends = ends.into_iter().peekable();
        for run in &group.shared {
            let (mut at, end) = (run.start, run.start.saturating_add(run.len));
            let mut count = 0_i64;
            while at < end {
                while let Some((_, step)) = ends.next_if(|&(place, _)| place <= at) {
                    count += i64::from(step);
                }
                let next = ends.peek().map_or(end, |&(place, _)| place.min(end));
                if count != i64::from(run.count) {
                    let found = FormatError::mismatch(
                        "refcountbt block",
                        "reference count",
                        run.count.into(),
                        count.max(0).cast_unsigned(),
                    );
                    report.add(FindingPlace::block(ag, AgBlock(at)), found);
                    break;
                }
                at = next;
            }
            // The rest of this run. At its end, the next one may begin.
            while ends.next_if(|&(place, step)| place < end || place == end && step < 0).is_some() {}
        }
    }

    /// The claims of a group as the rmap tree should have them.
    pub(super) fn runs(&self, ag: AgNumber) -> Vec<OwnedRun> {
        canonical(self.groups.get(&ag).map(|group| group.runs.clone()).unwrap_or_default())
    }

    /// The same, removing them.
    pub(super) fn take_runs(&mut self, ag: AgNumber) -> Vec<OwnedRun> {
        canonical(std::mem::take(&mut self.group(ag).runs))
    }
}

impl Group {
    /// Marks blocks. Returns how many of them were marked before, and the first of these.
    fn set(&mut self, start: u32, len: u32) -> (u32, u32) {
        let (mut at, end) = (start, start + len);
        let (mut twice, mut first) = (0, 0);
        while at < end {
            let base = at & !(CHUNK_BLOCKS - 1);
            let stop = end.min(base.saturating_add(CHUNK_BLOCKS));
            let size = (self.blocks - base).min(CHUNK_BLOCKS);
            let chunk = &mut self.chunks[(at >> CHUNK_LOG) as usize];
            let (count, which) = chunk.set(at - base, stop - base, size);
            if count > 0 && twice == 0 {
                first = base + which;
            }
            twice += count;
            at = stop;
        }
        (twice, first)
    }

    /// The first unclaimed run at or after `at`.
    fn next_unclaimed(&self, at: u32, length: u32) -> Option<(u32, u32)> {
        let start = self.scan(at, length, false)?;
        let end = self.scan(start, length, true).unwrap_or(length);
        Some((start, end - start))
    }

    /// The first block at or after `at` that is claimed, or that is not.
    fn scan(&self, at: u32, length: u32, claimed: bool) -> Option<u32> {
        let mut at = at;
        while at < length {
            let base = at & !(CHUNK_BLOCKS - 1);
            let found = match self.chunks.get((at >> CHUNK_LOG) as usize) {
                None | Some(Chunk::None) => (!claimed).then_some(at - base),
                Some(Chunk::All) => claimed.then_some(at - base),
                Some(Chunk::Some(bitmap)) => scan_words(&bitmap.words, at - base, claimed),
            };
            if let Some(within) = found {
                return Some(base + within).filter(|&found| found < length);
            }
            at = base.saturating_add(CHUNK_BLOCKS);
        }
        None
    }
}

fn scan_words(words: &[u64; WORDS], from: u32, claimed: bool) -> Option<u32> {
    let first = (from / 64) as usize;
    for (index, word) in words.iter().enumerate().skip(first) {
        let mut word = if claimed { *word } else { !*word };
        if index == first {
            word &= u64::MAX << (from % 64);
        }
        if word != 0 {
            return Some(index as u32 * 64 + word.trailing_zeros());
        }
    }
    None
}

impl Chunk {
    /// Marks blocks `from..to` of the chunk, which has `size` blocks.
    fn set(&mut self, from: u32, to: u32, size: u32) -> (u32, u32) {
        if let Self::All = self {
            return (to - from, from);
        }
        if let Self::None = self {
            if to - from == size {
                *self = Self::All;
                return (0, 0);
            }
            *self = Self::Some(Box::new(Bitmap { unclaimed: size, words: [0; WORDS] }));
        }
        let Self::Some(bitmap) = self else { return (0, 0) };
        let (mut twice, mut first, mut at) = (0, 0, from);
        while at < to {
            let stop = to.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (stop - at))) << (at % 64);
            let word = &mut bitmap.words[(at / 64) as usize];
            let both = *word & mask;
            if both != 0 && twice == 0 {
                first = at / 64 * 64 + both.trailing_zeros();
            }
            twice += both.count_ones();
            *word |= mask;
            at = stop;
        }
        bitmap.unclaimed -= to - from - twice;
        if bitmap.unclaimed == 0 {
            *self = Self::All;
        }
        (twice, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::geometry;

    const AG: AgNumber = AgNumber(1);

    fn claims() -> (Owners, Report) {
        (Owners::new(&geometry(true, 12, 0)), Report::new(100, 1000))
    }

    #[test]
    fn what_is_claimed_twice_and_what_nobody_claims() {
        let (mut owners, mut report) = claims();
        let length = 1 << 18;
        assert!(owners.claim(AG, (0, 4), Owner::Headers, &mut report));
        assert!(owners.claim(AG, (100, length - 100), Owner::Free, &mut report));
        assert!(owners.claim(AG, (10, 86), Owner::Inodes, &mut report));
        assert!(report.is_clean());
        owners.report_unowned(AG, &mut report);
        let places: Vec<_> =
            report.findings().iter().map(|f| (f.place.block.unwrap().0, f.problem.found.unwrap())).collect();
        assert_eq!(places, [(4, 6), (96, 4)]);
        assert!(!owners.claim(AG, (90, 70_000), Owner::Log, &mut report));
        let last = report.findings().last().unwrap();
        assert_eq!((last.place.block, last.problem.found), (Some(AgBlock(90)), Some(6 + 69_990)));
        assert!(!owners.claim(AG, (length - 1, 2), Owner::Log, &mut report));
        assert!(!owners.claim(AG, (u32::MAX, u32::MAX), Owner::Log, &mut report));
    }

    #[test]
    fn a_group_is_settled_once_each_block_has_its_owner() {
        let (mut owners, mut report) = claims();
        let length = 1 << 18;
        for (start, len) in [(0, 4), (4, CHUNK_BLOCKS), (CHUNK_BLOCKS + 4, length - CHUNK_BLOCKS - 5)] {
            assert!(owners.claim(AG, (start, len), Owner::Free, &mut report) && !owners.is_whole(AG));
        }
        assert!(owners.claim(AG, (length - 1, 1), Owner::Agfl, &mut report) && owners.is_whole(AG));
        owners.settle(AG);
        assert!(owners.groups.is_empty() && owners.is_settled(AG) && !owners.is_settled(AgNumber(0)));
        assert!(report.is_clean());
        // These blocks already have an owner.
        assert!(!owners.claim(AG, (70, 3), Owner::Log, &mut report));
        let last = report.findings().last().unwrap();
        assert_eq!((last.place.block, last.problem.found), (Some(AgBlock(70)), Some(3)));
        // Shared blocks wait for the files that share them.
        let other = AgNumber(0);
        owners.share(other, SharedRun { start: 0, len: length, count: 2 }, &mut report);
        assert!(!owners.is_whole(other));
    }

    #[test]
    fn shared_blocks_are_counted_run_by_run() {
        let fork = |ino, offset| Owner::Fork { ino: InodeNumber(ino), attr: false, offset, unwritten: false };
        for (count, findings) in [(2, 0), (3, 1)] {
            let (mut owners, mut report) = claims();
            owners.share(AG, SharedRun { start: 10, len: 10, count }, &mut report);
            owners.share(AG, SharedRun { start: 30, len: 5, count: 2 }, &mut report);
            assert_eq!(owners.claim_file(AG, (5, 20), fork(1, 0), &mut report), 10);
            // Two halves by two other files.
            assert_eq!(owners.claim_file(AG, (10, 5), fork(2, 0), &mut report), 5);
            assert_eq!(owners.claim_file(AG, (15, 5), fork(3, 7), &mut report), 5);
            for ino in [4, 5] {
                assert_eq!(owners.claim_file(AG, (30, 5), fork(ino, 0), &mut report), 5);
            }
            assert!(report.is_clean());
            owners.report_shared(AG, &mut report);
            assert_eq!(report.total(), findings);
        }
    }

    #[test]
    fn runs_join_where_the_reverse_map_joins_them() {
        let run = |start, len, owner, offset| OwnedRun { start, owner, offset, len };
        let tree = (-5_i64).cast_unsigned();
        let joined = canonical(vec![
            run(20, 5, 131, 5),
            run(10, 10, 131, 100),
            run(5, 5, 131, 0),
            run(25, 5, 131, 10),
            run(40, 1, tree, 0),
            run(41, 2, tree, 0),
            // The file has these blocks twice.
            run(12, 2, 131, 300),
            run(14, 2, 131, 302),
        ]);
        let due = [
            run(5, 5, 131, 0),
            run(10, 10, 131, 100),
            run(12, 4, 131, 300),
            run(20, 10, 131, 5),
            run(40, 3, tree, 0),
        ];
        assert_eq!(joined, due);
    }
}
