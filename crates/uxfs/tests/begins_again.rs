//! An operation on names, or on blocks of a file, begins with the log space that it usually needs. If that is not enough,
//! and the log has no more, it begins again with all that it may need. Here each of them does.
//!
//! The first attempt leaves nothing: the same operations have the same outcome, whether they began again or not, down to
//! where a name lies in its directory and which blocks of a file have been written. With many threads nothing is found on the volume, and all space comes back.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{Random, seeds};
use fileio::testing::{at_each, beginning_again};
use oracles::xfsprogs::Release;
use std::cell::Cell;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uxfs::{
    Dir, Error, ErrorKind, File, FileType, MkfsOptions, NewNode, Node, OpenOptions, Rename, Result,
    Timestamp, Volume, check_device, mkfs_device,
};

const PAST: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };
const SIZE: u64 = 512 << 20;
/// So large that what a transaction reserves does not decide when it is written back.
const LOG: u64 = 80 << 20;
/// Hardly larger than the worst case of one operation.
const SMALL_LOG: u64 = 5 << 20;
const DIRS: u64 = 4;
const NAMES: u64 = 120;
const THREADS: u64 = 6;

fn device(block: u32, log: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    let options = MkfsOptions::new()
        .small(true)
        .block_size(block)
        .group_count(4)
        .log_size(log)
        .uuid([7; 16])
        .time(PAST);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume of today's defaults");
    device
}

/// Directories in which all happens.
fn dirs(volume: &Volume) -> Vec<Dir> {
    let root = volume.root().and_then(|root| root.as_dir()).expect("a directory");
    let make = |nth| root.create_dir(format!("d{nth}").as_bytes(), &NewNode::default()).expect("made");
    (0..DIRS).map(|nth| make(nth).as_dir().expect("a directory")).collect()
}

/// A name of any length.
fn name(random: &mut Random) -> Vec<u8> {
    let nth = random.below(NAMES);
    let mut name = format!("{nth}-").into_bytes();
    name.resize(4 + (nth * 7 % 240) as usize, b'x');
    name
}

/// Changes the content of a file.
fn change(file: &File, random: &mut Random) -> Result<()> {
    let (at, len) = (random.below(400 << 10), 1 + random.below(60 << 10));
    let file = if random.below(3) == 0 { file.buffered() } else { file.clone() };
    match random.below(8) {
        0..=2 => file.write_at(&vec![at as u8 | 1; len as usize], at),
        3 => file.append(&vec![at as u8 | 1; len as usize]).map(drop),
        4 => file.set_len(at),
        5 => file.allocate(at..at + len, random.below(2) == 0),
        6 => file.punch_hole(at..at + len),
        _ => file.sync(),
    }
}

/// Has another file share blocks of this one.
fn share(file: &File, other: &File, random: &mut Random) -> Result<()> {
    let block = file.node().metadata()?.block_size;
    let block = u64::from(block);
    let blocks = file.size() / block;
    let at = random.below(blocks + 1);
    file.clone_range(at * block, other, random.below(8) * block, random.below(blocks - at + 1) * block)
}

/// Makes, links, moves, exchanges or removes a name, or changes a file.
fn step(dirs: &[Dir], random: &mut Random) -> Result<()> {
    let mut pick = || &dirs[random.below(DIRS) as usize];
    let (dir, to) = (pick(), pick());
    let (one, two) = (name(random), name(random));
    let new = NewNode::default();
    match random.below(22) {
        0..=4 => dir.create_file(&one, &new).map(drop),
        5 => dir.create_dir(&one, &new).map(drop),
        6 => dir.create_symlink(&one, &vec![b't'; 1 + random.below(900) as usize], &new).map(drop),
        7 => dir.lookup(&one)?.map_or(Ok(()), |node| to.link(&two, &node)),
        8 => {
            let file = dir.create_unnamed(&new)?;
            to.link(&two, file.node())
        }
        9 | 10 => dir.rename(&one, to, &two, Rename::Replace),
        11 => dir.rename(&one, to, &two, Rename::NoReplace),
        12 => dir.rename(&one, to, &two, Rename::Exchange),
        13 => dir.remove_dir(&one),
        14..=19 => {
            let regular = |node: &Node| node.file_type() == FileType::Regular;
            let (one, two) = (dir.lookup(&one)?.filter(regular), to.lookup(&two)?.filter(regular));
            match (one, two) {
                (Some(one), Some(two)) if random.below(3) == 0 => share(&one.open()?, &two.open()?, random),
                (Some(one), _) => change(&one.open()?, random),
                _ => Ok(()),
            }
        }
        _ => {
            // Removed while it is open, or not.
            let open = dir.lookup(&one)?.filter(|_| random.below(3) == 0).map(|node| node.open());
            let done = dir.remove_file(&one);
            drop(open);
            done
        }
    }
}

fn may_be_refused(error: &Error) -> bool {
    use ErrorKind as K;
    let kinds = [
        K::NoSpace,
        K::NotFound,
        K::AlreadyExists,
        K::Stale,
        K::IsADirectory,
        K::NotADirectory,
        K::NotEmpty,
        K::IntoItself,
        K::InvalidInput,
        K::WrongType,
    ];
    kinds.contains(&error.kind())
}

fn steps(dirs: &[Dir], random: &mut Random, count: u64) {
    for _ in 0..count {
        if let Err(error) = step(dirs, random) {
            assert!(may_be_refused(&error), "{error}: {:?}", error.kind());
        }
    }
}

fn bytes(device: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; device.size() as usize];
    device.read(0, &mut all).expect("read");
    all
}

/// A sum over the bytes of a file, and where it has blocks.
fn content(file: &File) -> (u64, Vec<(u64, u64, bool)>) {
    let mut bytes = vec![0; file.size() as usize];
    let len = file.read_at(&mut bytes, 0).expect("read");
    let sum =
        bytes[..len].iter().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let mut runs: Vec<(u64, u64, bool)> = Vec::new();
    for extent in file.extents().map(|extent| extent.expect("read")) {
        match runs.last_mut() {
            // It may lie in as many pieces as there were.
            Some((at, len, unwritten)) if *at + *len == extent.logical && *unwritten == extent.unwritten => {
                *len += extent.length;
            }
            _ => runs.push((extent.logical, extent.length, extent.unwritten)),
        }
    }
    (sum, runs)
}

/// All that there is below a directory: its place in its directory, its name, and what it is. `known` are the files so far,
/// as numbers of inodes may differ.
fn tree(dir: &Dir, known: &mut Vec<u64>, found: &mut Vec<(u64, Vec<u8>, String)>) {
    let mut entries = dir.entries();
    while let Some(entry) = entries.next() {
        let entry = entry.expect("read");
        let node = dir.node().volume().node(entry.ino).expect("there");
        let file = known.iter().position(|ino| *ino == entry.ino).unwrap_or_else(|| {
            known.push(entry.ino);
            known.len() - 1
        });
        let metadata = node.metadata().expect("read");
        let what = (file, metadata.file_type, metadata.nlink, metadata.size, node.read_link().ok());
        let what = (what, node.open().ok().map(|file| content(&file)));
        found.push((entries.place(), entry.name.clone(), format!("{what:?}")));
        if node.file_type().is_dir() && !entry.is_dot() {
            tree(&node.as_dir().expect("a directory"), known, found);
        }
    }
}

#[test]
fn what_began_again_has_the_same_outcome() {
    for seed in seeds(4) {
        let run = |again: bool| {
            let device = device([1024, 4096, 65536][seed as usize % 3], LOG);
            let options = OpenOptions::new().writable(true).repeatable(Some(PAST));
            let volume = Volume::open_device(Arc::clone(&device), &options).expect("it opens");
            let dirs = dirs(&volume);
            let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
            let mut work = || steps(&dirs, &mut random, 3000);
            if again {
                beginning_again(work)
            } else {
                work()
            }
            let mut found = Vec::new();
            let root = volume.root().and_then(|root| root.as_dir()).expect("a directory");
            tree(&root, &mut Vec::new(), &mut found);
            drop(dirs);
            volume.close().expect("closed");
            drop((root, volume));
            let report = check_device(Arc::clone(&device), &OpenOptions::new()).expect("checked");
            assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
            found
        };
        let (once, twice) = (run(false), run(true));
        assert!(once.len() > 200, "seed {seed}: {} names are few", once.len());
        assert_eq!(once, twice, "seed {seed}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_whose_operations_begin_again_leave_nothing() {
    for seed in seeds(4) {
        let device = device([1024, 4096, 65536][seed as usize % 3], LOG);
        let open = || {
            let options = OpenOptions::new().writable(true);
            Volume::open_device(Arc::clone(&device), &options).expect("it opens")
        };
        let volume = open();
        let all = dirs(&volume);
        let free = |volume: &Volume| {
            // Twice, as the first lets go of what was busy.
            volume.sync().and_then(|()| volume.sync()).expect("synced");
            volume.info().expect("read").free_blocks
        };
        let at_first = free(&volume);
        std::thread::scope(|scope| {
            for nth in 0..THREADS {
                let all = &all;
                scope.spawn(move || {
                    let mut random = Random((seed << 8 | nth).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
                    beginning_again(|| steps(all, &mut random, 1500));
                });
            }
        });
        let in_memory = free(&volume);
        drop(all);
        volume.close().expect("closed");
        drop(volume);
        judge(&device, seed);

        let volume = open();
        assert_eq!(in_memory, free(&volume), "seed {seed}: free blocks in memory and on disk");
        let root = volume.root().and_then(|root| root.as_dir()).expect("a directory");
        beginning_again(|| (0..DIRS).for_each(|nth| remove_all(&root, format!("d{nth}").as_bytes())));
        let emptied = free(&volume);
        drop(root);
        volume.close().expect("closed");
        drop(volume);
        judge(&device, seed);
        // The root directory, and trees of inodes, may have kept some.
        const KEPT: u64 = 16;
        assert!(emptied + KEPT >= at_first, "seed {seed}: {emptied} of {at_first} came back");
    }
}

/// Nobody is made to begin again here: some have to, as the log is small.
#[test]
fn threads_in_a_small_log_begin_again_by_themselves() {
    let begun_again = AtomicU64::new(0);
    for seed in seeds(2) {
        let device = device(1024, SMALL_LOG);
        // With threads of the journal's own, or in step.
        let in_step = (seed % 2 == 0).then_some(PAST);
        let options = OpenOptions::new().writable(true).repeatable(in_step);
        let volume = Volume::open_device(Arc::clone(&device), &options).expect("it opens");
        let all = dirs(&volume);
        std::thread::scope(|scope| {
            for nth in 0..4 * THREADS {
                let (all, begun_again) = (&all, &begun_again);
                scope.spawn(move || {
                    let mut random = Random((seed << 8 | nth).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
                    let count = Rc::new(Cell::new(0));
                    let each = Rc::clone(&count);
                    let step = move || each.set(each.get() + 1);
                    at_each("an operation begins again", step, || steps(all, &mut random, 300));
                    begun_again.fetch_add(count.get(), Ordering::Relaxed);
                });
            }
        });
        drop(all);
        volume.close().expect("closed");
        drop(volume);
        let report = check_device(Arc::clone(&device), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
    }
    let begun_again = begun_again.into_inner();
    println!("{begun_again} began again");
    assert!(begun_again > 0, "none began again");
}

/// Removes a directory with all in it.
fn remove_all(dir: &Dir, name: &[u8]) {
    let inner = dir.lookup(name).expect("found").expect("there").as_dir().expect("a directory");
    let names: Vec<_> =
        inner.entries().map(|entry| entry.expect("read")).filter(|entry| !entry.is_dot()).collect();
    for entry in names {
        match inner.remove_file(&entry.name) {
            Err(error) if error.kind() == ErrorKind::IsADirectory => remove_all(&inner, &entry.name),
            done => done.expect("removed"),
        }
    }
    dir.remove_dir(name).expect("removed");
}

/// Nothing is found on the device.
fn judge(device: &Arc<dyn BlockDevice>, seed: u64) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = dir.path().join("volume.img");
    std::fs::write(&image, bytes(&**device)).expect("an image");
    let repair = Release::Unstable.path("xfs_repair").expect("installed");
    let said = Command::new(repair).arg("-n").arg(&image).output().expect("it runs");
    assert!(said.status.success(), "seed {seed}: {}", String::from_utf8_lossy(&said.stderr));
}
