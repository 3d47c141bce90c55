//! A volume that the kernel has mounted.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// An image that a test has mounted; unmounted when it goes. What fails in that fails the test.
#[derive(Debug)]
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts an image or a block device at `dir`, which is made if need be, with options as `mount` has them.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(what: &Path, dir: &Path, options: &str) -> Self {
        std::fs::create_dir_all(dir).expect("a mount point");
        let mut mount = Command::new("mount");
        run(mount.args(["-t", "xfs", "-o", options]).args([what, dir]))
            .unwrap_or_else(|error| panic!("{error:#}"));
        Self(dir.to_owned())
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// A path in it.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// Unmounts it now, which writes everything to the volume.
    pub fn unmount(self) {}
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = umount(&self.0) {
            // A test that has failed already says why itself.
            assert!(std::thread::panicking(), "{error:#}");
        }
    }
}

/// How often an unmount is tried.
const TRIES: u32 = 100;

/// Unmounts `dir`. It may be busy for a moment: a child that another thread is just starting holds copies of this
/// process's open files until it becomes its own program.
pub fn umount(dir: &Path) -> Result<()> {
    for _ in 1..TRIES {
        match run(Command::new("umount").arg(dir)) {
            Err(error) if error.to_string().contains("busy") => std::thread::sleep(Duration::from_millis(50)),
            done => return done,
        }
    }
    run(Command::new("umount").arg(dir))
}

fn run(command: &mut Command) -> Result<()> {
    // What it says is looked at.
    let output = command.env("LC_ALL", "C").output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
