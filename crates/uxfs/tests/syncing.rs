//! What `Volume::sync` makes durable: all that was changed before, whatever knew of it.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, Durability, Fault, FaultDevice, MemoryDevice, Op};
use std::sync::Arc;
use uxfs::{Changes, MkfsOptions, NewNode, OpenOptions, Timestamp, Volume, mkfs_device};

const BYTES: u64 = 40 << 20;

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"))
}

/// What a device holds, on another: as a crash would leave it.
fn crashed(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let image = memory();
    let mut bytes = vec![0; 1 << 20];
    for at in (0..BYTES).step_by(bytes.len()) {
        device.read(at, &mut bytes).expect("read");
        image.write(at, &bytes, Durability::Volatile).expect("written");
    }
    image
}

/// When a file was last written over was known in memory alone until it was closed, or made durable by itself: a crash
/// behind a sync of the whole volume had the new content and the old time.
#[test]
fn a_sync_tells_when_files_were_written_over() {
    let device = memory();
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let past = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };
    let make = |name: &[u8]| {
        let file = root.create_file(name, &NewNode::default()).expect("made").open().expect("a file");
        file.write_at(&[1; 8192], 0).expect("written");
        let changes = Changes { mtime: Some(past), ctime: Some(past), ..Changes::default() };
        file.node().change(&changes).expect("changed");
        file
    };
    let files = [make(b"a"), make(b"b"), make(b"gone")];
    volume.sync().expect("synced");
    files.iter().for_each(|file| file.overwrite_at(&[2; 4096], 0).expect("written"));
    // The time of what has no name any more is nobody's business.
    root.remove_file(b"gone").expect("removed");
    volume.sync().expect("synced");
    let seen = Volume::open_device(crashed(&device), &OpenOptions::new()).expect("it is replayed");
    for (name, file) in ["/a", "/b"].iter().zip(&files) {
        let (found, known) = (seen.metadata(name).expect("there"), file.metadata());
        assert_ne!(known.mtime, past);
        assert_eq!((found.mtime, found.ctime), (known.mtime, known.ctime), "{name}");
        let mut bytes = [0; 4096];
        seen.open_file(name).expect("there").read_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, [2; 4096]);
    }
}

/// Some bytes of one file cannot be written back. A sync says so, and makes all the rest durable.
#[test]
fn a_sync_that_fails_for_one_file_syncs_the_others() {
    let memory = memory();
    mkfs_device(Arc::clone(&memory), &MkfsOptions::new().small(true), true).expect("a volume");
    let fault = Arc::new(FaultDevice::new(Arc::clone(&memory), vec![]));
    let volume = Volume::open_device(fault.clone(), &OpenOptions::new().writable(true)).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let make = |name: &[u8], byte| {
        let file = root.create_file(name, &NewNode::default()).expect("made").open().expect("a file");
        file.buffered().write_at(&[byte; 8192], 0).expect("in memory");
        file
    };
    let (bad, good) = (make(b"bad", 1), make(b"good", 2));
    root.create_file(b"empty", &NewNode::default()).expect("made");
    let flushes = fault.seen(Op::Flush);
    fault.add(Fault::fail(Op::Write, fault.seen(Op::Write)));
    let said = volume.sync().expect_err("some of it is lost").to_string();
    assert!(said.contains("writing back"), "{said}");
    assert!(fault.seen(Op::Flush) > flushes);
    let left = crashed(&memory);
    volume.sync().expect("it was told");
    drop((bad, good, root));
    drop(volume);
    let seen = Volume::open_device(left, &OpenOptions::new()).expect("it is replayed");
    let content = |name: &str| {
        let mut bytes = [0; 8192];
        let file = seen.open_file(name).expect("there");
        let read = file.read_at(&mut bytes, 0).expect("read");
        bytes[..read].to_vec()
    };
    assert!(content("/good") == [2; 8192] && !content("/bad").contains(&1));
    assert_eq!(seen.metadata("/empty").expect("there").size, 0);
}
