//! Capabilities of a program and changes of its content: those that were given before a change are gone behind it, and they
//! are given to what the content is then.
#![forbid(unsafe_code)]

use blockdev::{AlignedBuf, BlockDevice, HoldDevice, MemoryDevice, Op};
use fileio::testing::{CHANGE, at, before_next_hold};
use std::sync::{Arc, mpsc};
use std::thread;
use uxfs::{ErrorKind, File, MkfsOptions, NewNode, Node, OpenOptions, SetXattr, Volume, mkfs_device};

const NAME: &[u8] = b"security.capability";

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("clean")
}

fn made() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(40 << 20).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    device
}

/// A file of four blocks, which is known to hold no capabilities.
fn file(volume: &Volume, name: &str) -> File {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let file = root.create_file(name.as_bytes(), &NewNode::default()).expect("made").open().expect("a file");
    file.write_at(&[1; 16384], 0).expect("written");
    file
}

fn give(node: &Node) -> uxfs::Result<()> {
    let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    node.set_xattr(NAME, &value, SetXattr::Either)
}

fn has_some(node: &Node) -> bool {
    node.xattr(NAME).expect("read").is_some()
}

fn overwrite_queued(file: &File) -> uxfs::Result<()> {
    let mut queue = file.queue(1)?;
    queue.push_overwrite(0, AlignedBuf::copied(&[2; 4096]), 1)?;
    let mut result = Ok(0);
    queue.wait(1, |over| result = over.result)?;
    result.map(drop)
}

/// A change asked for capabilities before it held the bytes. Who gave the file some in between found them still there when
/// the content was another.
#[test]
fn a_change_that_waits_for_its_bytes_takes_off_what_was_given_meanwhile() {
    type Step = fn(&File) -> uxfs::Result<()>;
    // What it does, and how many bytes it holds before those that count.
    let steps: [(&str, usize, Step); 14] = [
        ("overwrite", 0, |file| file.overwrite_at(&[2; 4096], 0)),
        ("overwrite part of a sector", 0, |file| file.overwrite_at(&[2; 100], 50)),
        ("overwrite in a queue", 0, overwrite_queued),
        ("write behind the end", 0, |file| file.write_at(&[2; 4096], 1 << 20)),
        ("write into a hole", 0, |file| file.write_at(&[2; 4096], 4096)),
        ("write where nothing was written", 0, |file| file.write_at(&[2; 4096], 8192)),
        ("append", 0, |file| file.append_at(&[2; 4096], 1 << 20)),
        ("cut", 0, |file| file.set_len(10_000)),
        ("grow", 1, |file| file.set_len(1 << 20)),
        ("allocate", 0, |file| file.allocate(0..1 << 20, true)),
        ("punch", 0, |file| file.punch_hole(0..4096)),
        ("zero", 0, |file| file.zero_range(0..4096, false)),
        ("collapse", 0, |file| file.collapse_range(0..4096)),
        ("insert", 0, |file| file.insert_range(0..4096)),
    ];
    let volume = open(made());
    for (what, others, step) in steps {
        let file = file(&volume, what);
        file.punch_hole(4096..12288).expect("a hole");
        file.allocate(8192..12288, true).expect("set aside");
        let node = file.node().clone();
        (0..others).for_each(|_| at(CHANGE, || ()));
        let (gives, given) = mpsc::channel();
        at(CHANGE, move || {
            give(&node).expect("nobody writes");
            gives.send(has_some(&node)).expect("somebody waits");
        });
        step(&file).expect("done");
        assert_eq!(given.try_recv(), Ok(true), "{what}");
        assert!(!has_some(file.node()), "{what}");
    }
}

/// An overwrite that was under way came to an end behind the look at what got the capabilities.
#[test]
fn capabilities_wait_for_what_is_being_written() {
    let holds = Arc::new(HoldDevice::new(made()));
    let volume = open(holds.clone());
    let file = file(&volume, "program");
    let place = file.extents().next().expect("an extent").expect("a map").physical;
    holds.hold(move |op, offset| op == Op::Write && offset == place);
    let writes = {
        let file = file.clone();
        thread::spawn(move || file.overwrite_at(&[2; 4096], 0))
    };
    holds.wait_until_waiting();
    let (begins, begun) = mpsc::channel();
    let gives = {
        let node = file.node().clone();
        thread::spawn(move || {
            before_next_hold(move || begins.send(()).expect("somebody waits"));
            give(&node)
        })
    };
    begun.recv().expect("it waits for the file");
    assert!(!has_some(file.node()));
    holds.release();
    writes.join().expect("no panic").expect("written");
    gives.join().expect("no panic").expect("given");
    assert!(has_some(file.node()));
    file.overwrite_at(&[3; 4096], 0).expect("written");
    assert!(!has_some(file.node()));
}

/// Whoever gives some with overwrites of its own in flight would wait for itself.
#[test]
fn a_queue_that_nobody_empties_keeps_a_file_from_getting_capabilities() {
    let volume = open(made());
    let file = file(&volume, "program");
    let mut queue = file.queue(1).expect("a queue");
    queue.push_overwrite(0, AlignedBuf::copied(&[2; 4096]), 1).expect("room");
    assert_eq!(give(file.node()).map_err(|error| error.kind()), Err(ErrorKind::Busy));
    assert!(!has_some(file.node()));
    queue.wait(1, |over| assert!(over.result.is_ok())).expect("done");
    give(file.node()).expect("given");
    assert!(has_some(file.node()));
    overwrite_queued(&file).expect("written");
    assert!(!has_some(file.node()));
}
