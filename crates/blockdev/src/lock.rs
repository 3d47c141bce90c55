//! Keeps a second writer out of an image.
//!
//! `flock` it is, not POSIX record locks: it belongs to the open file description, so that closing some other
//! descriptor of the same file does not release it and a second open in this same process is kept out too. OFD
//! record locks share that, but they need write access for an exclusive lock and say nothing to the tools that
//! look at block devices: udev and systemd leave a device alone while somebody holds its `flock`. A lock is
//! advisory: a program that does not ask is not kept out; for block devices the kernel's own claim (`O_EXCL`)
//! is taken too, and that one also keeps `mount` out.

use std::fs::File;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::DeviceError;

/// Some hold a lock for milliseconds and mean nothing by it: udev, while it probes a device that was just closed; and a
/// process that was just forked off the last holder, until it becomes another program.
const PROBE_RETRIES: u32 = 20;
const PROBE_PAUSE: Duration = Duration::from_millis(10);

/// Takes the writer's lock of `file`; it is released when the file is closed.
pub(crate) fn lock_for_writing(file: &File) -> Result<(), DeviceError> {
    let mut retries = PROBE_RETRIES;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if retries > 0 => {
                retries -= 1;
                std::thread::sleep(PROBE_PAUSE);
            }
            Err(Errno::WOULDBLOCK) => return Err(DeviceError::Locked),
            Err(e) => return Err(DeviceError::setup("locking the image", e)),
        }
    }
}
