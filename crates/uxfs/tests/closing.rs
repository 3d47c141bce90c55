//! Closing a volume that others use: what they are in the middle of is over before, and nothing comes after.
#![forbid(unsafe_code)]

use blockdev::{AlignedBuf, BlockDevice, Fault, FaultDevice, HoldDevice, MemoryDevice, Op, SealDevice};
use fileio::testing::{CHANGE, COMMITTED, at, before_next_hold};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use uxfs::{
    Changes, ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions, SetXattr,
    Timestamp, Volume, check_device, mkfs_device,
};

const BYTES: u64 = 40 << 20;

fn made() -> Arc<SealDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    Arc::new(SealDevice::new(device))
}

fn open(device: &Arc<impl BlockDevice + 'static>) -> Volume {
    Volume::open_device(device.clone(), &OpenOptions::new().writable(true)).expect("clean")
}

/// Closes a volume, behind which nobody writes to its device any more.
fn close(volume: &Volume, device: &SealDevice) {
    volume.close().expect("closed");
    device.seal();
}

fn file(volume: &Volume, name: &str, blocks: u64) -> File {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let file = root.create_file(name.as_bytes(), &NewNode::default()).expect("made").open().expect("a file");
    for block in 0..blocks {
        file.write_at(&[1; 4096], block * 4096).expect("written");
    }
    volume.sync().expect("synced");
    file
}

fn is_clean_and_sound(device: &Arc<SealDevice>) {
    device.assert_kept();
    let report = check_device(device.clone(), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings);
}

/// Holds back what is written to a byte.
fn hold(holds: &HoldDevice, byte: u64) {
    holds.hold(move |op, offset| op == Op::Write && offset == byte);
}

/// A write that was on its way when the volume was closed came to the device at any time after it: over what had been
/// written to the image since.
#[test]
fn an_overwrite_that_is_under_way_is_over_before_a_volume_is_closed() {
    let memory = made();
    let holds = Arc::new(HoldDevice::new(memory.clone()));
    let volume = open(&holds);
    let written = file(&volume, "written", 4);
    let place = written.extents().next().expect("an extent").expect("a map").physical;
    hold(&holds, place);
    let writes = {
        let written = written.clone();
        thread::spawn(move || written.overwrite_at(&[2; 4096], 0))
    };
    holds.wait_until_waiting();
    let (begins, begun) = mpsc::channel();
    let closes = {
        let volume = volume.clone();
        thread::spawn(move || {
            before_next_hold(move || begins.send(()).expect("somebody waits"));
            volume.close()
        })
    };
    begun.recv().expect("it is being closed");
    let seen = Volume::open_device(memory.clone(), &OpenOptions::new()).expect("read");
    assert!(!seen.info().expect("info").log_clean, "closed, and a write is still to come");
    assert!(!closes.is_finished());
    holds.release();
    writes.join().expect("no panic").expect("it was begun before");
    closes.join().expect("no panic").expect("closed");
    memory.seal();
    is_clean_and_sound(&memory);
    let seen = Volume::open_device(memory.clone(), &OpenOptions::new()).expect("read");
    let mut bytes = [0; 4096];
    seen.open_file("/written").expect("there").read_at(&mut bytes, 0).expect("read");
    assert_eq!(bytes, [2; 4096]);
}

/// A change of several steps lost those that were still to come: a hole with an edge that was not zeroed, a write of which
/// half was there, and a clean log.
#[test]
fn a_change_of_several_steps_that_is_under_way_is_over_before_a_volume_is_closed() {
    type Step = fn(&File) -> uxfs::Result<()>;
    // What it does, the byte of the first write of it to the device, and the content then.
    let punch: Step = |file| file.punch_hole(2048..6 * 4096 + 2048);
    let zero: Step = |file| file.zero_range(2048..6 * 4096 + 2048, false);
    let write: Step = |file| file.write_at(&[9; 12 * 4096], 0);
    let cleared = [vec![1; 2048], vec![0; 6 * 4096], vec![1; 4096 + 2048]].concat();
    let steps = [(punch, 2048, cleared.clone()), (zero, 2048, cleared), (write, 0, vec![9; 12 * 4096])];
    for (step, first, content) in steps {
        let memory = made();
        let holds = Arc::new(HoldDevice::new(memory.clone()));
        let volume = open(&holds);
        let file = file(&volume, "file", 8);
        hold(&holds, file.extents().next().expect("an extent").expect("a map").physical + first);
        let changes = {
            let file = file.clone();
            thread::spawn(move || step(&file))
        };
        holds.wait_until_waiting();
        let holder = Arc::clone(&holds);
        let (ends, ended) = mpsc::channel();
        before_next_hold(move || {
            // It is being closed.
            holder.release();
            ends.send(changes.join().expect("no panic")).expect("somebody waits");
        });
        close(&volume, &memory);
        ended.recv().expect("it is over").expect("it was begun before");
        drop((file, volume));
        is_clean_and_sound(&memory);
        let seen = Volume::open_device(memory.clone(), &OpenOptions::new()).expect("read");
        let mut bytes = vec![0; content.len()];
        let read = seen.open_file("/file").expect("there").read_at(&mut bytes, 0).expect("read");
        assert!(bytes[..read] == content[..read] && read >= 8 * 4096);
    }
}

/// Two files in the order in which they are closed, with a queue each.
fn two_files(volume: &Volume) -> [File; 2] {
    let mut files = [file(volume, "a", 4), file(volume, "b", 4)];
    files.sort_by_key(|file| file.node().ino());
    files
}

/// Does `step` when the second file is about to be held by who closes the volume.
fn at_the_second_file(step: impl FnOnce() + 'static) {
    before_next_hold(move || before_next_hold(step));
}

/// Whoever wrote to another file while a volume could not be closed was told that it was shut down.
#[test]
fn a_close_that_is_taken_back_has_harmed_nobody() {
    let device = made();
    let volume = open(&device);
    let [first, second] = two_files(&volume);
    let mut busy = second.queue(1).expect("a queue");
    busy.push_overwrite(0, AlignedBuf::copied(&[2; 4096]), 1).expect("room");
    let (begins, begun) = mpsc::channel();
    let other = first.clone();
    at_the_second_file(move || {
        let mut queue = other.queue(1).expect("a queue");
        queue.push_overwrite(0, AlignedBuf::copied(&[3; 4096]), 1).expect("it is not decided");
        let mut over = 0;
        queue.wait(0, |_| over += 1).expect("asked");
        begins.send((queue, over)).expect("somebody waits");
    });
    assert_eq!(volume.close().map_err(|error| error.kind()), Err(ErrorKind::Busy));
    let (mut queue, over) = begun.recv().expect("begun");
    assert_eq!(over, 0, "it waits");
    queue.wait(1, |over| assert!(over.result.is_ok(), "{:?}", over.result)).expect("done");
    busy.wait(1, |over| assert!(over.result.is_ok())).expect("done");
    drop((queue, busy));
    close(&volume, &device);
    is_clean_and_sound(&device);
}

/// Files are held one after the other. Whoever had overwrites of one in a queue, and came to another that was held, to read
/// from it or to write, was kept there from taking them out; so no volume was ever closed beside an ordinary copy.
#[test]
fn one_who_comes_to_a_file_that_is_held_ends_its_writes_to_another() {
    type Step = fn(&File) -> uxfs::Result<()>;
    let reads: Step = |file| file.read_at(&mut [0; 4096], 0).map(drop);
    let writes: Step = |file| file.overwrite_at(&[3; 4096], 0);
    for step in [reads, writes] {
        let device = made();
        let volume = open(&device);
        let [first, second] = two_files(&volume);
        let (holds, held) = mpsc::channel();
        at_the_second_file(move || holds.send(()).expect("somebody waits"));
        let mut queue = second.queue(1).expect("a queue");
        queue.push_overwrite(0, AlignedBuf::copied(&[2; 4096]), 1).expect("room");
        let copies = thread::spawn(move || {
            held.recv().expect("the first is held");
            step(&first).expect("the volume is not closed");
            queue.wait(1, |over| assert!(over.result.is_ok())).expect("done");
        });
        close(&volume, &device);
        copies.join().expect("no panic");
        drop((second, volume));
        is_clean_and_sound(&device);
    }
}

/// The same at other bytes of one file: who came later stood behind who waited for all of it.
#[test]
fn one_who_comes_to_a_file_that_is_waited_for_ends_its_writes_to_it() {
    let device = made();
    let volume = open(&device);
    let file = file(&volume, "file", 4);
    let mut queue = file.queue(1).expect("a queue");
    queue.push_overwrite(0, AlignedBuf::copied(&[2; 4096]), 1).expect("room");
    let writes = thread::spawn(move || {
        let mut other = file.queue(1).expect("a queue");
        let mut over = 1;
        while over == 1 {
            other.push_overwrite(4096, AlignedBuf::copied(&[3; 4096]), 1).expect("it is not decided");
            over = other.wait(0, |over| assert!(over.result.is_ok())).expect("asked");
        }
        // Somebody waits for the file.
        file.overwrite_at(&[4; 4096], 8192).expect("the volume is not closed");
        other.wait(1, |over| assert!(over.result.is_ok())).expect("done");
        queue.wait(1, |over| assert!(over.result.is_ok())).expect("done");
    });
    close(&volume, &device);
    writes.join().expect("no panic");
    drop(volume);
    is_clean_and_sound(&device);
}

/// What is begun while a volume is being closed, and waits for that, is not begun at all.
#[test]
fn what_waits_for_a_close_that_is_not_taken_back_is_refused() {
    let device = made();
    let volume = open(&device);
    let [first, _second] = two_files(&volume);
    let (begins, begun) = mpsc::channel();
    let (other, root) = (first.clone(), volume.root().expect("root").as_dir().expect("a directory"));
    at_the_second_file(move || {
        let mut queue = other.queue(1).expect("a queue");
        queue.push_overwrite(0, AlignedBuf::copied(&[3; 4096]), 1).expect("it is not decided");
        // Nobody knew of it when the closing began.
        let new = root.create_file(b"new", &NewNode::default()).expect("made").open().expect("a file");
        new.write_at(&[4; 4096], 0).expect("written");
        begins.send((queue, new)).expect("somebody waits");
    });
    close(&volume, &device);
    let (mut queue, new) = begun.recv().expect("begun");
    let mut ended = None;
    queue.wait(1, |over| ended = Some(over.result.map_err(|error| error.kind()))).expect("over");
    assert_eq!(ended, Some(Err(ErrorKind::ShutDown)));
    assert_eq!(new.write_at(&[5; 4096], 0).map_err(|error| error.kind()), Err(ErrorKind::ShutDown));
    drop((queue, new));
    is_clean_and_sound(&device);
    let seen = Volume::open_device(device.clone(), &OpenOptions::new()).expect("read");
    let mut byte = [0];
    seen.open_file("/new").expect("there").read_at(&mut byte, 0).expect("read");
    assert_eq!(byte, [4]);
}

/// A file that was let go of while it was held, and opened anew, had a second range lock, which nobody held: what was written
/// then came to the device behind the close, or was lost with the pages, though it had returned.
#[test]
fn a_file_that_is_opened_anew_during_a_close_is_held_as_well() {
    type Write = fn(&File) -> uxfs::Result<()>;
    let writes: [Write; 3] = [
        |file| file.overwrite_at(&[3; 4096], 0),
        |file| file.buffered().write_at(&[3; 4096], 0),
        |file| file.buffered().append(&[3; 4096]).map(drop),
    ];
    for write in writes {
        let device = made();
        let volume = open(&device);
        let [first, _second] = two_files(&volume);
        let (again, path) = (volume.clone(), "/a");
        assert_eq!(first.node().ino(), volume.open_file(path).expect("there").node().ino());
        let (begins, begun) = mpsc::channel();
        at_the_second_file(move || {
            drop(first);
            let writer = thread::spawn(move || write(&again.open_file(path).expect("there")));
            // It waits, or is over at once.
            thread::sleep(Duration::from_millis(50));
            begins.send(writer).expect("somebody waits");
        });
        close(&volume, &device);
        let written = begun.recv().expect("begun").join().expect("no panic");
        assert_eq!(written.map_err(|error| error.kind()), Err(ErrorKind::ShutDown));
        is_clean_and_sound(&device);
        let seen = Volume::open_device(device.clone(), &OpenOptions::new()).expect("read");
        let mut byte = [0];
        let file = seen.open_file(path).expect("there");
        file.read_at(&mut byte, 0).expect("read");
        assert_eq!((byte, file.size()), ([1], 16384));
    }
}

/// Who knew where its bytes go, and waited for them until the volume was closed, wrote there all the same.
#[test]
fn what_was_foreseen_before_a_close_is_not_written_after_it() {
    let device = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    assert!(device.prefetches(), "or nothing is foreseen");
    mkfs_device(device.clone(), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = open(&device);
    let file = file(&volume, "file", 4);
    let bytes = |device: &MemoryDevice| {
        let mut bytes = vec![0; BYTES as usize];
        device.read(0, &mut bytes).expect("read");
        bytes
    };
    let (closed, left) = mpsc::channel();
    let (closing, below) = (volume.clone(), Arc::clone(&device));
    at(CHANGE, move || {
        closing.close().expect("closed");
        closed.send(bytes(&below)).expect("somebody waits");
    });
    let written = file.overwrite_at(&[2; 4096], 0);
    assert_eq!(written.map_err(|error| error.kind()), Err(ErrorKind::ShutDown));
    assert!(left.recv().expect("closed") == bytes(&device), "written after the volume was closed");
}

/// Everything that changes a volume says that it is closed, and not a byte of it changes.
#[test]
fn what_is_open_when_a_volume_is_closed_changes_nothing_any_more() {
    let device = made();
    let volume = open(&device);
    let open = file(&volume, "open", 8);
    let mut queue = open.queue(4).expect("a queue");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    // A time that only memory knows.
    let past = Some(Timestamp { seconds: 1_000_000_000, nanoseconds: 0 });
    open.node().change(&Changes { mtime: past, ctime: past, ..Changes::default() }).expect("changed");
    open.overwrite_at(&[2; 4096], 0).expect("written");
    let mtime = open.metadata().mtime;
    assert_ne!(Some(mtime), past);
    close(&volume, &device);

    let new = NewNode::default();
    let closed = |what: &str, result: uxfs::Result<()>| {
        let kind = result.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::ShutDown), "{what}");
    };
    closed("overwrite", open.overwrite_at(&[9; 4096], 0));
    closed("write", open.write_at(&[9; 10], 5));
    closed("append", open.append_at(&[9; 4096], 1 << 20));
    closed("grow", open.set_len(1 << 20));
    closed("cut", open.set_len(0));
    closed("allocate", open.allocate(0..1 << 20, false));
    closed("punch", open.punch_hole(0..4096));
    closed("zero", open.zero_range(0..4096, false));
    closed("collapse", open.collapse_range(0..4096));
    closed("insert", open.insert_range(0..4096));
    closed("sync a file", open.sync());
    closed("queue", queue.push_overwrite(0, AlignedBuf::zeroed(4096), 1));
    closed("create", root.create_file(b"new", &new).map(drop));
    closed("mkdir", root.create_dir(b"new", &new).map(drop));
    closed("remove", root.remove_file(b"open"));
    closed("attribute", open.node().set_xattr(b"user.a", b"b", SetXattr::default()));
    closed("change", open.node().change(&Changes { uid: Some(1), ..Changes::default() }));
    closed("sync", volume.sync());
    closed("close", volume.close());
    closed("idle", volume.pass_idle_time());
    drop((queue, open, root, volume));
    is_clean_and_sound(&device);
    let seen = Volume::open_device(device.clone(), &OpenOptions::new()).expect("read");
    assert_eq!(seen.metadata("/open").expect("there").mtime, mtime, "when it was written over");
}

/// Whoever closes a volume with requests of its own in flight would wait for itself.
#[test]
fn a_queue_that_nobody_empties_keeps_a_volume_from_being_closed() {
    let device = made();
    let volume = open(&device);
    let file = file(&volume, "file", 4);
    let mut queue = file.queue(4).expect("a queue");
    queue.push_overwrite(0, AlignedBuf::copied(&[2; 4096]), 1).expect("room");
    assert_eq!(volume.close().map_err(|error| error.kind()), Err(ErrorKind::Busy));
    // It can still be used.
    queue.wait(1, |over| assert!(over.result.is_ok())).expect("done");
    file.write_at(&[3; 4096], 1 << 20).expect("written");
    close(&volume, &device);
    is_clean_and_sound(&device);
}

/// Threads that make, write and remove files while the volume is closed: what they were told is there, and the counters
/// are right. Their ends are forced apart elsewhere; here they come as they come.
#[test]
fn a_volume_that_is_closed_beside_those_who_change_it_is_sound() {
    for _ in 0..4 {
        let device = made();
        let volume = open(&device);
        let begun = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..4)
            .map(|nth| {
                let (volume, begun) = (volume.clone(), Arc::clone(&begun));
                thread::spawn(move || {
                    let mut made = 0;
                    let mut make = || -> uxfs::Result<()> {
                        let root = volume.root()?.as_dir()?;
                        let dir =
                            root.create_dir(format!("d{nth}").as_bytes(), &NewNode::default())?.as_dir()?;
                        loop {
                            let file = dir.create_file(format!("{made}").as_bytes(), &NewNode::default())?;
                            made += 1;
                            begun.store(true, Ordering::SeqCst);
                            file.open()?.write_at(&[1; 5000], 0)?;
                            if made % 3 == 0 {
                                dir.remove_file(format!("{}", made - 1).as_bytes())?;
                            }
                        }
                    };
                    let end = make().expect_err("the volume is closed");
                    assert_eq!(end.kind(), ErrorKind::ShutDown, "{end}");
                    made
                })
            })
            .collect();
        while !begun.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        close(&volume, &device);
        let made: Vec<u32> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        drop(volume);
        is_clean_and_sound(&device);
        let seen = Volume::open_device(device.clone(), &OpenOptions::new()).expect("read");
        for (nth, made) in made.iter().enumerate().filter(|(_, made)| **made > 0) {
            let entries = seen.open_dir(format!("/d{nth}")).expect("there").entries().count() as u32;
            assert!(entries.abs_diff(made - made / 3) <= 1, "{entries} of {made}");
        }
    }
}

/// The system says once that what was written is lost. Where a sync of a file was told, the journal went on as if all
/// were in its place.
#[test]
fn a_flush_that_failed_ends_everything_whoever_asked_for_it() {
    for whole in [true, false] {
        let memory = made();
        let faulty = Arc::new(FaultDevice::new(memory.clone(), Vec::new()));
        let volume = open(&faulty);
        let file = file(&volume, "file", 4);
        file.overwrite_at(&[2; 4096], 0).expect("written");
        faulty.add(Fault::fail(Op::Flush, faulty.seen(Op::Flush)));
        let synced = if whole { volume.sync() } else { file.sync() };
        assert_eq!(synced.map_err(|error| error.kind()), Err(ErrorKind::Io));
        let root = volume.root().expect("root").as_dir().expect("a directory");
        let made = root.create_file(b"new", &NewNode::default()).map(drop);
        assert_eq!(made.map_err(|error| error.kind()), Err(ErrorKind::ShutDown));
        assert_eq!(volume.close().map_err(|error| error.kind()), Err(ErrorKind::ShutDown));
        drop((file, root, volume));
        close(&open(&memory), &memory);
        is_clean_and_sound(&memory);
    }
}

/// Files without a name that were still open stayed on the lists of unlinked inodes of a volume that was closed cleanly,
/// where nobody looks for them.
#[test]
fn files_without_a_name_that_are_open_are_gone_when_a_volume_is_closed() {
    let device = made();
    let volume = open(&device);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let before = volume.info().expect("info").free_blocks;
    let removed: Vec<File> = (0..3).map(|nth| file(&volume, &format!("removed {nth}"), 40)).collect();
    for nth in 0..3 {
        root.remove_file(format!("removed {nth}").as_bytes()).expect("removed");
    }
    let mut byte = [0];
    assert_eq!(removed[0].read_at(&mut byte, 0).expect("it is open"), 1);
    close(&volume, &device);
    is_clean_and_sound(&device);
    drop(removed);
    is_clean_and_sound(&device);
    let seen = Volume::open_device(device.clone(), &OpenOptions::new()).expect("read");
    assert!(before - seen.info().expect("info").free_blocks < 40, "what they held is free");
}

/// Files without a name end with a close, and their sizes are 0 then: whoever was about to change one, and found that at a
/// point behind the first look, was told of a range past the end, or that all was done.
#[test]
fn what_is_done_to_files_that_a_close_has_ended_is_refused_for_the_close() {
    type Step = fn(&File, &File) -> uxfs::Result<()>;
    const BLOCK: u64 = 4096;
    let steps: [(&str, Step); 13] = [
        ("exchange", |one, two| one.exchange_range(0, two, 0, Some(BLOCK), ExchangeOptions::new())),
        ("exchange all", |one, two| one.exchange_range(0, two, 0, None, ExchangeOptions::new())),
        ("clone", |one, two| one.clone_range(0, two, 0, BLOCK)),
        ("clone all", |one, two| one.clone_range(0, two, 0, 0)),
        ("dedupe", |one, two| one.dedupe_range(0, two, 0, BLOCK).map(drop)),
        ("copy", |one, two| one.copy_range(0, two, 0, BLOCK).map(drop)),
        ("copy bytes", |one, two| one.copy_range(0, two, 100, BLOCK).map(drop)),
        ("collapse", |one, _| one.collapse_range(0..BLOCK)),
        ("insert", |one, _| one.insert_range(0..BLOCK)),
        ("punch", |one, _| one.punch_hole(0..BLOCK)),
        ("zero", |one, _| one.zero_range(0..BLOCK, true)),
        ("cut", |one, _| one.set_len(0)),
        ("allocate", |one, _| one.allocate(0..BLOCK, true)),
    ];
    let mut wrong = Vec::new();
    for (what, step) in steps {
        let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
        let features = MkfsFeatures::of_kernel("6.18").expect("known");
        mkfs_device(Arc::clone(&memory), &MkfsOptions::new().features(features).small(true), true)
            .expect("made");
        let device = Arc::new(SealDevice::new(memory));
        let volume = open(&device);
        let files = ["one", "two"].map(|name| file(&volume, name, 4));
        let root = volume.root().expect("root").as_dir().expect("a directory");
        for name in ["one", "two"] {
            root.remove_file(name.as_bytes()).expect("removed");
        }
        let (closing, below) = (volume.clone(), Arc::clone(&device));
        let (ends, ended) = mpsc::channel();
        at(CHANGE, move || {
            close(&closing, &below);
            ends.send(()).expect("somebody waits");
        });
        let done = step(&files[0], &files[1]);
        ended.try_recv().expect("the volume was closed in the middle");
        let done = done.map_err(|error| error.kind());
        if done != Err(ErrorKind::ShutDown) {
            wrong.push((what, done));
        }
        drop((files, root, volume));
        is_clean_and_sound(&device);
    }
    assert_eq!(wrong, []);
}

/// A change that came to hold its bytes when writes were over already, and what is staged was being given back, set space
/// aside for copies of shared blocks that nobody gave back any more: it stayed allocated in a volume with a clean log.
#[test]
fn nothing_is_staged_once_a_volume_is_being_closed() {
    type Step = fn(&File) -> uxfs::Result<()>;
    let zero: Step = |file| file.zero_range(2 * 4096..4 * 4096, true);
    let write: Step = |file| file.write_at(&[9; 4 * 4096], 14 * 4096);
    for (what, step) in [("zero", zero), ("write", write)] {
        let memory = made();
        let volume = open(&memory);
        let [one, other, third] = ["one", "other", "third"].map(|name| file(&volume, name, 0));
        one.write_at(&[1; 16 * 4096], 0).expect("written");
        for to in [&other, &third] {
            one.clone_range(0, to, 0, 0).expect("a clone");
        }
        third.write_at(&[2; 10], 0).expect("there is something to give back");
        let (begins, begun) = mpsc::channel();
        let (closes, closing) = mpsc::channel();
        let (ends, ended) = mpsc::channel();
        let changes = {
            let one = one.clone();
            thread::spawn(move || {
                at(CHANGE, move || {
                    begins.send(()).expect("somebody waits");
                    closing.recv_timeout(Duration::from_secs(60)).expect("it is being closed");
                });
                let done = step(&one).map_err(|error| error.kind());
                ends.send(()).expect("somebody waits");
                done
            })
        };
        begun.recv_timeout(Duration::from_secs(60)).expect("it has begun");
        at(COMMITTED, move || {
            closes.send(()).expect("somebody waits");
            ended.recv_timeout(Duration::from_secs(60)).expect("it does not wait for the close");
        });
        close(&volume, &memory);
        assert_eq!(changes.join().expect("no panic"), Err(ErrorKind::ShutDown), "{what}");
        drop((one, other, third, volume));
        is_clean_and_sound(&memory);
    }
}
