//! A volume that the kernel has mounted.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
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
        mount(what, dir, options).unwrap_or_else(|error| panic!("{error:#}"));
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

/// How often an unmount is tried, and how often it is asked whether the device is free.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(50);

/// Has the kernel mount an image or a block device at `dir`, which is made if need be, with options as `mount` has them.
/// It tries again while the device is busy: processes that mount and unmount images at once may be given the same loop
/// device, which the one still lets go of.
pub fn mount(what: &Path, dir: &Path, options: &str) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let once = || run(Command::new("mount").args(["-t", "xfs", "-o", options]).args([what, dir]));
    for _ in 1..TRIES {
        match once() {
            Err(error) if format!("{error:#}").contains("already mounted or mount point busy") => {
                std::thread::sleep(PAUSE)
            }
            result => return result,
        }
    }
    once()
}

/// Unmounts `dir`, and waits until nobody has the device mounted. It may be busy for a moment: a child that another thread
/// is just starting holds copies of this process's open files until it becomes its own program. And it may stay mounted
/// for a while: a mount namespace that was made meanwhile has a copy of the mount.
pub fn umount(dir: &Path) -> Result<()> {
    let device = Device::mounted_at(dir)?;
    for _ in 1..TRIES {
        match run(Command::new("umount").arg(dir)) {
            Err(error) if error.to_string().contains("busy") => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
            Ok(()) => return device.map_or(Ok(()), |device| device.wait_until_free()),
        }
    }
    run(Command::new("umount").arg(dir))
}

/// A block device that was mounted.
struct Device {
    path: PathBuf,
    /// What a loop device is attached to. Once it is free, its number may be another image's.
    backing: Option<String>,
}

impl Device {
    fn mounted_at(dir: &Path) -> Result<Option<Self>> {
        let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
        let mounts = std::fs::read_to_string("/proc/self/mounts").context("the mounts")?;
        let at = mounts.lines().rev().map(|line| line.split(' ').collect::<Vec<_>>());
        let source =
            at.filter(|mount| mount.get(1).is_some_and(|at| Path::new(at) == dir)).map(|mount| mount[0]);
        let path = source.into_iter().find(|source| source.starts_with("/dev/")).map(PathBuf::from);
        Ok(path.map(|path| Self { backing: backing(&path), path }))
    }

    fn wait_until_free(&self) -> Result<()> {
        for _ in 0..TRIES {
            if self.is_free() {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        bail!("{} is unmounted here, and mounted elsewhere still", self.path.display())
    }

    /// Who opens a device exclusively is refused while it is mounted, wherever that is.
    fn is_free(&self) -> bool {
        const O_EXCL: i32 = 0o200;
        let opened = File::options().read(true).custom_flags(O_EXCL).open(&self.path);
        let is_busy = opened.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy);
        !is_busy || (self.backing.is_some() && backing(&self.path) != self.backing)
    }
}

fn backing(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()
}

fn run(command: &mut Command) -> Result<()> {
    // What it says is looked at.
    let output = command.env("LC_ALL", "C").output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    #[ignore = "needs root and xfsprogs"]
    fn an_unmount_waits_for_copies_of_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        File::create(&image).unwrap().set_len(300 << 20).unwrap();
        run(Command::new("mkfs.xfs").arg("-q").arg(&image)).unwrap();
        let mounted = Mounted::new(&image, &at, "loop");
        let device = Device::mounted_at(&at).unwrap().expect("a loop device");
        assert!(!device.is_free());
        let mut other = Command::new("unshare");
        let script = "mount --make-rprivate / && echo copied && sleep 1";
        let mut other = other.args(["-m", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 6];
        std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut said).unwrap();
        mounted.unmount();
        assert!(device.is_free());
        assert!(other.wait().unwrap().success());
    }
}
