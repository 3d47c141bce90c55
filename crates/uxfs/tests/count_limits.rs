//! Blocks that have as many owners as can be counted. No test makes 2^32 of them: a count is written into the tree.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::files::{new_file, opened, remove, said};
use common::mounted;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use uxfs::Volume;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 32;

fn db(image: &Path, how: &str, commands: &[&str]) -> String {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    said(Command::new("xfs_db").arg(how).args(commands).arg(image))
}

/// Two files that share blocks, of which the tree says that they have this many owners.
fn made(dir: &Path, options: &[&str], owners: u32) -> PathBuf {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("a sparse image");
    said(Command::new("mkfs.xfs").args(["-q", "-f"]).args(options).arg(&image));
    mounted(&image, |at| {
        std::fs::write(at.join("a"), vec![7; (BLOCKS * BLOCK) as usize]).unwrap();
        said(Command::new("cp").arg("--reflink=always").args(["a", "b"]).current_dir(at));
        said(Command::new("sync").arg("-f").arg(at));
    });
    let field = ["agf 0", "addr refcntroot", &format!("write recs[1].refcount {owners}")];
    db(&image, "-x", &field);
    assert_eq!(counts(&image), [(BLOCKS as u32, owners)]);
    image
}

/// How many blocks have which of the high counts, in the order of their places.
fn counts(image: &Path) -> Vec<(u32, u32)> {
    let text = db(image, "-r", &["agf 0", "addr refcntroot", "btdump"]);
    // Each record looks like "7:[start,length,count,staged]".
    let numbers = text.split_whitespace().filter_map(|word| word.trim_end_matches(']').split_once(":["));
    let records = numbers
        .map(|(_, numbers)| numbers.split(',').map(|number| number.parse().unwrap()).collect::<Vec<u32>>());
    records.filter(|record| record[2] > 1000).map(|record| (record[1], record[2])).collect()
}

/// What is done to the files.
#[derive(Clone, Copy, Debug)]
enum Step {
    Clone(&'static str),
    Write(&'static str, u64),
    Cut(&'static str, u64),
    Dedupe(&'static str),
    Remove(&'static str),
}

const STEPS: [Step; 11] = [
    Step::Clone("c"),
    Step::Clone("d"),
    Step::Clone("e"),
    Step::Write("c", 3),
    Step::Write("d", 31),
    Step::Cut("e", 9),
    Step::Remove("e"),
    Step::Write("a", 20),
    Step::Dedupe("b"),
    Step::Cut("c", 0),
    Step::Remove("d"),
];

fn kernel(at: &Path, step: Step) {
    let (of, command) = match step {
        Step::Clone(to) => (to, "reflink a".to_owned()),
        Step::Write(to, block) => (to, format!("pwrite -q -S 9 {} {BLOCK}", block * BLOCK)),
        Step::Cut(to, blocks) => (to, format!("truncate {}", blocks * BLOCK)),
        Step::Dedupe(to) => (to, format!("dedupe a 0 0 {}", 10 * BLOCK)),
        Step::Remove(name) => return std::fs::remove_file(at.join(name)).unwrap(),
    };
    said(Command::new("xfs_io").current_dir(at).args(["-f", "-c", &command, "-c", "fsync", of]));
}

fn ours(volume: &Volume, step: Step) {
    let file = |name: &str| volume.open_file(name).unwrap();
    match step {
        Step::Clone(to) => file("a").clone_range(0, &new_file(volume, to), 0, 0),
        Step::Write(to, block) => file(to).write_at(&[9; BLOCK as usize], block * BLOCK),
        Step::Cut(to, blocks) => file(to).set_len(blocks * BLOCK),
        Step::Dedupe(to) => file("a").dedupe_range(0, &file(to), 0, 10 * BLOCK).map(drop),
        Step::Remove(name) => return remove(volume, name),
    }
    .unwrap_or_else(|error| panic!("{step:?}: {error}"));
}

fn content(image: &Path) -> BTreeMap<String, Vec<u8>> {
    mounted(image, |at| {
        let entries = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect()
    })
}

/// A count goes up to its limit and stays there, as in a kernel: blocks that have reached it are never free again.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_count_at_its_limit_stays_there_as_in_a_kernel() {
    for (options, owners) in [(["-m", "rmapbt=0"], u32::MAX - 1), (["-m", "rmapbt=1"], u32::MAX - 2)] {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
        let image = made(dir.path(), &options, owners);
        let twin = dir.path().join("twin.img");
        said(Command::new("cp").arg("--sparse=always").args([&image, &twin]));
        for (nth, step) in STEPS.into_iter().enumerate() {
            let what = format!("{options:?}, {owners} owners, step {nth}: {step:?}");
            mounted(&twin, |at| kernel(at, step));
            let volume = opened(&image);
            ours(&volume, step);
            volume.close().unwrap();
            drop(volume);
            assert_eq!(counts(&image), counts(&twin), "{what}");
        }
        assert!(content(&image) == content(&twin), "{options:?}, {owners} owners");
        // What was forged, the owners that are not there, is all that there is to mend; then nothing is left to find.
        let before = content(&image);
        said(Command::new("xfs_repair").arg(&image));
        common::repair_finds_nothing(&image);
        assert!(content(&image) == before);
    }
}
