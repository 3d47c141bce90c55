//! Queued reads and overwrites.
#![forbid(unsafe_code)]

mod common;

use std::sync::Arc;

use blockdev::{
    AlignedBuf, BlockDevice, Delay, DelayDevice, DeviceError, Fault, FaultDevice, FileOptions, MemoryDevice,
    Op, QueueKind,
};
use common::{BLOCK, Fixture, Random, States, fixture, fixture_on, plain, plain_on};
use fileio::{DirectFile, DirectQueue, FileError, FileMapping, Locking, Refusal};
use rangelock::Mode;

fn buffer(random: &mut Random, len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    random.fill(&mut buf);
    buf
}

/// Random requests of one thread on regions of its own against a model. Each region has one request at a time,
/// and is no whole number of sectors, so that neighbours share some.
fn check_against_model(
    random: &mut Random,
    file: &Arc<DirectFile<common::FakeMap>>,
    model: &mut [u8],
    depth: u32,
) {
    const REGION: usize = 9_000;
    let mut queue = DirectQueue::new(Arc::clone(file), depth).unwrap();
    let regions = model.len() / REGION;
    let mut busy: Vec<Option<(usize, Option<Vec<u8>>)>> = vec![None; regions];
    let (mut pushed, mut over) = (0, 0);
    const REQUESTS: u32 = 3000;
    while over < REQUESTS {
        while pushed < REQUESTS && queue.in_flight() < depth.min(regions as u32) {
            let region = random.below(regions as u64) as usize;
            if busy[region].is_some() {
                continue;
            }
            let start = region * REGION;
            // Whole sectors, where the region has some, or any bytes of it.
            let (at, len) = if random.below(4) > 0 {
                let first = start.next_multiple_of(512);
                let sectors = (start + REGION - first) / 512;
                let skip = random.below(sectors as u64) as usize;
                (first + skip * 512, (1 + random.below((sectors - skip) as u64) as usize) * 512)
            } else {
                let skip = random.below(REGION as u64) as usize;
                (start + skip, random.below((REGION - skip) as u64 + 1) as usize)
            };
            if random.below(2) == 0 {
                let buf = buffer(random, len);
                busy[region] = Some((at, Some(buf.to_vec())));
                queue.push_write(at as u64, buf, region as u64).unwrap();
            } else {
                busy[region] = Some((at, None));
                queue.push_read(at as u64, buffer(random, len), region as u64).unwrap();
            }
            pushed += 1;
        }
        let min = random.below(4) as u32;
        let in_flight = queue.in_flight();
        let mut handed = 0;
        let count = queue
            .wait(min, &mut |done| {
                handed += 1;
                let (at, written) = busy[done.tag as usize].take().expect("a completion of nothing");
                let len = done.buf.len();
                assert_eq!(done.result.unwrap(), len);
                match written {
                    Some(data) => {
                        assert!(done.buf[..] == data, "the buffer of a write comes back as it was");
                        model[at..at + len].copy_from_slice(&data);
                    }
                    None => assert!(done.buf[..] == model[at..at + len], "{len} bytes at {at}"),
                }
            })
            .unwrap();
        assert!(count == handed && count >= min.min(in_flight), "{count}, {handed}, {min}");
        over += count;
    }
    assert_eq!(queue.in_flight(), 0);
    drop(queue);
    let mut whole = vec![0; model.len()];
    assert_eq!(file.read_at(0, &mut whole).unwrap(), model.len());
    assert!(whole == model);
}

#[test]
fn any_request_under_any_locking() {
    let mut random = Random::seeded();
    for locking in Locking::ALL {
        for (sector, longest) in [(512, 2), (4096, 2), (512, 200)] {
            let Fixture { file, mut model, .. } =
                fixture(&mut random, 128, longest, States::Written, sector, locking);
            for depth in [1, 7, 32] {
                check_against_model(&mut random, &file, &mut model, depth);
            }
        }
    }
}

#[test]
fn through_io_uring_and_through_blocking_calls() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(512 * BLOCK).unwrap();
    let mut random = Random::seeded();
    for kind in [QueueKind::Uring, QueueKind::Blocking] {
        let device = FileOptions::new().write(true).queue_kind(kind).open(&path).unwrap();
        let Fixture { file, mut model, .. } =
            fixture_on(&mut random, 256, 3, States::Written, Arc::new(device), Locking::Range);
        check_against_model(&mut random, &file, &mut model, 64);
    }
}

#[test]
fn a_queue_reads_what_blocking_calls_read() {
    let mut random = Random::seeded();
    for locking in [Locking::Range, Locking::Exclusive] {
        let Fixture { file, model, .. } = fixture(&mut random, 64, 4, States::Mixed, 512, locking);
        let mut queue = DirectQueue::new(Arc::clone(&file), 16).unwrap();
        for _ in 0..2000 {
            let unit = [1, 512, 4096][random.below(3) as usize];
            let offset = random.below(model.len() as u64 + 3 * BLOCK) / unit * unit;
            let len = (random.below(8 * BLOCK)).div_ceil(unit) * unit;
            queue.push_read(offset, buffer(&mut random, len as usize), offset).unwrap();
            if queue.in_flight() < 16 {
                continue;
            }
            let all = queue.wait(16, &mut |done| {
                let mut expected = vec![0; done.buf.len()];
                let count = file.read_at(done.tag, &mut expected).unwrap();
                assert_eq!(done.result.unwrap(), count);
                assert!(done.buf[..count] == expected[..count]);
                assert!(
                    done.buf[count..].iter().all(|&b| b == 0),
                    "what lies behind the end is nobody's business"
                );
            });
            assert_eq!(all.unwrap(), 16);
        }
    }
}

#[test]
fn refusals_come_with_the_completion_and_touch_nothing() {
    let mut random = Random::seeded();
    let Fixture { file, model, .. } = fixture(&mut random, 64, 2, States::Mixed, 512, Locking::Range);
    let mut queue = DirectQueue::new(Arc::clone(&file), 8).unwrap();
    let mut refused = 0;
    for _ in 0..300 {
        let block = random.below(60);
        let len = (1 + random.below(5)) * BLOCK;
        let before = {
            let mut before = vec![0; model.len()];
            file.read_at(0, &mut before).unwrap();
            before
        };
        queue.push_write(block * BLOCK, buffer(&mut random, len as usize), 0).unwrap();
        let mut result = None;
        queue.wait(1, &mut |done| result = Some(done.result)).unwrap();
        let mut after = vec![0; model.len()];
        file.read_at(0, &mut after).unwrap();
        match result.unwrap() {
            Ok(count) => assert_eq!(count, len as usize),
            Err(FileError::NotOverwritable { .. }) => {
                assert!(after == before, "a refused write changed the file");
                refused += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(refused > 0);
    let size = file.map().size();
    queue.push_write(u64::MAX - 511, AlignedBuf::zeroed(512), 1).unwrap();
    queue.push_write(size / 512 * 512 + 512, AlignedBuf::zeroed(512), 2).unwrap();
    queue.push_read(u64::MAX - 511, AlignedBuf::zeroed(512), 3).unwrap();
    queue.push_write(0, AlignedBuf::zeroed(0), 4).unwrap();
    queue
        .wait(4, &mut |done| match (done.tag, done.result) {
            (1 | 2, Err(FileError::NotOverwritable { why: Refusal::PastEnd, .. })) | (3 | 4, Ok(0)) => {}
            other => panic!("{other:?}"),
        })
        .unwrap();
}

#[test]
fn a_full_queue_says_so() {
    let mut queue = DirectQueue::new(plain(16, Locking::Range), 2).unwrap();
    for tag in 0..2 {
        queue.push_read(tag * BLOCK, AlignedBuf::zeroed(4096), tag).unwrap();
    }
    let full = queue.push_read(0, AlignedBuf::zeroed(4096), 2);
    assert!(matches!(full, Err(FileError::Device(DeviceError::QueueFull))));
    assert_eq!(queue.wait(100, &mut |_| {}).unwrap(), 2);
    assert_eq!(queue.wait(1, &mut |_| {}).unwrap(), 0);
}

#[test]
fn disjoint_requests_of_one_queue_never_wait_for_each_other() {
    for locking in [Locking::Range, Locking::IntervalTree, Locking::BTree] {
        let device = Arc::new(DelayDevice::new(Arc::new(MemoryDevice::anonymous(1024 * BLOCK).unwrap())));
        let file = plain_on(512, device.clone(), locking);
        let mut queue = DirectQueue::new(file, 128).unwrap();
        device.set(Op::Write, Delay::Held);
        for tag in 0..128 {
            queue.push_write(tag * 4 * BLOCK, AlignedBuf::zeroed(4096), tag).unwrap();
        }
        queue.submit().unwrap();
        // All are with the device at once.
        assert_eq!((device.waiting(Op::Write), queue.waiting_for_range(), queue.deferrals()), (128, 0, 0));
        device.set(Op::Write, Delay::None);
        assert_eq!(queue.wait(128, &mut |done| assert!(done.result.is_ok())).unwrap(), 128);
    }
}

#[test]
fn overlapping_requests_of_one_queue_take_turns() {
    for locking in Locking::ALL {
        let file = plain(64, locking);
        let mut queue = DirectQueue::new(Arc::clone(&file), 64).unwrap();
        for round in 0..20u8 {
            for tag in 0..64u8 {
                let mut buf = AlignedBuf::zeroed(3 * 4096);
                buf.fill(tag ^ round);
                if tag % 3 == 0 {
                    queue.push_read(BLOCK, buf, 100).unwrap();
                } else {
                    queue.push_write(u64::from(tag % 3) * BLOCK, buf, 0).unwrap();
                }
            }
            let count = queue.wait(64, &mut |done| {
                assert_eq!(done.result.unwrap(), 3 * 4096);
                for page in done.buf.chunks(4096).filter(|_| locking != Locking::Shared) {
                    assert!(page.iter().all(|&b| b == page[0]));
                }
            });
            assert_eq!(count.unwrap(), 64);
        }
        assert!(queue.deferrals() > 0 || matches!(locking, Locking::Shared), "{locking}");
    }
}

#[test]
fn a_range_that_another_thread_holds_delays_only_who_needs_it() {
    for locking in [Locking::Range, Locking::IntervalTree, Locking::BTree] {
        let file = plain(64, locking);
        let mut queue = DirectQueue::new(Arc::clone(&file), 8).unwrap();
        let held = file.hold(0..BLOCK, Mode::Exclusive);
        let mut ones = AlignedBuf::zeroed(4096);
        ones.fill(1);
        queue.push_write(0, ones.clone(), 0).unwrap();
        queue.push_write(0, ones.clone(), 1).unwrap();
        for tag in 2..8 {
            queue.push_write(tag * BLOCK, ones.clone(), tag).unwrap();
        }
        assert_eq!(queue.waiting_for_range(), 2);
        let mut seen = Vec::new();
        // The six others complete though two were pushed before them.
        assert_eq!(queue.wait(6, &mut |done| seen.push(done.tag)).unwrap(), 6);
        assert_eq!((queue.wait(0, &mut |_| panic!("held")).unwrap(), queue.in_flight()), (0, 2));
        std::thread::scope(|scope| {
            // With nothing else in flight, waiting blocks until the holder lets go, in whichever thread.
            let waiter = scope.spawn(|| queue.wait(2, &mut |done| seen.push(done.tag)).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(held);
            assert_eq!(waiter.join().unwrap(), 2);
        });
        seen.sort_unstable();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
    }
}

#[test]
fn queues_of_many_threads_on_the_same_bytes() {
    for locking in Locking::ALL {
        let seed = Random::seeded().next();
        let file = plain(16, locking);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (file, mut random) = (Arc::clone(&file), Random::from(seed + thread));
                scope.spawn(move || {
                    let mut queue = DirectQueue::new(file, 16).unwrap();
                    let mut spare: Vec<AlignedBuf> = Vec::new();
                    let mut over = 0;
                    while over < 2000 {
                        while queue.in_flight() < 16 {
                            let mut buf = spare.pop().unwrap_or_else(|| AlignedBuf::zeroed(2 * 4096));
                            let (offset, value) = (random.below(15) * BLOCK, random.next() as u8);
                            buf.fill(value);
                            match random.below(3) {
                                0 => queue.push_read(offset, buf, 0).unwrap(),
                                1 => queue.push_write(offset, buf, 1).unwrap(),
                                _ => {
                                    queue.push_write(offset + 7, AlignedBuf::copied(&buf[..100]), 2).unwrap()
                                }
                            }
                        }
                        over += queue
                            .wait(1 + random.below(16) as u32, &mut |done| {
                                done.result.unwrap();
                                spare.extend(Some(done.buf).filter(|buf| buf.len() == 2 * 4096));
                            })
                            .unwrap();
                    }
                    // What is still in flight is finished or given up by dropping the queue.
                });
            }
        });
        // Nothing is left locked.
        drop(file.hold(0..u64::MAX, Mode::Exclusive));
    }
}

#[test]
fn dropping_a_queue_gives_everything_back() {
    for locking in Locking::ALL {
        let device = Arc::new(DelayDevice::new(Arc::new(MemoryDevice::anonymous(1024 * BLOCK).unwrap())));
        let file = plain_on(512, device.clone(), locking);
        let held = (locking == Locking::Range).then(|| file.hold(500 * BLOCK..501 * BLOCK, Mode::Exclusive));
        let mut queue = DirectQueue::new(Arc::clone(&file), 16).unwrap();
        device.set(Op::Write, Delay::For(std::time::Duration::from_millis(5)));
        for tag in 0..8 {
            queue.push_write(tag * BLOCK, AlignedBuf::zeroed(4096), tag).unwrap();
        }
        if held.is_some() {
            queue.push_write(500 * BLOCK, AlignedBuf::zeroed(4096), 8).unwrap();
        }
        queue.submit().unwrap();
        drop(queue);
        drop(held);
        drop(file.hold(0..u64::MAX, Mode::Exclusive));
        assert_eq!(device.waiting(Op::Write), 0);
    }
}

#[test]
fn device_errors_come_with_the_completion() {
    let memory = Arc::new(MemoryDevice::anonymous(64 * BLOCK).unwrap());
    let device: Arc<dyn BlockDevice> = Arc::new(FaultDevice::new(memory, vec![Fault::fail(Op::Write, 1)]));
    let mut random = Random::seeded();
    let file = plain_on(16, Arc::clone(&device), Locking::Range);
    let mut queue = DirectQueue::new(Arc::clone(&file), 4).unwrap();
    for tag in 0..3 {
        queue.push_write(tag * BLOCK, buffer(&mut random, 4096), tag).unwrap();
    }
    let mut failed = Vec::new();
    queue.wait(3, &mut |done| failed.extend(done.result.is_err().then_some(done.tag))).unwrap();
    assert_eq!(failed, [1]);
    // One piece of several fails: the request does, once, after all of its pieces are back.
    let extents = (0..8).map(|i| fileio::Extent {
        offset: i * BLOCK,
        len: BLOCK,
        state: fileio::ExtentState::Written((15 - 2 * (i % 7)) * BLOCK),
    });
    let map = common::FakeMap::new(8 * BLOCK, extents.collect());
    let device = Arc::new(FaultDevice::new(device, vec![Fault::fail(Op::Read, 2)]));
    let file = Arc::new(DirectFile::new(device, map, Locking::Range));
    let mut queue = DirectQueue::new(Arc::clone(&file), 2).unwrap();
    for expected in [false, true] {
        queue.push_read(0, AlignedBuf::zeroed(8 * 4096), 5).unwrap();
        let mut results = Vec::new();
        queue.wait(1, &mut |done| results.push(done.result.is_ok())).unwrap();
        assert_eq!((results, queue.in_flight()), (vec![expected], 0));
    }
    drop(file.hold(0..u64::MAX, Mode::Exclusive));
}
