//! Content that two files exchange: as the kernel does it, and such that it goes on with the volume.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::files::{Random, opened};
use common::{mounted, open};
use oracles::xfsprogs::Release;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use uxfs::{ErrorKind, ExchangeOptions};

fn run(command: &mut Command) {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {text}");
}

fn script(at: &Path, text: &str) {
    run(Command::new("bash").args(["-euc", text, "bash"]).arg(at).env("XFS_IO", tool("xfs_io")));
}

fn tool(name: &str) -> PathBuf {
    Release::Unstable.path(name).expect("ci/xfsprogs installs it")
}

fn repair_finds_nothing(image: &Path) {
    run(Command::new(tool("xfs_repair")).arg("-n").arg(image));
}

/// A volume with the feature, on which two files differ in every way that matters, and a third shares blocks of one.
fn made(dir: &Path, options: &[&str]) -> PathBuf {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("a sparse image");
    run(Command::new(tool("mkfs.xfs")).args(["-q", "-f"]).args(options).arg(&image));
    mounted(&image, |at| {
        script(
            at,
            "cd $1
             for n in $(seq 0 2 80); do xfs_io -f -c \"pwrite -q -S $n $((n * 4))k 4k\" one; done
             xfs_io -f -c 'pwrite -q -S 200 0 100k' -c 'falloc 100k 60k' -c 'pwrite -q -S 201 200k 5000' two
             cp --reflink=always one shares
             xfs_io -f -c 'pwrite -q -S 7 0 64k' other; sync",
        )
    });
    image
}

fn content(image: &Path) -> BTreeMap<String, Vec<u8>> {
    mounted(image, |at| {
        let entries = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect()
    })
}

/// Where the exchange begins in either file, how long it is, and whether only what is written counts.
const CASES: [(u64, u64, Option<u64>, bool); 4] = [
    (0, 0, None, false),
    (16 << 10, 16 << 10, None, true),
    (12 << 10, 40 << 10, Some(100 << 10), false),
    (12 << 10, 0, Some(160 << 10), true),
];

#[test]
#[ignore = "needs root and xfsprogs"]
fn exchanges_are_the_kernels() {
    for options in [&[][..], &["-m", "rmapbt=0", "-b", "size=1024"]] {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
        made(dir.path(), options);
        for (at, other_at, len, only_written) in CASES {
            let what = format!("{options:?}: {at} {other_at} {len:?} {only_written}");
            script(
                dir.path(),
                "cd $1; cp --sparse=always volume.img kernel.img; cp --sparse=always volume.img uxfs.img",
            );
            let (theirs, ours) = (dir.path().join("kernel.img"), dir.path().join("uxfs.img"));
            mounted(&theirs, |mnt| {
                let len = len.map_or(String::new(), |len| format!("-l {len}"));
                let written = if only_written { "-w" } else { "" };
                let range = format!(
                    "exchangerange {written} -s {at} -d {other_at} {len} {}",
                    mnt.join("one").display()
                );
                run(Command::new(tool("xfs_io")).arg("-c").arg(range).arg(mnt.join("two")));
            });
            let volume = opened(&ours);
            let (one, two) = (volume.open_file("one").unwrap(), volume.open_file("two").unwrap());
            let how = ExchangeOptions::new().only_written(only_written);
            one.exchange_range(at, &two, other_at, len, how.dry_run(true)).unwrap();
            one.exchange_range(at, &two, other_at, len, how)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let seen = ["one", "two"].map(|name| {
                let file = volume.open_file(name).unwrap();
                let mut bytes = vec![0; file.size() as usize];
                file.read_at(&mut bytes, 0).unwrap();
                bytes
            });
            volume.close().unwrap();
            drop((one, two, volume));
            repair_finds_nothing(&ours);
            let expected = content(&theirs);
            assert!(content(&ours) == expected, "{what}");
            assert!(seen[0] == expected["one"] && seen[1] == expected["two"], "{what}: read at once");
            mounted(&ours, |mnt| {
                script(
                    mnt,
                    "cd $1; for f in one two shares; do xfs_io -c 'pwrite -q -S 9 8k 40k' $f; done
                     $XFS_IO -c \"exchangerange one\" two; rm one; truncate -s 5000 two; cp --reflink=always two again",
                )
            });
            repair_finds_nothing(&ours);
        }
    }
}

/// Power that goes behind an exchange and a write to one of the files, before anybody synced: the other file has all that
/// it had or all that it got, and not what was just written.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_write_behind_an_exchange_is_in_no_other_file_behind_a_crash() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = made(dir.path(), &[]);
    let before = content(&image);
    let (volume, cut) = (open(&image), dir.path().join("cut.img"));
    let (one, other) = (volume.open_file("two").unwrap(), volume.open_file("other").unwrap());
    one.exchange_range(0, &other, 0, None, ExchangeOptions::new()).unwrap();
    other.write_at(&[99; 8 << 10], 4 << 10).unwrap();
    run(Command::new("cp").arg("--sparse=always").args([&image, &cut]));
    let behind = content(&cut);
    repair_finds_nothing(&cut);
    let whole = ["two", "other"].map(|name| behind["two"] == before[name]);
    assert!(whole == [true, false] || whole == [false, true], "neither what it had nor what it got");
    drop((one, other));
    volume.close().unwrap();
}

/// Writes behind an exchange go where the blocks are now, and leave those who share them alone.
#[test]
#[ignore = "needs root and xfsprogs"]
fn writes_behind_an_exchange_spare_who_shares() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = made(dir.path(), &[]);
    let mut expected = content(&image);
    let volume = opened(&image);
    let (one, two) = (volume.open_file("one").unwrap(), volume.open_file("two").unwrap());
    one.exchange_range(0, &two, 0, None, ExchangeOptions::new()).unwrap();
    for (file, byte) in [(&one, 1), (&two, 2)] {
        file.write_at(&[byte; 12 << 10], 4 << 10).unwrap();
    }
    volume.close().unwrap();
    drop((one, two, volume));
    let (first, second) = (expected.remove("one").unwrap(), expected.remove("two").unwrap());
    for (name, mut bytes, byte) in [("one", second, 1), ("two", first, 2)] {
        bytes[4 << 10..16 << 10].fill(byte);
        expected.insert(name.to_owned(), bytes);
    }
    repair_finds_nothing(&image);
    assert!(content(&image) == expected);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_cannot_be_exchanged_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = made(dir.path(), &[]);
    let before = content(&image);
    let volume = opened(&image);
    let [one, two] = ["one", "two"].map(|name| volume.open_file(name).unwrap());
    let how = ExchangeOptions::new();
    for (at, other_at, len) in [
        (1, 0, Some(4096)),
        (0, 4095, Some(4096)),
        (0, 0, Some(5000)),
        (0, 0, Some(1 << 30)),
        (1 << 30, 0, Some(4096)),
        (1 << 30, 1 << 30, None),
    ] {
        let error = one.exchange_range(at, &two, other_at, len, how).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{at} {other_at} {len:?}: {error}");
    }
    let overlap = one.exchange_range(0, &one, 4096, Some(8192), how).unwrap_err();
    assert_eq!(overlap.kind(), ErrorKind::InvalidInput);
    one.exchange_range(0, &one, 8192, Some(8192), how).unwrap();
    one.exchange_range(0, &one, 8192, Some(8192), how).unwrap();
    one.exchange_range(0, &two, 0, None, how.dry_run(true)).unwrap();
    volume.close().unwrap();
    drop((one, two, volume));
    assert!(content(&image) == before);
    let plain = common::made(dir.path(), &[]);
    mounted(&plain, |at| script(at, "cd $1; echo 1 > one; echo 2 > two"));
    let volume = opened(&plain);
    let [one, two] = ["one", "two"].map(|name| volume.open_file(name).unwrap());
    let error = one.exchange_range(0, &two, 0, None, how).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// An exchange that may be refused.
#[derive(Clone, Copy, Debug)]
struct Asked {
    files: [usize; 2],
    at: [u64; 2],
    len: Option<u64>,
    only_written: bool,
}

const NAMES: [&str; 3] = ["one", "two", "other"];

fn asked(random: &mut Random, sizes: [u64; 3], block: u64) -> Asked {
    let files = [0; 2].map(|_| random.below(3) as usize);
    let mut at = files.map(|file| random.below(sizes[file] / block + 2) * block);
    match random.below(8) {
        0 => at[0] = at[1],
        1 => at[random.below(2) as usize] += random.below(block),
        2 => at = [sizes[files[0]], sizes[files[1]]],
        _ => {}
    }
    let len = match random.below(4) {
        0 | 1 => None,
        // To the end of the first file, whole blocks or not.
        2 => Some(sizes[files[0]].saturating_sub(at[0])),
        _ => Some(random.below(20) * block),
    };
    Asked { files, at, len, only_written: random.below(3) == 0 }
}

/// Whatever the offsets and lengths are, and wherever the files end: what the kernel refuses is refused, and what it does is
/// done.
#[test]
#[ignore = "needs root and xfsprogs"]
fn exchanges_at_any_offsets_are_the_kernels() {
    let mut random = Random::seeded();
    for (options, block) in [(&[][..], 4096), (&["-b", "size=1024"], 1024)] {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
        let ours = made(dir.path(), options);
        let theirs = dir.path().join("kernel.img");
        run(Command::new("cp").arg("--sparse=always").args([&ours, &theirs]));
        let before = content(&ours);
        let mut sizes = NAMES.map(|name| before[name].len() as u64);
        let mut asks = Vec::new();
        mounted(&theirs, |mnt| {
            for _ in 0..150 {
                let ask = asked(&mut random, sizes, block);
                let [at, other_at] = ask.at;
                let len = ask.len.map_or(String::new(), |len| format!("-l {len}"));
                let written = if ask.only_written { "-w" } else { "" };
                let [one, other] = ask.files.map(|file| mnt.join(NAMES[file]));
                let range = format!("exchangerange {written} -s {at} -d {other_at} {len} {}", one.display());
                let out = Command::new(tool("xfs_io")).arg("-c").arg(range).arg(other).output().unwrap();
                let said = String::from_utf8_lossy(&out.stderr).into_owned();
                let refused = said.contains("Invalid argument");
                assert!(refused || said.is_empty(), "{ask:?}: {said}");
                // What has come to lie behind an end stays there in a kernel, and the next exchange could show it.
                for name in NAMES {
                    let file = std::fs::File::options().write(true).open(mnt.join(name)).unwrap();
                    file.set_len(file.metadata().unwrap().len()).unwrap();
                }
                let state = NAMES.map(|name| std::fs::read(mnt.join(name)).unwrap());
                sizes = state.each_ref().map(|bytes| bytes.len() as u64);
                asks.push((ask, refused, state));
            }
        });
        let done = asks.iter().filter(|(_, refused, _)| !refused).count();
        assert!(done > 20 && done < 140, "{done} of {} were done", asks.len());
        let volume = opened(&ours);
        let files = NAMES.map(|name| volume.open_file(name).unwrap());
        for (nth, (ask, refused, state)) in asks.iter().enumerate() {
            let [one, other] = ask.files.map(|file| &files[file]);
            let how = ExchangeOptions::new().only_written(ask.only_written);
            let came = one.exchange_range(ask.at[0], other, ask.at[1], ask.len, how);
            assert!(
                came.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::InvalidInput),
                "{came:?}"
            );
            assert_eq!(came.is_err(), *refused, "{nth}: {ask:?}: {came:?}");
            for (file, expected) in files.iter().zip(state) {
                let mut bytes = vec![0; file.size() as usize];
                file.read_at(&mut bytes, 0).unwrap();
                assert_eq!(bytes.len(), expected.len(), "{nth}: {ask:?}");
                let first = bytes.iter().zip(expected).position(|(ours, theirs)| ours != theirs);
                assert_eq!(first, None, "{nth}: {ask:?}");
            }
        }
        // What lies behind the ends now must not show.
        for file in &files {
            file.set_len(file.size() + 50_000).unwrap();
        }
        let expected = mounted(&theirs, |mnt| {
            script(mnt, "cd $1; for f in one two other; do truncate -s +50000 $f; done; sync");
            NAMES.map(|name| std::fs::read(mnt.join(name)).unwrap())
        });
        volume.close().unwrap();
        drop((files, volume));
        repair_finds_nothing(&ours);
        let found = content(&ours);
        for (name, expected) in NAMES.iter().zip(expected) {
            assert!(found[*name] == expected, "{name}, made longer");
        }
    }
}
