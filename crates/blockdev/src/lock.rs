//! Keeps writers of an image apart from each other and from readers.
//!
//! A writer has the lock alone, readers share it. Within one process a reader and a writer may coexist, as in a copy
//! within an image: a reader takes no lock if its process writes, and a new writer releases the locks of its process's
//! readers.
//!
//! The lock is `flock`, not POSIX record locks: `flock` belongs to the open file description, so that closing
//! some other descriptor of the same file does not release it and a second open in this same process is kept
//! out too. OFD record locks share that, but they need write access for an exclusive lock and say nothing to
//! the tools that look at block devices: udev and systemd leave a device alone while somebody holds its
//! `flock`. A lock is advisory: a program that does not ask is not kept out; for block devices the kernel's
//! own claim (`O_EXCL`) is taken too, and that one also keeps `mount` out.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::file::host::retry;
use crate::{DeviceError, Storage};

/// Some hold a lock for only milliseconds: udev, while it probes a device that was just closed, and a process that the
/// last holder forked, until it calls exec.
const PROBE_RETRIES: u32 = 20;
const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// The locks of this process.
static HELD: Mutex<Vec<Arc<Held>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Held {
    storage: Storage,
    /// The same open file description that was locked.
    file: File,
    is_writer: bool,
}

fn held() -> MutexGuard<'static, Vec<Arc<Held>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock on an image. It is released when this and the file are gone.
#[derive(Debug)]
pub(crate) struct Lock(Arc<Held>);

impl Lock {
    fn note(
        all: &mut Vec<Arc<Held>>,
        file: &File,
        storage: Storage,
        is_writer: bool,
    ) -> Result<Self, DeviceError> {
        let file = file.try_clone().map_err(|e| DeviceError::setup("locking the image", e))?;
        let held = Arc::new(Held { storage, file, is_writer });
        all.push(Arc::clone(&held));
        Ok(Self(held))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        held().retain(|other| !Arc::ptr_eq(other, &self.0));
    }
}

/// Takes the writer's lock of `file`.
pub(crate) fn lock_for_writing(file: &File, storage: Storage) -> Result<Lock, DeviceError> {
    let mut retries = PROBE_RETRIES;
    loop {
        let mut all = held();
        match take_alone(file, storage, &all) {
            Ok(()) => return Lock::note(&mut all, file, storage, true),
            Err(Errno::WOULDBLOCK) if retries > 0 => retries -= 1,
            Err(Errno::WOULDBLOCK) => return Err(who_has(file)),
            Err(e) => return Err(DeviceError::setup("locking the image", e)),
        }
        drop(all);
        std::thread::sleep(PROBE_PAUSE);
    }
}

/// Takes the reader's lock of `file`; `None` if this process writes the file, or if it cannot be locked.
pub(crate) fn lock_for_reading(file: &File, storage: Storage) -> Result<Option<Lock>, DeviceError> {
    for _ in 0..=PROBE_RETRIES {
        let mut all = held();
        if all.iter().any(|held| held.is_writer && held.storage == storage) {
            return Ok(None);
        }
        match take(file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Lock::note(&mut all, file, storage, false).map(Some),
            Err(Errno::WOULDBLOCK) => {}
            Err(_) => return Ok(None),
        }
        drop(all);
        std::thread::sleep(PROBE_PAUSE);
    }
    Err(DeviceError::BeingWritten)
}

fn take(file: &File, operation: FlockOperation) -> Result<(), Errno> {
    retry(|| flock(file, operation))
}

/// Takes the writer's lock, if need be from readers of this process.
fn take_alone(file: &File, storage: Storage, all: &[Arc<Held>]) -> Result<(), Errno> {
    let alone = || take(file, FlockOperation::NonBlockingLockExclusive);
    let own = || all.iter().filter(|held| held.storage == storage);
    match alone() {
        Err(Errno::WOULDBLOCK) if own().next().is_some() && own().all(|held| !held.is_writer) => {
            // These can only fail if another process came in between. It has the lock alone, and is reported as usual.
            let readers = |operation| {
                for held in own() {
                    let _met = take(&held.file, operation);
                }
            };
            readers(FlockOperation::NonBlockingUnlock);
            alone().inspect_err(|_| readers(FlockOperation::NonBlockingLockShared))
        }
        done => done,
    }
}

/// The error for the holder that a writer found.
fn who_has(file: &File) -> DeviceError {
    match take(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => DeviceError::BeingRead,
        Err(_) => DeviceError::Locked,
    }
}
