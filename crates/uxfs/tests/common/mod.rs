//! Volumes to write to, and the kernel's view of them.

mod crash;
#[allow(dead_code, reason = "each test uses its part")]
pub mod devices;
#[allow(dead_code, reason = "each test uses its part")]
pub mod files;
#[allow(dead_code, reason = "each test uses its part")]
pub mod logs;

#[allow(unused_imports, reason = "not every test names its type")]
pub use crash::Opened;
#[allow(unused_imports, reason = "nor opens one to write to it")]
pub use crash::open;

use oracles::{Mounted, xfsprogs::Release};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A volume of 512 MiB as mkfs.xfs makes it, with features that uxfs writes.
pub fn made(dir: &Path, more: &[&str]) -> PathBuf {
    let image = dir.join("volume.img");
    let file = std::fs::File::create(&image).expect("an image");
    file.set_len(512 << 20).expect("a sparse image");
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-m", "rmapbt=0"]).args(more).arg(&image));
    image
}

/// The newest `xfs_repair -n` is content with a volume.
pub fn repair_finds_nothing(image: &std::path::Path) {
    let mut newest = Release::Unstable.tool("xfs_repair").expect("installed");
    let run = newest.arg("-n").arg(image).output().expect("it runs");
    let text = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{text}");
}

/// What `look` sees in the kernel's mount of a volume.
pub fn mounted<R>(image: &Path, look: impl FnOnce(&Path) -> R) -> R {
    let at = tempfile::tempdir().expect("a mount point");
    let mount = Mounted::new(image, at.path(), "loop");
    look(mount.dir())
}

fn run(command: &mut Command) {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}
