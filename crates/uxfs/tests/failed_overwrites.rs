//! Overwrites that fail on the way: what they have changed has a new time.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Fault, FaultDevice, MemoryDevice, Op};
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
