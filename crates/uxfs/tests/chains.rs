//! Chains of deferred work that the power cuts: clones, exchanges, shared and plain blocks that are given up, names. While
//! they run, another thread has all that is committed written to the log over and over, so that checkpoints end within
//! them.
//!
//! Cut at flushes all over the run, uxfs finishes what the log has unfinished, and so does the kernel; of an exchange, all
//! is there or nothing, also for who only reads the volume as it was left.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{Fate, FileOptions, PowerCuts, Recorder, Rewind, WriteRecord};
use common::mounted;
use oracles::xfsprogs::Release;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uxfs::{ExchangeOptions, File, NewNode, OpenOptions, Result, Volume, check_device};
use xfs::recovery::unfinished_chains;

/// Blocks of a file, with a hole behind each.
const EXTENTS: u64 = 60;
const ROUNDS: usize = 4;
/// How many of the flushes are looked behind, and behind how many of them the log is recovered, whatever is in it.
const LOOKS: usize = 300;
const CUTS: usize = 25;
/// So many are recovered for each kind of work that is found unfinished, however rare it is.
const RARE: usize = 3;
/// Of those, how many the kernel recovers as well: one of so many.
const KERNEL: usize = 10;

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
    let to = from.with_extension(to);
    run(Command::new("cp").arg("--sparse=always").arg(from).arg(&to));
    to
}

fn new_file(volume: &Volume, name: &str) -> Result<File> {
    volume.root()?.as_dir()?.create_file(name.as_bytes(), &NewNode::default())?.open()
}

fn frayed(file: &File, byte: u8) -> Result<()> {
    (0..EXTENTS).try_for_each(|nth| file.write_at(&[byte; 4096], nth * 8192))
}

/// What is exchanged over and over.
const PAIR: [(&str, u8); 2] = [("one", 1), ("two", 2)];

fn prepare(image: &Path) {
    let volume = Volume::open(image, &OpenOptions::new().writable(true)).unwrap();
    for (name, byte) in PAIR {
        frayed(&new_file(&volume, name).unwrap(), byte).unwrap();
    }
    frayed(&new_file(&volume, "source").unwrap(), 3).unwrap();
    volume.close().unwrap();
}

/// The kinds of intents that a crash has to leave for us.
const KINDS: [&str; 5] = ["EFI", "RUI", "CUI", "BUI", "XMI"];

/// All kinds of chains, one after the other.
fn chains(volume: &Volume) -> Result<()> {
    let [one, two] = PAIR.map(|(name, _)| volume.open_file(name));
    let (one, two, source) = (one?, two?, volume.open_file("source")?);
    let root = volume.root()?.as_dir()?;
    for _ in 0..ROUNDS {
        one.exchange_range(0, &two, 0, None, ExchangeOptions::new())?;
        let clone = new_file(volume, "clone")?;
        for _ in 0..3 {
            source.clone_range(0, &clone, 0, 0)?;
            clone.punch_hole(8192..20 * 8192)?;
            clone.set_len(8192)?;
        }
        let plain = new_file(volume, "plain")?;
        frayed(&plain, 4)?;
        drop((clone, plain));
        root.remove_file(b"clone")?;
        root.remove_file(b"plain")?;
    }
    Ok(())
}

/// What of the pair there is: the first byte of each.
fn pair_of(content: impl Fn(&str) -> Vec<u8>) -> [u8; 2] {
    PAIR.map(|(name, _)| {
        let bytes = content(name);
        assert_eq!(bytes.len() as u64, (2 * EXTENTS - 1) * 4096, "{name}");
        let all = bytes.chunks(8192).all(|chunk| chunk[..4096].iter().all(|&byte| byte == bytes[0]));
        assert!(all, "{name} was exchanged in part");
        bytes[0]
    })
}

fn pair_in(volume: &Volume) -> [u8; 2] {
    pair_of(|name| {
        let file = volume.open_file(name).unwrap();
        let mut bytes = vec![0; file.size() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    })
}

fn judge(image: &Path, what: &str) {
    repair_finds_nothing(image);
    mounted(image, |at| {
        let pair = pair_of(|name| std::fs::read(at.join(name)).unwrap());
        assert!(pair == [1, 2] || pair == [2, 1], "{what}: {pair:?}");
        let text =
            "cd $1; cp --reflink=always source again; for f in *; do xfs_io -c 'pwrite -q 0 20k' $f; done
                    truncate -s 5000 source; rm -f two again";
        run(Command::new("bash").args(["-euc", text, "bash"]).arg(at));
    });
    repair_finds_nothing(image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn chains_that_are_cut_are_finished_by_us_and_by_the_kernel() {
    let mut unfinished = BTreeMap::new();
    // Not each run of the threads leaves all kinds at the places that are looked at.
    for _ in 0..8 {
        cut_chains(&mut unfinished);
        if KINDS.iter().all(|kind| unfinished.contains_key(kind)) {
            return;
        }
    }
    panic!("no log had an unfinished one of some kind: {unfinished:?}");
}

/// Counts the logs that had an unfinished intent of each kind.
fn cut_chains(unfinished: &mut BTreeMap<&'static str, usize>) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = dir.path().join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("a sparse image");
    run(Command::new(tool("mkfs.xfs")).args(["-q", "-n", "parent=0"]).arg(&image));
    prepare(&image);
    let base = copied(&image, "base");
    let device = FileOptions::new().write(true).open(&image).expect("an image");
    let recorder = Arc::new(Recorder::new(Arc::new(device)));
    let volume = Volume::open_device(recorder.clone(), &OpenOptions::new().writable(true)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                volume.sync().unwrap();
            }
        });
        let done = chains(&volume);
        over.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    drop(volume);
    let recording = recorder.recording();
    let stage =
        Arc::new(Rewind::new(Arc::new(FileOptions::in_memory().write(true).open(&base).expect("as it was"))));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let cuts = recording.cuts();
    let every = (cuts.len() / CUTS).max(1);
    let looked_at = (cuts.len() / LOOKS).max(1);
    let mut judged = 0;
    for (nth, cut) in cuts.into_iter().enumerate().step_by(looked_at) {
        power.advance(cut).expect("written");
        let fate = if nth % 2 == 0 { Fate::Dropped } else { Fate::Applied };
        power.make(|_: &WriteRecord| fate.clone()).expect("written");
        let chains = unfinished_chains(&*stage).expect("the log");
        let kinds: BTreeSet<&'static str> =
            chains.iter().flat_map(|chain| &chain.left).map(|intent| intent.kind).collect();
        let mut is_rare = false;
        for kind in kinds {
            let count = unfinished.entry(kind).or_default();
            *count += 1;
            is_rare |= *count <= RARE;
        }
        if !is_rare && nth % every >= looked_at {
            stage.rewind().expect("taken back");
            continue;
        }
        let what = format!("cut {nth}, every {every}th or rare, in doubt {fate:?}");
        println!("{what}");
        judged += 1;
        let is_kernels = judged % KERNEL == 0;
        if is_kernels {
            let theirs = copied(&base, "kernel");
            mounted(&theirs, |_| ());
            judge(&theirs, &format!("{what}, by the kernel"));
        }
        // Who only reads sees what is there once all of it is finished.
        let reader = Volume::open_device(stage.clone(), &OpenOptions::new()).expect("read");
        let seen = pair_in(&reader);
        drop(reader);
        let volume =
            Volume::open_device(stage.clone(), &OpenOptions::new().writable(true)).expect("recovered");
        let pair = pair_in(&volume);
        assert!(pair == [1, 2] || pair == [2, 1], "{what}: {pair:?}");
        assert_eq!(pair, seen, "{what}");
        volume.close().expect("closed");
        drop(volume);
        let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        repair_finds_nothing(&base);
        if is_kernels {
            judge(&copied(&base, "ours"), &what);
        }
        stage.rewind().expect("taken back");
    }
    println!("{unfinished:?}");
}
