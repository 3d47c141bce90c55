//! Calls that find no space leave everything as it was, and a volume says at any time what is free of it.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, MemoryDevice};
use std::sync::Arc;
use uxfs::{
    ErrorKind, Extent, File, Metadata, MkfsOptions, NewNode, OpenOptions, Result, SetXattr, Volume,
    check_device, mkfs_device,
};

const BLOCK: u64 = 4096;

fn made() -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(24 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = open(&device);
    (device, volume)
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("clean")
}

fn file(volume: &Volume, name: &[u8]) -> File {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    root.create_file(name, &NewNode::default()).expect("made").open().expect("opened")
}

fn seen(file: &File) -> (Metadata, Vec<Extent>) {
    (file.metadata(), file.extents().collect::<Result<_>>().expect("a map"))
}

fn finds_no_space(file: &File, what: &str, change: impl FnOnce() -> Result<()>) {
    let before = seen(file);
    let error = change().expect_err(what);
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}: {error}");
    assert_eq!(seen(file), before, "{what}");
}

/// Leaves nothing free but single blocks, more of them than a map without a new block can tell of.
fn only_scraps_left(volume: &Volume) {
    let filler = file(volume, b"filler");
    let mut end = 0;
    for len in [1 << 20, 64 << 10, BLOCK] {
        while filler.write_at(&vec![1; len as usize], end).is_ok() {
            end += len;
        }
    }
    for block in (0..end / BLOCK).step_by(2).take(300) {
        filler.punch_hole(block * BLOCK..(block + 1) * BLOCK).expect("a hole");
    }
    volume.sync().expect("synced");
    // What is left behind this is what the holes gave.
    while volume.info().expect("info").free_blocks > 600 {
        let name = format!("more {end}");
        end += 1;
        if file(volume, name.as_bytes()).allocate(0..BLOCK, false).is_err() {
            break;
        }
    }
}

#[test]
fn what_finds_no_space_changes_nothing() {
    let (device, volume) = made();
    let small = file(&volume, b"small");
    small.write_at(&[7; 3 * BLOCK as usize], BLOCK).expect("written");
    small.node().set_xattr(b"user.a", b"b", SetXattr::Create).expect("set");
    volume.sync().expect("synced");
    only_scraps_left(&volume);
    let free = volume.info().expect("info").free_blocks * BLOCK;
    for len in [free / 2, free, 2 * free, 64 << 20] {
        let (start, end) = (6 * BLOCK, 6 * BLOCK + len);
        let all = start..end;
        let fitted = small.allocate(all.clone(), true).is_ok();
        small.punch_hole(all.clone()).expect("a hole");
        if fitted {
            continue;
        }
        finds_no_space(&small, "allocating", || small.allocate(all.clone(), false));
        finds_no_space(&small, "zeroing", || small.zero_range(2 * BLOCK + 7..end, false));
        finds_no_space(&small, "writing", || small.write_at(&vec![1; len as usize], start));
    }
    let mut bytes = [0; BLOCK as usize];
    small.read_at(&mut bytes, 2 * BLOCK).expect("read");
    assert_eq!(bytes, [7; BLOCK as usize]);
    volume.close().expect("closed");
    drop(small);
    drop(volume);
    assert!(check_device(device, &OpenOptions::new()).expect("checked").is_clean());
}

#[test]
fn a_volume_says_what_is_free_now() {
    let (device, volume) = made();
    let before = volume.info().expect("info");
    file(&volume, b"file").write_at(&[1; 1 << 20], 0).expect("written");
    let with = volume.info().expect("info");
    assert_eq!(with.free_blocks + 256, before.free_blocks);
    assert_eq!(with.free_inodes + 1, before.free_inodes);
    volume.root().expect("root").as_dir().expect("a directory").remove_file(b"file").expect("removed");
    assert_eq!(volume.info().expect("info").free_blocks, before.free_blocks);
    volume.close().expect("closed");
    drop(volume);
    assert_eq!(open(&device).info().expect("info").free_blocks, before.free_blocks);
}
