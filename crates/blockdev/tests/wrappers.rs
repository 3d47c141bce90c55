//! The wrappers that record, fail, tear, delay, hold back and count.
#![forbid(unsafe_code)]

mod common;

use std::sync::Arc;

use blockdev::{
    AlignedBuf, BlockDevice, Counter, Delay, DelayDevice, Durability, Effect, Fate, Fault, FaultDevice,
    HoldDevice, Means, MemoryDevice, Op, PowerCuts, Recorder, Recording, Repeat, Rewind,
};

const SECTOR: usize = 512;

fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::anonymous(1 << 20).unwrap())
}

fn sector(device: &dyn BlockDevice, index: u64) -> u8 {
    let mut buf = [0; SECTOR];
    device.read(index * SECTOR as u64, &mut buf).unwrap();
    assert!(buf.iter().all(|&b| b == buf[0]), "sector {index} is mixed");
    buf[0]
}

fn put(device: &dyn BlockDevice, index: u64, sectors: usize, value: u8, durability: Durability) {
    device.write(index * SECTOR as u64, &vec![value; sectors * SECTOR], durability).unwrap();
}

fn marked(device: Arc<MemoryDevice>) -> Rewind {
    let device = Rewind::new(device);
    device.mark();
    device
}

#[test]
fn wrappers_without_a_plan_are_the_device() {
    let wrapped: [Arc<dyn BlockDevice>; 7] = [
        Arc::new(Counter::new(memory())),
        Arc::new(FaultDevice::new(memory(), Vec::new())),
        Arc::new(DelayDevice::new(memory())),
        Arc::new(HoldDevice::new(memory())),
        Arc::new(Recorder::new(memory())),
        Means::ALL[3].of(memory()),
        Arc::new(marked(memory())),
    ];
    for device in wrapped {
        common::check_blocking(&*device, 200);
        common::check_refusals(&device);
        common::check_queue(device, 32, 1000);
    }
}

/// What a device has not is not made up.
#[test]
fn a_device_says_that_it_has_the_means_that_it_is_given() {
    for means in Means::ALL {
        let device = means.of(memory());
        assert_eq!((device.has_fua(), device.has_write_cache()), (means.fua, means.write_cache));
        let lacks = Means { fua: false, ..means }.of(memory());
        assert!(!means.of(lacks).has_fua(), "not below, so not here");
    }
}

#[test]
fn the_counter_counts_calls_and_queues() {
    let counter = Arc::new(Counter::new(memory()));
    put(&*counter, 0, 2, 1, Durability::Volatile);
    put(&*counter, 0, 1, 1, Durability::Fua);
    counter.flush().unwrap();
    let mut queue = Arc::clone(&counter).queue(4).unwrap();
    queue.push_read(0, AlignedBuf::zeroed(4096), 1).unwrap();
    queue.push_write(0, AlignedBuf::zeroed(1024), Durability::Fua, 2).unwrap();
    assert_eq!(queue.wait(2, &mut |c| c.result.unwrap()).unwrap(), 2);
    let counts = counter.counts();
    assert_eq!((counts.reads, counts.writes, counts.fua_writes, counts.flushes), (1, 3, 2, 1));
    assert_eq!((counts.read_bytes, counts.written_bytes), (4096, 1024 + 512 + 1024));
}

#[test]
fn faults_strike_the_nth_request() {
    let inner = memory();
    let plan = vec![
        Fault::fail(Op::Read, 1),
        Fault { op: Op::Write, nth: 1, effect: Effect::Short(1), repeat: Repeat::Once },
        Fault::fail(Op::Flush, 1).then(Repeat::Sticky),
    ];
    let device = FaultDevice::new(inner.clone(), plan);
    let mut buf = [0; 1024];
    assert!(device.read(0, &mut buf).is_ok());
    assert!(device.read(0, &mut buf).is_err());
    assert!(device.read(0, &mut buf).is_ok());
    assert!(device.write(0, &[1; 1024], Durability::Volatile).is_ok());
    assert!(device.write(0, &[2; 1024], Durability::Volatile).is_err());
    assert_eq!((sector(&*inner, 0), sector(&*inner, 1)), (2, 1), "one sector of two was written");
    assert!(device.write(0, &[3; 1024], Durability::Volatile).is_ok());
    assert!(device.flush().is_ok());
    assert!(device.flush().is_err());
    assert!(device.flush().is_err());
    assert_eq!((device.seen(Op::Read), device.seen(Op::Write), device.seen(Op::Flush)), (3, 3, 3));
    device.heal();
    device.flush().unwrap();
}

#[test]
fn a_device_goes_read_only() {
    let device = FaultDevice::new(memory(), vec![Fault::fail(Op::Write, 1).then(Repeat::ReadOnlyAfter)]);
    put(&device, 0, 1, 1, Durability::Volatile);
    for _ in 0..3 {
        assert!(device.write(0, &[2; 512], Durability::Volatile).is_err());
    }
    assert!(device.flush().is_err());
    assert_eq!(sector(&device, 0), 1);
}

#[test]
fn a_torn_write_changes_chosen_sectors_and_reports_success() {
    let odd = Effect::Torn(Arc::new(|index| index % 2 == 1));
    let plan = vec![Fault { op: Op::Write, nth: 0, effect: odd, repeat: Repeat::Once }];
    let device = FaultDevice::new(memory(), plan);
    put(&device, 8, 4, 7, Durability::Volatile);
    let sectors: Vec<u8> = (8..12).map(|i| sector(&device, i)).collect();
    assert_eq!(sectors, [0, 7, 0, 7]);
}

#[test]
fn faults_come_through_a_queue() {
    let device = Arc::new(FaultDevice::new(memory(), vec![Fault::fail(Op::Write, 1)]));
    let mut queue = device.queue(4).unwrap();
    for tag in 0..3 {
        queue.push_write(tag * 512, AlignedBuf::zeroed(512), Durability::Volatile, tag).unwrap();
    }
    let mut failed = Vec::new();
    queue.wait(3, &mut |c| failed.extend(c.result.is_err().then_some(c.tag))).unwrap();
    assert_eq!(failed, [1]);
}

#[test]
fn held_requests_wait_until_they_are_released() {
    let device = Arc::new(DelayDevice::new(memory()));
    device.set(Op::Write, Delay::Held);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| put(&*device, 0, 1, 1, Durability::Volatile));
        device.wait_until_waiting(Op::Write, 1);
        assert_eq!(sector(&*device, 0), 0, "the write is still held");
        device.set(Op::Write, Delay::None);
        writer.join().unwrap();
    });
    assert_eq!(sector(&*device, 0), 1);

    device.set(Op::Write, Delay::Held);
    let mut queue = Arc::clone(&device).queue(4).unwrap();
    queue.push_write(0, AlignedBuf::zeroed(512), Durability::Volatile, 1).unwrap();
    queue.push_read(512, AlignedBuf::zeroed(512), 2).unwrap();
    let mut seen = Vec::new();
    queue.wait(1, &mut |c| seen.push(c.tag)).unwrap();
    assert_eq!((queue.wait(0, &mut |c| seen.push(c.tag)).unwrap(), queue.in_flight()), (0, 1));
    assert_eq!(device.waiting(Op::Write), 1);
    device.set(Op::Write, Delay::For(std::time::Duration::from_millis(5)));
    queue.wait(1, &mut |c| seen.push(c.tag)).unwrap();
    assert_eq!((seen, device.waiting(Op::Write)), (vec![2, 1], 0));
}

#[test]
fn chosen_requests_are_held_and_others_are_not() {
    let below = memory();
    let counter = Arc::new(Counter::new(below.clone()));
    let device = HoldDevice::new(counter.clone());
    // A write before the device below has it, and the next one alone.
    device.hold_next(|op, offset| op == Op::Write && offset == 512);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| put(&device, 1, 1, 1, Durability::Volatile));
        device.wait_until_waiting();
        put(&device, 0, 1, 2, Durability::Volatile);
        put(&device, 1, 1, 2, Durability::Volatile);
        assert_eq!((sector(&*below, 0), sector(&*below, 1), device.waiting()), (2, 2, 1));
        // What is chosen next has no say in it.
        device.hold(|op, _| op == Op::Read);
        assert!(!writer.is_finished());
        device.release();
        writer.join().unwrap();
    });
    assert_eq!((sector(&device, 1), device.waiting()), (1, 0));
    // A read with its bytes, a flush with its answer.
    device.hold(|op, _| op != Op::Write);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| sector(&device, 1));
        device.wait_until_waiting();
        put(&device, 1, 1, 3, Durability::Volatile);
        device.release();
        assert_eq!(reader.join().unwrap(), 1);
        device.hold(|op, _| op != Op::Write);
        let flusher = scope.spawn(|| device.flush());
        device.wait_until_waiting();
        assert_eq!(counter.counts().flushes, 1);
        device.release();
        flusher.join().unwrap().unwrap();
    });
    assert_eq!(sector(&device, 1), 3);
}

#[test]
fn a_recording_knows_what_is_durable() {
    let recorder = Recorder::new(memory());
    put(&recorder, 0, 1, 1, Durability::Volatile);
    recorder.flush().unwrap();
    put(&recorder, 0, 2, 2, Durability::Volatile);
    put(&recorder, 4, 1, 3, Durability::Fua);
    recorder.flush().unwrap();
    put(&recorder, 5, 1, 4, Durability::Volatile);
    let recording = recorder.recording();
    assert_eq!((recording.writes().len(), recording.flushes().len()), (4, 2));
    assert_eq!(recording.writes()[0].thread, std::thread::current().id());
    let cuts = recording.cuts();
    assert_eq!(cuts.len(), 3);
    let image = |cut, fate: Fate| {
        let target = memory();
        recording.rebuild(cut, &*target, |_| fate.clone()).unwrap();
        [0, 1, 4, 5].map(|i| sector(&*target, i))
    };
    // Just before the first flush completes, the first write is in doubt; nothing later has happened.
    assert_eq!(image(cuts[0], Fate::Dropped), [0, 0, 0, 0]);
    assert_eq!(image(cuts[0], Fate::Applied), [1, 0, 0, 0]);
    // Just before the second, the first and the forced write are durable, the one between is not.
    assert_eq!(image(cuts[1], Fate::Dropped), [1, 0, 3, 0]);
    assert_eq!(image(cuts[1], Fate::Applied), [2, 2, 3, 0]);
    assert_eq!(image(cuts[1], Fate::Torn(vec![false, true])), [1, 2, 3, 0]);
    assert_eq!(image(cuts[1], Fate::Torn(vec![true])), [2, 0, 3, 0]);
    assert_eq!(image(cuts[2], Fate::Dropped), [2, 2, 3, 0]);
    assert_eq!(image(cuts[2], Fate::Applied), [2, 2, 3, 4]);
}

#[test]
fn a_flush_covers_only_writes_that_completed_before_it() {
    let delay = Arc::new(DelayDevice::new(memory()));
    let recorder = Arc::new(Recorder::new(delay.clone()));
    delay.set(Op::Write, Delay::Held);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| put(&*recorder, 0, 1, 1, Durability::Volatile));
        delay.wait_until_waiting(Op::Write, 1);
        recorder.flush().unwrap();
        delay.set(Op::Write, Delay::None);
        writer.join().unwrap();
    });
    let recording = recorder.recording();
    assert_eq!(recording.in_doubt(recording.end()).count(), 1);
    // And the same through a queue: completion is when it is handed back.
    let mut queue = Arc::clone(&recorder).queue(4).unwrap();
    queue.push_write(512, AlignedBuf::zeroed(512), Durability::Volatile, 42).unwrap();
    queue.submit().unwrap();
    recorder.flush().unwrap();
    queue.wait(1, &mut |c| assert_eq!(c.tag, 42)).unwrap();
    let recording = recorder.recording();
    assert_eq!(recording.in_doubt(recording.end()).count(), 1);
    recorder.flush().unwrap();
    let recording = recorder.recording();
    assert_eq!(recording.in_doubt(recording.end()).count(), 0);
}

#[test]
fn a_failed_flush_makes_nothing_durable() {
    let faulty = Arc::new(FaultDevice::new(memory(), vec![Fault::fail(Op::Flush, 0)]));
    let recorder = Recorder::new(faulty);
    put(&recorder, 0, 1, 1, Durability::Volatile);
    assert!(recorder.flush().is_err());
    let recording = recorder.recording();
    assert_eq!(recording.in_doubt(recording.end()).count(), 1);
    assert_eq!(recording.cuts().len(), 1);
}

#[test]
fn what_was_written_since_a_mark_is_taken_back() {
    let below = memory();
    put(&*below, 0, 20, 1, Durability::Volatile);
    let device = Rewind::new(below.clone());
    let seen = || [0, 7, 8, 17].map(|index| sector(&*below, index));
    device.mark();
    put(&device, 7, 2, 2, Durability::Volatile);
    device.mark();
    put(&device, 7, 1, 3, Durability::Fua);
    put(&device, 17, 1, 3, Durability::Volatile);
    put(&device, 17, 1, 4, Durability::Volatile);
    assert_eq!(seen(), [1, 3, 2, 4]);
    device.rewind().unwrap();
    assert_eq!(seen(), [1, 2, 2, 1]);
    device.rewind().unwrap();
    assert_eq!(seen(), [1, 1, 1, 1]);
    put(&device, 0, 1, 5, Durability::Volatile);
    device.rewind().unwrap();
    assert_eq!(seen(), [5, 1, 1, 1], "without a mark, what is written stays");
}

/// Writes and flushes of two threads' kinds, in an order that follows from a seed.
fn recorded(seed: u64) -> Recording {
    let recorder = Arc::new(Recorder::new(memory()));
    let mut queue = Arc::clone(&recorder).queue(8).unwrap();
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 1..=60_u8 {
        let durability = if random(6) == 0 { Durability::Fua } else { Durability::Volatile };
        match random(8) {
            0 => recorder.flush().unwrap(),
            1 => drop(queue.wait(0, &mut |_| {}).unwrap()),
            2..=4 if queue.in_flight() < 8 => {
                let mut bytes = AlignedBuf::zeroed(SECTOR * (1 + random(3) as usize));
                bytes.fill(step);
                queue.push_write(random(40) * SECTOR as u64, bytes, durability, 0).unwrap();
            }
            _ => put(&*recorder, random(40), 1 + random(3) as usize, step, durability),
        }
    }
    recorder.recording()
}

#[test]
fn images_made_in_turn_are_those_made_from_the_start() {
    for seed in 0..30 {
        let recording = recorded(seed);
        let shown = memory();
        let device = Arc::new(Rewind::new(shown.clone()));
        let mut cuts = PowerCuts::new(&recording, Arc::clone(&device));
        for cut in 0..=recording.end() {
            cuts.advance(cut).unwrap();
            let in_doubt: Vec<u64> = recording.in_doubt(cut).map(|write| write.started).collect();
            assert_eq!(cuts.in_doubt().map(|write| write.started).collect::<Vec<_>>(), in_doubt);
            for fate in [Fate::Dropped, Fate::Applied, Fate::Torn(vec![false, true])] {
                cuts.make(|_| fate.clone()).unwrap();
                let whole = memory();
                recording.rebuild(cut, &*whole, |_| fate.clone()).unwrap();
                let bytes = |device: &MemoryDevice| (0..48).map(|i| sector(device, i)).collect::<Vec<_>>();
                assert_eq!(bytes(&shown), bytes(&whole), "seed {seed}, cut at {cut}, {fate:?}");
                device.rewind().unwrap();
            }
        }
    }
}
