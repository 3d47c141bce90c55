//! Threads that write through pages and past them, clone, dedupe, exchange, punch, zero and sync, each in blocks of its own of
//! files that all have: whatever comes, each finds what it left.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::new_file;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uxfs::{
    ErrorKind, ExchangeOptions, File, Locking, MkfsFeatures, MkfsOptions, OpenOptions, Syncing, Volume,
    mkfs_device,
};

const FILES: usize = 3;
const THREADS: usize = 4;
/// Blocks of each thread in each file, in stretches that take turns.
const STRETCH: u64 = 7;
const STRETCHES: u64 = 12;
const STEPS: usize = 400;

/// A thread and what it left in its blocks.
struct Owner<'a> {
    files: &'a [File],
    nth: usize,
    block: u64,
    /// What each block of each file begins with.
    model: Vec<Vec<u64>>,
    count: u64,
}

impl Owner<'_> {
    fn place(&self, own: u64) -> u64 {
        let (stretch, within) = (own / STRETCH, own % STRETCH);
        ((stretch * THREADS as u64 + self.nth as u64) * STRETCH + within) * self.block
    }

    fn data(&self, stamp: u64) -> Vec<u8> {
        stamp.to_le_bytes().iter().copied().cycle().take(self.block as usize).collect()
    }

    fn handle(&self, nth: usize) -> File {
        let file = &self.files[nth];
        match fastrand::u32(..8) {
            0..4 => file.buffered(),
            4 => file.buffered().syncing(Syncing::Data),
            5 => file.syncing(Syncing::Data),
            _ => file.direct(),
        }
    }

    fn run(&self) -> (u64, u64) {
        let stretch = fastrand::u64(..STRETCHES);
        let from = fastrand::u64(..STRETCH);
        (stretch * STRETCH + from, fastrand::u64(1..=STRETCH - from))
    }

    fn done(&self, what: &str, result: uxfs::Result<()>) -> bool {
        match result {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Busy) => false,
            Err(error) => panic!("{what}: {error}"),
        }
    }

    fn check(&self, nth: usize, own: u64) {
        let mut seen = vec![0; self.block as usize];
        let file = self.handle(nth);
        let len = file.read_at(&mut seen, self.place(own)).expect("read");
        assert_eq!(len as u64, self.block);
        let wanted = self.data(self.model[nth][own as usize]);
        if seen != wanted {
            let stamp = u64::from_le_bytes(seen[..8].try_into().unwrap());
            panic!(
                "thread {} file {nth} block {own} at {}: wanted {:x}, found {stamp:x}, buffered: {}",
                self.nth,
                self.place(own),
                self.model[nth][own as usize],
                file.is_buffered()
            );
        }
    }

    fn step(&mut self) {
        let (one, two) = (fastrand::usize(..FILES), fastrand::usize(..FILES));
        let (own, len) = self.run();
        let at = self.place(own);
        let bytes = at..at + len * self.block;
        match fastrand::u32(..20) {
            0..8 => {
                self.count += 1;
                let stamp = (self.nth as u64 + 1) << 56 | self.count;
                let data: Vec<u8> = (0..len).flat_map(|_| self.data(stamp)).collect();
                let result = self.handle(one).write_at(&data, at);
                // A write that is refused for space may have been made by a handle that syncs.
                if self.done("write", result) {
                    (own..own + len).for_each(|own| self.model[one][own as usize] = stamp);
                } else {
                    self.reread(one, own, len);
                }
            }
            8..11 if one != two => {
                let other = (fastrand::u64(..STRETCHES)) * STRETCH + own % STRETCH;
                let result =
                    self.files[one].clone_range(at, &self.handle(two), self.place(other), len * self.block);
                if self.done("clone", result) {
                    for step in 0..len {
                        self.model[two][(other + step) as usize] = self.model[one][(own + step) as usize];
                    }
                } else {
                    self.reread(two, other, len);
                }
            }
            11..13 if one != two => {
                let result = self.files[one].exchange_range(
                    at,
                    &self.files[two],
                    at,
                    Some(len * self.block),
                    ExchangeOptions::new(),
                );
                if self.done("exchange", result) {
                    for own in own..own + len {
                        let here = self.model[one][own as usize];
                        self.model[one][own as usize] =
                            std::mem::replace(&mut self.model[two][own as usize], here);
                    }
                }
            }
            13 if one != two => {
                let result = self.files[one].dedupe_range(at, &self.files[two], at, len * self.block);
                let _same = self.done("dedupe", result.map(drop));
            }
            14 => {
                let result = self.handle(one).punch_hole(bytes);
                if self.done("punch", result) {
                    (own..own + len).for_each(|own| self.model[one][own as usize] = 0);
                } else {
                    self.reread(one, own, len);
                }
            }
            15 => {
                let result = self.handle(one).zero_range(bytes, true);
                if self.done("zero", result) {
                    (own..own + len).for_each(|own| self.model[one][own as usize] = 0);
                } else {
                    self.reread(one, own, len);
                }
            }
            16 => {
                let result = self.files[one].buffered().sync_range(bytes);
                let _ = self.done("sync", result);
            }
            _ => (own..own + len).for_each(|own| self.check(one, own)),
        }
    }

    fn reread(&mut self, nth: usize, own: u64, len: u64) {
        for own in own..own + len {
            let mut seen = [0; 8];
            self.files[nth].read_at(&mut seen, self.place(own)).expect("read");
            self.model[nth][own as usize] = u64::from_le_bytes(seen);
        }
    }
}

fn storm(block: u32, cache: u64, locking: Locking, seed: u64) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(40 << 20).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    let options = MkfsOptions::new().small(true).features(features).block_size(block);
    mkfs_device(Arc::clone(&device), &options, true).expect("made");
    let options = OpenOptions::new().writable(true).cache_size(cache);
    let options = options.locking(locking).gather_writes(seed.is_multiple_of(2));
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("opens");
    let files: Vec<_> = (0..FILES).map(|nth| new_file(&volume, &format!("f{nth}"))).collect();
    let block = u64::from(block);
    let size = STRETCHES * STRETCH * THREADS as u64 * block;
    files.iter().for_each(|file| file.set_len(size).expect("long"));
    if seed.is_multiple_of(4) {
        // For copies of some of the blocks.
        let filler = new_file(&volume, "filler");
        while filler.append(&[9; 65536]).is_ok() {}
        filler.set_len(filler.size() - size).expect("cut");
        volume.sync().expect("synced");
    }
    let over = AtomicBool::new(false);
    let models: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|nth| {
                let files = &files;
                scope.spawn(move || {
                    fastrand::seed(seed * 100 + nth as u64);
                    let model = vec![vec![0; (STRETCHES * STRETCH) as usize]; FILES];
                    let mut owner = Owner { files, nth, block, model, count: 0 };
                    (0..STEPS).for_each(|_| owner.step());
                    owner.model
                })
            })
            .collect();
        let beside = scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let file = &files[fastrand::usize(..FILES)];
                match fastrand::u32(..5) {
                    0 => drop(volume.sync()),
                    1 => {
                        // The end moves beside all that.
                        file.buffered().append(&vec![0xEE; 3000]).ok();
                        if file.size() > size + (1 << 20) {
                            file.set_len(size).ok();
                        }
                    }
                    2 => drop(file.set_len(size)),
                    3 => {
                        let mut buf = vec![0; 1 << 18];
                        let _ = file.buffered().read_at(&mut buf, fastrand::u64(..size));
                    }
                    _ => drop(file.buffered().sync()),
                }
            }
        });
        let models: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::SeqCst);
        beside.join().expect("no panic");
        models
    });
    let models: Vec<_> = models.into_iter().map(|model| model.expect("no panic")).collect();
    drop(files);
    volume.close().expect("closed");
    drop(volume);
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new()).expect("opens");
    let files: Vec<_> = (0..FILES).map(|nth| volume.open_file(format!("f{nth}")).expect("there")).collect();
    for (nth, model) in models.into_iter().enumerate() {
        let owner = Owner { files: &files, nth, block, model, count: 0 };
        for file in 0..FILES {
            (0..STRETCHES * STRETCH).for_each(|own| owner.check(file, own));
        }
    }
    drop((files, volume));
    let report = uxfs::check_device(device, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{report:?}");
}

/// With a small cache and a large one, and where there is hardly space. UXFS_SEED replays the choices, though not how threads
/// take turns.
#[test]
fn each_finds_what_it_left() {
    let first = std::env::var("UXFS_SEED").map_or(1, |text| text.parse().expect("a number"));
    storm(1024, 1 << 20, Locking::Range, first);
    storm(4096, 8 << 20, Locking::Shared, first + 1);
    storm(1024, 256 << 10, Locking::Exclusive, first + 2);
    storm(4096, 64 << 20, Locking::Range, first + 3);
}
