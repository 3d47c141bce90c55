//! What was committed and never came into the log, as the device failed: nobody writes it to its place, however late.
//!
//! Whoever writes items back may be in the middle of many when the volume is shut down. What is pinned by a checkpoint
//! that has failed stays so, or a recovery finds an inode in use that its tree says is free.
#![forbid(unsafe_code)]

#[allow(dead_code, unused_imports, reason = "each test uses its part")]
mod common;

use blockdev::{BlockDevice, DeviceError, Durability, Layer, MemoryDevice};
use common::devices::log_of;
use common::files::image_of;
use common::{mounted, repair_finds_nothing};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::Duration;
use uxfs::{MkfsOptions, NewNode, OpenOptions, SetXattr, Volume, check_device, mkfs_device};

const BYTES: u64 = 512 << 20;
/// More than are written back at once. Behind the last one, its cluster has room for as many links.
const FILES: usize = 1000;
const LINKS: usize = 20;
/// This many are in one checkpoint.
const EACH: usize = 20;
const GIVEN_UP: Duration = Duration::from_millis(200);

/// Holds what is written outside the log, and has writes to the log fail, while it is told to.
#[derive(Debug)]
struct HoldsHome {
    below: Arc<dyn BlockDevice>,
    log: Range<u64>,
    state: Mutex<State>,
    changed: Condvar,
    fails_log: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    holds: bool,
    waiting: usize,
}

impl HoldsHome {
    fn over(below: Arc<dyn BlockDevice>) -> Arc<Self> {
        let log = log_of(&*below);
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Self { below, log, state, changed, fails_log: AtomicBool::new(false) })
    }

    fn hold(&self, holds: bool) {
        self.state.lock().unwrap().holds = holds;
        self.changed.notify_all();
    }

    fn wait_until_one_waits(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting == 0).unwrap());
    }
}

impl Layer for HoldsHome {
    fn below(&self) -> &Arc<dyn BlockDevice> {
        &self.below
    }

    fn pass_write(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<(), DeviceError> {
        if self.log.contains(&offset) {
            if self.fails_log.load(Ordering::SeqCst) {
                let source = std::io::Error::other("the log fails");
                return Err(DeviceError::Io { op: "write", offset, len: buf.len() as u64, source });
            }
        } else {
            let mut state = self.state.lock().unwrap();
            state.waiting += 1;
            self.changed.notify_all();
            let mut state = self.changed.wait_while(state, |state| state.holds).unwrap();
            state.waiting -= 1;
        }
        self.below.write(offset, buf, durability)
    }

    fn pass_fua(&self) -> bool {
        false
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_never_came_into_the_log_is_not_written_behind_a_shutdown() {
    let below: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::anonymous(BYTES).unwrap());
    mkfs_device(Arc::clone(&below), &MkfsOptions::new(), true).unwrap();
    let options = OpenOptions::new().writable(true);
    // Their inodes are made before the log begins: it makes none of them anew.
    let volume = Volume::open_device(Arc::clone(&below), &options).unwrap();
    let root = volume.root().unwrap().as_dir().unwrap();
    for nth in 0..FILES {
        root.create_file(format!("file-{nth}").as_bytes(), &NewNode::default()).unwrap();
    }
    drop(root);
    volume.close().unwrap();

    let device = HoldsHome::over(Arc::clone(&below));
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    let root = volume.root().unwrap().as_dir().unwrap();
    for nth in 0..FILES {
        volume.lookup(format!("/file-{nth}")).unwrap().set_xattr(b"user.a", b"b", SetXattr::Either).unwrap();
        if nth % EACH == 0 {
            volume.sync().unwrap();
        }
    }
    // The blocks of the directory, and of the tree of its inodes, are late as well.
    root.create_file(b"late", &NewNode::default()).unwrap();
    volume.sync().unwrap();
    device.hold(true);
    std::thread::scope(|scope| {
        // The second time all is written back.
        let writes_back = scope.spawn(|| (0..2).try_for_each(|_| volume.pass_idle_time()));
        device.wait_until_one_waits();
        // Into the cluster, and into blocks, that will be written last.
        for nth in 0..LINKS {
            root.create_symlink(format!("link-{nth}").as_bytes(), b"target", &NewNode::default()).unwrap();
        }
        device.fails_log.store(true, Ordering::SeqCst);
        volume.sync().expect_err("the log fails");
        // The checkpoint is given up a moment later than that is told.
        sleep(GIVEN_UP);
        device.hold(false);
        writes_back.join().unwrap().expect_err("the volume was shut down");
    });
    drop((root, volume));

    let (_dir, image) = image_of(&*below);
    let names = mounted(&image, |dir| std::fs::read_dir(dir).unwrap().count());
    assert_eq!(names, FILES + 1, "what a kernel finds");
    repair_finds_nothing(&image);
    Volume::open_device(Arc::clone(&below), &options).unwrap().close().unwrap();
    let report = check_device(below, &OpenOptions::new()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}
