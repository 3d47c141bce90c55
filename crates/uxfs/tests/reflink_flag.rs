//! When a file has the flag that says that it may share blocks: as the kernel has it, whatever is done to the file.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::files::{opened, said};
use common::{mounted, repair_finds_nothing};
use std::path::{Path, PathBuf};
use std::process::Command;
use uxfs::File;

const BLOCK: u64 = 4096;

/// Something that is done to a file.
#[derive(Clone, Copy, Debug)]
enum Step {
    CloneTo,
    CloneFrom,
    Write(u64, u64),
    Cut(u64),
    Punch(u64, u64),
    Zero(u64, u64),
    Allocate(u64, u64),
}

use Step::{Allocate, CloneFrom, CloneTo, Cut, Punch, Write, Zero};

/// What is done to a file of 16 blocks, one case a file; all in blocks.
const CASES: &[&[Step]] = &[
    &[CloneTo],
    &[CloneFrom],
    &[CloneTo, Cut(0)],
    &[CloneFrom, Cut(0)],
    &[CloneTo, Cut(1)],
    &[CloneTo, Write(0, 16)],
    &[CloneTo, Write(0, 16), Cut(0)],
    &[CloneTo, Write(3, 1), Cut(2)],
    &[CloneTo, Write(3, 1), Cut(0)],
    &[CloneTo, Punch(0, 16)],
    &[CloneTo, Punch(0, 16), Cut(8)],
    &[CloneTo, Punch(0, 16), Cut(20)],
    &[CloneTo, Punch(0, 8), Cut(8)],
    &[CloneTo, Punch(0, 8), Cut(9)],
    &[CloneTo, Write(0, 1), Punch(0, 16), Cut(12)],
    &[CloneTo, Zero(0, 16)],
    &[CloneTo, Zero(0, 16), Cut(0)],
    &[CloneTo, Cut(0), Write(0, 4)],
    &[CloneTo, Cut(0), Write(0, 4), CloneTo],
    &[CloneTo, Cut(0), CloneFrom],
    &[CloneTo, Cut(0), Cut(0)],
    &[CloneTo, Cut(0), Allocate(0, 4)],
    &[CloneTo, Punch(0, 16), Allocate(0, 4), Cut(8)],
    &[CloneTo, Cut(20), Cut(0)],
];

fn kernel(dir: &Path, nth: usize, step: Step) {
    let bytes = |blocks: u64| blocks * BLOCK;
    let (file, other) = (format!("f{nth}"), format!("o{nth}"));
    let (of, command) = match step {
        CloneTo => (&other, format!("reflink {file}")),
        CloneFrom => (&file, format!("reflink {other}")),
        Write(at, len) => (&file, format!("pwrite -q -S 9 {} {}", bytes(at), bytes(len))),
        Cut(size) => (&file, format!("truncate {}", bytes(size))),
        Punch(at, len) => (&file, format!("fpunch {} {}", bytes(at), bytes(len))),
        Zero(at, len) => (&file, format!("fzero {} {}", bytes(at), bytes(len))),
        Allocate(at, len) => (&file, format!("falloc -k {} {}", bytes(at), bytes(len))),
    };
    // What a kernel does behind a write is to be over.
    said(Command::new("xfs_io").current_dir(dir).args(["-f", "-c", &command, "-c", "fsync", of]));
}

fn ours(file: &File, other: &File, step: Step) {
    let bytes = |blocks: u64| blocks * BLOCK;
    match step {
        CloneTo => file.clone_range(0, other, 0, 0),
        CloneFrom => other.clone_range(0, file, 0, 0),
        Write(at, len) => file.write_at(&vec![9; bytes(len) as usize], bytes(at)),
        Cut(size) => file.set_len(bytes(size)),
        Punch(at, len) => file.punch_hole(bytes(at)..bytes(at + len)),
        Zero(at, len) => file.zero_range(bytes(at)..bytes(at + len), false),
        Allocate(at, len) => file.allocate(bytes(at)..bytes(at + len), true),
    }
    .unwrap_or_else(|error| panic!("{step:?}: {error}"));
}

/// Whether each inode has the flag, as `xfs_db` reads it.
fn flags(image: &Path, inodes: &[u64]) -> Vec<bool> {
    let mut command = Command::new("xfs_db");
    command.arg("-r");
    for ino in inodes {
        command.args(["-c", &format!("inode {ino}"), "-c", "print v3.reflink"]);
    }
    let text = said(command.arg(image));
    let flags: Vec<bool> = text.lines().map(|line| line.ends_with('1')).collect();
    assert_eq!(flags.len(), inodes.len(), "{text}");
    flags
}

fn made(dir: &Path) -> (PathBuf, Vec<u64>) {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("a sparse image");
    said(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&image));
    let inodes = mounted(&image, |at| {
        let mut inodes = Vec::new();
        for nth in 0..CASES.len() {
            for (name, byte) in [("f", 1), ("o", 2)] {
                let path = at.join(format!("{name}{nth}"));
                std::fs::write(&path, vec![byte; (16 * BLOCK) as usize]).unwrap();
                inodes.push(std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap()));
            }
        }
        inodes
    });
    (image, inodes)
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_file_has_the_flag_for_shared_blocks_when_it_has_it_in_a_kernel() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let (image, inodes) = made(dir.path());
    let twin = dir.path().join("twin.img");
    said(Command::new("cp").arg("--sparse=always").args([&image, &twin]));
    mounted(&twin, |at| {
        for (nth, case) in CASES.iter().enumerate() {
            case.iter().for_each(|&step| kernel(at, nth, step));
        }
    });
    let volume = opened(&image);
    for (nth, case) in CASES.iter().enumerate() {
        let [file, other] = ["f", "o"].map(|name| volume.open_file(format!("{name}{nth}")).unwrap());
        case.iter().for_each(|&step| ours(&file, &other, step));
    }
    volume.close().unwrap();
    drop(volume);
    repair_finds_nothing(&image);
    let (theirs, found) = (flags(&twin, &inodes), flags(&image, &inodes));
    assert!(theirs.contains(&true) && theirs.contains(&false));
    let differ: Vec<_> = (0..inodes.len()).filter(|&nth| theirs[nth] != found[nth]).collect();
    let what = |nth: usize| format!("{:?}, {}: {}", CASES[nth / 2], ["file", "other"][nth % 2], theirs[nth]);
    assert!(differ.is_empty(), "in the kernel: {:#?}", differ.into_iter().map(what).collect::<Vec<_>>());
    mounted(&image, |at| drop(said(Command::new("bash").args(["-euc", "rm -f $1/*; sync", "bash"]).arg(at))));
    repair_finds_nothing(&image);
}
