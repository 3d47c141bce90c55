//! Bytes are brought into memory that will be read soon, beside who writes them through pages and past them, punches, zeroes
//! and cuts: readers find what was written last.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, MemoryDevice};
use common::files::{Random, new_file};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uxfs::{ErrorKind, File, MkfsOptions, OpenOptions, Volume, mkfs_device};

const UNITS: usize = 48;
const WRITERS: usize = 2;
/// How many changes a writer makes.
const CHANGES: u64 = 250;
/// What another file has.
const FOREIGN: u8 = 0xEE;

/// Bytes that are changed as a whole, by one thread: each change has a number, and so has what it leaves.
struct Unit {
    nth: usize,
    bytes: Range<u64>,
    begun: AtomicU64,
    over: AtomicU64,
}

impl Unit {
    /// What all of its words are behind a change. Every fourth one leaves zeroes, and so it begins.
    fn word(&self, change: u64) -> u64 {
        if change.is_multiple_of(4) { 0 } else { (self.nth as u64 + 1) << 32 | change }
    }

    fn change(&self, work: impl FnOnce(u64)) {
        let change = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        work(change);
        self.over.store(change, Ordering::SeqCst);
    }

    fn data(&self, change: u64) -> Vec<u8> {
        let len = (self.bytes.end - self.bytes.start) as usize;
        self.word(change).to_le_bytes().into_iter().cycle().take(len).collect()
    }

    /// Reads some of it, or finds that the file ends before it.
    fn check(&self, file: &File, part: &Range<u64>, may_be_cut: bool) {
        let first = self.over.load(Ordering::SeqCst);
        let mut seen = vec![0xAA; (part.end - part.start) as usize];
        let len = file.read_at(&mut seen, self.bytes.start + part.start).expect("read");
        if len == 0 && may_be_cut {
            return;
        }
        assert_eq!(len, seen.len(), "unit {}", self.nth);
        let last = self.begun.load(Ordering::SeqCst);
        let word = u64::from_le_bytes(seen[..8].try_into().expect("eight bytes"));
        let story = || format!("unit {}, {part:?}, buffered: {}", self.nth, file.is_buffered());
        assert!(seen.chunks(8).all(|other| other == word.to_le_bytes()), "half of a change: {}", story());
        assert!(
            (first..=last).any(|change| self.word(change) == word),
            "{word:x} is of none of the changes {first}..={last}: {}",
            story()
        );
    }

    fn part(&self, random: &mut Random) -> Range<u64> {
        let words = (self.bytes.end - self.bytes.start) / 8;
        if random.below(2) == 0 {
            return 0..words * 8;
        }
        let from = random.below(words);
        from * 8..(from + 1 + random.below((words - from).min(100))) * 8
    }
}

/// One after the other, of different sizes.
fn units(block: u64) -> Vec<Unit> {
    let mut at = 0;
    let unit = |nth| {
        let bytes = at..at + (1 + nth as u64 % 7) * block;
        at = bytes.end;
        Unit { nth, bytes, begun: AtomicU64::new(0), over: AtomicU64::new(0) }
    };
    (0..UNITS).map(unit).collect()
}

fn handle(file: &File, random: &mut Random) -> File {
    if random.below(2) == 0 { file.buffered() } else { file.direct() }
}

/// Changes the units that are this thread's.
fn write(file: &File, mine: &[&Unit], random: &mut Random) {
    for _ in 0..CHANGES {
        let unit = mine[random.below(mine.len() as u64) as usize];
        let (handle, bytes) = (handle(file, random), unit.bytes.clone());
        unit.change(|change| {
            if unit.word(change) == 0 {
                match random.below(2) {
                    0 => handle.punch_hole(bytes.clone()),
                    _ => handle.zero_range(bytes.clone(), true),
                }
            } else {
                handle.write_at(&unit.data(change), bytes.start)
            }
            .expect("changed");
        });
        if random.below(8) == 0 {
            handle.sync_range(bytes).expect("synced");
        }
    }
}

/// The last unit goes with the end of the file, and comes again.
fn cut(file: &File, last: &Unit, random: &mut Random) {
    for _ in 0..CHANGES / 2 {
        let handle = handle(file, random);
        last.change(|change| {
            if last.word(change) == 0 {
                handle.set_len(last.bytes.start).expect("cut");
                handle.set_len(last.bytes.end).expect("longer");
            } else {
                handle.write_at(&last.data(change), last.bytes.start).expect("written");
            }
        });
    }
}

fn bring(file: &File, units: &[Unit], random: &mut Random) {
    let unit = &units[random.below(UNITS as u64) as usize];
    let size = units[UNITS - 1].bytes.end;
    let range = match random.below(8) {
        0 => 0..size,
        1 => unit.bytes.start..size + (1 << 20),
        2..5 => unit.bytes.start + 100..unit.bytes.end - 1,
        _ => unit.bytes.start..unit.bytes.end + random.below(1 << 16),
    };
    file.will_need(range).expect("a hint");
}

fn read(file: &File, units: &[Unit], random: &mut Random) {
    bring(file, units, random);
    for _ in 0..4 {
        let unit = &units[random.below(UNITS as u64) as usize];
        if random.below(2) == 0 {
            file.will_need(unit.bytes.clone()).expect("a hint");
        }
        unit.check(&handle(file, random), &unit.part(random), unit.nth == UNITS - 1);
    }
}

/// Another file has what the first one frees, and gives it back; and that is not cached for a while, as it has a queue.
fn disturb(volume: &Volume, file: &File, other: &File, random: &mut Random) {
    match random.below(8) {
        0 => volume.sync().expect("synced"),
        1 => other.set_len(0).expect("cut"),
        2 => match file.queue(4) {
            Ok(queue) => {
                std::thread::sleep(std::time::Duration::from_micros(random.below(2000)));
                drop(queue);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        },
        _ => {
            let data = vec![FOREIGN; 16 << 10];
            handle(other, random).write_at(&data, random.below(1 << 20)).expect("written");
        }
    }
}

fn storm(block: u32, cache: u64, seed: u64) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).block_size(block), true).expect("made");
    let options = OpenOptions::new().writable(true).cache_size(cache);
    let volume = Volume::open_device(Arc::clone(&device), &options).expect("opens");
    let (file, other) = (new_file(&volume, "file"), new_file(&volume, "other"));
    let units = units(u64::from(block));
    let (last, before) = units.split_last().expect("some");
    file.set_len(last.bytes.end).expect("long");
    let is_over = AtomicBool::new(false);
    let random = |nth| Random((seed * 100 + nth) * 2 + 1);
    std::thread::scope(|scope| {
        let until_over = |nth, step: fn(&Volume, &File, &File, &[Unit], &mut Random)| {
            let (volume, file, other, units, is_over) = (&volume, &file, &other, &units, &is_over);
            scope.spawn(move || {
                let mut random = random(nth);
                while !is_over.load(Ordering::SeqCst) {
                    step(volume, file, other, units, &mut random);
                }
            })
        };
        let beside = [
            until_over(10, |_, file, _, units, random| bring(file, units, random)),
            until_over(11, |_, file, _, units, random| read(file, units, random)),
            until_over(12, |volume, file, other, _, random| disturb(volume, file, other, random)),
        ];
        let mut changing: Vec<_> = (0..WRITERS)
            .map(|nth| {
                let mine: Vec<_> = before.iter().skip(nth).step_by(WRITERS).collect();
                let file = &file;
                scope.spawn(move || write(file, &mine, &mut random(nth as u64)))
            })
            .collect();
        changing.push(scope.spawn(|| cut(&file, last, &mut random(9))));
        let changed: Vec<_> = changing.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::SeqCst);
        let beside = beside.map(|thread| thread.join());
        assert!(changed.iter().chain(&beside).all(|result| result.is_ok()), "replay with UXFS_SEED={seed}");
    });
    let all_is_there = |file: &File| {
        for unit in &units {
            let all = 0..unit.bytes.end - unit.bytes.start;
            unit.check(&file.buffered(), &all, false);
            unit.check(&file.direct(), &all, false);
        }
    };
    all_is_there(&file);
    drop((file, other));
    volume.close().expect("closed");
    drop(volume);
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new()).expect("opens");
    all_is_there(&volume.open_file("file").expect("there"));
    drop(volume);
    let report = uxfs::check_device(device, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{report:?}");
}

/// With a small cache and a large one. UXFS_SEED replays the choices, though not how threads take turns.
#[test]
fn what_is_brought_into_memory_is_what_was_written_last() {
    let first = std::env::var("UXFS_SEED").map_or(1, |text| text.parse().expect("a number"));
    storm(4096, 64 << 20, first);
    storm(1024, 64 << 20, first + 1);
    storm(4096, 256 << 10, first + 2);
}
