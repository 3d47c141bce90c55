//! Walks over what is not in memory: inodes and blocks of directories are read several at once, before they are asked for,
//! and nothing that is found depends on it.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{
    AlignedBuf, BlockDevice, BlockingQueue, Completion, DeviceError, Durability, FileOptions, IoQueue, Layer,
    MemoryDevice,
};
use common::files::Random;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uxfs::{Dir, ErrorKind, Metadata, MkfsOptions, NewNode, OpenOptions, Volume, mkfs_device};
use xfs_format::checksum;
use xfs_format::identity::identify;

/// Locks are counted for the whole process: each test is alone.
static COUNTING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    COUNTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How requests of queues go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queues {
    Good,
    Failing,
    Panicking,
    Missing,
}

/// A device that counts how many reads of queues are under way at once, and how many bytes they are.
#[derive(Debug)]
struct Watched {
    below: Arc<dyn BlockDevice>,
    queues: Queues,
    in_flight: AtomicU64,
    most: AtomicU64,
    bytes_in_flight: AtomicU64,
    most_bytes: AtomicU64,
    /// All that was read, by calls too.
    bytes: AtomicU64,
    reads: AtomicU64,
}

impl Watched {
    fn new(below: Arc<dyn BlockDevice>, queues: Queues) -> Arc<Self> {
        let zero = AtomicU64::default;
        Arc::new(Self {
            below,
            queues,
            in_flight: zero(),
            most: zero(),
            bytes_in_flight: zero(),
            most_bytes: zero(),
            bytes: zero(),
            reads: zero(),
        })
    }

    fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::SeqCst)
    }
}

impl Layer for Watched {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.bytes.fetch_add(buf.len() as u64, Ordering::SeqCst);
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.below.read(offset, buf)
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        if self.queues == Queues::Missing {
            return Err(DeviceError::QueueFull);
        }
        let below = Box::new(BlockingQueue::new(Arc::clone(&self), depth)?);
        Ok(Box::new(WatchedQueue { below, of: self }))
    }
}

struct WatchedQueue {
    below: Box<dyn IoQueue>,
    of: Arc<Watched>,
}

impl IoQueue for WatchedQueue {
    fn depth(&self) -> u32 {
        self.below.depth()
    }

    fn in_flight(&self) -> u32 {
        self.below.in_flight()
    }

    fn push_read(&mut self, offset: u64, buf: AlignedBuf, tag: u64) -> Result<(), DeviceError> {
        let bytes = buf.len() as u64;
        self.below.push_read(offset, buf, tag)?;
        let of = &self.of;
        of.most.fetch_max(of.in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let all = of.bytes_in_flight.fetch_add(bytes, Ordering::SeqCst) + bytes;
        of.most_bytes.fetch_max(all, Ordering::SeqCst);
        Ok(())
    }

    fn push_write(&mut self, at: u64, buf: AlignedBuf, how: Durability, tag: u64) -> Result<(), DeviceError> {
        self.below.push_write(at, buf, how, tag)
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        self.below.submit()
    }

    fn wait(&mut self, min: u32, done: &mut dyn FnMut(Completion)) -> Result<u32, DeviceError> {
        let of = Arc::clone(&self.of);
        assert_ne!(of.queues, Queues::Panicking, "as it was made to");
        self.below.wait(min, &mut |mut completion| {
            of.in_flight.fetch_sub(1, Ordering::SeqCst);
            of.bytes_in_flight.fetch_sub(completion.buf.len() as u64, Ordering::SeqCst);
            if of.queues == Queues::Failing {
                completion.buf.fill(0x5a);
                completion.result = Err(DeviceError::QueueFull);
            }
            done(completion);
        })
    }
}

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(300 << 20).expect("memory"))
}

fn open(device: &Arc<Watched>, cache_size: u64) -> Volume {
    let options = OpenOptions::new().cache_size(cache_size);
    Volume::open_device(Arc::clone(device) as _, &options).expect("it opens")
}

/// Makes `files` in each of this many directories of one directory.
fn make_tree(device: &Arc<dyn BlockDevice>, dirs: u64, files: u64) {
    mkfs_device(Arc::clone(device), &MkfsOptions::new(), true).expect("a volume");
    let volume =
        Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("it opens");
    let root = volume.open_dir("/").expect("a root");
    let new = NewNode::default();
    for nth in 0..dirs {
        let dir = root.create_dir(format!("dir{nth}").as_bytes(), &new).expect("a directory");
        let dir = dir.as_dir().expect("a directory");
        for file in 0..files {
            dir.create_file(format!("a-file-with-a-name-{file}").as_bytes(), &new).expect("a file");
        }
    }
    volume.close().expect("a clean close");
}

/// What a walk says of each path.
type Found = BTreeMap<Vec<u8>, Result<Metadata, ErrorKind>>;

/// Goes down from a directory, with inodes read ahead or not. Damaged volumes may lead round in circles.
fn walk(volume: &Volume, with_inodes: bool) -> Found {
    let mut found = Found::new();
    let mut dirs = vec![(Vec::new(), volume.root())];
    let mut entered = std::collections::BTreeSet::new();
    while let Some((path, node)) = dirs.pop() {
        let dir = match node.and_then(|node| node.as_dir()) {
            Ok(dir) if entered.insert(dir.node().ino()) => dir,
            Ok(_) => continue,
            Err(error) => {
                found.insert([&path[..], b"/as-dir"].concat(), Err(error.kind()));
                continue;
            }
        };
        let entries = if with_inodes { dir.entries().with_inodes() } else { dir.entries() };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    found.insert([&path[..], b"/entries"].concat(), Err(error.kind()));
                    break;
                }
            };
            let path = [&path[..], b"/", &entry.name].concat();
            let metadata = volume.metadata_of(entry.ino).map_err(|error| error.kind());
            if metadata.as_ref().is_ok_and(|of| of.is_dir()) {
                dirs.push((path.clone(), volume.node(entry.ino)));
            }
            found.insert(path, metadata);
        }
    }
    found
}

#[test]
fn a_cold_walk_has_several_reads_under_way() {
    let _alone = alone();
    let memory = memory();
    make_tree(&memory, 20, 300);
    let watched = Watched::new(Arc::clone(&memory), Queues::Missing);
    let volume = open(&watched, 64 << 20);
    let before = Watched::get(&watched.reads);
    let plain = walk(&volume, false);
    let reads_of_plain = Watched::get(&watched.reads) - before;
    for cache_size in [64 << 20, 8 << 20] {
        let watched = Watched::new(Arc::clone(&memory), Queues::Good);
        let volume = open(&watched, cache_size);
        let before = Watched::get(&watched.reads);
        let found = walk(&volume, true);
        let reads = Watched::get(&watched.reads) - before;
        assert_eq!(found.len(), 20 * 301);
        assert!(found == plain, "with caches of {cache_size}");
        assert!(Watched::get(&watched.most) >= 3, "{watched:?}");
        assert!(Watched::get(&watched.most_bytes) <= cache_size / 32, "{watched:?}");
        assert!(reads * 4 < reads_of_plain * 3, "{reads} reads, one after the other {reads_of_plain}");
    }
    let watched = Watched::new(memory, Queues::Good);
    let volume = open(&watched, 64 << 20);
    let dir = volume.open_dir("/dir7").expect("a directory");
    let before = Watched::get(&watched.bytes);
    assert_eq!(dir.entries().count(), 300);
    let read = Watched::get(&watched.bytes) - before;
    assert!(read <= 64 << 10, "{read} bytes for who wants names alone");
}

#[test]
fn a_walk_finds_the_same_whatever_becomes_of_reads_ahead() {
    let _alone = alone();
    let memory = memory();
    make_tree(&memory, 10, 150);
    let plain = walk(&open(&Watched::new(Arc::clone(&memory), Queues::Good), 64 << 20), false);
    for queues in [Queues::Failing, Queues::Panicking, Queues::Missing] {
        let watched = Watched::new(Arc::clone(&memory), queues);
        assert!(walk(&open(&watched, 64 << 20), true) == plain, "{queues:?}");
    }
}

/// Byte of an inode's checksum.
const INODE_CRC: usize = 100;
const SECTOR: usize = 512;

/// Makes the checksums of a block right again.
fn seal(block: &mut [u8]) {
    if block.starts_with(b"XFSB") {
        return block.chunks_mut(SECTOR).for_each(seal_one);
    }
    if !block.starts_with(b"IN") {
        return seal_one(block);
    }
    let inodes = block.chunks_mut(SECTOR).filter(|inode| inode.starts_with(b"IN"));
    inodes.for_each(|inode| assert!(checksum::store(inode, INODE_CRC)));
}

fn seal_one(block: &mut [u8]) {
    if let Some(identity) = identify(block) {
        checksum::store(block, identity.crc);
    }
}

/// Numbers in entries, maps, records and roots are anything.
#[test]
fn a_damaged_volume_says_the_same_of_each_file() {
    let _alone = alone();
    let memory = memory();
    make_tree(&memory, 6, 120);
    let volume = Volume::open_device(Arc::clone(&memory), &OpenOptions::new()).expect("it opens");
    let block = u64::from(volume.info().expect("info").block_size);
    drop(volume);
    // Metadata, of which the log has copies as well.
    let mut used = Vec::new();
    let mut bytes = vec![0; block as usize];
    for nth in 0..memory.size() / block {
        memory.read(nth * block, &mut bytes).expect("read");
        if identify(&bytes).is_some() || bytes.starts_with(b"IN") {
            used.push(nth);
        }
    }
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut troubled = 0;
    for round in 0..100 {
        let damaged: Vec<(u64, Vec<u8>)> = (0..=random.below(4))
            .map(|_| {
                let at = used[random.below(used.len() as u64) as usize] * block;
                let mut whole = vec![0; block as usize];
                memory.read(at, &mut whole).expect("read");
                let mut bad = whole.clone();
                for _ in 0..=random.below(6) {
                    // Not the superblock.
                    let first = if at == 0 { SECTOR as u64 } else { 0 };
                    bad[(first + random.below(block - first)) as usize] = random.below(256) as u8;
                }
                seal(&mut bad);
                memory.write(at, &bad, Durability::Volatile).expect("written");
                (at, whole)
            })
            .collect();
        let outcomes = [false, true].map(|with_inodes| {
            let watched = Watched::new(Arc::clone(&memory), Queues::Good);
            let options = OpenOptions::new().cache_size(16 << 20).norecovery(true);
            let volume = Volume::open_device(watched, &options);
            volume.map(|volume| walk(&volume, with_inodes)).map_err(|error| error.kind())
        });
        assert!(outcomes[0] == outcomes[1], "round {round}: {outcomes:?}");
        troubled += u32::from(outcomes[0].as_ref().map_or(true, |found| found.values().any(Result::is_err)));
        for (at, whole) in damaged.into_iter().rev() {
            memory.write(at, &whole, Durability::Volatile).expect("written");
        }
    }
    assert!(troubled > 10, "{troubled} with anything wrong");
}

/// Acquisitions of locks of all classes so far.
fn acquisitions() -> u64 {
    lockstat::report().iter().map(|(_, counts)| counts.shared + counts.exclusive).sum()
}

#[test]
fn a_walk_over_what_is_in_memory_takes_one_lock_a_file() {
    let _alone = alone();
    const FILES: u64 = 2000;
    let memory = memory();
    make_tree(&memory, 1, FILES);
    let volume = Volume::open_device(memory, &OpenOptions::new()).expect("it opens");
    let plain = walk(&volume, true);
    assert!(walk(&volume, true) == plain);
    lockstat::enable();
    let before = acquisitions();
    assert_eq!(walk(&volume, true), plain);
    let taken = acquisitions() - before;
    // That of each inode's state, as a thread remembers few versions; and some for each batch of entries and each block.
    assert!((1..FILES + FILES / 8).contains(&taken), "{taken} for {FILES} files");
}

/// Reads of a file's device are under way in the kernel, while others change what they are of.
#[test]
fn walks_beside_changes_find_what_is_there() {
    let _alone = alone();
    let image = tempfile::NamedTempFile::new().expect("a file");
    image.as_file().set_len(400 << 20).expect("a size");
    let device = || -> Arc<dyn BlockDevice> {
        Arc::new(FileOptions::new().write(true).open(image.path()).expect("a device"))
    };
    make_tree(&device(), 4, 400);
    // So little memory that most of it is read again and again.
    let options = OpenOptions::new().writable(true).cache_size(6 << 20);
    let volume = Volume::open_device(device(), &options).expect("it opens");
    let over = AtomicBool::new(false);
    let dir = |nth: u64| -> Dir { volume.open_dir(format!("/dir{nth}")).expect("a directory") };
    let changed = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for (path, metadata) in walk(&volume, true) {
                        // What is removed behind the look at its name is gone, and its number may be another file's.
                        assert!(
                            metadata.as_ref().map_or_else(
                                |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::Stale),
                                |of| of.is_dir() || of.is_file() && matches!(of.permissions(), 0o644 | 0o600)
                            ),
                            "{path:?}: {metadata:?}"
                        );
                    }
                }
            });
        }
        let changers = [0, 1].map(|changer| {
            let (dir, volume) = (&dir, &volume);
            scope.spawn(move || {
                let dirs = [dir(2 * changer), dir(2 * changer + 1)];
                let mut random = Random(changer + 1);
                let mut there = BTreeMap::new();
                let end = Instant::now() + Duration::from_secs(4);
                while Instant::now() < end {
                    let of = random.below(2);
                    let name = format!("a-file-with-a-name-{}", random.below(400));
                    let in_dir = &dirs[of as usize];
                    let key = (2 * changer + of, name.clone());
                    match in_dir.remove_file(name.as_bytes()) {
                        Ok(()) => {
                            there.insert(key, None);
                        }
                        Err(_) => {
                            let new = NewNode { permissions: 0o600, ..NewNode::default() };
                            let made = in_dir.create_file(name.as_bytes(), &new).expect("a file");
                            there.insert(key, Some(made.metadata().expect("metadata")));
                        }
                    }
                    if random.below(500) == 0 {
                        volume.sync().expect("a sync");
                    }
                }
                there
            })
        });
        let changed = changers.map(|changer| changer.join().expect("a changer"));
        over.store(true, Ordering::Relaxed);
        changed
    });
    for _ in 0..2 {
        let found = walk(&volume, true);
        for ((dir, name), metadata) in changed.iter().flatten() {
            let path = format!("/dir{dir}/{name}").into_bytes();
            assert_eq!(found.get(&path), metadata.clone().map(Ok).as_ref(), "/dir{dir}/{name}");
        }
    }
    volume.close().expect("a clean close");
    drop(volume);
    let report = uxfs::check_device(device(), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{report:?}");
}
