//! Volumes that are opened, files that are made in them, and space that is taken.

use blockdev::BlockDevice;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use uxfs::{ErrorKind, ExchangeOptions, File, NewNode, OpenOptions, Result, Volume, check_device};

/// A small generator (xorshift64*), so that a printed seed replays a run.
pub struct Random(pub u64);

impl Random {
    /// Seeded from UXFS_SEED or the clock; prints the seed, which the harness shows if the test fails.
    pub fn seeded() -> Self {
        let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = number("UXFS_SEED").unwrap_or_else(now);
        println!("replay with UXFS_SEED={seed}");
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % bound
    }
}

/// The number in a variable of the environment, if it is set.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{variable}: {value}")))
}

/// The seeds of a campaign: from UXFS_SEED on, and as many as UXFS_RUNS says, or `runs`.
pub fn seeds(runs: u64) -> std::ops::Range<u64> {
    let from = number("UXFS_SEED").unwrap_or(1);
    from..from + number("UXFS_RUNS").unwrap_or(runs)
}

/// What a program says that must not fail.
pub fn said(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {text}");
    text
}

/// Opens a volume for writing. A program that another test is just starting has, until it runs, all files open that this
/// process had.
pub fn opened(image: &Path) -> Volume {
    loop {
        match Volume::open(image, &OpenOptions::new().writable(true)) {
            Err(error) if error.kind() == ErrorKind::Locked => std::thread::yield_now(),
            other => return other.expect("opens"),
        }
    }
}

/// Makes a file in the root directory.
pub fn new_file(volume: &Volume, name: &str) -> File {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    root.create_file(name.as_bytes(), &NewNode::default()).expect("made").open().expect("opened")
}

/// Takes a name out of the root directory.
pub fn remove(volume: &Volume, name: &str) {
    volume
        .root()
        .expect("root")
        .as_dir()
        .expect("a directory")
        .remove_file(name.as_bytes())
        .expect("removed");
}

/// Fails unless it was done, or there is no space for it.
#[track_caller]
pub fn fits<T>(done: Result<T>) -> bool {
    match done {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            false
        }
    }
}

/// What is on a device, as an image in memory that is gone with the folder.
pub fn image_of(device: &dyn BlockDevice) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
    let image = dir.path().join("volume.img");
    let mut all = vec![0; device.size() as usize];
    device.read(0, &mut all).expect("read");
    std::fs::write(&image, all).expect("an image");
    (dir, image)
}

/// A volume of this size, which may be less than mkfs.xfs makes unless a test asks.
pub fn made_small(dir: &Path, bytes: u64, more: &[&str]) -> PathBuf {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).expect("a sparse image");
    let mut mkfs = Command::new("mkfs.xfs");
    mkfs.envs([("TEST_DIR", "1"), ("TEST_DEV", "1"), ("QA_CHECK_FS", "1")]);
    said(mkfs.args(["-q", "-f"]).args(more).arg(&image));
    image
}

/// A file that has all space that a file can have.
pub fn fill(volume: &Volume, name: &str) -> File {
    let filler = new_file(volume, name);
    fill_up(&filler, 64 << 20);
    filler
}

/// Gives a file all space that is free, in pieces of `most` bytes and less.
pub fn fill_up(filler: &File, most: u64) {
    let (mut end, mut len) = (filler.size(), most);
    while len >= 1024 {
        match fits(filler.allocate(end..end + len, false)) {
            true => end += len,
            false => len /= 2,
        }
    }
}

/// Gives back this many blocks of what [`fill`] gave the file of this name.
pub fn give_back(volume: &Volume, filler: &str, blocks: u64) {
    let filler = volume.open_file(filler).expect("there");
    let block = u64::from(volume.info().expect("info").block_size);
    filler.set_len(filler.size() - blocks * block).expect("cut");
    volume.sync().expect("synced");
}

/// All extents of the one for all extents of the other, by parts that a crash may come between.
pub fn exchange_written(one: &File, other: &File) -> Result<()> {
    one.exchange_range(0, other, 0, Some(one.size()), ExchangeOptions::new().only_written(true))
}

/// The smallest number with which something succeeds, or one that is larger by less than `nearly`.
pub fn least(nearly: u64, succeeds: impl Fn(u64) -> bool) -> u64 {
    let (mut refused, mut least) = (0, 64);
    while !succeeds(least) {
        (refused, least) = (least, 2 * least);
    }
    while least - refused > nearly {
        let middle = refused + (least - refused) / 2;
        if succeeds(middle) { least = middle } else { refused = middle }
    }
    least
}

/// Closes a volume, on which the checker finds nothing then, free blocks counted.
#[track_caller]
pub fn closes_well(device: &Arc<dyn BlockDevice>, volume: Volume) {
    volume.close().expect("closes");
    drop(volume);
    let report = check_device(Arc::clone(device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}
