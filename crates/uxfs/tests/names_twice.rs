//! Directories that have a name twice, as damaged ones may: of the two, names in memory know one, and a look in the directory
//! may find the other. A removal and a move began anew for ever.

#![forbid(unsafe_code)]

use blockdev::{BlockDevice, Durability, MemoryDevice};
use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uxfs::{Dir, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, Rename, Result, Volume, mkfs_device};
use xfs_format::checksum;
use xfs_format::da::name_hash;

const BLOCK: usize = 4096;
/// Where a directory's block begins with its magic, has its own address, its checksum, and its first entry of anything.
const MAGIC: &[u8] = b"XDB3";
const CHECKSUM: usize = 4;
const FIRST: usize = 64;
/// Names that have the directory leave its inode.
const FILLERS: u32 = 20;

fn filler(nth: u32) -> Vec<u8> {
    format!("filler {nth:020}").into_bytes()
}

/// Two names of one length and one hash.
fn twins() -> (Vec<u8>, Vec<u8>) {
    let mut seen: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut random = fastrand::Rng::with_seed(5);
    loop {
        let name = format!("{:010}", random.u64(..10_000_000_000)).into_bytes();
        match seen.insert(name_hash(&name), name.clone()) {
            Some(other) if other != name => return (other, name),
            _ => {}
        }
    }
}

/// Has the directory's block that holds both names hold the first one twice, the later entry first in the index.
fn damage(device: &dyn BlockDevice, name: &[u8], twin: &[u8]) {
    let mut damaged = 0;
    for at in (0..device.size()).step_by(BLOCK) {
        let mut block = vec![0; BLOCK];
        device.read(at, &mut block).expect("a read");
        let Some(place) = block.windows(twin.len()).position(|part| part == twin) else { continue };
        if !block.starts_with(MAGIC) || block[8..16] != (at / 512).to_be_bytes() {
            continue;
        }
        block[place..place + name.len()].copy_from_slice(name);
        let hash = name_hash(name).to_be_bytes();
        let is_of_it = |at: &usize| block[*at..*at + 4] == hash;
        let of_it: Vec<usize> = (FIRST..BLOCK - 8).step_by(8).filter(is_of_it).collect();
        let [first, second] = of_it[..] else { panic!("two entries: {of_it:?}") };
        (4..8).for_each(|byte| block.swap(first + byte, second + byte));
        assert!(checksum::store(&mut block, CHECKSUM));
        device.write(at, &block, Durability::Volatile).expect("a write");
        damaged += 1;
    }
    assert_eq!(damaged, 1, "one block has both");
}

/// A volume with such a directory, `/d`, which is in its inode by now, and the name. The names in memory know the second.
fn volume() -> (Volume, Vec<u8>) {
    let (name, twin) = twins();
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.1").expect("its set");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).features(features), true)
        .expect("a volume");
    let open = || Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true));
    let volume = open().expect("it opens");
    let root = volume.open_dir("/").expect("the root");
    let dir = root.create_dir(b"d", &NewNode::default()).and_then(|node| node.as_dir()).expect("made");
    let all = [name.clone(), twin.clone()].into_iter().chain((0..FILLERS).map(filler));
    all.for_each(|name| drop(dir.create_file(&name, &NewNode::default()).expect("made")));
    drop((dir, root));
    volume.close().expect("closed");
    drop(volume);
    damage(&*device, &name, &twin);
    let volume = open().expect("it opens");
    let dir = volume.open_dir("/d").expect("it is there");
    let known = dir.lookup(&name).expect("looked up").expect("it is there").metadata().expect("read").ino;
    (0..FILLERS).for_each(|nth| dir.remove_file(&filler(nth)).expect("removed"));
    let entries: Vec<_> = dir.entries().map(|entry| entry.expect("read").ino).collect();
    assert!(entries.len() == 2 && entries[0] != known, "{entries:?}, {known} is known");
    (volume, name)
}

/// What comes of something that may not end.
fn ended<R: Send + 'static>(volume: &Volume, work: impl FnOnce(&Dir) -> R + Send + 'static) -> R {
    let (tell, told) = mpsc::channel();
    let volume = volume.clone();
    std::thread::spawn(move || {
        let dir = volume.open_dir("/d").expect("it is there");
        let _ = tell.send(work(&dir));
    });
    told.recv_timeout(Duration::from_secs(60)).expect("it ends")
}

#[test]
fn a_name_twice_is_removed() {
    let (volume, name) = volume();
    for _ in 0..2 {
        let name = name.clone();
        let done: Result<()> = ended(&volume, move |dir| dir.remove_file(&name));
        done.expect("one of them goes");
    }
    assert_eq!(volume.open_dir("/d").expect("it is there").entries().count(), 0);
}

#[test]
fn a_name_twice_is_moved() {
    let (volume, name) = volume();
    let done: Result<()> = ended(&volume, move |dir| dir.rename(&name, dir, b"new", Rename::Replace));
    done.expect("one of them moves");
    assert_eq!(volume.open_dir("/d").expect("it is there").entries().count(), 2);
}

#[test]
fn a_name_twice_is_moved_over() {
    let (volume, name) = volume();
    let done: Result<()> = ended(&volume, move |dir| {
        dir.create_file(b"other", &NewNode::default())?;
        dir.rename(b"other", dir, &name, Rename::Replace)
    });
    done.expect("one of them is replaced");
    assert_eq!(volume.open_dir("/d").expect("it is there").entries().count(), 2);
}
