//! Files without a name when the volume is closed: the close ends them. What others do to them meanwhile, or behind it, is
//! right or refused for the close; what they give up is counted.
#![forbid(unsafe_code)]

use blockdev::{AlignedBuf, BlockDevice, HoldDevice, MemoryDevice, Op, SealDevice};
use fileio::testing::{COMMITTED, at};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use uxfs::{
    Changes, Dir, ErrorKind, ExchangeOptions, File, MkfsFeatures, MkfsOptions, NewNode, OpenOptions,
    SetXattr, Volume, check_device, mkfs_device,
};

const BYTES: u64 = 40 << 20;
const BLOCK: u64 = 4096;

fn made() -> Arc<SealDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    let features = MkfsFeatures::of_kernel("6.18").expect("known");
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().features(features).small(true), true)
        .expect("a volume");
    Arc::new(SealDevice::new(device))
}

fn open(device: &Arc<impl BlockDevice + 'static>) -> Volume {
    Volume::open_device(device.clone(), &OpenOptions::new().writable(true)).expect("clean")
}

fn root(volume: &Volume) -> Dir {
    volume.root().expect("root").as_dir().expect("a directory")
}

/// A file of this many blocks, in as many extents, each with its number in it, from 1 on.
fn file(volume: &Volume, name: &str, blocks: u8) -> File {
    let file =
        root(volume).create_file(name.as_bytes(), &NewNode::default()).expect("made").open().expect("a file");
    let beside =
        root(volume).create_file(format!("beside {name}").as_bytes(), &NewNode::default()).expect("made");
    let beside = beside.open().expect("a file");
    for block in 0..blocks {
        file.write_at(&[block + 1; BLOCK as usize], u64::from(block) * BLOCK).expect("written");
        beside.write_at(&[0xEE; BLOCK as usize], u64::from(block) * BLOCK).expect("written");
    }
    volume.sync().expect("synced");
    file
}

fn is_clean_and_sound(device: &Arc<SealDevice>) {
    device.assert_kept();
    let report = check_device(device.clone(), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings);
}

fn kind<T>(done: uxfs::Result<T>) -> Result<T, ErrorKind> {
    done.map_err(|error| error.kind())
}

/// The request of a queue that is over first.
fn taken_out(queue: &mut uxfs::Queue) -> Result<usize, ErrorKind> {
    let mut result = None;
    while result.is_none() {
        queue.wait(1, |done| result = Some(kind(done.result))).expect("it waits");
    }
    result.expect("one")
}

/// What was promised to a file's pages came back behind the counters of a clean close: `xfs_repair` found too few free blocks.
#[test]
fn what_a_file_gives_up_during_a_close_is_counted_as_free() {
    let device = made();
    let volume = open(&device);
    let dirty = file(&volume, "dirty", 0).buffered();
    dirty.write_at(&[1; 1 << 20], 0).expect("in memory");
    drop(dirty);
    let (tells, told) = mpsc::channel();
    let closing = volume.clone();
    at("a file is given up", move || {
        thread::spawn(move || tells.send(kind(closing.close())));
        // Until it has looked, or is through.
        thread::sleep(Duration::from_millis(300));
    });
    root(&volume).remove_file(b"dirty").expect("removed");
    let closed =
        told.recv_timeout(Duration::from_secs(60)).expect("the file was given up, and the volume closed");
    assert_eq!(closed, Ok(()));
    drop(volume);
    device.seal();
    is_clean_and_sound(&device);
}

/// Whoever frees a file may need long for it, and the close does what is left.
#[test]
fn a_close_waits_for_nobody_who_frees_a_file() {
    let device = made();
    let volume = open(&device);
    let freed = file(&volume, "freed", 40);
    root(&volume).remove_file(b"freed").expect("removed");
    let (begins, begun) = mpsc::channel();
    let (closes, closed) = mpsc::channel();
    let drops = thread::spawn(move || {
        at("some blocks are freed", move || {
            begins.send(()).expect("somebody waits");
            closed.recv_timeout(Duration::from_secs(60)).expect("the volume is closed meanwhile");
        });
        drop(freed);
    });
    begun.recv_timeout(Duration::from_secs(60)).expect("it is being freed");
    assert_eq!(kind(volume.close()), Ok(()));
    device.seal();
    closes.send(()).expect("somebody waits");
    drops.join().expect("no panic");
    drop(volume);
    is_clean_and_sound(&device);
}

/// There was always a file more that had to be held.
#[test]
fn a_volume_is_closed_beside_threads_that_make_files() {
    for is_named in [true, false] {
        let device = made();
        let volume = open(&device);
        let threads: Vec<_> = (0..12)
            .map(|nth| {
                let root = root(&volume);
                thread::spawn(move || {
                    let new = NewNode::default();
                    for count in 0_u64.. {
                        let name = format!("{nth} {count}");
                        let made = match is_named {
                            true => root.create_file(name.as_bytes(), &new).and_then(|node| node.open()),
                            false => root.create_unnamed(&new),
                        };
                        if let Err(error) = made.and_then(|file| file.write_at(&[1; 400], 0)) {
                            return error.kind();
                        }
                        if is_named && let Err(error) = root.remove_file(name.as_bytes()) {
                            return error.kind();
                        }
                    }
                    ErrorKind::NotFound
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(kind(volume.close()), Ok(()), "{is_named}");
        device.seal();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), ErrorKind::ShutDown, "{is_named}");
        }
        drop(volume);
        is_clean_and_sound(&device);
    }
}

/// Reads across the end of a file gave zeroes for what had been freed, and reads behind it nothing, as at an end.
#[test]
fn a_read_of_a_file_that_a_close_ends_is_right_or_refused() {
    let memory = made();
    let holds = Arc::new(HoldDevice::new(memory.clone()));
    let volume = open(&holds);
    let [direct, queued, cached] = ["direct", "queued", "cached"].map(|name| file(&volume, name, 8));
    let first = |file: &File| file.extents().next().expect("one").expect("a map").physical;
    let places = [first(&direct), first(&queued)];
    let cached = cached.buffered();
    assert_eq!(cached.read_at(&mut [0; 10], 0).expect("read"), 10);
    for name in ["direct", "queued", "cached"] {
        root(&volume).remove_file(name.as_bytes()).expect("removed");
    }
    let mut queue = queued.queue(4).expect("a queue");
    holds.hold(move |op, offset| op == Op::Read && places.contains(&offset));
    let reads = {
        let direct = direct.clone();
        thread::spawn(move || kind(direct.read_at(&mut [0; 8 * BLOCK as usize], 0)))
    };
    holds.wait_until_waiting();
    let (tells, told) = mpsc::channel();
    let pushes = thread::spawn(move || {
        queue.push_read(BLOCK, AlignedBuf::zeroed(4 * BLOCK as usize), 7).expect("there is room");
        tells.send(()).expect("somebody waits");
        let result = taken_out(&mut queue);
        (queue, result)
    });
    told.recv().expect("pushed");
    volume.close().expect("closed");
    memory.seal();
    holds.release();
    let ended = Err(ErrorKind::ShutDown);
    assert_eq!(reads.join().expect("no panic"), ended, "across the close");
    let (mut queue, result) = pushes.join().expect("no panic");
    assert!(result == Ok(4 * BLOCK as usize) || result == ended, "{result:?}");
    for file in [&direct, &direct.buffered(), &cached, &cached.direct()] {
        let mut bytes = [0; 8 * BLOCK as usize];
        match kind(file.read_at(&mut bytes, 0)) {
            Ok(len) => {
                let firsts: Vec<u8> = bytes.chunks(BLOCK as usize).map(|block| block[0]).collect();
                assert_eq!((len, &firsts[..]), (bytes.len(), &[1, 2, 3, 4, 5, 6, 7, 8][..]), "{file:?}");
            }
            refused => assert_eq!(refused, ended, "behind the close"),
        }
    }
    assert_eq!(kind(direct.seek_data(0)), Err(ErrorKind::ShutDown));
    assert_eq!(kind(direct.seek_hole(0)), Err(ErrorKind::ShutDown));
    assert_eq!(direct.extents().next().map(|extent| kind(extent).map(drop)), Some(Err(ErrorKind::ShutDown)));
    queue.push_read(0, AlignedBuf::zeroed(4096), 8).expect("there is room");
    assert_eq!(taken_out(&mut queue), ended);
    drop((queue, direct, queued, cached, volume));
    is_clean_and_sound(&memory);
}

/// They said that the handle was stale, which somebody opens anew.
#[test]
fn changes_of_files_that_a_close_has_ended_are_refused_for_the_close() {
    let device = made();
    let volume = open(&device);
    let (two, node) = (file(&volume, "two", 4), file(&volume, "one", 4).node().clone());
    let protect =
        |on| node.change(&Changes { append_only: Some(on), ..Changes::default() }).expect("changed");
    protect(true);
    let one = volume.open_file("/one").expect("there");
    protect(false);
    root(&volume).remove_file(b"one").expect("removed");
    let made_meanwhile = {
        let closing = volume.clone();
        let (tells, told) = mpsc::channel();
        at(COMMITTED, move || {
            thread::spawn(move || tells.send(kind(closing.close())));
            thread::sleep(Duration::from_millis(300));
        });
        let made = root(&volume).create_unnamed(&NewNode::default());
        assert_eq!(told.recv_timeout(Duration::from_secs(60)).expect("it ends"), Ok(()));
        kind(made.map(drop))
    };
    assert!(matches!(made_meanwhile, Ok(()) | Err(ErrorKind::ShutDown)), "{made_meanwhile:?}");
    device.seal();
    let refused =
        |what: &str, done: uxfs::Result<()>| assert_eq!(kind(done), Err(ErrorKind::ShutDown), "{what}");
    refused("punch", one.punch_hole(0..BLOCK));
    refused("zero", one.zero_range(0..BLOCK, true));
    refused("collapse", one.collapse_range(0..BLOCK));
    refused("insert", one.insert_range(0..BLOCK));
    refused("clone", two.clone_range(0, &one, 0, BLOCK));
    refused("copy", two.copy_range(0, &one, 0, BLOCK).map(drop));
    refused("exchange", one.exchange_range(0, &two, 0, Some(BLOCK), ExchangeOptions::new()));
    refused("write", one.write_at(&[1; 10], 0));
    refused("change", node.change(&Changes { uid: Some(7), ..Changes::default() }));
    refused("attribute", node.set_xattr(b"user.a", b"b", SetXattr::default()));
    refused("capability", node.set_xattr(b"security.capability", &[0; 20], SetXattr::default()));
    refused("remove", node.remove_xattr(b"user.a"));
    drop((one, two, node, volume));
    is_clean_and_sound(&device);
}

/// Who had asked whether the volume was open, and waited for the flush of another, flushed its device behind the close, which
/// had not waited for that flush either.
#[test]
fn no_flush_is_under_way_behind_a_close() {
    let memory = made();
    let holds = Arc::new(HoldDevice::new(memory.clone()));
    let volume = open(&holds);
    let files = ["one", "two"].map(|name| file(&volume, name, 4));
    files.iter().for_each(|file| file.sync().expect("synced"));
    holds.hold_next(|op, _| op == Op::Flush);
    let [first, second] = files.map(|file| move || thread::spawn(move || kind(file.sync_data())));
    let first = first();
    holds.wait_until_waiting();
    let second = second();
    // It has asked, most likely.
    thread::sleep(Duration::from_millis(100));
    let (tells, told) = mpsc::channel();
    let (closing, seals) = (volume.clone(), memory.clone());
    thread::spawn(move || {
        let closed = kind(closing.close());
        seals.seal();
        tells.send(closed)
    });
    assert!(
        told.recv_timeout(Duration::from_millis(300)).is_err(),
        "closed while the device is being flushed"
    );
    holds.release();
    assert_eq!(told.recv_timeout(Duration::from_secs(60)).expect("it ends"), Ok(()));
    assert_eq!(first.join().expect("no panic"), Ok(()));
    let second = second.join().expect("no panic");
    assert!(matches!(second, Ok(()) | Err(ErrorKind::ShutDown)), "{second:?}");
    drop(volume);
    is_clean_and_sound(&memory);
}
