//! Threads that force the log write it themselves where a flush costs nothing: beside each other and the journal's threads, on a
//! device that fails or panics, and in a panic of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use blockdev::{BlockDevice, DeviceError, Durability, Layer, MemoryDevice};
use uxfs::{MkfsOptions, NewNode, OpenOptions, Volume, mkfs_device};

/// A device without a write cache, that fails or panics from some write on.
#[derive(Debug)]
struct Fails {
    below: Arc<dyn BlockDevice>,
    left: AtomicI64,
    panics: bool,
}

impl Layer for Fails {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_write_cache(&self) -> bool {
        false
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            assert!(!self.panics, "the device panics");
            let (len, source) = (buf.len() as u64, std::io::Error::other("fails"));
            return Err(DeviceError::Io { op: "write", offset, len, source });
        }
        self.below.write(offset, buf, durability)
    }
}

fn made() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(48 << 20).unwrap());
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true), true).unwrap();
    device
}

fn writable() -> OpenOptions {
    OpenOptions::new().writable(true)
}

/// It was taken for one of the journal.
#[test]
fn a_panic_of_who_syncs_shuts_nothing_down() {
    struct SyncsInTheEnd(Volume);
    impl Drop for SyncsInTheEnd {
        fn drop(&mut self) {
            self.0.sync().expect("it syncs while unwinding");
        }
    }
    let volume = Volume::open_device(made(), &writable()).unwrap();
    let root = volume.root().unwrap().as_dir().unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let _syncs = SyncsInTheEnd(volume.clone());
        root.create_file(b"a", &NewNode::default()).unwrap();
        panic!("somebody else's");
    }));
    assert!(ended.is_err());
    root.create_file(b"b", &NewNode::default()).map(drop).expect("it works still");
    volume.close().expect("it closes");
}

/// Threads make files, few and many before each sync; some device does what it does; some rounds close the volume meanwhile.
fn round(nth: u64) {
    let below = made();
    let is_sound = nth.is_multiple_of(3);
    let left = if is_sound { i64::MAX } else { 20 + (nth as i64 * 37) % 900 };
    let fails = Fails { below: Arc::clone(&below), left: left.into(), panics: nth.is_multiple_of(2) };
    let volume = Volume::open_device(Arc::new(fails), &writable()).unwrap();
    let synced = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..6 {
            let (volume, synced) = (volume.clone(), &synced);
            scope.spawn(move || {
                let root = volume.root().and_then(|root| root.as_dir())?;
                for file in 0..30 {
                    for piece in 0..if file % 13 == 0 { 60 } else { 1 } {
                        let name = format!("t{thread}-{file}-{piece:0100}");
                        let node = root.create_file(name.as_bytes(), &NewNode::default())?;
                        node.open()?.write_at(&[1; 5000], 0)?;
                    }
                    volume.sync()?;
                    synced.fetch_add(1, Ordering::SeqCst);
                }
                uxfs::Result::Ok(())
            });
        }
        if nth % 4 == 1 {
            thread::sleep(Duration::from_millis(nth % 40));
            let _whatever_comes_of_it = volume.close();
        }
    });
    let closed = volume.close();
    drop(volume);
    if is_sound && nth % 4 != 1 {
        closed.unwrap();
        assert_eq!(synced.into_inner(), 180);
    }
    let volume = Volume::open_device(Arc::clone(&below), &writable()).expect("it is recovered");
    volume.close().unwrap();
    drop(volume);
    let report = uxfs::check_device(below, &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "round {nth}: {:?}", report.findings);
}

#[test]
fn syncs_beside_failures_end_and_leave_a_sound_volume() {
    let (ends, ended) = mpsc::channel();
    thread::spawn(move || {
        for nth in 0..16 {
            round(nth);
            ends.send(nth).unwrap();
        }
    });
    for nth in 0..16 {
        assert_eq!(ended.recv_timeout(Duration::from_secs(120)), Ok(nth), "it hangs, or failed");
    }
}
