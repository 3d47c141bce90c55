//! A file of many extents in memory, its model, and a seeded generator.
#![allow(dead_code)] // each test file uses its part

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockdev::{BlockDevice, Durability, MemoryOptions};
use fileio::{DirectFile, Extent, ExtentState, FileMapping, Locking, MapLookup, MapSeq};

pub const BLOCK: u64 = 4096;

/// A small generator (xorshift64*), so that a printed seed replays a run.
pub struct Random(u64);

impl Random {
    /// Seeded from UXFS_SEED or the clock; prints the seed, which the harness shows if the test fails.
    pub fn seeded() -> Self {
        let now = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            since.as_nanos() as u64
        };
        let seed = std::env::var("UXFS_SEED").ok().map_or_else(now, |s| s.parse().expect("UXFS_SEED"));
        println!("replay with UXFS_SEED={seed}");
        Self::from(seed)
    }

    pub fn from(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// An error that no lookup of this map gives, and one test's does.
#[derive(Debug, thiserror::Error)]
#[error("the map is damaged")]
pub struct Damaged;

/// A map in memory.
#[derive(Debug)]
pub struct FakeMap {
    pub size: AtomicU64,
    pub extents: Vec<Extent>,
    pub seq: AtomicU64,
    pub lookups: AtomicU64,
}

impl FakeMap {
    pub fn new(size: u64, extents: Vec<Extent>) -> Self {
        Self { size: size.into(), extents, seq: 0.into(), lookups: 0.into() }
    }
}

impl FileMapping for FakeMap {
    type Error = Damaged;

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn block_size(&self) -> u32 {
        BLOCK as u32
    }

    fn lookup(&self, offset: u64) -> Result<MapLookup, Damaged> {
        let (seq, size) = (self.seq(), self.size());
        let after = self.extents.partition_point(|e| e.offset <= offset);
        if let Some(extent) = after.checked_sub(1).map(|i| self.extents[i])
            && offset < extent.offset + extent.len
        {
            return Ok(MapLookup { extent, size, seq });
        }
        let start = after.checked_sub(1).map_or(0, |i| self.extents[i].offset + self.extents[i].len);
        let end = self.extents.get(after).map_or(u64::MAX, |e| e.offset);
        Ok(MapLookup {
            extent: Extent { offset: start, len: end - start, state: ExtentState::Hole },
            size,
            seq,
        })
    }

    fn seq(&self) -> MapSeq {
        MapSeq(self.seq.load(Ordering::Relaxed))
    }
}

/// Which states a random file's extents have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum States {
    /// Written alone.
    Written,
    /// All of them, and holes.
    Mixed,
}

pub struct Fixture {
    pub file: Arc<DirectFile<FakeMap>>,
    pub model: Vec<u8>,
    pub device: Arc<dyn BlockDevice>,
}

/// A file of `blocks` blocks (the last one short) in extents of 1 to `longest` blocks, strewn over the device,
/// which is full of junk beside the file's data.
pub fn fixture(
    random: &mut Random,
    blocks: u64,
    longest: u64,
    states: States,
    sector: u32,
    locking: Locking,
) -> Fixture {
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemoryOptions::new().sector_size(sector).anonymous(2 * blocks * BLOCK).unwrap());
    fixture_on(random, blocks, longest, states, device, locking)
}

pub fn fixture_on(
    random: &mut Random,
    blocks: u64,
    longest: u64,
    states: States,
    device: Arc<dyn BlockDevice>,
    locking: Locking,
) -> Fixture {
    assert!(device.size() >= 2 * blocks * BLOCK);
    let mut junk = vec![0; device.size() as usize];
    random.fill(&mut junk);
    device.write(0, &junk, Durability::Volatile).unwrap();
    let mut lens = Vec::new();
    let mut left = blocks;
    while left > 0 {
        let len = (1 + random.below(longest)).min(left);
        lens.push(len);
        left -= len;
    }
    // Device places in another order than in the file, with gaps.
    let mut order: Vec<usize> = (0..lens.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    let mut places = vec![0; lens.len()];
    let mut at = 1;
    for index in order {
        places[index] = at * BLOCK;
        at += lens[index] + u64::from(at + lens[index] + blocks < 2 * blocks);
    }
    let mut extents = Vec::new();
    let mut model = Vec::new();
    for (index, len) in lens.iter().enumerate() {
        let (offset, bytes, place) = (model.len() as u64, (len * BLOCK) as usize, places[index]);
        let state = match random.below(6) {
            0 if states == States::Mixed => ExtentState::Hole,
            1 if states == States::Mixed => ExtentState::Unwritten(place),
            2 if states == States::Mixed => ExtentState::Shared(place),
            _ => ExtentState::Written(place),
        };
        let mut data = vec![0; bytes];
        if matches!(state, ExtentState::Written(_) | ExtentState::Shared(_)) {
            random.fill(&mut data);
            device.write(place, &data, Durability::Volatile).unwrap();
        }
        model.extend(data);
        if state != ExtentState::Hole {
            extents.push(Extent { offset, len: bytes as u64, state });
        }
    }
    model.truncate(model.len() - 1 - random.below(BLOCK - 1) as usize);
    let map = FakeMap::new(model.len() as u64, extents);
    let file = Arc::new(DirectFile::new(Arc::clone(&device), map, locking));
    Fixture { file, model, device }
}

/// A file that is one extent, all written, whole blocks.
pub fn plain(blocks: u64, locking: Locking) -> Arc<DirectFile<FakeMap>> {
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemoryOptions::new().anonymous((blocks + 4) * BLOCK).unwrap());
    plain_on(blocks, device, locking)
}

pub fn plain_on(blocks: u64, device: Arc<dyn BlockDevice>, locking: Locking) -> Arc<DirectFile<FakeMap>> {
    let extent = Extent { offset: 0, len: blocks * BLOCK, state: ExtentState::Written(4 * BLOCK) };
    Arc::new(DirectFile::new(device, FakeMap::new(blocks * BLOCK, vec![extent]), locking))
}
