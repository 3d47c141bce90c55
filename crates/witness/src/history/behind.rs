//! The kernel recovers a log, goes on behind it, and the power fails once more before anything was written back: what it made
//! durable is there all the same.
//!
//! That is asked of logs that uxfs left: the kernel's records follow ours then, and its next recovery reads both.

use crate::command;
use crate::sandbox::{Mounted, repair_finds_nothing};
use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, syncfs, utimensat};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Checkpoints of the kernel behind its recovery.
const CHECKPOINTS: i64 = 20;

/// Does that to an image. The change, of the root directory's time, takes no space.
pub(super) fn the_kernel_goes_on(image: &Path, mnt: &Path) -> Result<()> {
    let mounted = Mounted::new(image, mnt, false).context("recovery by the kernel")?;
    let root = File::open(mounted.dir())?;
    for seconds in 1..=CHECKPOINTS {
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
        let times =
            Timestamps { last_access: omitted, last_modification: Timespec { tv_sec: seconds, tv_nsec: 0 } };
        utimensat(CWD, mounted.dir(), &times, AtFlags::empty())?;
        syncfs(&root)?;
    }
    drop(root);
    command::run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(mounted.dir()))?;
    mounted.unmount()?;
    let mounted = Mounted::new(image, mnt, false).context("recovery by the kernel behind one of its own")?;
    let found = mounted.dir().metadata()?.mtime();
    mounted.unmount()?;
    ensure!(
        found == CHECKPOINTS,
        "of {CHECKPOINTS} checkpoints of the kernel, {found} are there behind a crash"
    );
    repair_finds_nothing(image).context("after the kernel went on and recovered that")
}
