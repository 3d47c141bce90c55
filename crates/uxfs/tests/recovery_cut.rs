//! Recoveries by uxfs that are cut short, and then the kernel's: it finds everything, and a volume that is sound.
//!
//! The kernel takes a block for as new as the LSN in its first sector says, and leaves such a block alone: of each buffer
//! that uxfs replays, all must come to the device at once.
#![forbid(unsafe_code)]

mod common;

use blockdev::{BlockDevice, Fate, FileDevice, Recorder, Recording, WriteRecord};
use common::{made, mounted, open, repair_finds_nothing};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use uxfs::{NewNode, OpenOptions, Volume};

/// This many directories, which lie in groups of their own: their blocks go to the device in different writes.
const DIRS: usize = 4;
const NAMES: usize = 1200;
/// How many of them are removed, all over their blocks, before the crash; as many others are made.
const REMOVED: usize = 60;
/// Moments at which each recovery is cut.
const MOMENTS: usize = 6;

fn old(n: usize) -> String {
    format!("{}/a-file-with-some-name-{n}", n % DIRS)
}

fn removed() -> impl Iterator<Item = usize> {
    (0..REMOVED).map(|n| n * 19 + 3)
}

fn new(n: usize) -> String {
    format!("{}/another-that-was-made-later-{n}", n % DIRS)
}

/// The names that recovery has to find.
fn expected() -> Vec<String> {
    let gone: Vec<usize> = removed().collect();
    let stayed = (0..NAMES).filter(|n| !gone.contains(n)).map(old);
    let mut names: Vec<String> = stayed.chain((0..REMOVED).map(new)).collect();
    names.sort();
    names
}

fn run(command: &mut Command) {
    let out = command.output().expect("run");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn copied(from: &Path, to: &str) -> PathBuf {
    let to = from.with_extension(to);
    run(Command::new("cp").arg("--sparse=always").arg(from).arg(&to));
    to
}

fn create(volume: &Volume, path: &str) {
    let (dir, name) = path.split_once('/').expect("in a directory");
    let dir = volume.open_dir(format!("/{dir}")).expect("made");
    dir.create_file(name.as_bytes(), &NewNode::default()).expect("made");
}

/// A volume with a dirty log of uxfs.
fn left_by_uxfs(dir: &Path, more: &[&str]) -> PathBuf {
    let image = made(dir, more);
    let volume = open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for n in 0..DIRS {
        root.create_dir(n.to_string().as_bytes(), &NewNode::default()).expect("made");
    }
    (0..NAMES).for_each(|n| create(&volume, &old(n)));
    drop(root);
    volume.close().expect("closed");
    drop(volume);
    let volume = open(&image);
    for path in removed().map(old) {
        let (dir, name) = path.split_once('/').expect("in a directory");
        volume.open_dir(format!("/{dir}")).expect("made").remove_file(name.as_bytes()).expect("removed");
    }
    (0..REMOVED).for_each(|n| create(&volume, &new(n)));
    volume.sync().expect("synced");
    copied(&image, "dirty")
}

/// A volume with a dirty log of the kernel.
fn left_by_the_kernel(dir: &Path, more: &[&str]) -> PathBuf {
    let image = made(dir, more);
    mounted(&image, |root| {
        (0..DIRS).for_each(|n| std::fs::create_dir(root.join(n.to_string())).expect("made"));
        (0..NAMES).for_each(|n| std::fs::write(root.join(old(n)), "").expect("made"));
    });
    mounted(&image, |root| {
        removed().for_each(|n| std::fs::remove_file(root.join(old(n))).expect("removed"));
        (0..REMOVED).for_each(|n| std::fs::write(root.join(new(n)), "").expect("made"));
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(root));
    });
    image
}

/// What uxfs writes to recover a volume, and to close it.
fn recovery(dirty: &Path) -> Recording {
    let image = copied(dirty, "recovered");
    let recorder = Arc::new(Recorder::new(Arc::new(FileDevice::open_writable(&image).expect("an image"))));
    let volume =
        Volume::open_device(recorder.clone(), &OpenOptions::new().writable(true)).expect("recovered");
    assert!(volume.recovery().is_some_and(|recovery| recovery.written && recovery.replayed > 0));
    volume.close().expect("closed");
    recorder.recording()
}

/// The kernel recovers what a cut left.
fn the_kernel_recovers(image: &Path) {
    let mut names: Vec<String> = mounted(image, |root| {
        let dirs = (0..DIRS).map(|n| std::fs::read_dir(root.join(n.to_string())).expect("a directory"));
        let entries = dirs.flatten().map(|entry| entry.expect("read").path());
        entries.map(|path| path.strip_prefix(root).expect("below").to_string_lossy().into_owned()).collect()
    });
    names.sort();
    assert_eq!(names, expected());
    repair_finds_nothing(image);
    mounted(image, |root| {
        names.iter().for_each(|name| std::fs::remove_file(root.join(name)).expect("removed"));
    });
    repair_finds_nothing(image);
}

/// The power fails, or uxfs is killed, at some of the writes; each of them that was begun is there, or it is not.
fn every_cut_is_recovered_by_the_kernel(dirty: &Path) {
    let recording = recovery(dirty);
    let writes = recording.writes();
    let first_flush = recording.flushes().iter().map(|flush| flush.started).min().expect("a flush");
    let replay = writes.iter().filter(|write| write.started < first_flush).count();
    assert!(replay >= MOMENTS, "only {replay} writes replay the log");
    let mut rng = fastrand::Rng::with_seed(1);
    // Most of them before the first flush; some behind it, when the log goes on.
    let moments: Vec<usize> =
        (1..=MOMENTS).map(|n| n * replay / MOMENTS).chain([replay + 1, writes.len() - 1]).collect();
    for nth in moments {
        let cut = writes[nth.min(writes.len() - 1)].started;
        let all: &mut dyn FnMut(&WriteRecord) -> Fate = &mut |_| Fate::Applied;
        let some: &mut dyn FnMut(&WriteRecord) -> Fate =
            &mut |_| if rng.bool() { Fate::Applied } else { Fate::Dropped };
        for (what, choose) in [("all of them", all), ("some of them", some)] {
            // Shown if the test fails.
            println!("cut at write {nth} of {}, {what} there", writes.len());
            let image = copied(dirty, "cut");
            let device = FileDevice::open_writable(&image).expect("an image");
            recording.rebuild(cut, &device, choose).expect("written");
            device.flush().expect("written");
            drop(device);
            the_kernel_recovers(&image);
        }
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn of_a_log_of_uxfs() {
    let dir = tempfile::tempdir().expect("a directory");
    every_cut_is_recovered_by_the_kernel(&left_by_uxfs(dir.path(), &[]));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn of_a_log_of_uxfs_with_large_directory_blocks() {
    let dir = tempfile::tempdir().expect("a directory");
    every_cut_is_recovered_by_the_kernel(&left_by_uxfs(dir.path(), &["-n", "size=16k"]));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn of_a_log_of_the_kernel() {
    let dir = tempfile::tempdir().expect("a directory");
    every_cut_is_recovered_by_the_kernel(&left_by_the_kernel(dir.path(), &[]));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn of_a_log_of_the_kernel_with_large_directory_blocks() {
    let dir = tempfile::tempdir().expect("a directory");
    every_cut_is_recovered_by_the_kernel(&left_by_the_kernel(dir.path(), &["-n", "size=16k"]));
}
