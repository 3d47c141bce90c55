//! What takes something away succeeds on a volume that has no block left, even if the map that is left needs one more
//! extent than it had.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{Random, closes_well, fill, new_file};
use std::sync::Arc;
use uxfs::{File, MkfsOptions, NewNode, OpenOptions, Result, SetXattr, Volume, mkfs_device};

const SIZE: u64 = 48 << 20;
const BLOCK: u64 = 4096;

fn made() -> (Arc<dyn BlockDevice>, Volume) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(SIZE).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
    (device, volume)
}

/// Takes all blocks that came free.
fn fill_up(volume: &Volume, filler: &File) {
    volume.sync().expect("synced");
    let mut end = filler.size();
    for len in [64 << 10, 4 << 10] {
        while filler.allocate(end..end + len, false).is_ok() {
            end += len;
        }
    }
}

/// Removes all, in random order. What each frees is taken before the next.
fn removes_all(
    what: &str,
    volume: &Volume,
    mut left: Vec<u64>,
    seed: u64,
    remove: impl Fn(u64) -> Result<()>,
) {
    let filler = fill(volume, "filler");
    let mut random = Random(seed);
    while !left.is_empty() {
        fill_up(volume, &filler);
        let nth = left.swap_remove(random.below(left.len() as u64) as usize);
        remove(nth).unwrap_or_else(|error| panic!("{what}, seed {seed}, {} left: {error}", left.len()));
    }
}

/// In one leaf or a tree of them, with values of many blocks or of none.
#[test]
fn attributes() {
    for (values, len) in [(4, 40 << 10), (40, 40 << 10), (400, 2000), (300, 5000)] {
        for seed in 1..4 {
            let (device, volume) = made();
            let file = new_file(&volume, "file");
            let name = |nth: u64| format!("user.{nth}-{}", "x".repeat(100));
            let set = |nth| file.node().set_xattr(name(nth).as_bytes(), &vec![1; len], SetXattr::Create);
            (0..values).for_each(|nth| set(nth).expect("set"));
            let remove = |nth| file.node().remove_xattr(name(nth).as_bytes());
            removes_all(&format!("{values} values"), &volume, (0..values).collect(), seed, remove);
            closes_well(&device, volume);
        }
    }
}

/// An access control list, among other attributes.
#[test]
fn access_control_lists() {
    let (device, volume) = made();
    let list = list_of_users(300);
    let files: Vec<_> = (0..40).map(|nth| new_file(&volume, &format!("file {nth}"))).collect();
    for file in &files {
        file.node().set_xattr(ACL, &list, SetXattr::Create).expect("set");
    }
    let remove = |nth: u64| files[nth as usize].node().remove_xattr(ACL);
    removes_all("lists", &volume, (0..40).collect(), 1, remove);
    closes_well(&device, volume);
}

/// In a directory of many blocks, of one file, so that each has a parent pointer too.
#[test]
fn names() {
    for seed in 1..4 {
        let (device, volume) = made();
        let root = volume.root().and_then(|root| root.as_dir()).expect("a directory");
        let dir = root.create_dir(b"dir", &NewNode::default()).and_then(|dir| dir.as_dir()).expect("made");
        let name = |nth: u64| format!("{nth}-{}", "x".repeat(200)).into_bytes();
        let file = new_file(&volume, "file");
        (0..3000).for_each(|nth| dir.link(&name(nth), file.node()).expect("linked"));
        removes_all("names", &volume, (0..3000).collect(), seed, |nth| dir.remove_file(&name(nth)));
        closes_well(&device, volume);
    }
}

/// Each hole in a file makes one extent more.
#[test]
fn blocks_of_files() {
    for seed in 1..4 {
        let (device, volume) = made();
        let file = new_file(&volume, "file");
        file.allocate(0..2000 * BLOCK, false).expect("allocated");
        let punch = |nth: u64| file.punch_hole(nth * BLOCK..(nth + 1) * BLOCK);
        removes_all("blocks", &volume, (0..2000).collect(), seed, punch);
        closes_well(&device, volume);
    }
}

const ACL: &[u8] = b"system.posix_acl_access";

/// A list in the form of Linux: version 2, then tag, permissions and id of each entry.
fn list_of_users(count: u32) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let users = (0..count).map(|nth| (2, 7, 1000 + nth));
    let others = [(4, 5, NOBODY), (0x10, 7, NOBODY), (0x20, 5, NOBODY)];
    let entry = |(tag, allowed, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &allowed.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let all = [(1, 7, NOBODY)].into_iter().chain(users).chain(others);
    [2_u32.to_le_bytes().to_vec()].into_iter().chain(all.map(entry)).flatten().collect()
}
