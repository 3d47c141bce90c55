//! The rules of the reverse map against the kernel's: it says of each change to a volume's maps what it is about (its
//! tracepoints do), and what came of all of them lies on the volume. The same changes by our rules must come to the same
//! records, however they are joined and split.
//!
//! Needs tracefs, which is mounted for the time of the test.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run};
use oracles::umount;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use xfs::btree::edit::BtreeCursor;
use xfs::btree::edit::check;
use xfs::btree::edit::memory::MemoryStore;
use xfs::rmap::{Mapping, RmapOwner, convert, convert_shared, map, map_shared, unmap, unmap_shared};
use xfs_format::btree::Rmapbt;
use xfs_format::types::{AgBlock, FileBlock};

const GROUPS: usize = 2;
/// Blocks of the volume have this many bytes.
const BLOCK: u64 = 4096;

/// The kernel's flags of owners, and its mark for unwritten extents beside them.
const ATTR_FORK: u64 = 1;
const BMBT_BLOCK: u64 = 2;
const UNWRITTEN: u64 = 4;

/// The records of each group as `xfs_db` shows them.
fn records(image: &Image) -> Vec<Vec<Mapping>> {
    let path = image.path();
    (0..GROUPS)
        .map(|ag| {
            let group = format!("agf {ag}");
            let text = run(
                "xfs_db",
                &["-r", "-c", &group, "-c", "addr rmaproot", "-c", "btdump", path.to_str().unwrap()],
            );
            // Inner blocks have keys and ptrs, leaves have recs[1-168] = […] 1:[start,count,owner,offset,flags…] 2:[…
            text.split("recs[").skip(1).flat_map(leaf).collect()
        })
        .collect()
}

fn leaf(text: &str) -> Vec<Mapping> {
    let records = text.split_whitespace().filter_map(|word| word.split_once(":[")?.1.strip_suffix(']'));
    records
        .map(|record| {
            let numbers: Vec<i64> =
                record.split(',').map(|number| number.parse().expect("a number")).collect();
            let [start, count, owner, offset, unwritten, attr_fork, bmbt_block] = numbers[..] else {
                panic!("{record}");
            };
            let owner =
                RmapOwner::numbered(owner as u64, FileBlock(offset as u64), attr_fork == 1, bmbt_block == 1);
            let (start, len) = (AgBlock(start as u32), count as u32);
            Mapping { start, len, owner, unwritten: unwritten == 1 }
        })
        .collect()
}

/// The kernel's events of one volume. Nobody else's tracing is touched.
struct Trace {
    dir: TempDir,
    instance: PathBuf,
}

const EVENTS: [&str; 4] = ["map", "unmap", "convert", "deferred"];

impl Trace {
    fn of(volume: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        run("mount", &["-t", "tracefs", "tracefs", dir.path().to_str().unwrap()]);
        let instance = dir.path().join(format!("instances/uxfs-rmap-{}", std::process::id()));
        fs::create_dir(&instance).unwrap();
        let trace = Self { dir, instance };
        trace.put("trace_clock", "mono");
        trace.put("buffer_size_kb", "32768");
        let dev = fs::metadata(volume).unwrap().dev();
        let dev = rustix::fs::major(dev) << 20 | rustix::fs::minor(dev);
        for event in EVENTS {
            trace.put(&format!("events/xfs/xfs_rmap_{event}/filter"), &format!("dev == {dev}"));
            trace.put(&format!("events/xfs/xfs_rmap_{event}/enable"), "1");
        }
        trace
    }

    fn put(&self, name: &str, value: &str) {
        fs::write(self.instance.join(name), value).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// What was recorded, all of it.
    fn text(&self) -> String {
        let text = fs::read_to_string(self.instance.join("trace")).unwrap();
        let entries = text.lines().find_map(|line| line.split_once("entries-in-buffer/entries-written: "));
        let (there, all) = entries.and_then(|(_, counts)| counts.split_once('/')).expect("a count of events");
        assert_eq!(Some(there), all.split_whitespace().next(), "events were lost");
        text
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let removed = fs::remove_dir(&self.instance);
        let unmounted = umount(self.dir.path());
        assert!(
            std::thread::panicking() || (removed.is_ok() && unmounted.is_ok()),
            "{removed:?} {unmounted:?}"
        );
    }
}

/// A change of a group's map as the kernel's events tell it.
#[derive(Debug)]
struct Change {
    ag: usize,
    kind: &'static str,
    mapping: Mapping,
}

/// What an event is about: `… xfs_rmap_map: dev 7:0 agno 0x0 gbno 0xf fsbcount 0x1 owner 0x83 fileoff 0x0 flags 0x1`, or
/// `… xfs_rmap_deferred: dev 7:0 op map_shared agno 0x0 gbno 0xf owner 0x83 data fileoff 0x0 fsbcount 0x1 state 0`.
fn changes(text: &str) -> Vec<Change> {
    let mut deferred = BTreeMap::new();
    let mut changes = Vec::new();
    for line in text.lines() {
        let Some((event, what)) = line.split_once("xfs_rmap_").and_then(|(_, event)| event.split_once(": "))
        else {
            continue;
        };
        let words: Vec<_> = what.split_whitespace().collect();
        let word = |name: &str| words[words.iter().position(|word| *word == name).expect(name) + 1];
        let number = |name: &str| u64::from_str_radix(word(name).trim_start_matches("0x"), 16).unwrap();
        let (ag, start, owner) = (number("agno"), number("gbno"), number("owner"));
        let (offset, len) = (number("fileoff"), number("fsbcount"));
        let about = (ag, start, len, owner, offset);
        if event == "deferred" {
            let op = word("op");
            let simple = match op.trim_end_matches("_shared") {
                "map" | "alloc" => "map",
                "unmap" | "free" => "unmap",
                "cvt" => "convert",
                _ => panic!("{line}"),
            };
            deferred.insert((simple, about), op.ends_with("_shared"));
            continue;
        }
        let kind = match (event, deferred.remove(&(event, about)).unwrap_or(false)) {
            ("map", false) => "map",
            ("map", true) => "map_shared",
            ("unmap", false) => "unmap",
            ("unmap", true) => "unmap_shared",
            ("convert", false) => "convert",
            ("convert", true) => "convert_shared",
            _ => panic!("{line}"),
        };
        let flags = number("flags");
        let (attr_fork, bmbt_block) = (flags & ATTR_FORK != 0, flags & BMBT_BLOCK != 0);
        let owner = RmapOwner::numbered(owner, FileBlock(offset), attr_fork, bmbt_block);
        let (start, unwritten) = (AgBlock(start as u32), flags & UNWRITTEN != 0);
        changes.push(Change {
            ag: ag as usize,
            kind,
            mapping: Mapping { start, len: len as u32, owner, unwritten },
        });
    }
    assert!(deferred.is_empty(), "changes that were announced and not made: {deferred:?}");
    changes
}

/// Has the kernel change files in every way that changes the map: small extents that meet again and again.
fn history(dir: &Path, rng: &mut fastrand::Rng, steps: u32) {
    let files: Vec<_> = (0..10).map(|nth| dir.join(format!("file-{nth}"))).collect();
    for _ in 0..steps {
        let file = &files[rng.usize(0..files.len())];
        let (at, blocks) = (rng.u64(0..300) * BLOCK, *rng.choice(&[1, 1, 2, 3, 5, 8, 20]).unwrap());
        let len = blocks * BLOCK;
        let size = fs::metadata(file).map_or(0, |file| file.len() / BLOCK * BLOCK);
        let command = match rng.u32(0..100) {
            0..25 => format!("pwrite -q {at} {len}"),
            25..40 => format!("falloc {at} {}", len * *rng.choice(&[1, 5]).unwrap()),
            40..52 => format!("fpunch {at} {len}"),
            52..72 => {
                let from = &files[rng.usize(0..files.len())];
                let Ok(there) = fs::metadata(from) else { continue };
                let whole = there.len() / BLOCK;
                if whole == 0 {
                    continue;
                }
                let first = rng.u64(0..whole);
                let len = (blocks * 3).min(whole - first) * BLOCK;
                let first = first * BLOCK;
                // A file cannot share blocks with itself where the ranges lie over each other.
                if from == file && first < at + len && at < first + len {
                    continue;
                }
                format!("reflink -q {} {first} {at} {len}", from.display())
            }
            72..76 => format!("truncate {at}"),
            76..78 => {
                let _ = fs::remove_file(file);
                continue;
            }
            78..90 => {
                if size > 0 {
                    attribute(file, rng);
                }
                continue;
            }
            90..93 => format!("fzero {at} {len}"),
            93..95 if size > at + len => format!("finsert {at} {len}"),
            95..97 if size > at + len => format!("fcollapse {at} {len}"),
            97..100 if size > at => format!("funshare {at} {}", len.min(size - at)),
            _ => continue,
        };
        run("xfs_io", &["-f", "-c", &command, "-c", "fdatasync", file.to_str().unwrap()]);
    }
}

/// Makes, changes or removes an attribute, which may need blocks of its own.
fn attribute(file: &Path, rng: &mut fastrand::Rng) {
    let name = format!("user.{}", rng.u32(0..4));
    if rng.u32(0..3) == 0 {
        let _ = rustix::fs::removexattr(file, name);
    } else {
        let value = vec![rng.u8(..); *rng.choice(&[10, 3000, 20_000]).unwrap()];
        rustix::fs::setxattr(file, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_the_kernel_changes_comes_to_the_same_records() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let image = Image::mkfs(320 << 20, &["-m", "rmapbt=1,reflink=1", "-d", "agcount=2", "-b", "size=4096"]);
    let before = records(&image);
    let mounted = image.mount("");
    let trace = Trace::of(mounted.dir());
    history(mounted.dir(), &mut fastrand::Rng::with_seed(seed), 700);
    mounted.unmount();
    let changes = changes(&trace.text());
    drop(trace);
    let after = records(&image);

    let mut counts = BTreeMap::<_, u32>::new();
    let mut groups: Vec<_> = before
        .iter()
        .map(|before| {
            let mut store = MemoryStore::<Rmapbt>::with_block_root(12);
            let mut editor = BtreeCursor::new(&mut store);
            before.iter().for_each(|mapping| map(&mut editor, mapping).unwrap());
            store
        })
        .collect();
    for change in &changes {
        let does = match change.kind {
            "map" => map,
            "unmap" => unmap,
            "convert" => convert,
            "map_shared" => map_shared,
            "unmap_shared" => unmap_shared,
            _ => convert_shared,
        };
        does(&mut BtreeCursor::new(&mut groups[change.ag]), &change.mapping)
            .unwrap_or_else(|error| panic!("seed {seed}: {change:?}: {error}"));
        *counts.entry(change.kind).or_default() += 1;
        if change.mapping.owner.bmbt_block() || change.mapping.owner == RmapOwner::COW_STAGING {
            *counts.entry("without offsets").or_default() += 1;
        }
    }
    println!("{counts:?}");
    assert!(counts.len() == 7 && counts.values().all(|count| *count > 3), "{counts:?}");
    for (group, after) in groups.iter_mut().zip(&after) {
        let mut found = Vec::new();
        check(group, |record| found.push(Mapping::of_record(record))).unwrap();
        assert_eq!(found, *after, "seed {seed}");
    }
}
