//! Interleavings that no test had: a request is held back on the device while others go on.

use blockdev::{BlockDevice, DeviceError, Durability, IoQueue, MemoryDevice, Place};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use uxfs::{File, MkfsOptions, NewNode, OpenOptions, SetXattr, Volume, check_device, mkfs_device};

const BYTES: u64 = 40 << 20;

/// Whether a request is held back: is it a write, and where.
type Wanted = Box<dyn Fn(bool, u64) -> bool + Send>;

/// A device that holds back requests that are wanted, reads with their bytes, and whose writes fail if asked.
struct Holds {
    inner: Arc<dyn BlockDevice>,
    /// And how many wait.
    wanted: Mutex<(Option<Wanted>, u32)>,
    changed: Condvar,
    fails_writes: AtomicBool,
}

impl std::fmt::Debug for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Holds")
    }
}

impl Holds {
    fn new(inner: &Arc<dyn BlockDevice>) -> Arc<Self> {
        let (wanted, changed) = (Mutex::new((None, 0)), Condvar::new());
        Arc::new(Self { inner: Arc::clone(inner), wanted, changed, fails_writes: AtomicBool::new(false) })
    }

    fn hold(&self, wanted: Option<Wanted>) {
        self.wanted.lock().unwrap().0 = wanted;
        self.changed.notify_all();
    }

    /// Holds the next read back, and no other.
    fn hold_a_read(&self) {
        let held = AtomicBool::new(false);
        self.hold(Some(Box::new(move |write, _| !write && !held.swap(true, Ordering::SeqCst))));
    }

    fn wait_for_one(&self) {
        let mut wanted = self.wanted.lock().unwrap();
        while wanted.1 == 0 {
            wanted = self.changed.wait(wanted).unwrap();
        }
    }

    fn pass(&self, write: bool, offset: u64) {
        let mut wanted = self.wanted.lock().unwrap();
        if !wanted.0.as_ref().is_some_and(|wanted| wanted(write, offset)) {
            return;
        }
        wanted.1 += 1;
        self.changed.notify_all();
        while wanted.0.is_some() {
            wanted = self.changed.wait(wanted).unwrap();
        }
        wanted.1 -= 1;
    }
}

impl BlockDevice for Holds {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn sector_size(&self) -> u32 {
        self.inner.sector_size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn place(&self) -> Place {
        self.inner.place()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(offset, buf)?;
        self.pass(false, offset);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        if self.fails_writes.load(Ordering::SeqCst) {
            let source = std::io::Error::other("asked for");
            return Err(DeviceError::Io { op: "write", offset, len: buf.len() as u64, source });
        }
        self.pass(true, offset);
        self.inner.write(offset, buf, durability)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn queue(self: Arc<Self>, depth: u32) -> Result<Box<dyn IoQueue>, DeviceError> {
        Ok(Box::new(blockdev::BlockingQueue::new(self, depth)?))
    }
}

fn made() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).unwrap();
    device
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    Volume::open_device(device, &OpenOptions::new().writable(true)).unwrap()
}

fn file(volume: &Volume, name: &str, content: &[u8]) -> File {
    let root = volume.root().unwrap().as_dir().unwrap();
    let file = root.create_file(name.as_bytes(), &NewNode::default()).unwrap().open().unwrap();
    file.write_at(content, 0).unwrap();
    volume.sync().unwrap();
    file
}

/// A file with so many attributes that they have blocks of their own.
fn file_with_attributes(device: &Arc<dyn BlockDevice>) -> Volume {
    let volume = open(Arc::clone(device));
    let file = file(&volume, "a", &[1; 16384]);
    for nth in 0..20 {
        file.node().set_xattr(format!("user.n{nth}").as_bytes(), &[7; 200], SetXattr::Either).unwrap();
    }
    volume
}

/// What the power leaves if it goes now.
fn copy(device: &Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let to: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    let mut bytes = vec![0; BYTES as usize];
    device.read(0, &mut bytes).unwrap();
    to.write(0, &bytes, Durability::Volatile).unwrap();
    to
}

/// Whoever opened a volume had read its superblock before they claimed the device. A writer who closed in between left
/// counters that the other did not see, and wrote over when it closed.
#[test]
fn a_volume_is_read_when_nobody_else_writes_it() {
    let device = made();
    let first = open(Arc::clone(&device));
    let held = file(&first, "a", &vec![1; 800 << 10]);
    let holds = Holds::new(&device);
    holds.hold(Some(Box::new(|write, offset| !write && offset == 0)));
    let second = thread::spawn({
        let holds: Arc<dyn BlockDevice> = holds.clone();
        move || Volume::open_device(holds, &OpenOptions::new().writable(true))
    });
    while holds.wanted.lock().unwrap().1 == 0 && !second.is_finished() {
        thread::yield_now();
    }
    first.close().unwrap();
    drop((first, held));
    holds.hold(None);
    // It may be refused; if it is let in, it has to know what the first one left.
    if let Ok(second) = second.join().unwrap() {
        let held = file(&second, "b", &[1; 4096]);
        second.close().unwrap();
        drop((second, held));
    }
    let report = check_device(Arc::clone(&device), &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// The first writer took note that there are no capabilities any more before it had looked for them: another one, who
/// believed that, changed the content for good while they were there.
#[test]
fn nobody_writes_to_a_program_that_has_its_capabilities() {
    let device = made();
    let volume = file_with_attributes(&device);
    let value = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    volume.lookup("/a").unwrap().set_xattr(b"security.capability", &value, SetXattr::Either).unwrap();
    volume.close().unwrap();
    drop(volume);
    let holds = Holds::new(&device);
    let volume = open(holds.clone());
    let file = volume.open_file("/a").unwrap();
    holds.hold_a_read();
    let write = |byte: u8, offset: u64| {
        let (file, volume) = (file.clone(), volume.clone());
        thread::spawn(move || {
            file.write_at(&[byte; 4096], offset).unwrap();
            volume.sync().unwrap();
        })
    };
    let slow = write(2, 4096);
    holds.wait_for_one();
    let other = write(9, 0);
    for _ in 0..200 {
        if other.is_finished() {
            break;
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    let crashed = copy(&device);
    holds.hold(None);
    slow.join().unwrap();
    other.join().unwrap();
    let seen = Volume::open_device(crashed, &OpenOptions::new()).unwrap().open_file("/a").unwrap();
    let mut first = [0; 4096];
    seen.read_at(&mut first, 0).unwrap();
    let privileged = seen.node().xattr(b"security.capability").unwrap().is_some();
    assert!(first[0] == 1 || !privileged, "the content is new, and may do what the old one might");
    assert_eq!(file.node().xattr(b"security.capability").unwrap(), None);
}

/// A removal is committed, and its checkpoint never gets into the log. What it freed was no longer busy then, and who had
/// begun before wrote there past the log, though recovery gives it back to the file.
#[test]
fn blocks_whose_freeing_was_lost_are_not_written() {
    let device = made();
    let volume = file_with_attributes(&device);
    file(&volume, "victim", &[0xaa; 256 << 10]);
    // Nothing else is free.
    let filler = file(&volume, "filler", &[]);
    let (mut at, mut len) = (0, 1 << 20);
    while len >= 4096 {
        match filler.write_at(&vec![0xcc; len], at) {
            Ok(()) => at += len as u64,
            Err(_) => len /= 2,
        }
    }
    drop(filler);
    volume.close().unwrap();
    drop(volume);
    let holds = Holds::new(&device);
    let volume = open(holds.clone());
    let node = volume.lookup("/a").unwrap();
    volume.root().unwrap().as_dir().unwrap().remove_file(b"victim").unwrap();
    holds.hold_a_read();
    let sets = thread::spawn(move || node.set_xattr(b"user.large", &[0xdd; 60_000], SetXattr::Either));
    holds.wait_for_one();
    holds.fails_writes.store(true, Ordering::SeqCst);
    volume.sync().expect_err("nothing can be written");
    holds.fails_writes.store(false, Ordering::SeqCst);
    holds.hold(None);
    sets.join().unwrap().expect_err("the volume is shut down");
    drop(volume);
    let volume = open(device);
    if let Ok(victim) = volume.open_file("/victim") {
        let mut bytes = vec![0; 256 << 10];
        victim.read_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0xaa), "another file's attribute is in it");
    }
}
