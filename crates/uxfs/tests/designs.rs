//! Volumes whose journals are made of older designs: threads change them, the power fails, the kernel replays what is in
//! the log, and `xfs_repair` judges; then they are changed again, and closed.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "volumes here are opened with options of their own")]
mod common;

use common::{made, mounted, repair_finds_nothing};
use std::path::Path;
use uxfs::{Changes, Designs, Dir, NewNode, OpenOptions, Rename, Timestamp, Volume};

const THREADS: usize = 3;
const FILES: usize = 250;

/// Files are made, written, moved, changed and removed, by each thread in a directory of its own and in one of all.
fn work(volume: &Volume, round: usize) -> uxfs::Result<()> {
    let root = volume.open_dir("/")?;
    let all = root.create_dir(format!("all-{round}").as_bytes(), &NewNode::default())?.as_dir()?;
    std::thread::scope(|scope| {
        let one = |thread: usize| {
            let own = root.create_dir(format!("own-{round}-{thread}").as_bytes(), &NewNode::default())?;
            (0..FILES).try_for_each(|nth| change(volume, &own.as_dir()?, &all, thread, nth))
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

fn change(volume: &Volume, own: &Dir, all: &Dir, thread: usize, nth: usize) -> uxfs::Result<()> {
    let name = format!("file-{thread}-{nth}").into_bytes();
    let node = own.create_file(&name, &NewNode::default())?;
    let stamp = Timestamp { seconds: nth as i64, nanoseconds: 0 };
    match nth % 5 {
        0 => node.open()?.write_at(&vec![nth as u8; 300 * nth], 0)?,
        1 => own.rename(&name, all, &name, Rename::NoReplace)?,
        2 => own.remove_file(&name)?,
        _ => node.change(&Changes { mtime: Some(stamp), permissions: Some(0o640), ..Changes::default() })?,
    }
    if nth % 100 == 50 { volume.sync() } else { Ok(()) }
}

/// What is in an image after a whole round: each thread's files, as the kernel sees them.
fn look(at: &Path, round: usize) {
    let names = |dir: &Path| std::fs::read_dir(dir).expect("a directory").count();
    assert_eq!(names(&at.join(format!("all-{round}"))), THREADS * FILES / 5);
    for thread in 0..THREADS {
        let own = at.join(format!("own-{round}-{thread}"));
        assert_eq!(names(&own), FILES / 5 * 3);
        let written = std::fs::read(own.join(format!("file-{thread}-5"))).expect("there");
        assert!(written == vec![5; 1500]);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn volumes_of_older_designs_are_sound_after_a_crash_and_after_a_close() {
    for designs in Designs::one_older().into_iter().chain([Designs::OLDEST]) {
        let dir = tempfile::tempdir().expect("a directory");
        // Small enough for all to wait for its space.
        let image = made(dir.path(), &["--unsupported", "-l", "size=8m"]);
        let open = || Volume::open(&image, &OpenOptions::new().writable(true).designs(designs));
        let volume = open().expect("a volume");
        work(&volume, 1).unwrap_or_else(|error| panic!("{designs}: {error}"));
        volume.sync().expect("it is durable");
        // As a crash: nothing is written back any more.
        drop(volume);
        mounted(&image, |at| look(at, 1));
        repair_finds_nothing(&image);
        let volume = open().expect("once more");
        work(&volume, 2).unwrap_or_else(|error| panic!("{designs}: {error}"));
        volume.close().expect("a clean close");
        repair_finds_nothing(&image);
        mounted(&image, |at| (1..3).for_each(|round| look(at, round)));
    }
}
