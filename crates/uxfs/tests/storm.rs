//! Many threads share, exchange, cut, move, write and remove a dozen files of a small volume that is nearly full, beside one
//! that sets labels, lets idle time pass, takes and gives back space, and lets the volume grow. Needs `xfs_repair`.
//!
//! Nobody panics or hangs, all that is refused is refused by a name that fits, and behind that nothing is found, free blocks
//! in memory are those on disk, and all come back once everything is removed.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{Random, new_file};
use oracles::xfsprogs::Release;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uxfs::{
    Error, ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Rename, Result,
    Volume, check_device, mkfs_device,
};

const BLOCK: u64 = 4096;
const GROUP: u64 = 16 << 20;
const GROUPS: u64 = 2;
const THREADS: u64 = 12;
const FILES: u64 = 12;
/// Blocks of a file, more or less.
const BLOCKS: u64 = 600;
const LASTS: Duration = Duration::from_secs(4);
/// Nothing hangs for so long that is not stuck.
const STUCK: Duration = Duration::from_secs(60);

/// What happens beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// All files stay open.
    Open,
    /// No file stays open, so that there are last closes all the time.
    Closes,
    /// The volume grows.
    Grows,
}

fn may_be_refused(error: &Error) -> bool {
    use ErrorKind as K;
    let kinds = [
        K::NoSpace,
        K::Busy,
        K::InvalidInput,
        K::NotFound,
        K::AlreadyExists,
        K::Stale,
        K::Unsupported,
        K::NotAllocated,
        K::TooLarge,
        K::TooManyExtents,
    ];
    kinds.contains(&error.kind())
}

fn name(random: &mut Random) -> Vec<u8> {
    format!("f{}", random.below(FILES)).into_bytes()
}

/// One thing with one or two files.
fn step(volume: &Volume, random: &mut Random, open: &[File]) -> Result<()> {
    let dir = volume.root()?.as_dir()?;
    let mut pick = || {
        let nth = random.below(FILES);
        match random.below(3) {
            0 => open.get(nth as usize).cloned(),
            _ => volume.open_file(format!("f{nth}")).ok(),
        }
    };
    let (Some(one), Some(two)) = (pick(), pick()) else { return Ok(()) };
    let (at, to, blocks) = (random.below(BLOCKS), random.below(BLOCKS), 1 + random.below(80));
    let (start, len, to) = (at * BLOCK, blocks * BLOCK, to * BLOCK);
    let range = start..start + len;
    match random.below(26) {
        0..=3 => one.clone_range(start, &two, to, len),
        4 => one.clone_range(0, &two, 0, 0),
        5 | 6 => one.dedupe_range(start, &two, to, len).map(drop),
        7..=9 => one.write_at(&vec![at as u8 | 1; len as usize], start),
        10 => one.write_at(&vec![at as u8 | 1; len as usize / 2 + 77], start + 513),
        11 | 12 => one.overwrite_at(&vec![3; len as usize / 8], start + 512),
        13 | 14 => one.punch_hole(start..start + BLOCK * (1 + blocks / 30)),
        15 => one.zero_range(range, random.below(2) == 0),
        16 => one.allocate(range, random.below(2) == 0),
        17 => one.set_len(if random.below(4) == 0 { 0 } else { start + 100 }),
        18 => one.collapse_range(range),
        19 if one.size() < 2 * BLOCKS * BLOCK => one.insert_range(range),
        20 | 21 => {
            let options = ExchangeOptions::new().only_written(random.below(2) == 0);
            one.exchange_range(start, &two, to, Some(len), options)
        }
        22 => one.exchange_range(0, &two, 0, None, ExchangeOptions::new()),
        23 => {
            let name = name(random);
            let gone = dir.remove_file(&name);
            dir.create_file(&name, &NewNode::default()).map(drop).and(gone)
        }
        24 => dir.rename(&name(random), &dir, &name(random), Rename::Exchange),
        25 => one.copy_range(start, &two, to + 5, len).map(drop),
        _ => one.sync(),
    }
}

/// One thing with the volume, or with the file that leaves it nearly full.
fn step_beside(
    volume: &Volume,
    random: &mut Random,
    filler: &File,
    size: &mut u64,
    beside: Beside,
) -> Result<()> {
    std::thread::sleep(Duration::from_millis(1 + random.below(30)));
    let len = (1 + random.below(40)) * BLOCK;
    match random.below(7) {
        0 => volume.set_label(format!("l{}", random.below(1000))),
        1 | 2 => volume.pass_idle_time(),
        3 if beside == Beside::Grows => {
            *size += 64 * BLOCK + random.below(1 << 20);
            volume.grow(Some((*size).min(17 * GROUP))).map(drop)
        }
        4 => filler.allocate(filler.size()..filler.size() + len, false),
        5 => filler.set_len(filler.size().saturating_sub(len)),
        _ => volume.sync(),
    }
}

/// A file that leaves some hundred blocks free.
fn fill(volume: &Volume, random: &mut Random) -> File {
    let filler = new_file(volume, "filler");
    let (mut end, mut more) = (0, 1 << 20);
    while more >= BLOCK {
        match filler.allocate(end..end + more, false) {
            Ok(()) => end += more,
            Err(_) => more /= 2,
        }
    }
    let left = (50 + random.below(600)) * BLOCK;
    filler.set_len(end.saturating_sub(left)).expect("cut");
    filler
}

/// All threads at work, until it is over.
fn all_at_once(volume: &Volume, random: &mut Random, beside: Beside) {
    let open: Vec<File> = (0..FILES).map(|nth| new_file(volume, &format!("f{nth}"))).collect();
    open[0].write_at(&vec![1; (BLOCKS * BLOCK) as usize], 0).expect("written");
    open[1..].iter().for_each(|file| open[0].clone_range(0, file, 0, 0).expect("a clone"));
    let filler = fill(volume, random);
    let open = if beside == Beside::Closes { Vec::new() } else { open };
    let (over, wrong) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let steps: Vec<AtomicU64> = (0..=THREADS).map(|_| AtomicU64::new(0)).collect();
    let tell = |nth: u64, done: Result<()>| {
        steps[nth as usize].fetch_add(1, Ordering::Relaxed);
        if let Err(error) = done
            && !may_be_refused(&error)
        {
            wrong.lock().expect("no panic").push(error.to_string());
            over.store(true, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for nth in 0..THREADS {
            let (mut random, open, over, tell) = (Random(random.below(1 << 50) | 1), &open, &over, &tell);
            // Half of them open each file anew.
            let open: &[File] = if nth % 2 == 0 { open } else { &[] };
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    tell(nth, step(volume, &mut random, open));
                }
            });
        }
        let (mut random, filler, over_too, tell) = (Random(random.below(1 << 50) | 1), &filler, &over, &tell);
        scope.spawn(move || {
            let mut size = GROUP * GROUPS;
            while !over_too.load(Ordering::Relaxed) {
                tell(THREADS, step_beside(volume, &mut random, filler, &mut size, beside));
            }
        });
        let begun = Instant::now();
        let (mut last, mut since) = (Vec::new(), Instant::now());
        while begun.elapsed() < LASTS && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
            let now: Vec<u64> = steps.iter().map(|steps| steps.load(Ordering::Relaxed)).collect();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > STUCK {
                eprintln!("{beside:?}: stuck after {last:?} steps");
                std::process::abort();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{beside:?}: {wrong:?}");
}

/// Nothing is found on the device.
fn judge(device: &Arc<dyn BlockDevice>, when: &str) {
    let report = check_device(Arc::clone(device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{when}: {:?}", report.findings);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = dir.path().join("volume.img");
    let mut all = vec![0; device.size() as usize];
    device.read(0, &mut all).expect("read");
    std::fs::write(&image, all).expect("an image");
    let repair = Release::Unstable.path("xfs_repair").expect("installed");
    let said =
        Command::new(repair).args(["-n", "-o", "force_geometry"]).arg(&image).output().expect("it runs");
    assert!(said.status.success(), "{when}: {}", String::from_utf8_lossy(&said.stderr));
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("clean")
}

fn free(volume: &Volume) -> u64 {
    // Twice, as the first lets go of what was busy.
    volume.sync().expect("synced");
    volume.sync().expect("synced");
    volume.info().expect("read").free_blocks
}

fn storm(beside: Beside, kernel: &str) {
    let mut random = Random::seeded();
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemoryDevice::anonymous((GROUPS + 16) * GROUP).expect("memory"));
    let features = MkfsFeatures::of_kernel(kernel).expect("its set");
    let options =
        MkfsOptions::new().small(true).features(features).size(GROUP * GROUPS).group_count(GROUPS as u32);
    mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
    let volume = open(&device);
    let at_first = free(&volume);
    all_at_once(&volume, &mut random, beside);
    let in_memory = free(&volume);
    volume.close().expect("closed");
    drop(volume);
    judge(&device, "full");

    let volume = open(&device);
    let on_disk = free(&volume);
    assert_eq!(in_memory, on_disk, "{beside:?}: free blocks in memory and on disk");
    let dir = volume.root().expect("root").as_dir().expect("a directory");
    for nth in 0..FILES {
        // One that could not be made anew is not there.
        let _ = dir.remove_file(format!("f{nth}").as_bytes());
    }
    dir.remove_file(b"filler").expect("removed");
    let emptied = free(&volume);
    drop(dir);
    volume.close().expect("closed");
    drop(volume);
    judge(&device, "emptied");
    // The root directory, and trees of inodes, may have kept some.
    const KEPT: u64 = 8;
    assert!(
        beside == Beside::Grows || emptied + KEPT >= at_first,
        "{beside:?}: {emptied} of {at_first} came back"
    );
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_share_and_change_files_of_a_full_volume() {
    storm(Beside::Open, "6.12");
    storm(Beside::Open, "6.18");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_share_and_change_files_that_are_closed_all_the_time() {
    storm(Beside::Closes, "6.18");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn threads_share_and_change_files_of_a_volume_that_grows() {
    storm(Beside::Grows, "6.18");
}
