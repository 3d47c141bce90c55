//! What is written where blocks are, or were lately, shared: it is there afterwards, whatever was done to the blocks between.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{closes_well, fill, fits, new_file, opened, remove};
use common::{mounted, repair_finds_nothing};
use fileio::testing::{STAGED, at};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use uxfs::{Changes, ErrorKind, File, MkfsFeatures, MkfsOptions, OpenOptions, Volume, mkfs_device};

const BLOCK: u64 = 4096;

fn made(dir: &Path, mib: u64) -> PathBuf {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("a sparse image");
    let out = Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&image).output().expect("mkfs.xfs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    image
}

/// `byte` in all of this many blocks.
fn blocks(byte: u8, count: u64) -> Vec<u8> {
    vec![byte; (count * BLOCK) as usize]
}

#[track_caller]
fn holds(file: &File, block: u64, byte: u8) {
    let mut found = blocks(!byte, 1);
    file.read_at(&mut found, block * BLOCK).unwrap();
    let wrong = found.iter().position(|&found| found != byte);
    assert_eq!(wrong.map(|at| (at, found[at])), None, "block {block} of {byte:#x}");
}

fn end(volume: Volume, image: &Path) {
    volume.close().unwrap();
    drop(volume);
    repair_finds_nothing(image);
    mounted(image, |_| ());
}

/// Space is staged for more blocks than a write needs. A block that is blanked meanwhile is the file's alone, and is written
/// where it is: what was staged for it holds nothing, and must not come in its place.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_staged_does_not_take_the_place_of_blanked_blocks() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = made(dir.path(), 320);
    let volume = opened(&image);
    let (file, other) = (new_file(&volume, "file"), new_file(&volume, "other"));
    file.write_at(&blocks(0x11, 32), 0).unwrap();
    file.clone_range(0, &other, 0, 0).unwrap();
    // Stages for blocks beside it as well.
    file.write_at(&blocks(0x22, 1), 0).unwrap();
    drop(other);
    remove(&volume, "other");
    volume.sync().unwrap();
    file.zero_range(BLOCK..2 * BLOCK, false).unwrap();
    file.write_at(&blocks(0x33, 1), BLOCK).unwrap();
    holds(&file, 1, 0x33);
    holds(&file, 0, 0x22);
    holds(&file, 2, 0x11);
    drop(file);
    end(volume, &image);
}

/// A write that fails when its copies are to take their places, as the map finds no block to grow, leaves what was there;
/// and nothing of it comes back when the place is written anew.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_a_failed_write_had_staged_does_not_come_back() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = made(dir.path(), 320);
    let volume = opened(&image);
    let (file, other) = (new_file(&volume, "file"), new_file(&volume, "other"));
    file.write_at(&blocks(0x11, 64), 0).unwrap();
    file.clone_range(0, &other, 0, 0).unwrap();
    file.overwrite_at(&blocks(0x22, 1), 0).unwrap();
    let filler = fill(&volume, "filler");
    // Every other block that something is staged for: more extents than fit into the inode.
    let failed = (2..32).step_by(2).find(|block| match file.overwrite_at(&blocks(0x22, 1), block * BLOCK) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            true
        }
    });
    let failed = failed.expect("the map grew without a block");
    holds(&file, failed, 0x11);
    holds(&file, failed - 2, 0x22);
    file.set_len(4 * BLOCK).unwrap();
    drop(filler);
    remove(&volume, "filler");
    volume.sync().unwrap();
    file.write_at(&blocks(0x33, 1), failed * BLOCK).unwrap();
    holds(&file, failed, 0x33);
    holds(&other, failed, 0x11);
    drop((file, other));
    end(volume, &image);
}

/// What is staged and not needed goes to whoever finds no space otherwise, another file be it, or a directory.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_staged_for_later_goes_back_when_space_is_short() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = made(dir.path(), 320);
    let volume = opened(&image);
    let (file, other) = (new_file(&volume, "file"), new_file(&volume, "other"));
    let hint = Changes { cow_extent_size: Some(32 << 20), ..Changes::default() };
    file.node().change(&hint).unwrap();
    file.write_at(&blocks(0x11, 64), 0).unwrap();
    file.clone_range(0, &other, 0, 0).unwrap();
    file.write_at(&blocks(0x22, 1), 0).unwrap();
    drop(fill(&volume, "filler"));
    let before = volume.info().unwrap().free_blocks;
    drop(file);
    volume.sync().unwrap();
    let after = volume.info().unwrap().free_blocks;
    assert!(after < before + 64, "{} blocks were staged still", after - before);
    drop(other);
    end(volume, &image);
}

/// The same for a write to blocks that are shared.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_staged_for_later_goes_back_for_another_copy() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = made(dir.path(), 320);
    let volume = opened(&image);
    let (file, other) = (new_file(&volume, "file"), new_file(&volume, "other"));
    file.write_at(&blocks(0x11, 64), 0).unwrap();
    file.clone_range(0, &other, 0, 0).unwrap();
    let hint = Changes { cow_extent_size: Some(32 << 20), ..Changes::default() };
    file.node().change(&hint).unwrap();
    let filler = fill(&volume, "filler");
    let kept_back = volume.info().unwrap().free_blocks;
    let end_of_filler = filler.size();
    filler.set_len(end_of_filler - (40 << 20)).unwrap();
    volume.sync().unwrap();
    file.write_at(&blocks(0x22, 1), 0).unwrap();
    let free = volume.info().unwrap().free_blocks - kept_back;
    assert!(free < 4096, "too little is staged: {free} blocks are free");
    let more = filler.size() + (free - 20) * BLOCK;
    filler.allocate(filler.size()..more, false).unwrap();
    other.overwrite_at(&blocks(0x33, 60), 0).unwrap();
    holds(&other, 59, 0x33);
    holds(&file, 1, 0x11);
    drop((file, other, filler));
    end(volume, &image);
}

/// Half of what a write is about was shared before, and space is staged for copies of it that nobody needs now: as soon as there
/// is too little for copies of the rest, the tree of reference counts is asked.
#[test]
fn no_space_is_lacking_for_copies_of_a_files_own_blocks() {
    // Some of them are kept for removals.
    for left in 142..192 {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
        let features = MkfsFeatures::of_kernel("6.1").expect("known");
        let options = MkfsOptions::new().group_count(1).features(features).small(true);
        mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
        let volume =
            Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
        let (file, other) = (new_file(&volume, "file"), new_file(&volume, "other"));
        file.write_at(&blocks(0x11, 64), 0).unwrap();
        file.clone_range(0, &other, 0, 0).unwrap();
        // Stages for 31 blocks beside it as well.
        file.overwrite_at(&blocks(0x22, 1), 0).unwrap();
        other.punch_hole(0..32 * BLOCK).unwrap();
        volume.sync().unwrap();
        let free = volume.info().unwrap().free_blocks;
        new_file(&volume, "filler").allocate(0..(free - left) * BLOCK, false).unwrap();
        let done = file.overwrite_at(&blocks(0x33, 64), 0);
        // Whoever closes a handle of it gives back what is staged.
        drop(volume.open_file("/file").unwrap());
        let again = file.overwrite_at(&blocks(0x33, 64), 0);
        assert!(done.is_ok() || again.is_err(), "refused with {left} blocks left: {done:?}");
        drop((file, other));
        closes_well(&device, volume);
    }
}

/// A write is over blocks that were shared and have copies staged that nobody needs, and over some that are set aside; its map is
/// as long as the inode has room for. Space for the copies is found at the second look, and others take what is left
/// after that: what the write had reserved before, to say that what was set aside holds data, is still there.
#[test]
fn what_a_write_has_reserved_outlasts_a_look_for_space_in_vain() {
    // With 35 nothing is left for it on this volume.
    for taken in 32..39 {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
        mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
        let volume =
            Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
        let [file, other, third, waiting, filler] =
            ["file", "other", "third", "waiting", "filler"].map(|name| new_file(&volume, name));
        file.set_len(200 * BLOCK).unwrap();
        file.allocate(32 * BLOCK..40 * BLOCK, false).unwrap();
        file.write_at(&blocks(5, 32), 0).unwrap();
        (0..9).for_each(|nth| file.write_at(&blocks(6, 1), (100 + 2 * nth) * BLOCK).unwrap());
        file.clone_range(0, &other, 0, 32 * BLOCK).unwrap();
        third.allocate(0..8 * BLOCK, false).unwrap();
        waiting.set_len(4096 * BLOCK).unwrap();
        let mut end = 0;
        for step in [256 * BLOCK, 16 * BLOCK, BLOCK] {
            while fits(filler.allocate(end..end + step, false)) {
                end += step;
            }
        }
        filler.set_len(end - 300 * BLOCK).unwrap();
        volume.sync().unwrap();
        // Stages 32 blocks, of which 31 stay staged.
        file.write_at(&blocks(7, 1), 0).unwrap();
        other.set_len(0).unwrap();
        volume.sync().unwrap();
        let end = filler.size();
        filler.allocate(end..end + 256 * BLOCK, false).unwrap();
        let mut before = vec![0; 200 * BLOCK as usize];
        file.read_at(&mut before, 0).unwrap();

        let (go_on, goes_on) = mpsc::channel::<()>();
        let (others, are_others) = mpsc::channel();
        let cached = waiting.buffered();
        at(STAGED, move || {
            let took = (0..taken).take_while(|nth| fits(cached.write_at(&blocks(1, 1), nth * BLOCK)));
            took.for_each(drop);
            // And what a write like this one reserves, which is not over yet.
            let (begun, begins) = mpsc::channel();
            others
                .send(thread::spawn(move || {
                    at(STAGED, move || {
                        begun.send(()).unwrap();
                        let _ = goes_on.recv();
                    });
                    third.write_at(&blocks(3, 1), 0).unwrap();
                }))
                .unwrap();
            begins.recv().unwrap();
        });
        let done = file.write_at(&blocks(9, 33), BLOCK);
        let mut now = vec![0; 200 * BLOCK as usize];
        file.read_at(&mut now, 0).unwrap();
        assert!(done.is_ok() || now == before, "{taken}: half of it was done: {done:?}");
        drop(go_on);
        are_others.recv().expect("others came between").join().unwrap();
        drop((file, other, waiting, filler));
        closes_well(&device, volume);
    }
}
