//! Clones, deduped ranges and copies, and writes to what files share: the same as the kernel's, and such that the kernel goes
//! on with the volume; clean and behind a crash.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use common::files::{Random, new_file, opened, said};
use common::{mounted, repair_finds_nothing};
use fileio::testing::{CHANGE, at};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use uxfs::{AlignedBuf, Deduped, ErrorKind, File, Result, Volume};

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a place in memory")
}

fn made(dir: &Path, options: &[&str]) -> PathBuf {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("a sparse image");
    said(Command::new("mkfs.xfs").args(["-q", "-f"]).args(options).arg(&image));
    image
}

/// What volumes differ in that matters here.
const VOLUMES: [&[&str]; 3] =
    [&["-m", "rmapbt=0"], &["-m", "rmapbt=1"], &["-m", "rmapbt=1", "-b", "size=1024"]];

/// The content of all files, as the kernel reads them.
fn content(image: &Path) -> BTreeMap<String, Vec<u8>> {
    mounted(image, |at| {
        let entries = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect()
    })
}

/// The kernel reads what is expected, and changes and removes all of it.
fn judge(image: &Path, expected: &BTreeMap<String, Vec<u8>>, what: &str) {
    repair_or_recover(image);
    let found = content(image);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, bytes) in expected {
        let first = found[name].iter().zip(bytes).position(|(found, wanted)| found != wanted);
        assert!(
            &found[name] == bytes,
            "{what}: {name} is wrong: {} bytes, {} expected, first difference at {first:?}",
            found[name].len(),
            bytes.len()
        );
    }
    repair_finds_nothing(image);
    mounted(image, |at| {
        said(Command::new("bash")
            .args([
                "-euc",
                "cd $1; for f in *; do s=$(stat -c %s $f); \
                 for at in 0 5000 70000; do printf x | dd of=$f bs=1 seek=$at conv=notrunc status=none; done; \
                 cp --reflink=always $f $f.too; done; sync; for f in *; do truncate -s 4097 $f; done; sync",
                "bash",
            ])
            .arg(at));
    });
    repair_finds_nothing(image);
    mounted(image, |at| drop(said(Command::new("bash").args(["-euc", "rm -rf $1/*; sync", "bash"]).arg(at))));
    repair_finds_nothing(image);
}

/// A volume that was not closed has a log to replay first.
fn repair_or_recover(image: &Path) {
    let out = Command::new("xfs_repair").arg("-n").arg(image).output().expect("xfs_repair");
    let text = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        assert!(text.contains("valuable metadata changes in a log"), "{text}");
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed << 1 | 1);
    (0..len).map(|_| random.below(256) as u8).collect()
}

/// Files and what is in them, beside a model of both.
struct Site {
    volume: Volume,
    files: Vec<File>,
    model: Vec<Vec<u8>>,
}

impl Site {
    fn new(image: &Path, count: usize) -> Self {
        let volume = opened(image);
        let files = (0..count).map(|n| new_file(&volume, &format!("f{n}"))).collect();
        Self { volume, files, model: vec![Vec::new(); count] }
    }

    fn write(&mut self, file: usize, at: u64, data: &[u8]) {
        self.files[file].write_at(data, at).unwrap();
        let model = &mut self.model[file];
        let end = at as usize + data.len();
        if model.len() < end {
            model.resize(end, 0);
        }
        model[at as usize..end].copy_from_slice(data);
    }

    fn clone_range(&mut self, from: (usize, u64), to: (usize, u64), len: u64) {
        self.files[from.0].clone_range(from.1, &self.files[to.0], to.1, len).unwrap();
        let end = if len == 0 { self.model[from.0].len() as u64 } else { from.1 + len };
        let bytes = self.model[from.0][from.1 as usize..end as usize].to_vec();
        let model = &mut self.model[to.0];
        let end = to.1 as usize + bytes.len();
        if model.len() < end {
            model.resize(end, 0);
        }
        model[to.1 as usize..end].copy_from_slice(&bytes);
    }

    fn check(&self) {
        for (file, model) in self.files.iter().zip(&self.model) {
            assert_eq!(file.size(), model.len() as u64);
            let mut bytes = vec![1; model.len() + 10];
            let read = file.read_at(&mut bytes, 0).unwrap();
            assert!(bytes[..read] == model[..], "{file:?} differs");
        }
    }

    fn end(self, image: &Path, crash: bool, what: &str) {
        self.check();
        let Self { volume, files, model } = self;
        let expected: BTreeMap<_, _> = (0..).map(|n| format!("f{n}")).zip(model).collect();
        if !crash {
            drop(files);
            volume.close().unwrap();
            drop(volume);
            return judge(image, &expected, what);
        }
        // What a crash would leave now, with what is staged, for the kernel to recover.
        volume.sync().unwrap();
        let copy = image.with_file_name("crashed.img");
        said(Command::new("cp").arg("--sparse=always").args([image, &copy]));
        drop((files, volume));
        judge(&copy, &expected, what);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_clone_and_what_is_written_to_either() {
    for options in VOLUMES {
        for crash in [false, true] {
            let what = format!("{options:?}, crash: {crash}");
            let dir = scratch();
            let image = made(dir.path(), options);
            let mut site = Site::new(&image, 3);
            site.write(0, 0, &pattern(1, 300_000));
            site.clone_range((0, 0), (1, 0), 0);
            site.check();
            // Whole blocks, parts of one, of several, the last one, and past the end.
            site.write(0, 8192, &pattern(2, 4096));
            site.write(1, 8192 + 4096, &pattern(3, 8192));
            site.write(1, 20_001, &pattern(4, 10));
            site.write(0, 30_001, &pattern(5, 10_000));
            site.check();
            site.write(0, 299_990, &pattern(6, 10));
            site.write(1, 299_999, &pattern(7, 100));
            site.check();
            // A clone of a part, of what is shared and what is not, over what is there.
            site.clone_range((1, 16384), (0, 65536), 40960);
            site.clone_range((0, 0), (2, 131_072), 262_144);
            site.check();
            site.write(2, 131_072 + 70_000, &pattern(8, 50_000));
            // Within one file.
            site.clone_range((2, 131_072), (2, 0), 65536);
            site.write(2, 0, &pattern(9, 1000));
            site.check();
            // The next write to a block that is one's own by now.
            site.write(0, 8192, &pattern(10, 4096));
            site.files[0].overwrite_at(&pattern(11, 50_000), 100_000).unwrap();
            site.model[0][100_000..150_000].copy_from_slice(&pattern(11, 50_000));
            site.end(&image, crash, &what);
        }
    }
}

/// What is asked of both sides.
#[derive(Clone, Debug)]
enum Ask {
    Clone { from: usize, at: u64, to: usize, to_at: u64, len: u64 },
    Dedupe { from: usize, at: u64, to: usize, to_at: u64, len: u64 },
    Write { to: usize, at: u64, len: u64, byte: u8 },
    Cut { to: usize, size: u64 },
    Punch { to: usize, at: u64, len: u64 },
    Zero { to: usize, at: u64, len: u64 },
    Allocate { to: usize, at: u64, len: u64 },
}

const TWINS: usize = 3;

fn ask(random: &mut Random, block: u64) -> Ask {
    let of = |random: &mut Random| random.below(TWINS as u64) as usize;
    // Mostly whole blocks.
    let place = |random: &mut Random, most: u64| {
        let at = random.below(most / block) * block;
        if random.below(6) == 0 { at + random.below(block) } else { at }
    };
    let (from, to) = (of(random), of(random));
    let (at, to_at) = (place(random, 200_000), place(random, 200_000));
    let len = if random.below(8) == 0 { 0 } else { place(random, 120_000) };
    match random.below(14) {
        0..=4 => Ask::Clone { from, at, to, to_at, len },
        5 | 6 => Ask::Dedupe { from, at, to, to_at, len },
        // The same bytes here and there, so that there is something to find.
        7..=9 => Ask::Write { to, at, len: len + 1, byte: random.below(3) as u8 },
        10 => Ask::Cut { to, size: at },
        11 => Ask::Punch { to, at, len: len + 1 },
        12 => Ask::Zero { to, at, len: len + 1 },
        _ => Ask::Allocate { to, at, len: len + 1 },
    }
}

/// What came of it: the kernel's words for it, or ours.
#[derive(Debug, PartialEq)]
enum Came {
    Done,
    Invalid,
    Differs,
    /// A kernel says of all that was asked for that it is the same, also where it left out a part of a block.
    Same,
}

fn ask_us(files: &[File], ask: &Ask) -> Came {
    let came = |result: Result<()>| match result {
        Ok(()) => Came::Done,
        Err(error) if error.kind() == ErrorKind::InvalidInput => Came::Invalid,
        Err(error) => panic!("{ask:?}: {error}"),
    };
    match *ask {
        Ask::Clone { from, at, to, to_at, len } => came(files[from].clone_range(at, &files[to], to_at, len)),
        Ask::Dedupe { from, at, to, to_at, len } => {
            match files[from].dedupe_range(at, &files[to], to_at, len) {
                Ok(Deduped::Same(bytes)) => {
                    assert!(bytes <= len);
                    Came::Same
                }
                Ok(_) => Came::Differs,
                Err(error) => came(Err(error)),
            }
        }
        Ask::Write { to, at, len, byte } => came(files[to].write_at(&vec![byte; len as usize], at)),
        Ask::Cut { to, size } => came(files[to].set_len(size)),
        Ask::Punch { to, at, len } => came(files[to].punch_hole(at..at + len)),
        Ask::Zero { to, at, len } => came(files[to].zero_range(at..at + len, false)),
        Ask::Allocate { to, at, len } => came(files[to].allocate(at..at + len, true)),
    }
}

fn ask_kernel(dir: &Path, ask: &Ask) -> Came {
    let (to, command) = match ask {
        Ask::Clone { from, at, to, to_at, len } => (to, format!("reflink f{from} {at} {to_at} {len}")),
        Ask::Dedupe { from, at, to, to_at, len } => (to, format!("dedupe f{from} {at} {to_at} {len}")),
        Ask::Write { to, at, len, byte } => (to, format!("pwrite -q -S {byte} {at} {len}")),
        Ask::Cut { to, size } => (to, format!("truncate {size}")),
        Ask::Punch { to, at, len } => (to, format!("fpunch {at} {len}")),
        Ask::Zero { to, at, len } => (to, format!("fzero {at} {len}")),
        Ask::Allocate { to, at, len } => (to, format!("falloc -k {at} {len}")),
    };
    let out = Command::new("xfs_io")
        .current_dir(dir)
        .args(["-c", &command, &format!("f{to}")])
        .output()
        .expect("xfs_io");
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    match ask {
        _ if text.contains("Invalid argument") => Came::Invalid,
        Ask::Dedupe { .. } if text.contains("did not match") => Came::Differs,
        Ask::Dedupe { .. } if text.is_empty() || text.starts_with("deduped ") => Came::Same,
        Ask::Clone { .. } if text.is_empty() || text.starts_with("linked") => Came::Done,
        _ if text.is_empty() => Came::Done,
        _ => panic!("{command}: {text}"),
    }
}

/// The kernel's answers and its files are ours, whatever is asked.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_kernel_says_and_does_the_same() {
    let mut random = Random::seeded();
    for (options, block) in VOLUMES.into_iter().zip([4096, 4096, 1024]) {
        let dir = scratch();
        let image = made(dir.path(), options);
        mounted(&image, |at| {
            for n in 0..TWINS {
                std::fs::write(at.join(format!("f{n}")), pattern(n as u64, 60_000 + 50_000 * n)).unwrap();
            }
        });
        let twin = dir.path().join("twin.img");
        said(Command::new("cp").arg("--sparse=always").args([&image, &twin]));
        let asked: Vec<Ask> = (0..120).map(|_| ask(&mut random, block)).collect();
        let mut answers = Vec::new();
        let mut states = Vec::new();
        mounted(&twin, |at| {
            for ask in &asked {
                answers.push(ask_kernel(at, ask));
                states.push(std::array::from_fn::<_, TWINS, _>(|n| {
                    std::fs::read(at.join(format!("f{n}"))).unwrap()
                }));
            }
        });
        let volume = opened(&image);
        let files: Vec<_> = (0..TWINS).map(|n| volume.open_file(format!("f{n}")).unwrap()).collect();
        for (nth, ask) in asked.iter().enumerate() {
            let came = ask_us(&files, ask);
            assert_eq!(came, answers[nth], "{nth}: {ask:?}, {options:?}");
            for (n, file) in files.iter().enumerate() {
                let mut bytes = vec![1; file.size() as usize];
                file.read_at(&mut bytes, 0).unwrap();
                let first = bytes.iter().zip(&states[nth][n]).position(|(ours, theirs)| ours != theirs);
                assert!(
                    bytes == states[nth][n],
                    "{nth}: {ask:?}, {options:?}: f{n} differs: {} and {} bytes, first at {first:?}",
                    bytes.len(),
                    states[nth][n].len()
                );
            }
        }
        drop(files);
        volume.close().unwrap();
        drop(volume);
        let last = states.pop().unwrap();
        let expected = (0..).map(|n| format!("f{n}")).zip(last).collect();
        judge(&image, &expected, &format!("{options:?}"));
    }
}

/// Writes through a queue: whole blocks and parts of them, several to one block, and beside what is not shared.
#[test]
#[ignore = "needs root and xfsprogs"]
fn queued_writes_to_shared_blocks() {
    for options in VOLUMES {
        let dir = scratch();
        let image = made(dir.path(), options);
        let mut site = Site::new(&image, 2);
        site.write(0, 0, &pattern(1, 1 << 20));
        site.clone_range((0, 0), (1, 0), 0);
        let mut random = Random::seeded();
        let mut queue = site.files[1].queue(16).unwrap();
        let mut taken = 0;
        for nth in 0..400_u64 {
            while queue.in_flight() == 16 {
                taken += queue.wait(1, |done| assert!(done.result.is_ok())).unwrap();
            }
            // Of ranges that overlap nobody says which is last: each has its own.
            let (len, at) = match random.below(3) {
                0 => (512, nth * 2560),
                1 => (1024, nth * 2560 + 512),
                _ => (2048, nth * 2560),
            };
            let bytes = pattern(nth, len);
            let mut buf = AlignedBuf::zeroed(len);
            buf.copy_from_slice(&bytes);
            queue.push_overwrite(at, buf, nth).unwrap();
            site.model[1][at as usize..at as usize + len].copy_from_slice(&bytes);
        }
        while taken < 400 {
            taken += queue.wait(1, |done| assert!(done.result.is_ok())).unwrap();
        }
        drop(queue);
        site.end(&image, false, &format!("{options:?}"));
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn copies_share_where_they_can() {
    let dir = scratch();
    let image = made(dir.path(), &[]);
    let mut site = Site::new(&image, 2);
    site.write(0, 0, &pattern(1, 500_000));
    let copies = [
        // And how many blocks of the source are shared behind it: all;
        (0, 0, 500_000, 123),
        // all but 24 and 25: blocks 1 to 25 are written, of which the first and the last are not whole;
        (100, 4196, 100_000, 121),
        // not 0 to 11 either, which were blocks 0 and 2 to 12;
        (5000, 3000, 50_000, 109),
        // nor those from 73 on.
        (4096, 300_000, 1 << 40, 59),
        (1, 1, 10, 59),
    ];
    for (from, at, len, blocks) in copies {
        let copied = site.files[0].copy_range(from, &site.files[1], at, len).unwrap();
        assert_eq!(copied, len.min(500_000 - from));
        let bytes = site.model[0][from as usize..(from + copied) as usize].to_vec();
        let model = &mut site.model[1];
        let end = at as usize + bytes.len();
        model.resize(model.len().max(end), 0);
        model[at as usize..end].copy_from_slice(&bytes);
        site.check();
        let shared = site.files[0].extents().map(|run| run.unwrap()).filter(|run| run.shared);
        assert_eq!(shared.map(|run| run.length / 4096).sum::<u64>(), blocks, "{from}, {at}, {len}");
    }
    site.end(&image, false, "copies");
}

/// It said that all was copied.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_copy_says_how_much_there_was_of_a_file_that_is_cut_meanwhile() {
    const MIB: usize = 1 << 20;
    let dir = scratch();
    let image = made(dir.path(), &[]);
    let mut site = Site::new(&image, 2);
    site.write(0, 0, &pattern(1, 3 * MIB));
    let cut = site.files[0].clone();
    // When the first part is about to be written.
    at(CHANGE, move || cut.set_len(MIB as u64 + 10).expect("cut"));
    let copied = site.files[0].copy_range(0, &site.files[1], 100, 3 * MIB as u64).expect("copied");
    assert_eq!(copied, MIB as u64 + 10);
    site.model[0].truncate(MIB + 10);
    site.model[1] = [vec![0; 100], site.model[0].clone()].concat();
    site.end(&image, false, "a copy that is cut short");
}

/// Blocks that were shared are freed, and come back to the file for its holes, where space for copies is staged still: what
/// is written there stays.
#[test]
#[ignore = "needs root and xfsprogs"]
fn blocks_that_were_shared_come_back_for_a_hole() {
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 32;
    let dir = scratch();
    let image = made(dir.path(), &["-m", "rmapbt=1"]);
    let mut site = Site::new(&image, 2);
    site.write(0, 0, &pattern(1, BLOCKS * BLOCK));
    site.clone_range((0, 0), (1, 0), 0);
    // Space for copies of all its neighbours is staged.
    site.write(0, 0, &pattern(2, BLOCK));
    site.files[1].set_len(0).unwrap();
    site.model[1].clear();
    for block in (2..BLOCKS).step_by(3) {
        let (from, to) = (block * BLOCK, (block + 2).min(BLOCKS) * BLOCK);
        site.files[0].punch_hole(from as u64..to as u64).unwrap();
        site.model[0][from..to].fill(0);
        // Nobody takes what was freed before that is on disk.
        site.volume.sync().unwrap();
        site.write(0, (from + 100) as u64, &pattern(block as u64, to - from - 200));
        site.check();
    }
    site.end(&image, false, "holes where blocks were shared");
}
