//! A device, made by whoever uses the library, that panics in a thread of the journal's: the volume is shut down, as if the
//! request had failed, and nobody waits for what that thread would have done.

use blockdev::{BlockDevice, DeviceError, Durability, Layer, MemoryDevice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use uxfs::{ErrorKind, MkfsOptions, NewNode, OpenOptions, Volume, check_device, mkfs_device};

/// Panics at writes of a kind while it is armed.
#[derive(Debug)]
struct Panics {
    kind: Durability,
    armed: AtomicBool,
    inner: Arc<dyn BlockDevice>,
}

impl Layer for Panics {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        let panics = durability == self.kind && self.armed.load(Ordering::SeqCst);
        assert!(!panics, "a device that panics");
        self.inner.write(offset, buf, durability)
    }
}

fn open(device: &Arc<impl BlockDevice + 'static>) -> Volume {
    Volume::open_device(device.clone(), &OpenOptions::new().writable(true)).expect("it opens")
}

fn create(volume: &Volume, name: &str) -> uxfs::Result<()> {
    let root = volume.root()?.as_dir()?;
    root.create_file(name.as_bytes(), &NewNode::default()).map(drop)
}

/// More than a record of the log holds.
fn many_and_sync(volume: &Volume) -> uxfs::Result<()> {
    (0..800).try_for_each(|nth| create(volume, &format!("{nth:0200}")))?;
    volume.sync()
}

type Step = fn(&Volume) -> uxfs::Result<()>;

/// Has the device panic at a kind of writes while `work` is done, which is told so.
fn panics_at(kind: Durability, before: Step, work: Step) {
    let memory = Arc::new(MemoryDevice::anonymous(40 << 20).expect("memory"));
    mkfs_device(memory.clone(), &MkfsOptions::new().small(true), true).expect("a volume");
    let device = Arc::new(Panics { kind, armed: AtomicBool::new(false), inner: memory.clone() });
    let volume = open(&device);
    create(&volume, "durable").expect("made");
    volume.sync().expect("synced");
    before(&volume).expect("all is well");
    device.armed.store(true, Ordering::SeqCst);
    assert_eq!(work(&volume).map_err(|error| error.kind()), Err(ErrorKind::ShutDown));
    device.armed.store(false, Ordering::SeqCst);
    let down = |what: uxfs::Result<()>| {
        assert_eq!(what.map_err(|error| error.kind()), Err(ErrorKind::ShutDown));
    };
    down(create(&volume, "new"));
    down(volume.sync());
    down(volume.close());
    drop(volume);
    let volume = open(&memory);
    volume.lookup("/durable").expect("it was synced");
    volume.lookup("/new").expect_err("it was refused");
    volume.close().expect("closed");
    drop(volume);
    let report = check_device(memory, &OpenOptions::new()).expect("checked");
    assert!(report.is_clean() && report.log_clean, "{:?}", report.findings);
}

/// Whoever synced waited for ever, and everybody else could go on changing what would never be in the log.
#[test]
fn a_device_that_panics_in_a_thread_of_the_journal_shuts_the_volume_down() {
    let cases: [(&str, Durability, Step, Step); 3] = [
        ("the first record of several", Durability::Volatile, |_| Ok(()), many_and_sync),
        ("the last one", Durability::Fua, |volume| create(volume, "one"), Volume::sync),
        ("what is written back", Durability::Volatile, |_| Ok(()), Volume::pass_idle_time),
    ];
    for (what, kind, before, work) in cases {
        let (ends, ended) = mpsc::channel();
        thread::spawn(move || {
            panics_at(kind, before, work);
            ends.send(()).expect("somebody waits");
        });
        ended.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}
