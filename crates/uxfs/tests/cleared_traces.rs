//! Crashes of a kernel that wrote over the tail of its log, and a second crash as soon as uxfs has recovered the first and
//! cleared what it left. The kernel recovers that as well.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Fate, Recorder, Recording};
use common::devices::{copy, holding, log_of, superblock_of};
use common::files::{image_of, said};
use common::logs::{Ring, Tail, with_tail};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use uxfs::{ErrorKind, NewNode, NewUuid, OpenOptions, Rename, Volume};
use xfs_format::log::{BLOCK_SIZE, OpHeader, RecordHeader, is_cleared, pack};
use zerocopy::IntoBytes;

fn writable() -> OpenOptions {
    OpenOptions::new().writable(true)
}

/// How many files a kernel finds in the root, unless it refuses the volume.
fn kernel_finds(device: &dyn BlockDevice) -> Option<usize> {
    let (_dir, image) = image_of(device);
    let at = tempfile::tempdir().expect("a mount point");
    oracles::mount(&image, at.path(), "loop").ok()?;
    let count = std::fs::read_dir(at.path()).expect("a directory").count();
    oracles::umount(at.path()).expect("unmounted");
    said(Command::new("xfs_repair").arg("-n").arg(&image));
    Some(count)
}

/// What a recovery by uxfs does.
fn recovery_of(device: &Arc<dyn BlockDevice>) -> Recording {
    let recorder = Arc::new(Recorder::new(copy(&**device)));
    let volume = Volume::open_device(recorder.clone(), &writable()).expect("recovered");
    let recording = recorder.recording();
    drop(volume);
    recording
}

/// The device as a recovery that is cut then leaves it.
fn cut(device: &Arc<dyn BlockDevice>, recovery: &Recording, moment: u64) -> Arc<dyn BlockDevice> {
    let to = copy(&**device);
    recovery.rebuild(moment, &*to, |_| Fate::Applied).expect("written");
    to
}

/// A record of so many blocks that has its place there, with nothing in it that anybody needs.
fn record(ring: &Ring, at: u64, blocks: u64, size: u32) -> Vec<u8> {
    let mut header = RecordHeader::new(ring.uuid, ring.lsn(at), ring.lsn(ring.head()), size);
    header.num_logops.set(1);
    header.len.set((blocks as u32 - size.div_ceil(32 << 10)) * BLOCK_SIZE as u32);
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    bytes[..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
    let data = header.header_blocks() as usize * BLOCK_SIZE;
    let op = OpHeader::transaction(1, 0);
    bytes[data..data + size_of::<OpHeader>()].copy_from_slice(op.as_bytes());
    let room = ring.blocks - at % ring.blocks;
    pack(&mut bytes, (room < blocks).then_some(room as usize)).expect("packed");
    bytes
}

/// Writes what was on its way behind the head at a crash, up to `end`. The first block never came to the device.
fn write_behind_head(device: &dyn BlockDevice, end: u64, record_blocks: u64, size: u32) {
    let ring = Ring::of(device);
    let head = ring.head();
    let mut at = head;
    while at < end {
        let bytes = record(&ring, at, record_blocks, size);
        for (at, block) in (at..end).zip(bytes.chunks_exact(BLOCK_SIZE)).filter(|(at, _)| *at != head) {
            ring.write(device, at, block);
        }
        at += record_blocks;
    }
    assert_eq!(Ring::of(device).ends.head, ring.ends.head, "the head is where it was");
}

/// Crashes a log with such a tail, all of which is written back. `over` says how many blocks of the tail are overwritten.
/// Then uxfs recovers it, and the power goes when it has cleared what was left.
fn crashed_twice(wanted: impl Fn(&Tail) -> bool, over: impl Fn(&Ring, u64) -> u64) {
    let (device, tail) = with_tail(wanted);
    let recovery = recovery_of(&device);
    let first = recovery.flushes().iter().map(|flush| flush.started).min().expect("a flush");
    let device = cut(&device, &recovery, first);
    let ring = Ring::of(&*device);
    let over = over(&ring, tail);
    write_behind_head(&*device, tail + ring.blocks + over, 64, 32 << 10);
    let found = kernel_finds(&*device).expect("the kernel recovers the first crash");

    let recovery = recovery_of(&device);
    let log = log_of(&*device);
    let in_log = |offset| log.contains(&offset);
    let clears =
        recovery.writes().iter().find(|write| in_log(write.offset)).expect("traces are cleared").started;
    let flush = recovery.flushes().iter().find(|flush| flush.started > clears).expect("a flush");
    let device = cut(&device, &recovery, flush.completed.expect("it ended") + 1);
    let behind_head = ring.read(&*device, ring.head(), 1);
    assert!(is_cleared(&behind_head, ring.lsn(ring.head() - ring.blocks)), "or nothing is tested");
    assert_eq!(kernel_finds(&*device), Some(found), "the kernel recovers the second crash");
    Volume::open_device(device, &writable()).expect("so does uxfs").close().expect("closed");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_tail_lies_in_the_middle() {
    crashed_twice(
        |tail| tail.at > 600 && tail.at + tail.len + 100 < tail.blocks && tail.room < 400,
        |_, _| 1,
    );
}

/// Regression: the first block of the log was cleared with a header. A kernel that goes past such ends there.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_tail_goes_round_the_end() {
    crashed_twice(|tail| tail.at + tail.len > tail.blocks && tail.room < 400, |_, _| 1);
}

/// Regression: all up to the next whole record was cleared with headers. A kernel goes past no more of them than eight
/// buffers have blocks.
#[test]
#[ignore = "needs root and xfsprogs"]
fn eight_full_buffers_reach_into_the_middle_of_a_record() {
    let in_the_middle = |tail: &Tail| tail.at > 600 && tail.at + tail.len + 100 < tail.blocks;
    crashed_twice(
        |tail| in_the_middle(tail) && tail.room < 511 && tail.room + tail.len > 513,
        |ring, tail| ring.head() + 512 - tail - ring.blocks,
    );
}

/// A kernel with buffers of 256 KiB fills a log of 3.4 MiB, and is shut down.
fn small_log(dir: &Path) -> Arc<dyn BlockDevice> {
    let script = "cd \"$0\"; export TEST_DIR=x TEST_DEV=x QA_CHECK_FS=x; truncate -s 64M image; mkdir m
        mkfs.xfs -q -m reflink=0,rmapbt=0,finobt=0,bigtime=0 -i sparse=0 -l size=860b image
        mount -o loop,logbsize=256k image m; for n in $(seq 40); do echo > m/f$n; done
        for k in $(seq 60); do
            for n in $(seq 40); do mv m/f$n m/g$n; mv m/g$n m/f$n; done; sync -f m
        done
        for n in $(seq 40); do mv m/f$n m/g$n; done; xfs_io -x -c 'shutdown -f' m; umount m";
    said(Command::new("bash").args(["-ec", script]).arg(dir));
    holding(&std::fs::read(dir.join("image")).expect("read"))
}

/// Regression: no more than half of a log was cleared. Once the head came to what was left, nothing after it was found.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_eight_large_buffers_left_in_a_small_log_is_in_nobodys_way() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place");
    let device = small_log(dir.path());
    let ring = Ring::of(&*device);
    write_behind_head(&*device, ring.head() + 8 * 512, 512, 256 << 10);
    let volume = Volume::open_device(Arc::clone(&device), &writable()).expect("recovered");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    root.create_file(b"0", &NewNode::default()).expect("made");
    for nth in 0..420_u32 {
        let (from, to) = (nth.to_string(), (nth + 1).to_string());
        root.rename(from.as_bytes(), &root, to.as_bytes(), Rename::Replace).expect("renamed");
        volume.sync().expect("synced");
        if nth >= 240 && nth % 4 == 0 {
            // The power goes with nothing on its way.
            let left =
                Volume::open_device(copy(&*device), &writable()).unwrap_or_else(|e| panic!("{nth}: {e}"));
            left.lookup(format!("/{to}")).unwrap_or_else(|error| panic!("{nth}: {error}"));
        }
    }
}

/// A volume of a kernel that unmounted it.
fn unmounted(dir: &Path) -> std::path::PathBuf {
    let script = "cd \"$0\"; truncate -s 400M image; mkdir m; mkfs.xfs -q image; mount -o loop image m
        for n in 1 2 3; do mkdir m/d$n; sync -f m; done; umount m";
    said(Command::new("bash").args(["-ec", script]).arg(dir));
    dir.join("image")
}

fn everybody_mounts(image: &Path) {
    Volume::open(image, &OpenOptions::new()).expect("uxfs reads it");
    let device = holding(&std::fs::read(image).expect("read"));
    assert!(kernel_finds(&*device).is_some(), "the kernel refuses it");
}

/// Regression: a kernel's record of an unmount names the one before it as the tail, and that has the old UUID.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_a_kernel_unmounted_gets_another_uuid() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place");
    let image = unmounted(dir.path());
    uxfs::set_uuid(&image, NewUuid::Random, &writable()).expect("set");
    everybody_mounts(&image);
}

/// Regression: neither uxfs nor a kernel opened it. The last whole record had the new UUID, and a header behind it the old.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_log_that_was_zeroed_is_ended_well_before_its_uuid_changes() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a place");
    let image = unmounted(dir.path());
    let script = "cd \"$0\"; mount -o loop image m; mkdir m/d4; xfs_io -x -c 'shutdown -f' m; umount m
        xfs_repair -L image 2>&1";
    said(Command::new("bash").args(["-ec", script]).arg(dir.path()));
    let before = std::fs::read(&image).expect("read");
    let refused = uxfs::set_uuid(&image, NewUuid::Random, &writable()).expect_err("the log ends badly");
    assert_eq!(refused.kind(), ErrorKind::DirtyLog, "{refused}");
    assert!(refused.to_string().contains("left behind the end of the log"), "{refused}");
    assert!(std::fs::read(&image).expect("read") == before, "it was changed");
    let cleared = || {
        let volume = Volume::open(&image, &writable()).expect("opened");
        volume.close().map(|()| volume.log_traces_cleared()).expect("closed")
    };
    assert_eq!([cleared(), cleared()], [true, false]);
    let superblock = superblock_of(&*holding(&before));
    let uuid = uxfs::set_uuid(&image, NewUuid::Random, &writable()).expect("set");
    assert_ne!(uuid.into_bytes(), superblock.uuid().0);
    everybody_mounts(&image);
}
