//! An inode with a large tree of attributes loses its last name, and the power goes while its blocks are freed: the
//! kernel, which goes through what is left of the tree, must be able to finish. Needs root, xfsprogs and loop mounts.
#![forbid(unsafe_code)]

use blockdev::{BlockDevice, Durability, Effect, Fault, FaultDevice, FileDevice, MemoryDevice, Op, Repeat};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uxfs::{MkfsOptions, NewNode, OpenOptions, SetXattr, Volume, mkfs_device};
use witness::sandbox::{Mounted, repair_finds_nothing, scratch};

const BYTES: u64 = 64 << 20;
/// Every so-manieth write is one that the power goes at.
const EVERY: usize = 7;

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::anonymous(BYTES).unwrap())
}

fn open(device: &Arc<dyn BlockDevice>) -> uxfs::Result<Volume> {
    Volume::open_device(Arc::clone(device), &OpenOptions::new().writable(true))
}

fn copy(from: &dyn BlockDevice, to: &dyn BlockDevice) {
    let mut bytes = vec![0; 1 << 20];
    for at in (0..BYTES).step_by(bytes.len()) {
        from.read(at, &mut bytes).unwrap();
        if bytes.iter().any(|byte| *byte != 0) {
            to.write(at, &bytes, Durability::Volatile).unwrap();
        }
    }
}

/// A volume with a file whose attributes lie in hundreds of extents, as another file's lie between them.
fn made() -> Arc<dyn BlockDevice> {
    let device = memory();
    mkfs_device(Arc::clone(&device), &MkfsOptions::new().small(true).block_size(1024), true).unwrap();
    let volume = open(&device).unwrap();
    let root = volume.root().unwrap().as_dir().unwrap();
    let files = [&b"goes"[..], b"stays"].map(|name| root.create_file(name, &NewNode::default()).unwrap());
    for n in 0..600 {
        for file in &files {
            let name = format!("user.a-name-of-some-length-{n}");
            file.set_xattr(name.as_bytes(), &[b'x'; 300], SetXattr::Either).unwrap();
        }
    }
    drop(files);
    volume.close().unwrap();
    device
}

/// Removes the file, with the log forced all the time; `false` if a write failed on the way.
fn remove(device: &Arc<dyn BlockDevice>) -> bool {
    let Ok(volume) = open(device) else { return false };
    let done = AtomicBool::new(false);
    let removed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && volume.sync().is_ok() {
                std::thread::yield_now();
            }
        });
        let removed = volume.root().unwrap().as_dir().unwrap().remove_file(b"goes");
        done.store(true, Ordering::Relaxed);
        removed
    });
    removed.is_ok() & volume.close().is_ok()
}

fn the_kernel_finishes(device: &dyn BlockDevice, image: &Path, mnt: &Path, what: &str) {
    File::create(image).unwrap().set_len(BYTES).unwrap();
    copy(device, &FileDevice::open_writable(image).unwrap());
    let mounted = Mounted::new(image, mnt, false).unwrap();
    assert!(mounted.dir().join("stays").exists());
    mounted.unmount().unwrap();
    repair_finds_nothing(image).unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_frees_an_inode_whose_attributes_are_half_gone() {
    let folder = scratch().unwrap();
    let (image, mnt) = (folder.path().join("image"), folder.path().join("mnt"));
    let before = made();
    for nth in (0..).step_by(EVERY) {
        let device = memory();
        copy(&*before, &*device);
        let fault = Fault { op: Op::Write, nth, effect: Effect::Fail, repeat: Repeat::ReadOnlyAfter };
        let removed = remove(&(Arc::new(FaultDevice::new(Arc::clone(&device), vec![fault])) as _));
        the_kernel_finishes(&*device, &image, &mnt, &format!("the power gone at write {nth}"));
        if removed {
            assert!(nth > EVERY as u64, "no crash on the way");
            return;
        }
    }
}
