//! Overwrites that fail on the way: what they have changed has a new time.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{
    BlockDevice, Completion, DeviceError, Durability, Fault, FaultDevice, IoQueue, Layer, MemoryDevice, Op,
};
use common::files::new_file;
use std::sync::Arc;
use uxfs::{AlignedBuf, Changes, File, MkfsOptions, OpenOptions, Result, Timestamp, Volume, mkfs_device};

const BLOCK: u64 = 4096;
const ALL: usize = 3 * BLOCK as usize;
const PAST: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };

/// Of the middle block of the file that is written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Middle {
    Elsewhere,
    Shared,
    Hole,
}

fn with(middle: Middle) -> (Arc<FaultDevice>, Volume, File) {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(48 << 20).expect("memory"));
    mkfs_device(Arc::clone(&memory), &MkfsOptions::new().small(true), true).expect("a volume");
    let fault = Arc::new(FaultDevice::new(memory, vec![]));
    let volume = Volume::open_device(fault.clone(), &OpenOptions::new().writable(true)).expect("it opens");
    let (file, other) = (new_file(&volume, "file"), new_file(&volume, "other"));
    file.write_at(&[1; ALL], 0).expect("written");
    other.write_at(&[1; BLOCK as usize], 0).expect("written");
    match middle {
        Middle::Shared => other.clone_range(0, &file, BLOCK, BLOCK).expect("shared"),
        Middle::Hole => file.punch_hole(BLOCK..2 * BLOCK).expect("punched"),
        Middle::Elsewhere => {
            file.punch_hole(BLOCK..2 * BLOCK).expect("punched");
            other.write_at(&vec![1; 1 << 20], 0).expect("written");
            file.write_at(&[1; BLOCK as usize], BLOCK).expect("written");
            assert_eq!(file.extents().count(), 3);
        }
    }
    volume.sync().expect("synced");
    (fault, volume, file)
}

fn queued(file: &File) -> Result<()> {
    let mut queue = file.queue(4)?;
    let mut buf = AlignedBuf::zeroed(ALL);
    buf.fill(2);
    queue.push_overwrite(0, buf, 0)?;
    let mut done = Ok(());
    queue.wait(1, |over| done = over.result.map(drop))?;
    done
}

#[test]
fn what_a_failed_overwrite_has_changed_has_a_new_time() {
    use Middle::{Elsewhere, Hole, Shared};
    type Write = fn(&File) -> Result<()>;
    let ways: [(&str, Write, &[Middle]); 4] = [
        ("an overwrite", |file| file.overwrite_at(&[2; ALL], 0), &[Elsewhere, Shared]),
        ("a write", |file| file.write_at(&[2; ALL], 0), &[Elsewhere, Shared, Hole]),
        ("a queue", queued, &[Elsewhere, Shared]),
        (
            "beside pages",
            |file| {
                file.buffered().read_at(&mut [0; ALL], 0)?;
                file.write_at(&[2; ALL], 0)
            },
            &[Elsewhere, Shared, Hole],
        ),
    ];
    let mut lost = Vec::new();
    for (way, write, middles) in ways {
        for &middle in middles {
            let (fault, volume, file) = with(middle);
            let changes = Changes { mtime: Some(PAST), ctime: Some(PAST), ..Changes::default() };
            file.node().change(&changes).expect("changed");
            volume.sync().expect("synced");
            fault.add(Fault::fail(Op::Write, fault.seen(Op::Write) + 1));
            let written = write(&file);
            let mut first = [0; BLOCK as usize];
            file.read_at(&mut first, 0).expect("read");
            assert!(written.is_err() && first[0] == 2, "{way}, {middle:?}: or nothing is tested");
            let shown = file.metadata();
            file.sync().expect("synced");
            let logged = file.metadata();
            if [shown.mtime, shown.ctime, logged.mtime, logged.ctime].contains(&PAST) {
                lost.push((way, middle));
            }
        }
    }
    assert!(lost.is_empty(), "the old time: {lost:?}");
}

/// What is refused before anything is written has changed nothing.
#[test]
fn a_refused_overwrite_changes_no_time() {
    let (_fault, volume, file) = with(Middle::Hole);
    let changes = Changes { mtime: Some(PAST), ..Changes::default() };
    file.node().change(&changes).expect("changed");
    volume.sync().expect("synced");
    file.overwrite_at(&[2; ALL], 0).expect_err("a hole");
    queued(&file).expect_err("a hole");
    file.overwrite_at(&[2; ALL], BLOCK * 2).expect_err("the end");
    assert_eq!(file.metadata().mtime, PAST);
}

/// Its queues lose what was begun: they do it and fail to say so.
#[derive(Debug)]
struct Losing(Arc<dyn BlockDevice>);

impl Layer for Losing {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.0
    }

    fn pass_queue(self: Arc<Self>, depth: u32) -> std::result::Result<Box<dyn IoQueue>, DeviceError> {
        let below = Arc::clone(&self.0).queue(depth)?;
        Ok(Box::new(LosingQueue { below, lost: 0 }))
    }
}

struct LosingQueue {
    below: Box<dyn IoQueue>,
    lost: u32,
}

impl IoQueue for LosingQueue {
    fn depth(&self) -> u32 {
        self.below.depth()
    }

    fn in_flight(&self) -> u32 {
        self.below.in_flight() + self.lost
    }

    fn push_read(&mut self, at: u64, buf: AlignedBuf, tag: u64) -> std::result::Result<(), DeviceError> {
        self.below.push_read(at, buf, tag)
    }

    fn push_write(
        &mut self,
        at: u64,
        buf: AlignedBuf,
        durability: Durability,
        tag: u64,
    ) -> std::result::Result<(), DeviceError> {
        self.below.push_write(at, buf, durability, tag)
    }

    fn submit(&mut self) -> std::result::Result<(), DeviceError> {
        self.below.submit()
    }

    fn wait(&mut self, min: u32, _: &mut dyn FnMut(Completion)) -> std::result::Result<u32, DeviceError> {
        self.lost += self.below.wait(min, &mut |_| ())?;
        let source = std::io::Error::other("lost");
        Err(DeviceError::Io { op: "wait", offset: 0, len: 0, source })
    }
}

/// What a queue has begun has changed content, even if nobody hears of its end.
#[test]
fn a_queue_that_is_dropped_midway_leaves_a_new_time() {
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(48 << 20).expect("memory"));
    mkfs_device(Arc::clone(&memory), &MkfsOptions::new().small(true), true).expect("a volume");
    let first =
        Volume::open_device(Arc::clone(&memory), &OpenOptions::new().writable(true)).expect("it opens");
    let file = new_file(&first, "file");
    file.write_at(&[1; ALL], 0).expect("written");
    let changes = Changes { mtime: Some(PAST), ctime: Some(PAST), ..Changes::default() };
    file.node().change(&changes).expect("changed");
    drop(file);
    first.close().expect("closed");
    let losing = Arc::new(Losing(memory));
    let volume = Volume::open_device(losing, &OpenOptions::new().writable(true)).expect("it opens");
    let file = volume.open_file("/file").expect("a file");
    let mut queue = file.queue(4).expect("a queue");
    let mut buf = AlignedBuf::zeroed(ALL);
    buf.fill(2);
    queue.push_overwrite(0, buf, 0).expect("begun");
    queue.wait(1, |_| ()).expect_err("lost");
    assert_eq!(file.metadata().mtime, PAST, "or nothing is tested");
    drop(queue);
    assert_ne!(file.metadata().mtime, PAST);
    // The bytes stay held, so nobody could close the volume.
    std::mem::forget((file, volume));
}
