//! Blocking reads and overwrites against a model.
#![forbid(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockdev::{
    BlockDevice, BlockingQueue, Counter, DeviceError, DevicePlace, Durability, Fault, FaultDevice,
    FileOptions, HostIo, IoQueue, MemoryDevice, MemoryOptions, Op,
};
use common::{BLOCK, Damaged, FakeMap, Fixture, Random, States, fixture, fixture_on, plain};
use fileio::{DirectFile, Extent, ExtentState, FileError, FileMapping, Locking, MapLookup, MapSeq, Refusal};

/// A range that may reach past the end, often with an end on a boundary of sectors or blocks.
fn range(random: &mut Random, size: u64, longest: u64) -> (u64, usize) {
    let unit = [1, 512, 4096][random.below(3) as usize];
    let offset = random.below(size + BLOCK) / unit * unit;
    let len = (1 + random.below(longest)).div_ceil(unit) * unit;
    (offset, len as usize)
}

/// The first byte of a range that cannot be overwritten, by the extents themselves.
fn refusal(map: &FakeMap, offset: u64, len: usize) -> Option<(u64, Refusal)> {
    let end = offset + len as u64;
    if end > map.size() {
        return Some((map.size().max(offset), Refusal::PastEnd));
    }
    // Extents are whole blocks: the first byte of the range and of each further block tell all.
    let blocks = (offset / BLOCK + 1..end.div_ceil(BLOCK)).map(|block| block * BLOCK);
    std::iter::once(offset).chain(blocks).find_map(|at| {
        let holds = |e: &&Extent| (e.offset..e.offset + e.len).contains(&at);
        match map.extents.iter().find(holds).map(|e| e.state) {
            None | Some(ExtentState::Hole) => Some((at, Refusal::Hole)),
            Some(ExtentState::Unwritten(_)) => Some((at, Refusal::Unwritten)),
            Some(ExtentState::Shared(_)) => Some((at, Refusal::Shared)),
            Some(ExtentState::Written(_)) => None,
        }
    })
}

fn check_against_model(random: &mut Random, fixture: Fixture, rounds: u32) {
    let Fixture { file, mut model, .. } = fixture;
    let mut refused = 0;
    for round in 0..rounds {
        let (offset, len) = range(random, model.len() as u64, 6 * BLOCK);
        let skew = random.below(3) as usize;
        let mut memory = vec![0xAA; len + skew];
        let buf = &mut memory[skew..];
        if random.below(2) == 0 {
            random.fill(buf);
            match (file.overwrite_at(offset, buf), refusal(file.map(), offset, len)) {
                (Ok(count), None) => {
                    assert_eq!(count, len);
                    model[offset as usize..offset as usize + len].copy_from_slice(buf);
                }
                (Err(FileError::NotOverwritable { offset, why }), Some(expected)) => {
                    assert_eq!((offset, why), expected);
                    refused += 1;
                }
                (result, expected) => panic!("round {round}: {result:?}, not {expected:?}"),
            }
        } else {
            let expected = &model[model.len().min(offset as usize)..model.len().min(offset as usize + len)];
            let count = file.read_at(offset, buf).unwrap();
            assert_eq!(count, expected.len(), "round {round}: {len} bytes at {offset}");
            assert!(buf[..count] == *expected, "round {round}: {len} bytes at {offset} differ");
            assert!(buf[count..].iter().all(|&b| b == 0xAA), "bytes behind the end were touched");
        }
    }
    assert!(refused > 0, "the test must see refusals");
    let mut whole = vec![0; model.len() + 100];
    assert_eq!(file.read_at(0, &mut whole).unwrap(), model.len());
    assert!(whole[..model.len()] == model);
}

#[test]
fn any_range_of_any_file_under_any_locking() {
    let mut random = Random::seeded();
    for locking in Locking::ALL {
        for (sector, states, longest) in [
            (512, States::Mixed, 3),
            (4096, States::Mixed, 8),
            (512, States::Written, 2),
            (4096, States::Written, 5),
        ] {
            let fixture = fixture(&mut random, 64, longest, states, sector, locking);
            check_against_model(&mut random, fixture, 1500);
        }
    }
}

#[test]
fn a_file_of_the_host_past_its_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(128 * BLOCK).unwrap();
    let device = FileOptions::new().write(true).open(&path).unwrap();
    println!("{:?}, sectors of {}", device.host_io(), device.sector_size());
    assert!(matches!(device.host_io(), HostIo::Direct | HostIo::Buffered));
    let mut random = Random::seeded();
    let fixture = fixture_on(&mut random, 64, 4, States::Mixed, Arc::new(device), Locking::Range);
    check_against_model(&mut random, fixture, 600);
}

#[test]
fn other_bytes_of_the_device_stay_as_they_are() {
    let mut random = Random::seeded();
    let Fixture { file, device, model } = fixture(&mut random, 32, 3, States::Written, 512, Locking::Range);
    let mut before = vec![0; device.size() as usize];
    device.read(0, &mut before).unwrap();
    let mut data = vec![0; model.len()];
    random.fill(&mut data);
    for (at, piece) in data.chunks(777).enumerate() {
        file.overwrite_at(at as u64 * 777, piece).unwrap();
    }
    let mut after = vec![0; device.size() as usize];
    device.read(0, &mut after).unwrap();
    let mut expected = before;
    for extent in &file.map().extents {
        let ExtentState::Written(place) = extent.state else { unreachable!() };
        let len = extent.len.min(model.len() as u64 - extent.offset) as usize;
        let from = extent.offset as usize;
        expected[place as usize..place as usize + len].copy_from_slice(&data[from..from + len]);
    }
    assert!(after == expected, "the file's tail or its neighbours changed");
}

#[test]
fn a_refusal_comes_before_the_first_byte() {
    let written = |offset, place| Extent { offset, len: BLOCK, state: ExtentState::Written(place) };
    for (state, why) in [
        (ExtentState::Hole, Refusal::Hole),
        (ExtentState::Unwritten(8 * BLOCK), Refusal::Unwritten),
        (ExtentState::Shared(8 * BLOCK), Refusal::Shared),
    ] {
        let counter = Arc::new(Counter::new(Arc::new(MemoryDevice::anonymous(64 * BLOCK).unwrap())));
        let extents = vec![
            written(0, BLOCK),
            written(BLOCK, 4 * BLOCK),
            Extent { offset: 2 * BLOCK, len: BLOCK, state },
            written(3 * BLOCK, 6 * BLOCK),
        ];
        let file = DirectFile::new(counter.clone(), FakeMap::new(4 * BLOCK, extents), Locking::Range);
        for (offset, len) in [(0, 4 * BLOCK), (100, 3 * BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK + 5, 1)] {
            match file.overwrite_at(offset, &vec![1; len as usize]) {
                Err(FileError::NotOverwritable { offset: at, why: said }) => {
                    assert_eq!((at, said), (offset.max(2 * BLOCK), why));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((counter.counts().reads, counter.counts().writes), (0, 0), "the device was touched");
    }
}

#[test]
fn ends_of_files_and_of_numbers() {
    let file = plain(4, Locking::Range);
    let size = file.map().size();
    let mut buf = [9; 100];
    assert_eq!(file.read_at(size, &mut buf).unwrap(), 0);
    assert_eq!(file.read_at(u64::MAX, &mut buf).unwrap(), 0);
    assert_eq!(file.read_at(u64::MAX - 50, &mut buf).unwrap(), 0);
    assert_eq!(file.read_at(0, &mut []).unwrap(), 0);
    assert_eq!(file.read_at(size - 1, &mut buf).unwrap(), 1);
    assert_eq!(file.overwrite_at(u64::MAX, &[]).unwrap(), 0);
    for offset in [size, size - 99, i64::MAX as u64, u64::MAX, u64::MAX - 99] {
        let refused = file.overwrite_at(offset, &buf);
        assert!(
            matches!(refused, Err(FileError::NotOverwritable { why: Refusal::PastEnd, offset: at }) if at >= size),
            "{refused:?}"
        );
    }
    file.sync().unwrap();
}

/// Gives whatever it is told to.
struct Liar(Result<Extent, ()>);

impl FileMapping for Liar {
    type Error = Damaged;
    fn size(&self) -> u64 {
        1 << 40
    }
    fn block_size(&self) -> u32 {
        4096
    }
    fn lookup(&self, _: u64) -> Result<MapLookup, Damaged> {
        self.0.map(|extent| MapLookup { extent, size: self.size(), seq: MapSeq(0) }).map_err(|()| Damaged)
    }
    fn seq(&self) -> MapSeq {
        MapSeq(0)
    }
}

#[test]
fn impossible_extents_are_errors() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(1 << 20).unwrap());
    let state = ExtentState::Written(0);
    for extent in [
        Extent { offset: 0, len: 0, state },
        Extent { offset: 0, len: 10_000, state },
        Extent { offset: 30_000, len: 10_000, state },
        Extent { offset: 0, len: 1 << 30, state: ExtentState::Written(u64::MAX - 100) },
        Extent { offset: 0, len: 1 << 30, state: ExtentState::Written(100) },
    ] {
        let file = DirectFile::new(Arc::clone(&device), Liar(Ok(extent)), Locking::Range);
        assert!(matches!(
            file.read_at(20_000, &mut [0; 10]),
            Err(FileError::BadExtent { offset: 20_000, .. })
        ));
        assert!(matches!(file.overwrite_at(20_000, &[0; 10]), Err(FileError::BadExtent { .. })));
    }
    let beyond = Extent { offset: 0, len: 1 << 30, state: ExtentState::Written(1 << 20) };
    let file = DirectFile::new(Arc::clone(&device), Liar(Ok(beyond)), Locking::Range);
    assert!(matches!(file.read_at(0, &mut [0; 512]), Err(FileError::Device(_))));
    let file = DirectFile::new(device, Liar(Err(())), Locking::Range);
    assert!(matches!(file.read_at(7, &mut [0; 512]), Err(FileError::Map { offset: 7, .. })));
    assert!(matches!(file.overwrite_at(7, &[0; 512]), Err(FileError::Map { offset: 7, .. })));
}

#[test]
fn a_device_error_gives_the_range_back() {
    for locking in Locking::ALL {
        let memory = Arc::new(MemoryDevice::anonymous(64 * BLOCK).unwrap());
        let faults = vec![Fault::fail(Op::Write, 0), Fault::fail(Op::Read, 0), Fault::fail(Op::Flush, 0)];
        let device = Arc::new(FaultDevice::new(memory, faults));
        let file = common::plain_on(4, device, locking);
        assert!(matches!(file.overwrite_at(0, &[1; 4096]), Err(FileError::Device(_))));
        assert!(matches!(file.read_at(0, &mut [1; 4096]), Err(FileError::Device(_))));
        assert!(file.sync().is_err());
        file.overwrite_at(0, &[1; 4096]).unwrap();
        file.read_at(0, &mut [1; 4096]).unwrap();
    }
}

/// A map that another thread keeps changing elsewhere: each lookup gives a new version, for a while.
struct Restless {
    inner: FakeMap,
    changes_left: AtomicU64,
}

impl FileMapping for Restless {
    type Error = Damaged;
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn block_size(&self) -> u32 {
        4096
    }
    fn lookup(&self, offset: u64) -> Result<MapLookup, Damaged> {
        let less = |left: u64| left.checked_sub(1);
        if self.changes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            self.inner.seq.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.lookup(offset)
    }
    fn seq(&self) -> MapSeq {
        self.inner.seq()
    }
}

#[test]
fn a_map_that_changes_elsewhere_does_not_disturb() {
    let mut random = Random::seeded();
    let Fixture { file, device, model } = fixture(&mut random, 32, 2, States::Written, 512, Locking::Range);
    for changes in [1, 5, 40, 100] {
        let inner = FakeMap::new(model.len() as u64, file.map().extents.clone());
        let map = Restless { inner, changes_left: changes.into() };
        let restless = DirectFile::new(Arc::clone(&device), map, Locking::Range);
        let mut data = vec![0; 20 * BLOCK as usize];
        random.fill(&mut data);
        assert_eq!(restless.overwrite_at(333, &data).unwrap(), data.len());
        let mut back = vec![0; data.len()];
        file.read_at(333, &mut back).unwrap();
        assert!(back == data);
    }
}

/// A file of one block that moves to the device's next one.
#[derive(Default)]
struct Moving {
    moves: AtomicU64,
    lookups: AtomicU64,
}

impl FileMapping for Moving {
    type Error = Damaged;
    fn size(&self) -> u64 {
        4096
    }
    fn block_size(&self) -> u32 {
        4096
    }
    fn lookup(&self, _: u64) -> Result<MapLookup, Damaged> {
        let seq = self.seq();
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let extent = Extent { offset: 0, len: 4096, state: ExtentState::Written(seq.0 * 4096) };
        Ok(MapLookup { extent, size: 4096, seq })
    }
    fn seq(&self) -> MapSeq {
        MapSeq(self.moves.load(Ordering::SeqCst))
    }
}

/// Memory is looked for before the range is held: what was seen counts only if the map stayed as it was.
#[test]
fn what_moves_while_a_request_waits_is_found_where_it_went() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(3 * BLOCK).unwrap());
    assert!(device.prefetches());
    device.write(BLOCK, &[1; BLOCK as usize], Durability::Volatile).unwrap();
    let file = DirectFile::new(Arc::clone(&device), Moving::default(), Locking::Range);
    let while_held = |request: &(dyn Fn() + Sync)| {
        let looked = file.map().lookups.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let held = file.hold(0..BLOCK, rangelock::Mode::Exclusive);
            scope.spawn(request);
            while file.map().lookups.load(Ordering::SeqCst) == looked {
                std::thread::yield_now();
            }
            file.map().moves.fetch_add(1, Ordering::SeqCst);
            drop(held);
        });
    };
    while_held(&|| {
        let mut data = [9; BLOCK as usize];
        file.read_at(0, &mut data).unwrap();
        assert!(data == [1; BLOCK as usize]);
    });
    while_held(&|| assert_eq!(file.overwrite_at(0, &[2; BLOCK as usize]).unwrap(), 4096));
    let mut all = [9; 3 * BLOCK as usize];
    device.read(0, &mut all).unwrap();
    let blocks: Vec<u8> = all.chunks(BLOCK as usize).map(|block| block[0]).collect();
    assert_eq!(blocks, [0, 1, 2]);
}

#[test]
fn lock_statistics_are_kept_when_asked_for() {
    let device = || Arc::new(MemoryOptions::new().anonymous(64 * BLOCK).unwrap());
    let map = || {
        let state = ExtentState::Written(0);
        FakeMap::new(16 * BLOCK, vec![Extent { offset: 0, len: 16 * BLOCK, state }])
    };
    for locking in Locking::ALL {
        let silent = DirectFile::new(device(), map(), locking);
        assert_eq!(silent.lock_stats(), None);
        let file = DirectFile::with_stats(device(), map(), locking, rangelock::LockStats::new());
        file.overwrite_at(0, &[1; 4096]).unwrap();
        file.overwrite_at(10, &[1; 10]).unwrap();
        file.read_at(0, &mut [1; 4096]).unwrap();
        let stats = file.lock_stats().unwrap();
        let aligned_write_shared = u64::from(locking == Locking::Shared);
        let expected = (1 + aligned_write_shared, 2 - aligned_write_shared, 0);
        assert_eq!((stats.shared, stats.exclusive, stats.contended), expected, "{locking}");
        assert!(stats.hold_ns > 0);
    }
    let held = DirectFile::new(device(), map(), Locking::Range);
    let guard = held.hold(0..BLOCK, rangelock::Mode::Exclusive);
    held.overwrite_at(BLOCK, &[1; 512]).unwrap();
    drop(guard);
    held.device().write(0, &[0; 512], Durability::Volatile).unwrap();
}

/// A device that is a file, as an image within an image is.
#[derive(Debug)]
struct Within(DirectFile<FakeMap>);

impl BlockDevice for Within {
    fn size(&self) -> u64 {
        self.0.map().size()
    }

    fn sector_size(&self) -> u32 {
        512
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn place(&self) -> DevicePlace {
        self.0.device().place()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        assert_eq!(self.0.read_at(offset, buf).unwrap(), buf.len());
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8], _: Durability) -> Result<(), DeviceError> {
        self.0.overwrite_at(offset, buf).unwrap();
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.sync().unwrap();
        Ok(())
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Ok(Box::new(BlockingQueue::new(self, depth)?))
    }
}

/// Half a sector of a file in an image that is a file itself, on larger sectors: each of the two wanted the one sector of
/// memory that the thread had, and the thread panicked.
#[test]
fn half_a_sector_of_an_image_within_an_image() {
    let mut device: Arc<dyn BlockDevice> =
        Arc::new(MemoryOptions::new().sector_size(4096).anonymous(64 * BLOCK).unwrap());
    let mut files = Vec::new();
    for blocks in [48, 32] {
        let place = ExtentState::Written(8 * BLOCK);
        let extent = Extent { offset: 0, len: blocks * BLOCK, state: place };
        let map = || FakeMap::new(blocks * BLOCK, vec![extent]);
        files.push(DirectFile::new(Arc::clone(&device), map(), Locking::Range));
        device = Arc::new(Within(DirectFile::new(device, map(), Locking::Range)));
    }
    let inner = DirectFile::new(
        device,
        FakeMap::new(
            16 * BLOCK,
            vec![Extent { offset: 0, len: 16 * BLOCK, state: ExtentState::Written(8 * BLOCK) }],
        ),
        Locking::Range,
    );
    inner.overwrite_at(700, b"in the middle of sectors").unwrap();
    let mut back = [0; 24];
    inner.read_at(700, &mut back).unwrap();
    assert_eq!(&back, b"in the middle of sectors");
    files[0].read_at(16 * BLOCK + 700, &mut back).unwrap();
    assert_eq!(&back, b"in the middle of sectors", "where it lies at last");
}
