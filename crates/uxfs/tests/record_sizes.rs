//! The sizes of the log's records. A kernel that recovers reads all of them as the first one says, which is where the tail
//! points to: what has more header blocks, or is longer, is torn to it, and the log ends there.
//!
//! So no record may name a tail with records of another size, nor may ours be such that a kernel's do that which goes on
//! behind them. `sync_order.rs` has the log that begins behind another's records; here one goes on with those of a kernel,
//! whose promises hold the tail while uxfs keeps them, and a kernel with ours.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, Durability, Fate, PowerCuts, Recorder, Rewind};
use common::devices::{bytes_of, copy, holding, log_of, superblock_of};
use common::files::image_of;
use common::{made, mounted, repair_finds_nothing};
use oracles::Mounted;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;
use uxfs::{NewNode, OpenOptions, Volume};
use xfs::recovery::unfinished_chains;
use xfs_format::log::{BLOCK_SIZE, LogIdentity, RecordHeader, checksum};
use zerocopy::IntoBytes;

const PAGE: usize = 4096;
const EXTENTS: u64 = 300;
const THREADS: usize = 8;
/// So often the kernel is asked for a log with something unfinished.
const ATTEMPTS: u64 = 20;

/// What the disk holds amid clones that are made and cut off. The volume lies in one that can clone files, and goes on.
fn amid_clones(dir: &Path, attempt: u64) -> Vec<u8> {
    let host = dir.join("host");
    File::create_new(&host).and_then(|file| file.set_len(1 << 30)).expect("a sparse image");
    assert!(run_quietly(Command::new("mkfs.xfs").arg("-q").arg(&host)));
    let host = Mounted::new(&host, &dir.join("host-mnt"), "loop");
    let image = made(host.dir(), &[]);
    let mount = Mounted::new(&image, &dir.join("mnt"), "loop");
    let source = File::create_new(mount.join("source")).expect("made");
    (0..EXTENTS).for_each(|nth| source.write_all_at(&[7; PAGE], 2 * nth * PAGE as u64).expect("written"));
    source.sync_all().expect("synced");
    let is_over = AtomicBool::new(false);
    let clone = host.join("clone");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mount, source, is_over) = (&mount, &source, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let clone = File::create(mount.join(format!("clone-{thread}"))).expect("made");
                    rustix::fs::ioctl_ficlone(&clone, source).expect("cloned");
                    clone.set_len(0).expect("cut off");
                }
            });
        }
        // Small checkpoints: more often one ends in the midst of a chain.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                rustix::fs::syncfs(&source).expect("synced");
            }
        });
        sleep(Duration::from_millis(200 + 30 * attempt));
        let to = File::create_new(&clone).expect("made");
        rustix::fs::ioctl_ficlone(to, File::open(&image).expect("open")).expect("kept");
        is_over.store(true, Ordering::Relaxed);
    });
    drop(source);
    drop(mount);
    std::fs::read(&clone).expect("read")
}

fn run_quietly(command: &mut Command) -> bool {
    command.output().expect("it runs").status.success()
}

/// What a kernel left unfinished, in memory.
fn left_unfinished() -> Arc<dyn BlockDevice> {
    for attempt in 0..ATTEMPTS {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
        let device = holding(&amid_clones(dir.path(), attempt));
        let chains = unfinished_chains(&*device).expect("the log");
        if chains.iter().any(|chain| !chain.left.is_empty()) {
            return device;
        }
    }
    panic!("no log of {ATTEMPTS} has something unfinished");
}

/// What the records of a volume's log say of it.
fn identity_of(device: &dyn BlockDevice) -> LogIdentity {
    let superblock = superblock_of(device);
    LogIdentity { v5: superblock.is_v5(), uuid: superblock.uuid() }
}

/// Has every record of a log say this size. It needs as many blocks of header as before.
fn say_sizes(device: &dyn BlockDevice, size: u32) {
    let (log, identity) = (log_of(device), identity_of(device));
    let mut bytes = bytes_of(device);
    let log = &mut bytes[log.start as usize..log.end as usize];
    let blocks = log.len() / BLOCK_SIZE;
    for at in 0..blocks {
        let block = |nth: usize| (at + nth) % blocks * BLOCK_SIZE..((at + nth) % blocks + 1) * BLOCK_SIZE;
        let Ok(header) = RecordHeader::check(&log[block(0)], &identity) else { continue };
        let (mut header, length) = (*header, header.total_blocks() as usize);
        let record = (0..length).flat_map(|nth| log[block(nth)].to_vec()).collect::<Vec<_>>();
        header.size.set(size);
        assert_eq!(header.total_blocks() as usize, length, "the record's blocks");
        header.crc.set(checksum(&header, &record).expect("a whole record"));
        log[block(0)][..size_of::<RecordHeader>()].copy_from_slice(header.as_bytes());
    }
    device.write(0, &bytes, Durability::Volatile).expect("written");
}

/// Records of uxfs have to be like those that tell of what is unfinished. If they cannot be, that is told before anything
/// is written, also by recovery.
#[test]
#[ignore = "needs root and xfsprogs"]
fn an_unfinished_log_whose_records_have_an_impossible_size_is_not_written() {
    let device = left_unfinished();
    let possible = copy(&*device);
    say_sizes(&*possible, 16 << 10);
    drop(
        Volume::open_device(possible, &OpenOptions::new().writable(true))
            .expect("a size that a kernel can have"),
    );

    say_sizes(&*device, 8 << 10);
    let before = bytes_of(&*device);
    let refused = Volume::open_device(Arc::clone(&device), &OpenOptions::new().writable(true)).unwrap_err();
    assert!(refused.to_string().contains("size of a record"), "{refused}");
    assert!(bytes_of(&*device) == before, "something was written");
    drop(Volume::open_device(device, &OpenOptions::new()).expect("it can be read"));
}

/// LSN, tail and size of the record that begins here.
fn header(bytes: &[u8], identity: &LogIdentity) -> Option<(u64, u64, u32)> {
    let header = RecordHeader::check(bytes, identity).ok()?;
    Some((header.lsn().0, header.tail_lsn().0, header.size.get()))
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_kernel_reads_what_uxfs_adds_to_its_unfinished_log() {
    let device = left_unfinished();
    let before = copy(&*device);
    let identity = identity_of(&*before);
    let recorder = Arc::new(Recorder::new(Arc::clone(&device)));
    let volume =
        Volume::open_device(recorder.clone(), &OpenOptions::new().writable(true)).expect("recovered");
    let recovered = recorder.recording().end();
    volume.root().unwrap().as_dir().unwrap().create_file(b"first", &NewNode::default()).expect("made");
    volume.sync().expect("synced");
    let (synced, recording) = (recorder.moment(), recorder.recording());
    drop(volume);

    let (mut sizes, log) = (HashMap::new(), log_of(&*before));
    let mut named_old = 0;
    // Several may come with one write.
    let blocks = recording.writes().iter().flat_map(|write| {
        let blocks = write.data.chunks_exact(512).enumerate();
        blocks.map(move |(nth, block)| (write.offset + nth as u64 * 512, block))
    });
    for (offset, block) in blocks.filter(|(offset, _)| log.contains(offset)) {
        let Some((lsn, tail, size)) = header(block, &identity) else { continue };
        if log.start + (lsn & 0xffff_ffff) * 512 != offset {
            continue;
        }
        sizes.insert(lsn, size);
        let of_tail = sizes.get(&tail).copied().unwrap_or_else(|| {
            named_old += 1;
            let mut block = [0; 512];
            before.read(log.start + (tail & 0xffff_ffff) * 512, &mut block).expect("read");
            let (lsn, _, size) = header(&block, &identity).expect("a record where the tail is");
            assert_eq!(lsn, tail, "the record where the tail is");
            size
        });
        assert_eq!(size, of_tail, "a record of {size} bytes at {lsn:#x} names a tail of others at {tail:#x}");
    }
    assert!(named_old > 0, "promises of the kernel hold the tail");

    // And a kernel says so: also where uxfs was at it, and what was synced is there.
    let rewind = Arc::new(Rewind::new(before));
    let mut power = PowerCuts::new(&recording, Arc::clone(&rewind));
    for cut in recording.cuts().into_iter().chain([recovered, synced]).collect::<BTreeSet<_>>() {
        power.advance(cut).expect("written");
        power.make(|_| Fate::Applied).expect("written");
        let (_dir, image) = image_of(&*rewind);
        let is_there = mounted(&image, |dir| dir.join("first").exists());
        assert!(is_there || cut < synced, "cut {cut} of {synced}");
        repair_finds_nothing(&image);
        rewind.rewind().expect("taken back");
    }
}

/// A kernel that recovers and goes on names the last record that it found, and its own are as it is told to have them
/// (`logbsize`): so ours are as those of whoever used the log before.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_kernel_that_goes_on_behind_uxfs_is_understood() {
    for options in ["loop", "loop,logbsize=256k"] {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a place in memory");
        let image = made(dir.path(), &[]);
        let mount = |image: &Path| Mounted::new(image, &dir.path().join("mnt"), options);
        drop(mount(&image));
        let volume = Volume::open(&image, &OpenOptions::new().writable(true)).expect("open");
        for nth in 0..1000 {
            let root = volume.root().unwrap().as_dir().unwrap();
            root.create_file(format!("ours-{nth}").as_bytes(), &NewNode::default()).expect("made");
        }
        volume.sync().expect("synced");
        let dirty = dir.path().join("dirty");
        std::fs::copy(&image, &dirty).expect("copied");
        drop(volume);

        let mounted = mount(&dirty);
        for nth in 0..1000 {
            std::fs::write(mounted.join(format!("theirs-{nth}")), "content").expect("written");
        }
        rustix::fs::syncfs(File::open(mounted.dir()).expect("open")).expect("synced");
        assert!(run_quietly(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(mounted.dir())));
        drop(mounted);
        let mounted = mount(&dirty);
        for nth in [0, 999] {
            assert!(mounted.join(format!("ours-{nth}")).exists(), "{options}");
            let content = std::fs::read(mounted.join(format!("theirs-{nth}"))).expect("it was synced");
            assert_eq!(content, b"content", "{options}");
        }
        drop(mounted);
        repair_finds_nothing(&dirty);
    }
}
