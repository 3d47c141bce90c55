//! Label, UUID, size and features of a volume change in the midst of other work, and of power cuts at every write.
#![forbid(unsafe_code)]

#[allow(
    dead_code,
    unused_imports,
    reason = "volumes here are made by another mkfs.xfs, with what it has on today"
)]
mod common;

use blockdev::{
    BlockDevice, DeviceError, Durability, Fate, FileDevice, FileOptions, HoldDevice, Layer, MemoryDevice, Op,
    PowerCuts, Recorder, Rewind,
};
use common::{mounted, open, repair_finds_nothing};
use oracles::xfsprogs::Release;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use uxfs::{ErrorKind, MkfsOptions, NewNode, OpenOptions, Volume, VolumeInfo, check_device, mkfs_device};
use xfs::alter::{UuidChange, set_uuid};
use xfs::upgrade::{Upgrade, upgrade};

const MIB: u64 = 1 << 20;

fn opened(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).expect("opened")
}

/// What a volume says of itself in which the alterations of these tests show.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Said {
    label: Vec<u8>,
    uuid: String,
    size: (u64, u32),
    features: Vec<String>,
}

impl Said {
    fn of(info: VolumeInfo) -> Self {
        let VolumeInfo { label, uuid, blocks, ag_count, features, .. } = info;
        Self { label, uuid, size: (blocks, ag_count), features }
    }
}

/// A volume with a file in each of some directories, in an image that goes on behind it. Its groups have 128 MiB.
fn base(dir: &Path, more: &[&str]) -> PathBuf {
    let image = dir.join("volume.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(512 * MIB)).expect("a sparse image");
    run(Release::Unstable.tool("mkfs.xfs").expect("installed").args(["-q", "-f"]).args(more).arg(&image));
    let volume = open(&image);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for n in 0..6 {
        let made = root.create_dir(format!("d{n}").as_bytes(), &NewNode::default()).expect("made");
        let file = made.as_dir().expect("one").create_file(b"file", &NewNode::default()).expect("made");
        file.open().expect("opened").write_at(&[n; 20_000], 0).expect("written");
    }
    volume.close().expect("closed");
    drop((root, volume));
    std::fs::File::options().write(true).open(&image).expect("there").set_len(700 * MIB).expect("longer");
    image
}

/// Cuts the power at each write of `alter`, which begins with a closed volume, and at the end of each: what was in doubt is
/// lost, kept, or torn. The kernel mounts what is left, uxfs recovers it, and both witnesses find it sound; it is as it was
/// before, or as it is then.
fn cut_at_each_write(dir: &Path, image: &Path, alter: impl FnOnce(Arc<dyn BlockDevice>)) {
    let base = dir.join("base.img");
    run(Command::new("cp").arg("--sparse=always").args([image, &base]));
    let device = FileDevice::open_writable(image).expect("an image");
    let recorder = Arc::new(Recorder::new(Arc::new(device)));
    let before = said(&base);
    alter(recorder.clone());
    let recording = recorder.recording();
    drop(recorder);
    let then = said(image);
    assert!(before != then);
    let mut cuts: BTreeSet<u64> = recording.cuts().into_iter().collect();
    cuts.extend(
        recording.writes().iter().flat_map(|write| [Some(write.started + 1), write.completed]).flatten(),
    );
    let stage =
        Arc::new(Rewind::new(Arc::new(FileOptions::in_memory().write(true).open(&base).expect("opened"))));
    let mut power = PowerCuts::new(&recording, Arc::clone(&stage));
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut seen, mut last) = (BTreeSet::new(), None);
    for cut in cuts {
        power.advance(cut).expect("written");
        // Nothing new since the last cut.
        let doubt: Vec<u64> = power.in_doubt().map(|write| write.started).collect();
        let settled = recording.writes().iter().filter(|write| recording.is_durable(write, cut)).count();
        if last.replace((doubt, settled))
            == Some((power.in_doubt().map(|write| write.started).collect(), settled))
        {
            continue;
        }
        for fate in 0..3 {
            power
                .make(|write| match fate {
                    0 => Fate::Dropped,
                    1 => Fate::Applied,
                    _ => Fate::Torn((0..write.data.len() / 512).map(|_| rng.bool()).collect()),
                })
                .expect("written");
            println!("cut at {cut}, fate {fate}");
            // As the kernel finds it, on another copy, as it writes.
            if fate == 0 {
                let copy = dir.join("copy.img");
                run(Command::new("cp").arg("--sparse=always").args([&base, &copy]));
                assert!(
                    mounted(&copy, |root| std::fs::read(root.join("d3/file")).expect("read") == [3; 20_000])
                );
            }
            let volume = opened(stage.clone());
            let now = Said::of(volume.info().expect("info"));
            volume.close().expect("closed");
            drop(volume);
            assert!(now == before || now == then, "{now:?}");
            let report = check_device(stage.clone(), &OpenOptions::new()).expect("checked");
            assert!(report.is_clean(), "{:?}", report.findings);
            repair_finds_nothing(&base);
            seen.insert(now);
            stage.rewind().expect("taken back");
        }
    }
    assert!(seen.contains(&before) && seen.contains(&then), "{seen:?}");
}

fn said(image: &Path) -> Said {
    Said::of(Volume::open(image, &OpenOptions::new()).expect("opened").info().expect("info"))
}

fn run(command: &mut Command) {
    let out = command.output().expect("run");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn an_open_volume_does_not_grow_over_another_one() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 * MIB).expect("memory"));
    let open = |offset| {
        Volume::open_device(device.clone(), &OpenOptions::new().writable(true).offset(offset))
            .expect("opened")
    };
    for offset in [0, 32 * MIB] {
        let options = MkfsOptions::new().small(true).size(16 * MIB).offset(offset);
        mkfs_device(device.clone(), &options, false).expect("made");
    }
    let first = open(0);
    let refused = first.grow(None).expect_err("it would be lost");
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert!(refused.to_string().contains("an XFS volume that begins at byte 33554432 "), "{refused}");
    assert_eq!(first.grow(Some(32 * MIB)).expect("grown").to, 32 * MIB);
    first.close().expect("closed");
    drop(first);
    let second = open(32 * MIB);
    assert_eq!(second.grow(None).expect("grown").to, 32 * MIB);
    second.close().expect("closed");
    drop(second);
    for offset in [0, 32 * MIB] {
        let report = check_device(device.clone(), &OpenOptions::new().offset(offset)).expect("checked");
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

/// Part of a group, whole ones, and a short one at the end.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_power_cut_while_a_volume_grows_leaves_the_old_size_or_the_new() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = base(dir.path(), &["-d", "size=330m,agsize=100m"]);
    let grow = |device: Arc<dyn BlockDevice>| {
        let volume = opened(device);
        let grown = volume.grow(Some(540 * MIB)).expect("grown");
        assert_eq!((grown.from, grown.to, grown.left_out), (330 * MIB, 540 * MIB, 0));
        // What comes behind lies in new groups as well.
        let root = volume.root().expect("root").as_dir().expect("a directory");
        let file = root.create_file(b"large", &NewNode::default()).expect("made").open().expect("opened");
        file.allocate(0..400 * MIB, false).expect("room");
        volume.sync().expect("synced");
        volume.close().expect("closed");
    };
    cut_at_each_write(dir.path(), &image, grow);
    repair_finds_nothing(&image);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_power_cut_while_a_label_is_set_leaves_the_old_one_or_the_new() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = base(dir.path(), &["-L", "before"]);
    let label = |device: Arc<dyn BlockDevice>| {
        let volume = opened(device);
        volume.set_label("then").expect("set");
        assert_eq!(volume.info().expect("info").label, b"then");
        volume.close().expect("closed");
    };
    cut_at_each_write(dir.path(), &image, label);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_power_cut_while_a_uuid_changes_leaves_the_old_one_or_the_new() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = base(dir.path(), &[]);
    let uuid = |device: Arc<dyn BlockDevice>| {
        set_uuid(&*device, UuidChange::To(xfs_format::types::Uuid([0xa7; 16]))).expect("set");
    };
    cut_at_each_write(dir.path(), &image, uuid);
    let restore = |device: Arc<dyn BlockDevice>| {
        set_uuid(&*device, UuidChange::Restore).expect("set");
    };
    cut_at_each_write(dir.path(), &image, restore);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_power_cut_while_features_are_switched_on_leaves_none_or_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = base(dir.path(), &["-m", "bigtime=0,inobtcount=0", "-i", "nrext64=0"]);
    let features = |device: Arc<dyn BlockDevice>| {
        upgrade(device, &Upgrade::ALL).expect("switched on");
    };
    cut_at_each_write(dir.path(), &image, features);
}

/// A device that refuses to write at one place.
#[derive(Debug)]
struct Refuses {
    below: Arc<dyn BlockDevice>,
    at: u64,
}

impl Layer for Refuses {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        if offset == self.at { Err(DeviceError::ReadOnly) } else { self.below.write(offset, buf, durability) }
    }
}

/// The volume would have been closed with copies of the superblock that nobody writes any more, and `xfs_repair` lets the
/// majority of them tell how large it is.
#[test]
fn a_copy_that_could_not_be_written_is_written_by_the_next_to_open() {
    let bytes_at = |device: &Arc<dyn BlockDevice>, at| {
        let mut sector = [0; 512];
        device.read(at, &mut sector).expect("read");
        sector
    };
    for at in [17 * MIB, 34 * MIB] {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(200 * MIB).expect("memory"));
        let small = MkfsOptions::new().small(true).size(60 * MIB).group_size(17 * MIB);
        mkfs_device(Arc::clone(&device), &small, true).expect("a volume");
        let refuses = || Arc::new(Refuses { below: Arc::clone(&device), at });
        let volume = opened(refuses());
        volume.grow(None).expect_err("a copy is not written");
        assert!(volume.close().is_err());
        drop(volume);
        let volume = opened(Arc::clone(&device));
        assert_eq!(volume.info().expect("info").blocks, 200 * MIB / 4096);
        volume.close().expect("closed");
        drop(volume);
        let report = check_device(Arc::clone(&device), &OpenOptions::new()).expect("checked");
        assert!(report.is_clean(), "{:?}", report.findings);
        let volume = opened(refuses());
        volume.set_label("label").expect_err("a copy is not written");
        assert!(volume.close().is_err());
        drop(volume);
        let volume = opened(Arc::clone(&device));
        volume.close().expect("closed");
        let labels =
            [0, 17 * MIB, 34 * MIB, 187 * MIB].map(|at| bytes_at(&device, at)[108..113] == *b"label");
        assert_eq!(labels, [true; 4]);
    }
}

/// A volume in memory whose end a device holds back, and another one that goes on behind it.
fn held() -> (Arc<dyn BlockDevice>, Arc<HoldDevice>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(200 * MIB).expect("memory"));
    let small = MkfsOptions::new().small(true).size(68 * MIB).group_size(17 * MIB);
    mkfs_device(Arc::clone(&device), &small, true).expect("a volume");
    (Arc::clone(&device), Arc::new(HoldDevice::new(device)))
}

/// Closes a volume in the midst of an alteration whose write at one of these places waits, and gives what came of it. The
/// close returned, and what was still to be written went over what the next to open had made.
fn closed_beside(
    at: Range<u64>,
    alter: impl FnOnce(&Volume) -> uxfs::Result<()> + Send,
) -> Arc<dyn BlockDevice> {
    let (device, held) = held();
    let volume = opened(held.clone());
    held.hold_next(move |op, place| op == Op::Write && at.contains(&place));
    let (tell, told) = mpsc::channel();
    thread::scope(|threads| {
        let volume = &volume;
        let alters = threads.spawn(move || alter(volume));
        held.wait_until_waiting();
        threads.spawn(move || tell.send(volume.close()));
        let early = told.recv_timeout(Duration::from_millis(300));
        held.release();
        assert!(early.is_err(), "closed in the midst of it: {early:?}");
        // It is done before the close, or given up as a close has begun.
        if let Err(error) = alters.join().expect("no panic") {
            assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
        }
        told.recv().expect("no panic").expect("closed");
        let closed = volume.set_label("late").expect_err("closed");
        assert_eq!(closed.kind(), ErrorKind::ShutDown);
    });
    drop(volume);
    let report = check_device(Arc::clone(&device), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    device
}

#[test]
fn a_close_waits_for_a_growth() {
    let device = closed_beside(68 * MIB..200 * MIB, |volume| volume.grow(None).map(drop));
    let blocks = opened(device).info().expect("info").blocks;
    assert!([68, 200].map(|mib| mib * MIB / 4096).contains(&blocks), "{blocks}");
}

#[test]
fn a_close_waits_for_a_label() {
    let device = closed_beside(34 * MIB..34 * MIB + 1, |volume| volume.set_label("label"));
    assert_eq!(opened(device).info().expect("info").label, b"label");
}

/// The kernel replays the log of a growth that was cut short, and leaves the copies of the superblock as they were; nobody
/// wrote them then, as the log was clean.
#[test]
#[ignore = "needs root and xfsprogs"]
fn copies_that_a_kernel_s_recovery_left_are_written_by_the_next_to_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = base(dir.path(), &[]);
    let device = || Arc::new(FileDevice::open_writable(&image).expect("an image")) as Arc<dyn BlockDevice>;
    let volume = opened(Arc::new(Refuses { below: device(), at: 128 * MIB }));
    volume.grow(None).expect_err("a copy is not written");
    assert!(volume.close().is_err());
    drop(volume);
    mounted(&image, |_| ());
    let repair = |image: &Path| {
        let mut newest = Release::Unstable.tool("xfs_repair").expect("installed");
        newest.arg("-n").arg(image).output().expect("xfs_repair").status.success()
    };
    assert!(!repair(&image), "xfs_repair is content with the old copies");
    opened(device()).close().expect("closed");
    assert!(repair(&image));
    let report = check_device(device(), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// An image's file becomes longer, and the volume in it then, unless that is stopped: then the file becomes as short as it was.
/// Nobody else may have the volume grow in between, whose end would be cut off.
#[test]
fn a_file_that_becomes_longer_is_nobody_else_s_until_its_volume_has_grown() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let image = dir.path().join("volume.img");
    let how = OpenOptions::new();
    let grow_to = |mib: u64, stop: bool| uxfs::grow_unless(&image, Some(mib * MIB), &how, &|| stop);
    let mut both = 0;
    for round in 0..60 {
        File::create(&image).and_then(|file| file.set_len(16 * MIB)).expect("an image");
        let small = MkfsOptions::new().small(true);
        let device = FileDevice::open_writable(&image).expect("an image");
        mkfs_device(Arc::new(device), &small, true).expect("a volume");
        let is_over = AtomicBool::new(false);
        let (stopped, grown) = thread::scope(|threads| {
            let other = threads.spawn(|| {
                loop {
                    let was_over = is_over.load(Ordering::Relaxed);
                    match grow_to(48, false) {
                        Err(error) if error.kind() == ErrorKind::Locked && !was_over => {}
                        grown => break grown,
                    }
                }
            });
            let stopped = grow_to(80, true);
            is_over.store(true, Ordering::Relaxed);
            (stopped, other.join().expect("no panic"))
        });
        grown.expect("grown");
        match stopped {
            Ok(grown) => both += u32::from(grown.stopped),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Locked, "{error}"),
        }
        let device = Arc::new(FileDevice::open(&image).expect("an image"));
        assert_eq!(device.size(), 48 * MIB, "round {round}");
        let report = check_device(device, &how).expect("checked");
        assert!(report.is_clean(), "round {round}: {:?}", report.findings);
    }
    assert!(both > 0, "none was stopped");
}

/// Threads make, write, read and remove files, and one fills the volume, while it becomes larger again and again.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_grows_beside_those_who_use_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("volume.img");
    std::fs::File::create(&image).expect("made").set_len(1200 * MIB).expect("sparse");
    let small = MkfsOptions::new().small(true).size(60 * MIB).group_size(17 * MIB);
    let device = || Arc::new(FileDevice::open_writable(&image).expect("an image"));
    mkfs_device(device(), &small, true).expect("a volume");
    let volume = opened(device());
    let (done, full) = (AtomicBool::new(false), AtomicBool::new(false));
    let root = volume.root().expect("root").as_dir().expect("a directory");
    thread::scope(|threads| {
        for n in 0..3_u8 {
            let (volume, done) = (&volume, &done);
            let dir = root.create_dir(&[b'a' + n], &NewNode::default()).expect("made").as_dir().expect("one");
            threads.spawn(move || {
                for round in 0_u32.. {
                    let name = format!("{}", round % 40);
                    match dir.create_file(name.as_bytes(), &NewNode::default()) {
                        Ok(node) => {
                            let file = node.open().expect("opened");
                            if let Err(error) = file.write_at(&[n; 30_000], 4096) {
                                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                            }
                        }
                        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                            let path = format!("/{}/{name}", char::from(b'a' + n));
                            let mut read = [0; 100];
                            volume.open_file(&path).expect("there").read_at(&mut read, 5000).expect("read");
                            dir.remove_file(name.as_bytes()).expect("removed");
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
                    }
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let (root, done, full) = (&root, &done, &full);
        threads.spawn(move || {
            let file = root.create_file(b"all", &NewNode::default()).expect("made").open().expect("opened");
            let mut end = 0;
            while !done.load(Ordering::Relaxed) {
                match file.allocate(end..end + MIB, false) {
                    Ok(()) => end += MIB,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                        full.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        for size in [64, 90, 200, 201, 500, 1200] {
            while !full.swap(false, Ordering::Relaxed) {
                thread::yield_now();
            }
            let grown = volume.grow((size < 1200).then_some(size * MIB)).expect("grown");
            assert_eq!((grown.to + grown.left_out) / MIB, size);
        }
        while !full.swap(false, Ordering::Relaxed) {
            thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    let info = volume.info().expect("info");
    assert_eq!(u64::from(info.ag_count), (1200_u64).div_ceil(17));
    volume.close().expect("closed");
    drop((root, volume));
    let report = check_device(device(), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    repair_finds_nothing(&image);
    mounted(&image, |root| {
        std::fs::remove_file(root.join("all")).expect("removed");
        std::fs::write(root.join("new"), vec![1; 200 << 20]).expect("room");
    });
    repair_finds_nothing(&image);
}

/// A device of which one byte cannot be read.
#[derive(Debug)]
struct Unreadable {
    below: Arc<dyn BlockDevice>,
    at: u64,
}

impl Layer for Unreadable {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        if (offset..offset + len).contains(&self.at) {
            let source = std::io::Error::other("a bad sector");
            return Err(DeviceError::Io { op: "reading", offset, len, source });
        }
        self.below.read(offset, buf)
    }
}

/// Another volume began there, and it was taken for nothing.
#[test]
fn a_volume_does_not_grow_over_what_cannot_be_read() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(64 * MIB).expect("memory"));
    for offset in [0, 32 * MIB] {
        let options = MkfsOptions::new().small(true).size(16 * MIB).offset(offset);
        mkfs_device(Arc::clone(&device), &options, false).expect("made");
    }
    let volume = opened(Arc::new(Unreadable { below: Arc::clone(&device), at: 32 * MIB }));
    let refused = volume.grow(None).expect_err("nobody knows what is there");
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    volume.close().expect("closed");
    drop(volume);
    for offset in [0, 32 * MIB] {
        let report = check_device(Arc::clone(&device), &OpenOptions::new().offset(offset)).expect("checked");
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}
