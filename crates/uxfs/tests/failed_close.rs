//! A close that fails: the volume is shut down and says so to whoever asks, nothing is under way to its device any more,
//! and recovery finds all that was durable, and more if the device let it pass.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{
    BlockDevice, Durability, Fault, FaultDevice, HoldDevice, MemoryDevice, Op, Repeat, SealDevice,
};
use common::devices::log_of;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uxfs::{
    ErrorKind, File, MkfsOptions, NewNode, Node, OpenOptions, SetXattr, Volume, check_device, mkfs_device,
};

const BYTES: u64 = 40 << 20;

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"))
}

/// A volume with two files, one of which has more than its inode holds.
fn made() -> Arc<dyn BlockDevice> {
    let device = memory();
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = open(&device);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    for name in [b"kept", b"gone"] {
        let file = root.create_file(name, &NewNode::default()).expect("made").open().expect("a file");
        for nth in 0..40 {
            file.write_at(&[1; 4096], nth * 8192).expect("written");
        }
        for nth in 0..8_u8 {
            file.node()
                .set_xattr(&[b"user.".as_slice(), &[b'a' + nth]].concat(), &[1; 2000], SetXattr::default())
                .expect("set");
        }
    }
    drop(root);
    volume.close().expect("closed");
    device
}

fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let copy = memory();
    let mut bytes = vec![0; 1 << 20];
    for at in (0..BYTES).step_by(bytes.len()) {
        device.read(at, &mut bytes).expect("read");
        if bytes.iter().any(|&byte| byte != 0) {
            copy.write(at, &bytes, Durability::Volatile).expect("written");
        }
    }
    copy
}

fn open(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true)).expect("it opens")
}

/// A volume with much to do when it is closed: a time to tell, a file to free, what was made and is not durable.
struct Site {
    faulty: Arc<FaultDevice>,
    seal: Arc<SealDevice>,
    volume: Volume,
    kept: File,
    gone: File,
    made: Node,
}

impl Site {
    fn new(memory: &Arc<dyn BlockDevice>) -> Self {
        let seal = Arc::new(SealDevice::new(Arc::clone(memory)));
        let faulty = Arc::new(FaultDevice::new(seal.clone(), Vec::new()));
        let device: Arc<dyn BlockDevice> = faulty.clone();
        let volume = open(&device);
        let root = volume.root().expect("root").as_dir().expect("a directory");
        let kept = volume.open_file("/kept").expect("there");
        kept.overwrite_at(&[2; 4096], 0).expect("written");
        let gone = volume.open_file("/gone").expect("there");
        root.remove_file(b"gone").expect("removed");
        volume.sync().expect("synced");
        let made = root.create_file(b"made", &NewNode::default()).expect("made");
        Self { faulty, seal, volume, kept, gone, made }
    }

    /// Everything says that the volume was shut down, and does nothing.
    fn is_shut_down(&self) {
        let down = |what: &str, result: uxfs::Result<()>| {
            let kind = result.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::ShutDown), "{what}");
        };
        let root = self.volume.root().expect("root").as_dir().expect("a directory");
        down("close", self.volume.close());
        down("overwrite", self.kept.overwrite_at(&[9; 4096], 0));
        down("overwrite what is gone", self.gone.overwrite_at(&[9; 4096], 0));
        down("write", self.kept.write_at(&[9; 4096], 1 << 20));
        down("sync a file", self.kept.sync());
        down("create", root.create_file(b"new", &NewNode::default()).map(drop));
        down("remove", root.remove_file(b"made"));
        down("attribute", self.made.set_xattr(b"user.a", b"b", SetXattr::default()));
        down("sync", self.volume.sync());
        down("idle", self.volume.pass_idle_time());
        down("close once more", self.volume.close());
    }
}

/// What is durable is there behind a recovery, and nothing is left over.
fn recovers(memory: &Arc<dyn BlockDevice>, what: &str) {
    let volume = open(memory);
    volume.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(volume);
    let report = check_device(Arc::clone(memory), &OpenOptions::new()).expect("checked");
    assert!(report.is_clean() && report.log_clean, "{what}: {:?}", report.findings);
    let seen = Volume::open_device(Arc::clone(memory), &OpenOptions::new()).expect("read");
    let mut bytes = [0; 4096];
    seen.open_file("/kept").expect("there").read_at(&mut bytes, 0).expect("read");
    assert_eq!(bytes, [2; 4096], "{what}");
    assert!(seen.lookup("/gone").is_err(), "{what}");
}

/// At every request that a close makes, the device fails: a volume that could not be closed went on as if it could be
/// used, some calls failed since it was closed, others did not.
#[test]
fn a_close_that_fails_at_any_request_shuts_the_volume_down() {
    let image = made();
    let mut failed = 0;
    for op in [Op::Read, Op::Write, Op::Flush] {
        for repeat in [Repeat::Once, Repeat::Sticky] {
            for nth in 0.. {
                let what = format!("{op:?} {nth}, {repeat:?}");
                let memory = copy(&image);
                let site = Site::new(&memory);
                let next = site.faulty.seen(op);
                site.faulty.add(Fault::fail(op, next + nth).then(repeat));
                let closed = site.volume.close();
                let struck = site.faulty.seen(op) > next + nth;
                site.faulty.heal();
                site.seal.seal();
                if let Err(error) = &closed {
                    assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::ShutDown), "{what}: {error}");
                    site.is_shut_down();
                    failed += 1;
                }
                let seal = Arc::clone(&site.seal);
                drop(site);
                assert!(seal.broken().is_empty(), "{what}: {:?}", seal.broken());
                recovers(&memory, &what);
                if !struck {
                    closed.unwrap_or_else(|error| panic!("{what}: {error}, and nothing failed"));
                    break;
                }
            }
        }
    }
    assert!(failed > 20, "only {failed} closes failed");
}

/// What was committed before a close that fails is not lost with it, where the device still takes the log.
#[test]
fn a_close_that_fails_has_put_into_the_log_what_was_committed() {
    let memory = made();
    let site = Site::new(&memory);
    site.faulty.add(Fault::fail(Op::Read, site.faulty.seen(Op::Read)).then(Repeat::Sticky));
    let error = site.volume.close().expect_err("what has no name cannot be freed");
    assert_eq!(error.kind(), ErrorKind::Io);
    site.is_shut_down();
    drop(site);
    recovers(&memory, "recovered");
    let seen = Volume::open_device(memory, &OpenOptions::new()).expect("read");
    seen.lookup("/made").expect("it was committed");
}

/// A file, one block of which cannot be written back, of which its sync has told.
fn not_written_back(volume: &Volume, faulty: &FaultDevice) -> File {
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let file =
        root.create_file(b"one", &NewNode::default()).expect("made").open().expect("a file").buffered();
    volume.sync().expect("synced");
    file.write_at(&[1; 4096], 0).expect("in memory");
    faulty.add(Fault::fail(Op::Write, faulty.seen(Op::Write)));
    file.sync().expect_err("the device failed");
    file.sync().expect("it was told");
    file
}

/// The block of one file is lost, and what others committed since then is not: it was not forced into the log.
#[test]
fn a_close_that_fails_for_what_was_not_written_back_forces_what_was_committed() {
    let memory = memory();
    mkfs_device(Arc::clone(&memory), &MkfsOptions::new().small(true), true).expect("a volume");
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&memory), Vec::new()));
    let device: Arc<dyn BlockDevice> = faulty.clone();
    let volume = open(&device);
    let one = not_written_back(&volume, &faulty);
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let other = root.create_file(b"other", &NewNode::default()).expect("made").open().expect("a file");
    other.buffered().write_at(&[2; 50_000], 0).expect("in memory");
    volume.close().expect_err("not all was written");
    drop((one, other, root, volume));
    let volume = open(&memory);
    assert_eq!(volume.open_file("other").expect("it was committed").size(), 50_000);
}

/// A growth writes beside the journal: it wrote on behind such a close, when others may have had the volume.
#[test]
fn a_close_that_fails_for_what_was_not_written_back_waits_for_a_growth() {
    const MIB: u64 = 1 << 20;
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(200 * MIB).expect("memory"));
    let small = MkfsOptions::new().small(true).size(68 * MIB).group_size(17 * MIB);
    mkfs_device(Arc::clone(&memory), &small, true).expect("a volume");
    let faulty = Arc::new(FaultDevice::new(memory, Vec::new()));
    let held = Arc::new(HoldDevice::new(faulty.clone()));
    let device: Arc<dyn BlockDevice> = held.clone();
    let volume = open(&device);
    let _one = not_written_back(&volume, &faulty);
    held.hold_next(|op, place| op == Op::Write && (68 * MIB..200 * MIB).contains(&place));
    let (tell, told) = mpsc::channel();
    std::thread::scope(|threads| {
        let volume = &volume;
        let grows = threads.spawn(move || volume.grow(None));
        held.wait_until_waiting();
        threads.spawn(move || tell.send(volume.close()));
        let early = told.recv_timeout(Duration::from_millis(300));
        held.release();
        let _ = grows.join().expect("no panic");
        assert!(early.is_err(), "closed in the midst of a growth: {early:?}");
    });
}

/// The value of an attribute goes straight to the device, in the middle of a transaction. A close that failed, as the log had,
/// did not wait for it: it came over what the next volume had written there, and synced.
#[test]
fn a_close_that_fails_waits_for_who_is_in_the_middle_of_a_transaction() {
    for has_unwritten in [false, true] {
        let below = made();
        let seal = Arc::new(SealDevice::new(Arc::clone(&below)));
        let faulty = Arc::new(FaultDevice::new(seal.clone(), Vec::new()));
        let holds = Arc::new(HoldDevice::new(faulty.clone()));
        let device: Arc<dyn BlockDevice> = holds.clone();
        let volume = open(&device);
        let root = volume.root().expect("root").as_dir().expect("a directory");
        let (kept, gone) =
            (volume.open_file("/kept").expect("there"), volume.lookup("/gone").expect("there"));
        volume.sync().expect("synced");
        let log = log_of(&*below);
        let is_value = move |op, offset| op == Op::Write && !log.contains(&offset);
        holds.hold_next(is_value);
        let sets =
            std::thread::spawn(move || gone.set_xattr(b"user.big", &[0xA5; 60_000], SetXattr::default()));
        holds.wait_until_waiting();
        let more = root.create_file(b"more", &NewNode::default()).expect("made").open().expect("a file");
        let unwritten = has_unwritten.then(|| {
            let unwritten = kept.buffered();
            unwritten.write_at(&[3; 8192], 0).expect("in memory");
            unwritten
        });
        faulty.add(Fault::fail(Op::Write, faulty.seen(Op::Write)).then(Repeat::Sticky));
        if let Some(file) = &unwritten {
            file.sync().expect_err("the device fails");
        }
        more.sync().expect_err("the log fails");
        drop(more);
        let (tells, told) = mpsc::channel();
        let closing = volume.clone();
        let closes = std::thread::spawn(move || {
            closing.close().expect_err("the log has failed");
            seal.seal();
            tells.send(()).expect("somebody waits");
            seal
        });
        let early = told.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "closed while a transaction is writing ({has_unwritten})");
        faulty.heal();
        holds.release();
        told.recv_timeout(Duration::from_secs(60)).expect("it is over");
        let seal = closes.join().expect("no panic");
        sets.join().expect("no panic").expect_err("the volume is shut down");
        drop((root, kept, unwritten, volume));
        seal.assert_kept();
    }
}
