//! An image file on a disk whose sectors are larger than the volume's.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use uxfs::{OpenOptions, Volume};

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// A mounted ext4 on a loop device with 4096-byte sectors, gone when dropped.
struct LargeSectors {
    dir: tempfile::TempDir,
    device: String,
}

impl LargeSectors {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let backing = dir.path().join("backing");
        std::fs::File::create(&backing).and_then(|file| file.set_len(512 << 20)).expect("a sparse file");
        let device = run("losetup", &["-f", "--show", "-b", "4096", backing.to_str().expect("UTF-8")]);
        run("mkfs.ext4", &["-q", &device]);
        std::fs::create_dir(dir.path().join("mnt")).expect("a mount point");
        run("mount", &[&device, dir.path().join("mnt").to_str().expect("UTF-8")]);
        Self { dir, device }
    }

    fn mount_point(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }
}

impl Drop for LargeSectors {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.mount_point()).status();
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

/// A volume with 512-byte sectors that holds its own proto file as `/proto`.
fn make_volume(image: &Path, scratch: &Path) -> String {
    let proto = scratch.join("proto");
    let text = format!("/\n0 0\nd--755 0 0\nproto ---644 0 0 {}\n$\n", proto.display());
    std::fs::write(&proto, &text).expect("a proto file");
    std::fs::File::create(image).and_then(|file| file.set_len(320 << 20)).expect("a sparse file");
    let (proto, image) = (proto.to_str().expect("UTF-8"), image.to_str().expect("UTF-8"));
    run("mkfs.xfs", &["-q", "-s", "size=512", "-p", proto, image]);
    text
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn smaller_sectors_than_the_disks_are_read_through_the_page_cache() {
    let host = LargeSectors::new();
    let image = host.mount_point().join("image");
    let text = make_volume(&image, host.dir.path());
    for writable in [false, true] {
        let volume = Volume::open(&image, &OpenOptions::new().writable(writable)).expect("it opens");
        let mut bytes = vec![0; text.len() + 10];
        let read = volume.open_file("/proto").and_then(|file| file.read_at(&mut bytes, 0)).expect("it reads");
        assert_eq!(&bytes[..read], text.as_bytes());
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_partition_that_starts_at_an_odd_sector_opens() {
    let host = LargeSectors::new();
    let (volume, disk) = (host.dir.path().join("volume"), host.mount_point().join("disk"));
    let text = make_volume(&volume, host.dir.path());
    let (from, to) = (format!("if={}", volume.display()), format!("of={}", disk.display()));
    run("dd", &[&from, &to, "bs=512", "seek=63", "conv=sparse", "status=none"]);
    let length = 63 * 512 + (320 << 20);
    std::fs::File::options().write(true).open(&disk).and_then(|file| file.set_len(length)).expect("its end");
    let volume = Volume::open(&disk, &OpenOptions::new().offset(63 * 512)).expect("it opens");
    let mut bytes = vec![0; text.len()];
    volume.open_file("/proto").and_then(|file| file.read_at(&mut bytes, 0)).expect("it reads");
    assert_eq!(bytes, text.as_bytes());
}
