//! Chains of deferred work of which the power cuts each part off, and whose recovery it cuts part by part, over and over.
//! Whoever comes last comes to the same files, uxfs or the kernel, as who was never cut.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{Fate, FileDevice, FileOptions, Recorder, Recording, WriteRecord};
use common::mounted;
use fileio::testing::part_by_part;
use oracles::xfsprogs::Release;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use uxfs::{
    ExchangeOptions, File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Result, Volume, check_device,
    mkfs,
};

/// Blocks of a file, with a hole behind each.
const EXTENTS: u64 = 12;
/// Cuts of the work that are recovered.
const TRIALS: usize = 15;
/// How often recoveries of one log are cut at most.
const DEPTH: usize = 8;
/// One log of this many is recovered by the kernel as well.
const KERNEL: usize = 6;

type Files = BTreeMap<String, Vec<u8>>;

fn run(command: &mut Command) {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {text}");
}

fn tool(name: &str) -> PathBuf {
    Release::Unstable.path(name).expect("ci/xfsprogs installs it")
}

fn repair_finds_nothing(image: &Path) {
    run(Command::new(tool("xfs_repair")).arg("-n").arg(image));
}

fn copied(from: &Path, to: &str) -> PathBuf {
    let to = from.with_file_name(to);
    run(Command::new("cp").arg("--sparse=always").arg(from).arg(&to));
    to
}

fn new_file(volume: &Volume, name: &str) -> Result<File> {
    volume.root()?.as_dir()?.create_file(name.as_bytes(), &NewNode::default())?.open()
}

fn frayed(file: &File, byte: u8) -> Result<()> {
    (0..EXTENTS).try_for_each(|nth| file.write_at(&[byte; 4096], nth * 8192))
}

/// Two files, of which one shares every third of its extents with a third.
fn prepare(image: &Path) {
    let volume = Volume::open(image, &OpenOptions::new().writable(true)).unwrap();
    let [one, two, shares] = ["one", "two", "shares"].map(|name| new_file(&volume, name).unwrap());
    frayed(&one, 1).unwrap();
    frayed(&two, 2).unwrap();
    for nth in (0..EXTENTS - 1).step_by(3) {
        one.clone_range(nth * 8192, &shares, nth * 8192, 4096).unwrap();
    }
    drop((one, two, shares));
    volume.close().unwrap();
}

/// All kinds of chains, one after the other.
fn chains(volume: &Volume) -> Result<()> {
    let [one, two, shares] = ["one", "two", "shares"].map(|name| volume.open_file(name).unwrap());
    one.exchange_range(0, &two, 0, None, ExchangeOptions::new())?;
    let clone = new_file(volume, "clone")?;
    two.clone_range(0, &clone, 0, 0)?;
    clone.write_at(&[7; 20_000], 4000)?;
    clone.punch_hole(5 * 8192..8 * 8192)?;
    shares.set_len(3 * 8192)?;
    one.exchange_range(8192, &clone, 2 * 8192, Some(5 * 8192), ExchangeOptions::new())?;
    clone.set_len(8192)?;
    drop(clone);
    let root = volume.root()?.as_dir()?;
    root.remove_file(b"two")?;
    drop(two);
    root.remove_file(b"clone")
}

/// What is written while `work` goes on with the volume of an image, part by part.
fn recorded(image: &Path, work: impl FnOnce(&Volume)) -> Recording {
    let copy = copied(image, "recorded");
    let recorder =
        Arc::new(Recorder::new(Arc::new(FileOptions::in_memory().write(true).open(&copy).unwrap())));
    part_by_part(|| {
        let options = OpenOptions::new().writable(true);
        let volume = Volume::open_device(recorder.clone(), &options).expect("opens");
        work(&volume);
        volume.close().expect("closes");
    });
    recorder.recording()
}

/// What a cut leaves.
fn cut(image: &Path, recording: &Recording, at: u64, rng: &mut fastrand::Rng, to: &str) -> PathBuf {
    let image = copied(image, to);
    let device = FileOptions::in_memory().write(true).open(&image).unwrap();
    let fate = rng.u32(..3);
    let choose = |_: &WriteRecord| match fate {
        0 => Fate::Dropped,
        1 => Fate::Applied,
        _ if rng.bool() => Fate::Applied,
        _ => Fate::Dropped,
    };
    recording.rebuild(at, &device, choose).expect("written");
    image
}

fn unfinished(image: &Path) -> Vec<String> {
    let device = FileDevice::open(image).expect("an image");
    let volume = Volume::open_device(Arc::new(device), &OpenOptions::new()).expect("opens");
    volume.recovery().map(|recovery| recovery.unfinished.clone()).unwrap_or_default()
}

/// What all files hold.
fn files(image: &Path) -> Files {
    let volume = Volume::open(image, &OpenOptions::new()).expect("opens");
    assert!(volume.recovery().is_none(), "clean");
    let read = |name: &str| {
        let file = volume.open_file(name).ok()?;
        let mut bytes = vec![0; file.size() as usize];
        file.read_at(&mut bytes, 0).expect("read");
        Some((name.to_owned(), bytes))
    };
    ["one", "two", "shares", "clone"].into_iter().filter_map(read).collect()
}

/// What uxfs makes of a log when nobody comes between.
fn uncut(image: &Path) -> Files {
    let copy = copied(image, "uncut");
    Volume::open(&copy, &OpenOptions::new().writable(true)).expect("recovered").close().expect("closed");
    files(&copy)
}

fn sound(image: &Path, what: &str) {
    let device = Arc::new(FileDevice::open(image).unwrap());
    let report = check_device(device, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{what}: {:?}", report.findings);
    repair_finds_nothing(image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn recoveries_that_are_cut_part_by_part_come_to_the_same() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let base = dir.path().join("base");
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs(&base, &MkfsOptions::new().size(64 << 20).small(true).features(features)).expect("a volume");
    prepare(&base);
    let work = recorded(&base, |volume| chains(volume).unwrap());
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut cut_at, mut found, mut kernel) = (0, BTreeMap::<_, usize>::new(), 0);
    let cuts = work.cuts();
    println!("{} cuts", cuts.len());
    for trial in 0..TRIALS {
        let nth = trial * cuts.len() / TRIALS + rng.usize(..cuts.len() / TRIALS);
        let mut image = cut(&base, &work, cuts[nth], &mut rng, "level.0");
        let expected = uncut(&image);
        let mut what = format!("seed {seed}, cut {nth}");
        for depth in 0..DEPTH {
            let left = unfinished(&image);
            left.iter().for_each(|kind| *found.entry((kind.clone(), depth > 0)).or_default() += 1);
            let recovery = recorded(&image, |_| ());
            let cuts = recovery.cuts();
            println!("{what}: {left:?}, {} cuts", cuts.len());
            if left.is_empty() || depth + 1 == DEPTH {
                break;
            }
            // Early ones more often, so that there is something left for the next.
            let most = rng.usize(..cuts.len());
            let nth = rng.usize(..=most);
            what += &format!(", {nth} of {}", cuts.len());
            image = cut(&image, &recovery, cuts[nth], &mut rng, &format!("level.{}", depth + 1));
            cut_at += 1;
            if !unfinished(&image).is_empty() {
                kernel += 1;
                if kernel % KERNEL == 0 {
                    let theirs = copied(&image, "theirs");
                    mounted(&theirs, |_| ());
                    sound(&theirs, &format!("{what}, by the kernel"));
                    assert!(files(&theirs) == expected, "{what}: the kernel comes to something else");
                }
            }
        }
        let ours = image.with_file_name("recorded");
        sound(&ours, &what);
        assert!(files(&ours) == expected, "{what}: not what an uncut recovery comes to");
    }
    println!("{cut_at} recoveries were cut; {found:?}");
    for kind in ["(EFI)", "(RUI)", "(CUI)", "(BUI)", "(XMI)"] {
        let found = found.iter().any(|((name, again), _)| *again && name.contains(kind));
        assert!(found, "no recovery that was cut left one of {kind}");
    }
}
