//! Reference counts against those that the kernel keeps: a volume is frozen between operations that share, unshare and
//! copy blocks, the kernel's trees are read by `xfs_db`, and what became of the files' blocks is applied to the records
//! from before by our functions. Needs root and xfsprogs.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use xfs::alloc::AgExtent;
use xfs::btree::edit::memory::MemoryStore;
use xfs::btree::edit::{BtreeCursor, check};
use xfs::refcount::{Adjust, add_cow, adjust, remove_cow};
use xfs_format::btree::Refcountbt;
use xfs_format::records::RefcountRecord;

const GROUPS: u32 = 2;
const GROUP_BLOCKS: u32 = 51_200;
const BLOCK: u64 = 4096;
/// Blocks that files have at most, and how many files there are.
const FILE_BLOCKS: u64 = 96;
const FILES: usize = 6;

/// Start, length, count, and whether it is staged for copy-on-write.
type Record = (u32, u32, u32, bool);

/// All writing stops, and everything is in its place on the volume, until it goes.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(mount: &'a Path) -> Self {
        run("xfs_freeze", &["-f", mount.to_str().unwrap()]);
        Self(mount)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run("xfs_freeze", &["-u", self.0.to_str().unwrap()]);
    }
}

/// The volume between two operations: the records of each group, and how many owners each block has.
#[derive(Debug, Default)]
struct Snapshot {
    records: Vec<Vec<Record>>,
    owners: BTreeMap<u32, u32>,
}

impl Snapshot {
    fn take(image: &Image, mount: &Path) -> Self {
        let mut snapshot = Self::default();
        run("sync", &["-f", mount.to_str().unwrap()]);
        let _frozen = Frozen::new(mount);
        for file in std::fs::read_dir(mount).unwrap() {
            for extent in fiemap::fiemap(file.unwrap().path()).unwrap() {
                let extent = extent.unwrap();
                let first = (extent.fe_physical / BLOCK) as u32;
                for block in first..first + (extent.fe_length / BLOCK) as u32 {
                    *snapshot.owners.entry(block).or_default() += 1;
                }
            }
        }
        snapshot.records = (0..GROUPS).map(|ag| dump(image, ag)).collect();
        snapshot
    }

    /// The blocks that are staged, counted through all groups.
    fn staged(&self) -> BTreeSet<u32> {
        let groups = self.records.iter().zip(0..);
        let staged = groups.flat_map(|(records, ag)| {
            records
                .iter()
                .filter(|record| record.3)
                .map(move |record| (ag * GROUP_BLOCKS + record.0, record.1))
        });
        staged.flat_map(|(start, len)| start..start + len).collect()
    }
}

/// The records of a group's tree as `xfs_db` shows them.
fn dump(image: &Image, ag: u32) -> Vec<Record> {
    let (path, agf) = (image.path(), format!("agf {ag}"));
    let args = ["-r", "-c", &agf, "-c", "addr refcntroot", "-c", "btdump", path.to_str().unwrap()];
    let mut records: Vec<Record> = Vec::new();
    // Each looks like "7:[start,length,count,staged]"; keys of inner blocks have one number.
    for word in run("xfs_db", &args).split_whitespace() {
        let Some((_, numbers)) = word.trim_end_matches(']').split_once(":[") else { continue };
        let numbers: Vec<u32> = numbers.split(',').map(|number| number.parse().unwrap()).collect();
        if let [start, len, count, staged] = numbers[..] {
            records.push((start, len, count, staged != 0));
        }
    }
    records.sort_by_key(|record| (record.3, record.0));
    records
}

/// The trees of all groups, as our functions change them.
struct Ours(Vec<MemoryStore<Refcountbt>>);

impl Ours {
    fn of(records: &[Vec<Record>]) -> Self {
        let tree = |records: &Vec<Record>| {
            let mut store = MemoryStore::with_block_root(12);
            let mut editor = BtreeCursor::new(&mut store);
            for &(start, len, count, staged) in records {
                let flag = if staged { RefcountRecord::COW } else { 0 };
                let (startblock, blockcount) = ((start | flag).into(), len.into());
                editor.insert(RefcountRecord { startblock, blockcount, refcount: count.into() }).unwrap();
            }
            store
        };
        Self(records.iter().map(tree).collect())
    }

    fn records(&mut self) -> Vec<Vec<Record>> {
        let records = |store: &mut MemoryStore<Refcountbt>| {
            let mut records = Vec::new();
            check(store, |record| {
                let (start, staged) = (record.startblock.get(), RefcountRecord::COW);
                let (len, count) = (record.blockcount.get(), record.refcount.get());
                records.push((start & !staged, len, count, start & staged != 0));
            })
            .unwrap();
            records
        };
        self.0.iter_mut().map(records).collect()
    }

    /// Does something to all blocks, run by run.
    fn each(
        &mut self,
        blocks: &BTreeSet<u32>,
        mut change: impl FnMut(&mut BtreeCursor<&mut MemoryStore<Refcountbt>>, AgExtent),
    ) {
        let mut runs: Vec<_> = blocks.iter().map(|block| AgExtent::new(*block, 1)).collect();
        AgExtent::normalize(&mut runs);
        for run in runs {
            let ag = run.start.0 / GROUP_BLOCKS;
            let mut editor = BtreeCursor::new(&mut self.0[ag as usize]);
            change(&mut editor, AgExtent::new(run.start.0 % GROUP_BLOCKS, run.len));
        }
    }

    /// One owner more or less for all these blocks, in this many pieces at a time.
    fn adjust(&mut self, blocks: &BTreeSet<u32>, how: Adjust, pieces: u32) -> u32 {
        let mut freed = 0;
        self.each(blocks, |editor, mut run| {
            while run.len > 0 {
                let adjusted = adjust(editor, run, how, pieces).unwrap();
                freed += adjusted.freed.iter().map(|run| run.len).sum::<u32>();
                run = AgExtent::new(run.start.0 + adjusted.done, run.len - adjusted.done);
            }
        });
        freed
    }

    /// What the kernel did between two snapshots.
    fn follow(&mut self, before: &Snapshot, after: &Snapshot, pieces: u32) {
        let (was, is) = (before.staged(), after.staged());
        self.each(&(&was - &is), |editor, run| remove_cow(editor, run).unwrap());
        let blocks: BTreeSet<u32> = before.owners.keys().chain(after.owners.keys()).copied().collect();
        let mut owners = before.owners.clone();
        let wanted = |block: &u32| after.owners.get(block).copied().unwrap_or_default();
        for how in [Adjust::Increase, Adjust::Decrease] {
            loop {
                let due = |block: &&u32| match how {
                    Adjust::Increase => owners.get(block).copied().unwrap_or_default() < wanted(block),
                    Adjust::Decrease => owners.get(block).copied().unwrap_or_default() > wanted(block),
                };
                let due: BTreeSet<u32> = blocks.iter().filter(due).copied().collect();
                if due.is_empty() {
                    break;
                }
                // The first owner of a block is not counted.
                let counted =
                    due.iter().copied().filter(|block| owners.get(block).is_some_and(|owners| *owners > 0));
                let freed = self.adjust(&counted.collect(), how, pieces);
                for block in due {
                    let owners = owners.entry(block).or_default();
                    *owners = if how == Adjust::Increase { *owners + 1 } else { *owners - 1 };
                }
                assert!(how == Adjust::Decrease || freed == 0);
            }
        }
        self.each(&(&is - &was), |editor, run| add_cow(editor, run).unwrap());
    }
}

/// Something that changes who owns blocks.
fn operate(rng: &mut fastrand::Rng, mount: &Path) {
    let file = |nth: usize| -> PathBuf { mount.join(format!("file{nth}")) };
    let (from, to) = (file(rng.usize(0..FILES)), file(rng.usize(0..FILES)));
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    let at = rng.u64(0..FILE_BLOCKS) * BLOCK;
    let len = rng.u64(1..24) * BLOCK;
    let write = format!("pwrite -q {at} {len}");
    match rng.u32(0..12) {
        0..2 if from != to => drop(run("cp", &["--reflink=always", from, to])),
        0..6 => {
            let source = rng.u64(0..FILE_BLOCKS / 2) * BLOCK;
            let size = std::fs::metadata(from).unwrap().len();
            let len = len.min(size.saturating_sub(source));
            // Blocks of one file may be shared with others of its own, but not with themselves.
            if len > 0 && (from != to || at >= source + len || source >= at + len) {
                let reflink = format!("reflink -q {from} {source} {at} {len}");
                run("xfs_io", &["-c", &reflink, to]);
            }
        }
        6..8 => drop(run("xfs_io", &["-c", &format!("fpunch {at} {len}"), to])),
        8 => drop(run("xfs_io", &["-c", &format!("truncate {at}"), to])),
        _ => drop(run("xfs_io", &["-c", &write, "-c", "fsync", to])),
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn trees_are_those_of_the_kernel() {
    let seed = 11;
    let mut rng = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let image =
        Image::mkfs(u64::from(GROUPS * GROUP_BLOCKS) * BLOCK, &["-m", "reflink=1", "-d", "agcount=2"]);
    let mount = image.mount("");
    let dir = mount.dir().to_path_buf();
    for nth in 0..FILES {
        let write = format!("pwrite -q 0 {}", FILE_BLOCKS * BLOCK);
        let path = dir.join(format!("file{nth}"));
        // Small areas for copies, so that some become files and others stay staged.
        run("xfs_io", &["-f", "-c", "cowextsize 32k", "-c", &write, "-c", "fsync", path.to_str().unwrap()]);
    }
    let mut before = Snapshot::take(&image, &dir);
    let (mut most, mut highest, mut staged) = (0, 0, 0);
    for step in 0..80 {
        operate(&mut rng, &dir);
        let after = Snapshot::take(&image, &dir);
        let mut ours = Ours::of(&before.records);
        ours.follow(&before, &after, rng.u32(1..5));
        assert_eq!(ours.records(), after.records, "step {step} of seed {seed}");
        let shared = after.records.iter().flatten().filter(|record| !record.3);
        most = most.max(shared.clone().count());
        highest = highest.max(shared.map(|record| record.2).max().unwrap_or_default());
        staged = staged.max(after.staged().len());
        before = after;
    }
    println!("{most} records of shared blocks at most, {highest} owners, {staged} staged blocks");
    assert!(most > 20 && highest > 4 && staged > 20);
}
