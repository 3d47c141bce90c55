//! Images for tests: made by `mkfs.xfs`, filled by the kernel through a loop mount. Needs root and xfsprogs.
#![allow(dead_code, reason = "each test binary uses its part")]

use blockdev::{BlockDevice, FileOptions};
use oracles::Mounted;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use tempfile::TempDir;
use xfs::volume::{OpenOptions, Volume};

/// Runs a command that must succeed; gives its output.
pub fn run(program: impl AsRef<OsStr>, args: &[&str]) -> String {
    let program = program.as_ref();
    let output = try_run(program, args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program:?} {args:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Runs a command.
pub fn try_run(program: impl AsRef<OsStr>, args: &[&str]) -> Output {
    let program = program.as_ref();
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program:?}: {error}"))
}

/// An image in a directory of its own.
pub struct Image {
    dir: TempDir,
}

impl Image {
    /// A sparse file of `bytes`, formatted with `args`.
    pub fn mkfs(bytes: u64, args: &[&str]) -> Self {
        let image = Self::blank(bytes);
        let path = image.path();
        let mut all = vec!["-q", "-f"];
        all.extend(args);
        all.push(path.to_str().unwrap());
        run("mkfs.xfs", &all);
        image
    }

    /// A sparse file of `bytes`.
    pub fn blank(bytes: u64) -> Self {
        Self::blank_in(std::env::temp_dir(), bytes)
    }

    /// A sparse file of `bytes` below a directory.
    pub fn blank_in(dir: impl AsRef<Path>, bytes: u64) -> Self {
        let image = Self { dir: tempfile::tempdir_in(dir).unwrap() };
        File::create(image.path()).unwrap().set_len(bytes).unwrap();
        image
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// A path for something beside the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Mounts the image by the kernel.
    pub fn mount(&self, options: &str) -> Mounted {
        let dir = self.beside("mnt");
        Mounted::new(&self.path(), &dir, &format!("loop,noatime{options}"))
    }

    /// The image as a device with the smallest sectors.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(FileOptions::new().sector_size(512).open(self.path()).unwrap())
    }

    /// Opens the volume for reading.
    pub fn open(&self) -> xfs::Result<Arc<Volume>> {
        Volume::open(self.device(), &OpenOptions::default())
    }

    /// Changes bytes of the image.
    pub fn patch(&self, offset: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        let file = File::options().write(true).open(self.path()).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }
}
