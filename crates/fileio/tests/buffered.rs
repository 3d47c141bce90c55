//! Buffered I/O against a model, beside I/O past the pages, among threads, and where space or the device is short.
#![forbid(unsafe_code)]

mod common;
#[path = "common/growing.rs"]
mod growing;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use blockdev::{BlockDevice, Fault, FaultDevice, MemoryOptions, Op, Repeat};
use common::{BLOCK, Random};
use fileio::{BufferedFile, DirectFile, FileError, FileMapping, FileSpace, Locking, PageCache, Writers};
use growing::GrowingMap;

const BLOCKS: u64 = 4096;

type Cached = Arc<BufferedFile<GrowingMap>>;

fn device() -> Arc<dyn BlockDevice> {
    device_for(BLOCKS)
}

/// One for a file that takes this many blocks, one after the other: blocks that were given back are not given again.
fn device_for(blocks: u64) -> Arc<dyn BlockDevice> {
    let device = MemoryOptions::new().sector_size(512).anonymous((blocks + blocks / 8 + 16) * BLOCK).unwrap();
    // What lies in blocks before a file has them must not be seen.
    let dirt = vec![0xEE; 1 << 20];
    for at in (0..device.size()).step_by(dirt.len()) {
        let len = dirt.len().min((device.size() - at) as usize);
        device.write(at, &dirt[..len], blockdev::Durability::Volatile).unwrap();
    }
    Arc::new(device)
}

fn cached_on(
    device: Arc<dyn BlockDevice>,
    free: u64,
    locking: Locking,
    limit: u64,
) -> (Cached, Arc<PageCache>) {
    let pool = PageCache::new(limit);
    let file = DirectFile::new(device, GrowingMap::new(free), locking);
    (BufferedFile::new(file, &pool), pool)
}

fn cached(limit: u64) -> (Cached, Arc<PageCache>) {
    cached_on(device(), BLOCKS, Locking::Range, limit)
}

/// All of a file, past its pages, when everything is written back.
fn on_device(file: &Cached) -> Vec<u8> {
    file.write_back(0..u64::MAX).unwrap();
    let mut all = vec![0xAA; file.map().size() as usize];
    assert_eq!(file.file().read_at(0, &mut all).unwrap(), all.len());
    all
}

/// A file of up to `reach` bytes and a few more.
fn one_file_against_a_model(seed: u64, rounds: u32, locking: Locking, limit: u64, reach: u64) {
    let mut random = Random::from(seed);
    let (file, pool) = cached_on(device_for((reach * 20) / BLOCK), BLOCKS, locking, limit);
    let writers = (random.below(2) == 0).then(|| Writers::start(&pool, 1).unwrap());
    let mut model: Vec<u8> = Vec::new();
    for round in 0..rounds {
        let size = model.len() as u64;
        let unit = [1, 512, 4096][random.below(3) as usize];
        let offset = random.below((size + 6 * BLOCK).min(reach)) / unit * unit;
        let most = [100, 3 * BLOCK, reach / 12][random.below(3) as usize];
        let len = (1 + random.below(most)).div_ceil(unit) * unit;
        let mut buf = vec![0xAA; len as usize];
        let story = format!("seed {seed}, round {round}, {locking}: {len} bytes at {offset} of {size}");
        match random.below(24) {
            0..5 => {
                let mut direct = buf.clone();
                let count = file.read_at(offset, &mut buf).unwrap();
                let expected =
                    &model[model.len().min(offset as usize)..model.len().min((offset + len) as usize)];
                assert!(buf[..count] == *expected, "{story}");
                assert_eq!(file.read_past(offset, &mut direct).unwrap(), count);
                assert!(direct[..count] == *expected, "{story}, past");
            }
            5..13 => {
                random.fill(&mut buf);
                match random.below(4) {
                    0 => file.write_past(offset, &buf).unwrap(),
                    _ => file.write_at(offset, &buf).unwrap(),
                };
                model.resize(model.len().max((offset + len) as usize), 0);
                model[offset as usize..(offset + len) as usize].copy_from_slice(&buf);
            }
            13 if size < reach => {
                random.fill(&mut buf);
                let at =
                    if random.below(2) == 0 { file.append(&buf) } else { file.append_past(&buf) }.unwrap();
                assert_eq!(at, size, "{story}");
                model.extend_from_slice(&buf);
            }
            14 => {
                let size = random.below(size + BLOCK);
                file.set_len(size).unwrap();
                model.resize(size as usize, 0);
            }
            15 if offset < size => {
                let end = (offset + len).min(size);
                file.punch_hole(offset..end).unwrap();
                model[offset as usize..end as usize].fill(0);
            }
            20 => {
                let (keep, end) = (random.below(2) == 0, offset + len);
                file.zero_range(offset..end, keep).unwrap();
                model.resize(if keep { size } else { size.max(end) } as usize, 0);
                let end = model.len().min(end as usize);
                model[end.min(offset as usize)..end].fill(0);
            }
            21 => {
                let (keep, end) = (random.below(2) == 0, offset + len);
                file.allocate(offset..end, keep).unwrap();
                model.resize(if keep { size } else { size.max(end) } as usize, 0);
            }
            22 if unit == BLOCK && len < size => match file.collapse_range(offset..offset + len) {
                Ok(()) => drop(model.drain(offset as usize..(offset + len) as usize)),
                Err(error) => {
                    assert!(matches!(error, FileError::ReachesEnd) && offset + len >= size, "{story}")
                }
            },
            23 if unit == BLOCK && size < reach => match file.insert_range(offset..offset + len) {
                Ok(()) => drop(model.splice(offset as usize..offset as usize, vec![0; len as usize])),
                Err(error) => assert!(matches!(error, FileError::BehindEnd) && offset >= size, "{story}"),
            },
            16 => {
                random.fill(&mut buf);
                match file.overwrite_past(offset, &buf) {
                    Ok(_) => model[offset as usize..(offset + len) as usize].copy_from_slice(&buf),
                    Err(FileError::NotOverwritable { .. }) => {}
                    Err(error) => panic!("{story}: {error}"),
                }
            }
            17 => file.write_back(offset..offset + len).unwrap(),
            18 => drop(file.pass_by(Duration::from_secs(5)).unwrap().expect("nobody is in the way")),
            19 if random.below(4) == 0 => {
                let _held = file.hold_to_change(0..u64::MAX).unwrap();
                file.map().share();
            }
            _ => {}
        }
        assert_eq!(file.size(), model.len() as u64, "{story}");
    }
    assert!(on_device(&file) == model, "seed {seed}, {locking}");
    assert_eq!((file.map().reserved(), pool.dirty()), (0, 0));
    assert!(pool.used() <= limit + (4 << 20), "{pool:?}");
    // One of them may be looking at the file.
    drop((writers, file));
    assert_eq!(pool.used(), 0);
}

#[test]
fn any_mixture_of_ways_is_one_file() {
    let seed = Random::seeded().next();
    for (nth, locking) in Locking::ALL.into_iter().enumerate() {
        one_file_against_a_model(seed + nth as u64, 1500, locking, 64 << 20, 2 << 20);
        one_file_against_a_model(seed + 100 + nth as u64, 1500, locking, 200 << 10, 2 << 20);
    }
}

#[test]
fn any_mixture_of_ways_is_one_file_of_large_folios() {
    let seed = Random::seeded().next();
    for (nth, limit) in [64 << 20, 6 << 20, 64 << 20, 3 << 20].into_iter().enumerate() {
        one_file_against_a_model(seed + nth as u64, 600, Locking::Range, limit, 12 << 20);
    }
}

/// Each thread has some pages of each large folio, and lets go of them or brings them back while others do.
#[test]
fn pages_of_a_large_folio_go_and_come_among_threads() {
    const LARGE: u64 = 2 << 20;
    let (file, pool) = cached(64 << 20);
    let all = vec![1; 3 * LARGE as usize];
    file.write_at(0, &all).unwrap();
    file.write_back(0..u64::MAX).unwrap();
    assert!(pool.used() >= 3 * LARGE);
    let seed = Random::seeded().next();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (file, mut random) = (&file, Random::from(seed + thread));
            scope.spawn(move || {
                let mut mine = std::collections::BTreeMap::new();
                for round in 0..6000u32 {
                    // The last two of three, and few pages of them: all are there again and again.
                    let page = (512 + random.below(1024) / 128 * 128 + thread) * BLOCK;
                    let mut buf = [0; BLOCK as usize];
                    match random.below(4) {
                        0 => {
                            buf.fill(round as u8);
                            // Past the pages: what is in memory is forgotten.
                            file.write_past(page, &buf).unwrap();
                            mine.insert(page, round as u8);
                        }
                        1 => {
                            file.write_at(page + 7, &[round as u8; 9]).unwrap();
                            file.read_at(page, &mut buf).unwrap();
                            assert_eq!(buf[7..16], [round as u8; 9]);
                            buf.fill(*mine.get(&page).unwrap_or(&1));
                            file.write_at(page, &buf).unwrap();
                        }
                        _ => {
                            assert_eq!(file.read_at(page, &mut buf).unwrap(), buf.len());
                            let expected = *mine.get(&page).unwrap_or(&1);
                            assert!(buf.iter().all(|&byte| byte == expected), "round {round}, byte {page}");
                        }
                    }
                }
            });
        }
    });
    on_device(&file);
    assert_eq!((file.map().reserved(), pool.dirty()), (0, 0));
}

#[test]
fn threads_with_regions_of_their_own_see_a_model_of_their_own() {
    const REGION: usize = 150_001;
    let seed = Random::seeded().next();
    for limit in [300 << 10, 64 << 20] {
        let (file, pool) = cached(limit);
        let _writers = Writers::start(&pool, 2).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (file, mut random) = (&file, Random::from(seed + thread as u64));
                scope.spawn(move || {
                    let base = (thread * REGION) as u64;
                    let mut mine = vec![0; REGION];
                    for round in 0..600 {
                        let at = random.below(REGION as u64 - 1) as usize;
                        let len = 1 + random.below((REGION - at).min(20_000) as u64) as usize;
                        let mut buf = vec![0; len];
                        match random.below(5) {
                            0 | 1 => {
                                random.fill(&mut buf);
                                file.write_at(base + at as u64, &buf).unwrap();
                                mine[at..at + len].copy_from_slice(&buf);
                            }
                            2 => {
                                random.fill(&mut buf);
                                file.write_past(base + at as u64, &buf).unwrap();
                                mine[at..at + len].copy_from_slice(&buf);
                            }
                            3 => file.write_back(base + at as u64..base + (at + len) as u64).unwrap(),
                            _ => {
                                let count = file.read_at(base + at as u64, &mut buf).unwrap();
                                assert!(
                                    buf[..count] == mine[at..at + count],
                                    "thread {thread}, round {round}"
                                );
                            }
                        }
                    }
                    let mut all = vec![0; REGION];
                    let count = file.read_past(base, &mut all).unwrap();
                    assert!(all[..count] == mine[..count], "thread {thread}");
                });
            }
        });
        on_device(&file);
        assert_eq!((file.map().reserved(), pool.dirty()), (0, 0));
    }
}

#[test]
fn no_reader_sees_half_a_write() {
    let (file, pool) = cached(400 << 10);
    let _writers = Writers::start(&pool, 1).unwrap();
    file.write_at(0, &vec![0; 100_000]).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let (file, is_over) = (&file, &is_over);
            scope.spawn(move || {
                for round in 0..400u32 {
                    let byte = (round * 2) as u8 + thread;
                    let write =
                        if round % 7 == 0 { BufferedFile::write_past } else { BufferedFile::write_at };
                    write(file, 1000, &vec![byte; 70_000]).unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            scope.spawn(move || {
                let mut buf = vec![0u8; 70_000];
                while !is_over.load(Ordering::Relaxed) {
                    let read = if buf[0].is_multiple_of(3) {
                        BufferedFile::read_past
                    } else {
                        BufferedFile::read_at
                    };
                    assert_eq!(read(file, 1000, &mut buf).unwrap(), buf.len());
                    assert!(buf.iter().all(|byte| *byte == buf[0]), "two writes in one read");
                }
            });
        }
    });
}

#[test]
fn appending_threads_lose_and_tear_nothing() {
    for limit in [200 << 10, 64 << 20] {
        let (file, pool) = cached(limit);
        let _writers = Writers::start(&pool, 1).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..200u16 {
                        let len = 10 + usize::from(round) * 7;
                        let mut record = vec![thread + 1; len];
                        record[..2].copy_from_slice(&(len as u16).to_le_bytes());
                        let append =
                            if round % 5 == 0 { BufferedFile::append_past } else { BufferedFile::append };
                        append(file, &record).unwrap();
                    }
                });
            }
        });
        let all = on_device(&file);
        let (mut at, mut count) = (0, 0);
        while at < all.len() {
            let len = usize::from(u16::from_le_bytes([all[at], all[at + 1]]));
            assert!(all[at + 2..at + len].iter().all(|byte| *byte == all[at + 2]), "record at {at}");
            (at, count) = (at + len, count + 1);
        }
        assert_eq!((at, count), (all.len(), 800));
    }
}

#[test]
fn a_lack_of_space_comes_at_the_write() {
    let (file, pool) = cached_on(device(), 10, Locking::Range, 64 << 20);
    file.write_at(0, &[1; 6 * BLOCK as usize]).unwrap();
    assert_eq!(file.map().reserved(), 6);
    let lacks = |result| matches!(result, Err(FileError::Map { source: growing::MapError::NoSpace, .. }));
    assert!(lacks(file.write_at(20 * BLOCK, &[2; 5 * BLOCK as usize])));
    assert!(lacks(file.append(&[2; 5 * BLOCK as usize]).map(|at| at as usize)));
    assert_eq!(file.size(), 6 * BLOCK, "the file is as it was");
    file.append(&[3; 4 * BLOCK as usize]).unwrap();
    assert!(lacks(file.append(&[3]).map(|at| at as usize)));
    // What has a place needs none.
    file.write_at(5, &[4; 4096]).unwrap();
    let mut model = vec![1; 6 * BLOCK as usize];
    model.extend([3; 4 * BLOCK as usize]);
    model[5..4101].fill(4);
    assert!(on_device(&file) == model);
    assert_eq!((file.map().reserved(), pool.dirty()), (0, 0));
    file.map().share();
    assert!(lacks(file.write_at(0, &[5; 10])), "a copy needs space");
    file.map().give(1);
    file.write_at(0, &[5; 10]).unwrap();
    model[..10].fill(5);
    assert!(on_device(&file) == model);
}

#[test]
fn the_end_moves_on_the_device_over_what_is_written_alone() {
    let (file, _pool) = cached(64 << 20);
    file.write_at(0, &[1; 100]).unwrap();
    file.write_at(50 * BLOCK, &[2; 100]).unwrap();
    file.write_at(100 * BLOCK, &[3; 100]).unwrap();
    assert_eq!((file.size(), file.map().size()), (100 * BLOCK + 100, 0));
    assert_eq!(file.map().in_memory(), Some(100 * BLOCK + 100));
    file.write_back(100 * BLOCK..101 * BLOCK).unwrap();
    assert_eq!(file.map().told()[0], None, "two pages before it are dirty");
    // It was wanted to its end: all before had to go too.
    assert_eq!(file.map().size(), file.size());
    let sizes: Vec<u64> = file.map().told().into_iter().flatten().collect();
    assert!(sizes.is_sorted(), "{sizes:?}");
}

#[test]
fn what_lay_behind_the_end_is_zeroes_when_the_file_gets_longer() {
    for past in [false, true] {
        let (file, _pool) = cached(64 << 20);
        file.write_at(0, &[1; 3000]).unwrap();
        on_device(&file);
        // The rest of the block holds what a crash may leave.
        let garbage = vec![9; 1096];
        let Ok(found) = file.map().lookup(0) else { panic!("no map") };
        let fileio::ExtentState::Written(at) = found.extent.state else { panic!("no data") };
        let mut block = vec![0; BLOCK as usize];
        file.file().device().read(at, &mut block).unwrap();
        block[3000..].copy_from_slice(&garbage);
        file.file().device().write(at, &block, blockdev::Durability::Volatile).unwrap();
        drop(file.pass_by(Duration::from_secs(1)).unwrap().unwrap());
        let write = if past { BufferedFile::write_past } else { BufferedFile::write_at };
        write(&file, 5 * BLOCK, &[2; 10]).unwrap();
        let mut model = vec![1; 3000];
        model.resize(5 * BLOCK as usize, 0);
        model.extend([2; 10]);
        let mut seen = vec![0xAA; model.len()];
        file.read_at(0, &mut seen).unwrap();
        assert!(seen == model && on_device(&file) == model, "past {past}");
    }
}

#[test]
fn everybody_is_told_once_of_what_could_not_be_written_back() {
    let faults = Arc::new(FaultDevice::new(device(), Vec::new()));
    let (file, pool) = cached_on(faults.clone(), BLOCKS, Locking::Range, 64 << 20);
    let (one, other, all) = (file.sync_cursor(), file.sync_cursor(), pool.sync_cursor());
    file.write_at(0, &[1; 9000]).unwrap();
    faults.add(Fault::fail(Op::Write, 0).then(Repeat::Sticky));
    assert!(file.write_back(0..u64::MAX).is_err());
    faults.heal();
    for cursor in [&one, &other] {
        let failure = file.failed_since(cursor).expect("it failed");
        assert!(failure.to_string().contains("writing back what was written before"), "{failure}");
        assert!(file.failed_since(cursor).is_none());
    }
    assert!(pool.failed_since(&all).is_some() && pool.failed_since(&all).is_none());
    assert_eq!((file.map().reserved(), pool.dirty()), (0, 0), "what failed is given up");
    // The next try goes through.
    file.write_at(0, &[2; 9000]).unwrap();
    assert!(on_device(&file) == vec![2; 9000]);
    assert!(file.failed_since(&one).is_none());
    // A map that cannot be told leaves what it had.
    file.map().break_it(true);
    file.append(&[3; 9000]).unwrap();
    assert!(file.write_back(0..u64::MAX).is_err() && file.failed_since(&one).is_some());
    file.map().break_it(false);
    assert_eq!((file.map().reserved(), file.map().size(), pool.dirty()), (0, 9000, 0));
}

/// Whoever opens it meanwhile would find no file that is open, and come to a range lock of its own.
#[test]
fn a_file_that_writers_are_kept_out_of_stays_open() {
    let (file, _pool) = cached(64 << 20);
    let weak = Arc::downgrade(&file);
    let (held, _) = file.hold_off_writers(Duration::from_secs(5)).expect("nobody has it");
    drop(file);
    let again = weak.upgrade().expect("it is open");
    assert!(again.hold_within(0..u64::MAX, true, Duration::ZERO).unwrap().is_none(), "by one lock");
    drop(held);
    assert!(again.hold_within(0..u64::MAX, true, Duration::from_secs(5)).unwrap().is_some());
}

/// What lacks space stays dirty, and somebody else was writing it to the device while it was said that nobody does.
#[test]
fn nobody_writes_back_what_writers_are_kept_out_of() {
    for locking in Locking::ALL {
        let counted = Arc::new(blockdev::Counter::new(device()));
        let (file, _pool) = cached_on(counted.clone(), BLOCKS, locking, 64 << 20);
        file.write_at(0, &[1; 9000]).unwrap();
        file.map().lack_space(Some(0));
        let (held, written) = file.hold_off_writers(Duration::from_secs(5)).expect("nobody has it");
        assert!(written.is_err(), "{locking}");
        let before = counted.counts().writes;
        let is_kept_out = thread::scope(|scope| {
            let other = scope.spawn(|| file.write_back(0..u64::MAX));
            thread::sleep(Duration::from_millis(20));
            let is_kept_out = counted.counts().writes == before && !other.is_finished();
            file.map().lack_space(None);
            drop(held);
            other.join().unwrap().unwrap();
            is_kept_out
        });
        assert!(is_kept_out, "{locking}");
        assert!(on_device(&file) == [1; 9000], "{locking}");
    }
}

/// Who read what is not in memory waited as long as writers were kept out: as long as a close takes.
#[test]
fn readers_go_on_while_writers_are_kept_out() {
    for begins in [false, true] {
        let (file, _pool) = cached(64 << 20);
        let mut seen = [0; 9000];
        if begins {
            file.write_at(0, &[1; 9000]).unwrap();
            // None of it is in memory after that.
            drop(file.hold_to_change(0..u64::MAX).unwrap());
        } else {
            file.file().write_at(0, &[1; 9000]).unwrap();
        }
        let (held, written) = file.hold_off_writers(Duration::from_secs(5)).expect("nobody has it");
        written.unwrap();
        let (file, (sender, receiver)) = (Arc::clone(&file), mpsc::channel());
        let reading = thread::spawn(move || {
            let len = file.read_at(0, &mut seen).unwrap();
            sender.send(()).unwrap();
            (len, seen)
        });
        let goes_on = receiver.recv_timeout(Duration::from_secs(20)).is_ok();
        drop(held);
        assert!(reading.join().unwrap() == (9000, [1; 9000]) && goes_on, "begins {begins}");
    }
}

/// Patience was all that was asked of who holds bytes beside what cannot be written back, or before an end in memory that
/// nothing dirty was left of.
#[test]
fn who_is_patient_is_told_what_patience_does_not_help() {
    let hold = |file: &Cached, changes| {
        file.hold_within(BLOCK..2 * BLOCK, changes, Duration::ZERO)
            .map(|held| held.expect("nobody has it").size())
    };
    for changes in [false, true] {
        let faults = Arc::new(FaultDevice::new(device(), Vec::new()));
        let (file, _pool) = cached_on(faults.clone(), BLOCKS, Locking::Range, 64 << 20);
        file.write_at(0, &[1; 12288]).unwrap();
        file.map().lack_space(Some(0));
        assert!(hold(&file, changes).is_err(), "changes {changes}");
        file.map().lack_space(None);
        assert_eq!(hold(&file, changes).unwrap(), 12288, "changes {changes}");
        // What fails is given up, and the end stays in memory.
        file.write_at(12288, &[2; 12288]).unwrap();
        faults.add(Fault::fail(Op::Write, 0).then(Repeat::Sticky));
        assert!(file.write_back(0..u64::MAX).is_err());
        faults.heal();
        let between = |patience| file.hold_within(4 * BLOCK..5 * BLOCK, changes, patience);
        file.map().lack_space(Some(0));
        assert!(between(Duration::ZERO).is_err(), "changes {changes}");
        assert!(file.pass_by(Duration::ZERO).is_err(), "changes {changes}");
        file.map().lack_space(None);
        assert_eq!(
            between(Duration::ZERO).unwrap().expect("nobody has it").size(),
            24576,
            "changes {changes}"
        );
    }
}

#[test]
fn what_lacks_space_is_given_up_when_the_file_was_cut_and_not_before() {
    for end in [0, BLOCK, 5000, 6 * BLOCK] {
        let (file, pool) = cached(64 << 20);
        file.write_at(0, &[1; 4 * BLOCK as usize]).unwrap();
        file.write_back(0..u64::MAX).unwrap();
        // In blocks that others have, and in a hole.
        file.map().share();
        file.write_at(3 * BLOCK, &[3; 10]).unwrap();
        file.write_at(10 * BLOCK, &[2; 5000]).unwrap();
        let mut model = vec![1; 4 * BLOCK as usize];
        model[3 * BLOCK as usize..][..10].fill(3);
        model.resize(10 * BLOCK as usize, 0);
        model.extend([2; 5000]);
        file.map().lack_space(Some(3 * BLOCK));
        if end > 3 * BLOCK {
            let stays = file.hold_to_cut(end).err();
            assert!(matches!(stays, Some(FileError::WriteBack(_))), "end {end}: {stays:?}");
            file.map().lack_space(Some(10 * BLOCK));
        }
        let cuts_its_page = file.hold_to_cut(10 * BLOCK + 4999).err();
        assert!(matches!(cuts_its_page, Some(FileError::WriteBack(_))), "end {end}: {cuts_its_page:?}");
        // One that comes to nothing.
        drop(file.hold_to_cut(end).unwrap());
        let mut seen = vec![0xAA; model.len() + 1];
        assert_eq!(file.read_at(0, &mut seen).unwrap(), model.len(), "end {end}");
        assert!(seen[..model.len()] == model, "end {end}");
        let held = file.hold_to_cut(end).unwrap();
        assert_eq!(held.size(), model.len() as u64);
        file.map().cut(end).unwrap();
        held.was_cut();
        let left = (file.size(), file.map().in_memory(), file.map().reserved(), pool.dirty());
        assert_eq!(left, (end, None, 0, 0));
        file.map().lack_space(None);
        file.write_at(12 * BLOCK, &[4; 10]).unwrap();
        model.truncate(end as usize);
        model.resize(12 * BLOCK as usize, 0);
        model.extend([4; 10]);
        let mut seen = vec![0xAA; model.len()];
        file.read_at(0, &mut seen).unwrap();
        assert!(seen == model && on_device(&file) == model, "end {end}");
    }
}

/// While it was asked whether a dirty file is wanted, it was out of the line: who wrote all files back meanwhile was told that
/// all is well, and had left it out.
#[test]
fn what_is_cut_off_takes_no_memory() {
    let (file, pool) = cached(64 << 20);
    file.write_at(0, &[1; 1024 * BLOCK as usize]).unwrap();
    file.write_back(0..u64::MAX).unwrap();
    assert_eq!(pool.used(), 1024 * BLOCK);
    // From the end to the front, and amid a folio: that one stays.
    for size in [1000, 600, 513, 512, 511, 5, 1].map(|blocks| blocks * BLOCK) {
        file.set_len(size).unwrap();
        assert!(pool.used() < size + (2 << 20), "{} of {size}", pool.used());
        let mut seen = vec![0xAA; size as usize + 1];
        assert_eq!(file.read_at(0, &mut seen).unwrap(), size as usize);
        assert!(seen[..size as usize].iter().all(|&byte| byte == 1));
    }
    file.set_len(0).unwrap();
    assert_eq!(pool.used(), 0);
    file.write_at(0, &[2; 100]).unwrap();
    assert_eq!(on_device(&file), [2; 100]);
}

/// Each time that a page came and was forgotten, something stayed to be looked at before another could go.
#[test]
fn the_bound_is_kept_behind_much_that_was_forgotten() {
    let limit = 4 << 20;
    let (file, pool) = cached(limit);
    file.write_at(0, &[1; 10]).unwrap();
    for _ in 0..300_000 {
        assert_eq!(file.read_at(0, &mut [0; 20]).unwrap(), 10);
        drop(file.hold_to_change(0..u64::MAX).unwrap());
        assert_eq!(pool.used(), 0);
    }
    for block in 1..BLOCKS {
        file.write_at(block * BLOCK, &[3; BLOCK as usize]).unwrap();
        file.write_back(0..u64::MAX).unwrap();
        assert!(pool.used() <= limit + (2 << 20), "{} at {block}", pool.used());
    }
}

#[test]
fn a_file_that_is_wanted_after_all_is_found_by_who_writes_all_back() {
    let (file, pool) = cached(1 << 20);
    file.write_at(0, &[5; 8192]).unwrap();
    std::thread::scope(|scope| {
        let mut all = None;
        let is_unwanted = file.is_unwanted(|_| {
            all = Some(scope.spawn(|| pool.write_every_file_back()));
            std::thread::sleep(std::time::Duration::from_millis(50));
            false
        });
        assert!(!is_unwanted);
        all.expect("it was asked").join().unwrap().unwrap();
    });
    assert_eq!(pool.dirty(), 0);
    // What somebody else has is wanted, and so is what is clean.
    file.write_at(0, &[6; 8192]).unwrap();
    let other = Arc::clone(&file);
    assert!(!file.is_unwanted(|_| panic!("somebody has it")));
    drop(other);
    assert!(file.is_unwanted(|_| true));
    assert!(!file.is_unwanted(|_| panic!("nothing of it waits")));
}

#[test]
fn a_file_that_is_let_go_dirty_is_written_back_all_the_same() {
    let (file, pool) = cached_on(device(), BLOCKS, Locking::Range, 64 << 20);
    let direct = Arc::clone(file.file());
    file.write_at(10, &[7; 9000]).unwrap();
    drop(file);
    assert_eq!(direct.map().size(), 0);
    pool.write_every_file_back().unwrap();
    let mut all = vec![0; 9010];
    assert_eq!(direct.read_at(0, &mut all).unwrap(), 9010);
    assert!(all[..10] == [0; 10] && all[10..].iter().all(|byte| *byte == 7));
    // What is abandoned is lost, and takes nothing.
    let (file, pool) = cached_on(device(), BLOCKS, Locking::Range, 64 << 20);
    let direct = Arc::clone(file.file());
    file.write_at(0, &[7; 9000]).unwrap();
    drop(file);
    pool.abandon();
    assert_eq!((direct.map().reserved(), direct.map().size(), pool.used(), pool.dirty()), (0, 0, 0, 0));
}

#[test]
fn a_sequential_reader_reads_ahead_and_a_random_one_does_not() {
    let counted = Arc::new(blockdev::Counter::new(device()));
    let (file, _pool) = cached_on(counted.clone(), BLOCKS, Locking::Range, 64 << 20);
    file.write_at(0, &vec![1; 2 << 20]).unwrap();
    let reads = |work: &dyn Fn()| {
        drop(file.pass_by(Duration::from_secs(1)).unwrap().unwrap());
        let before = counted.counts().reads;
        work();
        counted.counts().reads - before
    };
    let mut buf = vec![0; 4096];
    let sequential = reads(&|| {
        let mut buf = vec![0; 4096];
        (0..512).for_each(|page| assert_eq!(file.read_at(page * 4096, &mut buf).unwrap(), 4096));
    });
    // None of these lies behind one of those that were read lately.
    let random = reads(&|| {
        let mut buf = vec![0; 4096];
        (0..64).for_each(|nth| assert_eq!(file.read_at((nth * 101 % 512) * 4096, &mut buf).unwrap(), 4096));
    });
    // The device's extents are of 7 blocks and fewer: each takes a read of its own.
    assert!(sequential < 200, "{sequential} requests for 512 pages");
    assert!((64..=70).contains(&random), "{random} requests for 64 pages");
    file.read_at(0, &mut buf).unwrap();
    let before = counted.counts().reads;
    file.read_at(0, &mut buf).unwrap();
    assert_eq!(counted.counts().reads, before, "what is in memory is not read");
}

/// Of reads that come one after the other, and are larger than what is read ahead, the second one panicked.
#[test]
fn large_reads_come_one_behind_the_other() {
    let (file, _pool) = cached(64 << 20);
    file.write_at(0, &vec![1; 12 << 20]).unwrap();
    drop(file.pass_by(Duration::from_secs(1)).unwrap().unwrap());
    let mut buf = vec![0; 3 << 20];
    for nth in 0..4 {
        assert_eq!(file.read_at(nth * (3 << 20), &mut buf).unwrap(), 3 << 20);
        assert!(buf.iter().all(|byte| *byte == 1));
    }
}

/// Whoever wrote to where nothing had been written held the bytes twice and looked twice: to find that it is no overwrite, and
/// to write.
#[test]
fn a_write_holds_its_bytes_once_whatever_is_there() {
    const AT: u64 = 4 * BLOCK;
    let data = vec![7; 2 * BLOCK as usize];
    for (prepared, holds) in [("written", 1), ("set aside", 1), ("a hole", 1), ("behind the end", 1)] {
        let device = device_for(64);
        let stats = rangelock::LockStats::new();
        let file = DirectFile::with_stats(device, GrowingMap::new(32), Locking::Range, stats);
        let pool = PageCache::new(1 << 20);
        let file = BufferedFile::new(file, &pool);
        match prepared {
            "written" => drop(file.write_past(0, &vec![1; 8 * BLOCK as usize]).unwrap()),
            "set aside" => file.allocate(0..8 * BLOCK, false).unwrap(),
            "a hole" => file.set_len(8 * BLOCK).unwrap(),
            _ => file.set_len(AT).unwrap(),
        }
        let taken = || file.file().lock_stats().map(|stats| stats.shared + stats.exclusive).unwrap();
        let (before, looks) = (taken(), file.map().looks());
        assert_eq!(file.write_past(AT, &data).unwrap(), data.len());
        assert_eq!(taken() - before, holds, "{prepared}");
        let looks = file.map().looks() - looks;
        assert!(looks <= if prepared == "written" { 1 } else { 3 }, "{prepared}: {looks} looks");
        let mut seen = vec![0; data.len()];
        file.read_at(AT, &mut seen).unwrap();
        assert!(seen == data, "{prepared}");
    }
}

/// A cut to a whole page took the file for longer than that, as somebody extended it in memory to end just there: the map was
/// told of an end over blocks that were not written yet.
#[test]
fn an_end_is_told_over_nothing_that_is_in_memory_alone() {
    let (file, _pool) = cached(64 << 20);
    file.write_at(0, &[1; 100]).unwrap();
    file.write_back(0..u64::MAX).unwrap();
    let other = Arc::clone(&file);
    file.map().when_content_changes(move || {
        thread::spawn(move || other.write_at(BLOCK, &[2; BLOCK as usize]).unwrap()).join().unwrap();
    });
    file.set_len(2 * BLOCK).unwrap();
    assert_eq!((file.size(), file.map().size()), (2 * BLOCK, 2 * BLOCK));
    let found = file.map().lookup(BLOCK).unwrap().extent.state;
    assert!(matches!(found, fileio::ExtentState::Written(_)), "{found:?}");
    let mut all = vec![1; 100];
    all.resize(BLOCK as usize, 0);
    all.resize(2 * BLOCK as usize, 2);
    assert!(on_device(&file) == all);
}
