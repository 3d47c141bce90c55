//! Logs of kernels with large records, which uxfs goes on with. The power is cut at any moment, with what is in doubt kept,
//! lost or torn. The kernel and uxfs find the same tree, and all that was synced is in it.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Fate, Means, PowerCuts, Recorder, Recording, Rewind, WriteRecord};
use common::devices::{copy, holding, log_of};
use common::files::{image_of, made_small, seeds};
use common::{mounted, repair_finds_nothing};
use fastrand::Rng;
use oracles::Mounted;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uxfs::{Dir, NewNode, OpenOptions, Rename, SetXattr, Volume, check_device};

const BYTES: u64 = 96 << 20;
const THREADS: u64 = 3;
const STEPS: usize = 700;
const CUTS: usize = 30;

/// What mkfs.xfs and the mount are told.
const LOGS: [(&[&str], &str); 5] = [
    (&["-l", "size=1400b"], "loop,logbsize=256k"),
    (&["-l", "size=1700b"], "loop,logbsize=128k"),
    (&["-l", "size=2048b,su=64k"], "loop"),
    (&["-l", "size=1800b,su=32k"], "loop,logbsize=256k"),
    (&["-l", "size=4608b,su=256k"], "loop,logbsize=256k"),
];

/// Name, and number, size and content of each file.
type Tree = BTreeMap<String, (u64, u64, Vec<u8>)>;

fn ours(volume: &Volume) -> Tree {
    let root = root_of(volume);
    let entries = root.entries().map(|entry| entry.expect("an entry")).filter(|entry| !entry.is_dot());
    let file = |entry: uxfs::DirEntry| {
        let node = root.lookup(&entry.name).expect("looked up").expect("there");
        let size = node.metadata().expect("metadata").size;
        let mut bytes = vec![0; size as usize];
        node.open().expect("opens").read_at(&mut bytes, 0).expect("read");
        (String::from_utf8_lossy(&entry.name).into_owned(), (entry.ino, size, bytes))
    };
    entries.map(file).collect()
}

fn theirs(at: &Path) -> Tree {
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("an entry");
        let meta = entry.metadata().expect("there");
        let name = entry.file_name().into_string().expect("a name");
        (name, (meta.ino(), meta.len(), std::fs::read(entry.path()).expect("read")))
    };
    std::fs::read_dir(at).expect("a directory").map(file).collect()
}

fn root_of(volume: &Volume) -> Dir {
    volume.root().expect("root").as_dir().expect("a directory")
}

/// A volume with such a log, which the kernel has closed.
fn left_by_kernel((mkfs, mount): (&[&str], &str)) -> Arc<dyn BlockDevice> {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let image = made_small(dir.path(), BYTES, mkfs);
    let mounted = Mounted::new(&image, &dir.path().join("mnt"), mount);
    std::fs::write(mounted.join("first"), "x").expect("written");
    mounted.unmount();
    holding(&std::fs::read(&image).expect("read"))
}

/// A file that was synced, and when.
type Synced = (u64, String);

/// What one thread does. Returns what it synced.
fn work(volume: &Volume, recorder: &Recorder, seed: u64, thread: u64) -> Vec<Synced> {
    let mut rng = Rng::with_seed(seed * 10 + thread);
    let root = root_of(volume);
    let mut synced = Vec::new();
    for step in 0..STEPS {
        let name = format!("t{thread} {step} {}", "n".repeat(rng.usize(..180)));
        let node = root.create_file(name.as_bytes(), &NewNode::default()).expect("made");
        let file = node.open().expect("opens");
        file.write_at(&vec![step as u8; rng.usize(1..5000)], 0).expect("written");
        if rng.u8(..3) == 0 {
            let value = vec![7; rng.usize(1..3000)];
            node.set_xattr(b"user.x", &value, SetXattr::Either).expect("set");
        }
        match rng.u8(..6) {
            0 => {
                file.sync().expect("synced");
                synced.push((recorder.moment(), name));
            }
            1 | 2 => root.remove_file(name.as_bytes()).expect("removed"),
            3 => {
                let to = format!("t{thread} moved {}", rng.u8(..40));
                root.rename(name.as_bytes(), &root, to.as_bytes(), Rename::Replace).expect("renamed");
            }
            _ => {}
        }
    }
    synced
}

/// Threads change the volume while another has checkpoints end all the time.
fn worked(volume: &Volume, recorder: &Recorder, seed: u64) -> Vec<Synced> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::with_seed(seed + 77);
            while !is_over.load(Ordering::Relaxed) {
                volume.sync().expect("synced");
                std::thread::sleep(Duration::from_micros(rng.u64(..20_000)));
            }
        });
        let spawn = |thread| scope.spawn(move || work(volume, recorder, seed, thread));
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        let synced = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        is_over.store(true, Ordering::Relaxed);
        synced
    })
}

/// Moments at which a write to the log is under way, or just after.
fn moments(recording: &Recording, log: &Range<u64>, rng: &mut Rng) -> Vec<u64> {
    let in_log: Vec<_> = recording.writes().iter().filter(|write| log.contains(&write.offset)).collect();
    let mut cuts: Vec<u64> =
        (0..CUTS).map(|_| in_log[rng.usize(..in_log.len())].started + rng.u64(1..4)).collect();
    cuts.sort_unstable();
    cuts
}

/// What becomes of a write in doubt: all are lost, all are kept, or each goes its way.
fn fate(write: &WriteRecord, log: &Range<u64>, part: u32, rng: &mut Rng) -> Fate {
    match part {
        0 => Fate::Dropped,
        1 => Fate::Applied,
        _ if log.contains(&write.offset) && rng.bool() => {
            Fate::Torn((0..write.data.len() / 512).map(|_| rng.u8(..8) != 0).collect())
        }
        _ if rng.bool() => Fate::Applied,
        _ => Fate::Dropped,
    }
}

/// Has both recover what a cut left.
fn recovers(stage: &Arc<Rewind>, synced: &[Synced], cut: u64, what: &str, repair: bool) {
    let (_dir, image) = image_of(&**stage);
    let volume = Volume::open_device(stage.clone(), &OpenOptions::new().writable(true))
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = ours(&volume);
    let is_due = |(moment, name): &&Synced| *moment <= cut && !found.contains_key(name);
    if let Some((moment, name)) = synced.iter().find(is_due) {
        panic!("{what}: {name} is gone, synced at {moment}");
    }
    volume.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(volume);
    let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{what}: {:?}", report.findings);
    let kernel = mounted(&image, theirs);
    assert!(kernel == found, "{what}: the kernel finds another tree: {} {}", kernel.len(), found.len());
    if repair {
        repair_finds_nothing(&image);
    }
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let kind = LOGS[seed as usize % LOGS.len()];
    let means = Means::ALL[rng.usize(..4)];
    let device = left_by_kernel(kind);
    let stage = Arc::new(Rewind::new(copy(&*device)));
    let log = log_of(&*device);
    let recorder = Arc::new(Recorder::new(device));
    let how = OpenOptions::new().writable(true).cache_size([1 << 20, 64 << 20][rng.usize(..2)]);
    let volume = Volume::open_device(means.of(recorder.clone()), &how).expect("clean");
    let synced = worked(&volume, &recorder, seed);
    drop(volume);
    let recording = recorder.recording();
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    for cut in moments(&recording, &log, &mut rng) {
        power.advance(cut).expect("written");
        let part = rng.u32(..4);
        power.make(|write| fate(write, &log, part, &mut rng)).expect("written");
        let what = format!("seed {seed}, {kind:?} {means:?}, cut {cut} of {}", recording.end());
        recovers(&stage, &synced, cut, &what, rng.u8(..6) == 0);
        stage.rewind().expect("taken back");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_log_with_large_records_is_recovered() {
    seeds(2).for_each(run);
}
