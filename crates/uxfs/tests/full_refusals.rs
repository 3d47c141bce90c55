//! What is refused because a volume is full leaves files as they were: size, map and content, of every file it names. Random
//! changes of files that share blocks, with a few blocks free, or none.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{Random, closes_well, fill, fill_up, give_back, new_file, seeds};
use std::collections::BTreeMap;
use std::sync::Arc;
use uxfs::{ErrorKind, ExchangeOptions, Extent, File, MkfsOptions, OpenOptions, Result, Volume, mkfs_device};

const BYTES: u64 = 24 << 20;
const FILES: u64 = 4;
/// Blocks at the start of a file that changes begin in.
const BLOCKS: u64 = 120;
/// Blocks that are free at most before a change.
const FREE: u64 = 30;
const CHANGES: u64 = 60;

/// What is seen of a file.
#[derive(PartialEq, Eq)]
struct Seen {
    size: u64,
    extents: Vec<Extent>,
    bytes: Vec<u8>,
}

impl Seen {
    fn of(file: &File) -> Self {
        let extents = file.extents().collect::<Result<_>>().expect("listed");
        let mut bytes = vec![0; file.size() as usize];
        assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
        Self { size: file.size(), extents, bytes }
    }
}

struct Full {
    device: Arc<dyn BlockDevice>,
    volume: Volume,
    files: Vec<File>,
    filler: File,
    block: u64,
    random: Random,
}

impl Full {
    /// A full volume with files of data, holes, preallocated space and shared blocks.
    fn new(seed: u64) -> Self {
        let block = if seed.is_multiple_of(2) { 4096 } else { 1024 };
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
        let options = MkfsOptions::new().small(true).block_size(block as u32);
        mkfs_device(Arc::clone(&device), &options, true).expect("a volume");
        let volume =
            Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("opens");
        let files: Vec<File> = (0..FILES).map(|nth| new_file(&volume, &format!("file {nth}"))).collect();
        let mut random = Random(seed.wrapping_mul(77) + 5);
        for (file, byte) in files.iter().zip(1..) {
            (0..6).for_each(|_| Self::shape(file, byte, block, &mut random));
        }
        for _ in 0..6 {
            let [from, to] = [(); 2].map(|()| random.below(FILES) as usize);
            let (at, dest) = (random.below(40) * block, random.below(BLOCKS) * block);
            // Where both ranges meet in one file, or lie behind its end, it is refused.
            let _done = files[from].clone_range(at, &files[to], dest, (1 + random.below(40)) * block);
        }
        let filler = fill(&volume, "filler");
        Self { device, volume, files, filler, block, random }
    }

    fn shape(file: &File, byte: u8, block: u64, random: &mut Random) {
        let (at, len) = (random.below(BLOCKS) * block, (1 + random.below(20)) * block);
        let done = match random.below(4) {
            0 => file.allocate(at..at + len, random.below(2) == 0),
            1 => file.punch_hole(at..at + len),
            2 => file.write_at(&vec![byte; (len - random.below(block)) as usize], at),
            _ => (0..10).try_for_each(|nth| file.write_at(&vec![byte; block as usize], at + 2 * nth * block)),
        };
        done.expect("there is space");
    }

    /// Leaves a few blocks free, or none.
    fn leave_some(&mut self) {
        self.volume.sync().expect("synced");
        fill_up(&self.filler, 64 << 10);
        let free = self.random.below(FREE);
        if free > 0 && self.random.below(3) > 0 {
            give_back(&self.volume, "filler", free);
        }
    }

    /// A place in a file: at the start of a block, or within it.
    fn place(&mut self) -> u64 {
        let block = self.random.below(BLOCKS) * self.block;
        block + if self.random.below(2) == 0 { 0 } else { self.random.below(self.block) }
    }

    /// One change of a file; the second one may be in it. Returns its name.
    fn change(&mut self, [one, other]: [&File; 2]) -> (&'static str, Result<()>) {
        let block = self.block;
        let from = self.place();
        let range = from..from + 1 + self.random.below(25 * block);
        let whole = from / block * block..(range.end / block + 1) * block;
        let len = (1 + self.random.below(30)) * block;
        let bytes = vec![9; (range.end - from) as usize];
        match self.random.below(12) {
            0 | 1 => ("write", one.write_at(&bytes, from)),
            2 => {
                let cached = one.buffered();
                ("cached write", cached.write_at(&bytes, from).and_then(|()| cached.sync()))
            }
            3 => ("punch", one.punch_hole(range)),
            4 => ("zero within", one.zero_range(range, true)),
            5 => ("zero", one.zero_range(range, false)),
            6 => ("allocate", one.allocate(range, false)),
            7 => ("insert", one.insert_range(whole)),
            8 => ("collapse", one.collapse_range(whole)),
            9 => ("clone", one.clone_range(whole.start, other, whole.end, len)),
            10 => {
                let options = ExchangeOptions::new();
                ("exchange", one.exchange_range(whole.start, other, whole.start, Some(len), options))
            }
            _ => ("size", one.set_len(range.end)),
        }
    }

    /// Counts by its name what was refused for lack of space.
    fn step(&mut self, what: &str, refused: &mut BTreeMap<&'static str, u64>) {
        self.leave_some();
        let [one, other] = [(); 2].map(|()| self.files[self.random.below(FILES) as usize].clone());
        let before = [&one, &other].map(Seen::of);
        let (name, done) = self.change([&one, &other]);
        let Err(error) = done else { return };
        self.volume.sync().expect("synced");
        for (file, before) in [&one, &other].into_iter().zip(before) {
            let after = Seen::of(file);
            let sizes = (before.size, after.size);
            assert_eq!(before.extents, after.extents, "{what}, {name}: {error}: sizes {sizes:?}");
            assert!(before == after, "{what}, {name}: {error}: sizes {sizes:?}");
        }
        if error.kind() == ErrorKind::NoSpace {
            *refused.entry(name).or_default() += 1;
        }
    }
}

#[test]
fn what_is_refused_has_changed_nothing() {
    let mut refused = BTreeMap::new();
    let seeds = seeds(30);
    let are_several = seeds.end - seeds.start >= 30;
    for seed in seeds {
        let mut full = Full::new(seed);
        (0..CHANGES).for_each(|nth| full.step(&format!("seed {seed}, change {nth}"), &mut refused));
        let Full { device, volume, .. } = full;
        closes_well(&device, volume);
    }
    println!("{refused:?}");
    for name in ["write", "zero", "allocate", "insert", "clone", "exchange"] {
        assert!(!are_several || refused.contains_key(name), "{name} was never refused: {refused:?}");
    }
}
