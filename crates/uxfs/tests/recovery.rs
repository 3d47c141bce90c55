//! Crashes at every write, of a load and of the recovery behind it: the volume recovers, sound, with all that was synced.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, Durability, Effect, Fault, FaultDevice, MemoryDevice, Op, Repeat};
use std::sync::Arc;
use uxfs::{MkfsOptions, NewNode, OpenOptions, SetXattr, Volume, check_device, mkfs_device};

const BYTES: u64 = 40 << 20;

/// A volume in memory with a file of 2 MiB in many extents, a directory and names.
fn made() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).expect("memory"));
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).expect("a volume");
    let volume = open(&device, true).expect("clean");
    let root = volume.root().expect("root").as_dir().expect("a directory");
    let new = NewNode::default();
    let sub = root.create_dir(b"sub", &new).expect("made").as_dir().expect("a directory");
    for n in 0..40 {
        sub.create_file(format!("old {n}").as_bytes(), &new).expect("made");
    }
    let file = root.create_file(b"scattered", &new).expect("made").open().expect("a file");
    for n in 0..64 {
        file.write_at(&[n as u8 + 1; 4096], n * 8192).expect("written");
    }
    file.sync().expect("synced");
    drop(file);
    volume.close().expect("closed");
    device
}

fn open(device: &Arc<dyn BlockDevice>, writable: bool) -> uxfs::Result<Volume> {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(writable))
}

fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let copy: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(device.size()).expect("memory"));
    let mut bytes = vec![0; 1 << 20];
    for at in (0..device.size()).step_by(bytes.len()) {
        device.read(at, &mut bytes).expect("read");
        copy.write(at, &bytes, Durability::Volatile).expect("written");
    }
    copy
}

/// Changes of every kind. `Err`: the device failed on the way; how many steps were synced before that.
fn load(volume: &Volume) -> Result<(), u32> {
    let mut synced = 0;
    let new = NewNode::default();
    let mut steps = || -> uxfs::Result<()> {
        let root = volume.root()?.as_dir()?;
        let sub = volume.open_dir("/sub")?;
        for step in 0..3_u32 {
            for n in 0..20 {
                sub.create_file(format!("new {step} {n}").as_bytes(), &new)?;
            }
            for n in 0..10 {
                sub.remove_file(format!("old {}", step * 10 + n).as_bytes())?;
            }
            root.create_file(format!("step {step}").as_bytes(), &new)?;
            volume.sync()?;
            synced = step + 1;
        }
        // Its blocks are freed after its last name: what was promised, and a list of unlinked inodes.
        let open = volume.open_file("/scattered")?;
        root.remove_file(b"scattered")?;
        volume.sync()?;
        drop(open);
        volume.sync()
    };
    steps().map_err(|_| synced)
}

/// The volume recovers when it is opened for writing, is sound, and has what was synced.
fn recovers(device: &Arc<dyn BlockDevice>, synced: u32, what: &str) {
    let names = |volume: &Volume| {
        let mut names = Vec::new();
        for path in ["/", "/sub"].into_iter().filter(|path| volume.lookup(path).is_ok()) {
            for entry in volume.open_dir(path).expect(what).entries() {
                names.push((path, entry.expect(what).name));
            }
        }
        names.sort();
        names
    };
    let reading = open(device, false).unwrap_or_else(|error| panic!("{what}, reading: {error}"));
    let seen = names(&reading);
    drop(reading);
    let volume = open(device, true).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(seen, names(&volume), "{what}: seen without recovery, and after it");
    for step in 0..synced {
        volume.lookup(format!("/step {step}")).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    volume.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = check_device(Arc::clone(device), &OpenOptions::new()).expect(what);
    assert!(report.is_clean() && report.log_clean, "{what}: {:?}", report.findings);
}

#[test]
fn a_crash_at_any_write_is_recovered_also_while_it_is_recovered() {
    let fresh = made();
    let mut crashes = 0;
    for nth in 0.. {
        let below = copy(&fresh);
        let effect = if nth % 2 == 0 { Effect::Fail } else { Effect::Short(nth / 2 % 5) };
        let fault = Fault { op: Op::Write, nth, effect, repeat: Repeat::ReadOnlyAfter };
        let faulty = Arc::new(FaultDevice::new(Arc::clone(&below), vec![fault]));
        let device: Arc<dyn BlockDevice> = Arc::clone(&faulty) as _;
        let outcome = open(&device, true).map_err(|_| 0).and_then(|volume| {
            let outcome = load(&volume);
            if outcome.is_ok() && volume.close().is_err() { Err(3) } else { outcome }
        });
        drop(device);
        let Err(synced) = outcome else { break };
        crashes += 1;
        // The recovery crashes as well, now here and now there.
        let again = FaultDevice::new(
            Arc::clone(&below),
            vec![Fault::fail(Op::Write, nth % 17).then(Repeat::ReadOnlyAfter)],
        );
        if let Ok(volume) = open(&(Arc::new(again) as _), true) {
            let _ = volume.close();
        }
        recovers(&below, synced, &format!("crash at write {nth}"));
    }
    assert!(crashes > 10, "only {crashes} crashes");
}

#[test]
fn reading_changes_nothing_and_a_dry_volume_says_nothing() {
    let device = made();
    assert!(open(&device, true).expect("clean").recovery().is_none());
    let volume = open(&device, true).expect("clean");
    load(&volume).expect("nothing fails");
    drop(volume);
    let before = copy(&device);
    let reading = open(&device, false).expect("replayed in memory");
    let recovery = reading.recovery().expect("the log is dirty");
    assert!(!recovery.written && recovery.replayed > 0 && recovery.obstacle.is_none(), "{recovery:?}");
    reading.lookup("/step 2").expect("synced");
    let (mut left, mut right) = (vec![0; BYTES as usize], vec![0; BYTES as usize]);
    before.read(0, &mut left).expect("read");
    device.read(0, &mut right).expect("read");
    assert!(left == right, "the device was written");
    let report = check_device(Arc::clone(&device), &OpenOptions::new()).expect("replayed in memory");
    assert!(report.is_clean() && !report.log_clean, "{:?}", report.findings);
    assert_eq!(report.recovery, Some(recovery));
    device.read(0, &mut right).expect("read");
    assert!(left == right, "the device was written");
}

/// A value of an attribute may take more than one block of any size, and more than any buffer of the log: none of its
/// blocks was ever logged.
#[test]
fn attributes_with_long_values_come_and_go() {
    for block in [1024, 4096, 16384, 65536] {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(320 << 20).expect("memory"));
        mkfs_device(Arc::clone(&device), &MkfsOptions::new().block_size(block), true).expect("a volume");
        let volume = open(&device, true).expect("clean");
        let root = volume.root().expect("root").as_dir().expect("a directory");
        let new = NewNode::default();
        let (value, many) = (vec![b'v'; 65_536], 40);
        for name in [&b"stays"[..], b"goes", b"loses"] {
            let file = root.create_file(name, &new).expect("made");
            for n in 0..many {
                file.set_xattr(format!("user.{n}").as_bytes(), &value, SetXattr::Either).expect("set");
            }
        }
        volume.sync().expect("synced");
        root.remove_file(b"goes").expect("removed");
        for n in 0..many {
            volume
                .lookup("/loses")
                .expect("made")
                .remove_xattr(format!("user.{n}").as_bytes())
                .expect("removed");
        }
        volume.sync().expect("synced");
        let crashed = copy(&device);
        volume.close().expect("closed");
        recovers(&crashed, 0, &format!("blocks of {block}"));
        let volume = open(&crashed, false).expect("clean");
        let names = |path: &str| volume.lookup(path).expect("made").xattr_names().expect("read").len();
        assert_eq!((names("/stays"), names("/loses")), (many, 0));
        assert!(volume.lookup("/goes").is_err());
    }
}
