//! Volumes in partitions: what lies around them stays, byte for byte. The tables are made by sgdisk.

mod common;

use common::{run, scratch, uxfs_fails, uxfs_ok};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Bytes of the copy of a GPT at a disk's end.
const COPY: u64 = 33 * 512;

/// A disk with these partitions (first MiB, MiB, bytes behind the last), all marked around them.
struct Disk {
    dir: TempDir,
    path: PathBuf,
    size: u64,
}

impl Disk {
    fn new(partitions: &[(u64, u64)], behind: u64) -> Self {
        let dir = scratch();
        let path = dir.path().join("disk.img");
        let last = partitions.last().expect("a partition");
        let size = (last.0 + last.1) * MIB + behind;
        File::create(&path).unwrap().set_len(size).unwrap();
        for (number, (start, length)) in (1..).zip(partitions) {
            let range = format!("{number}:{}:{}", start * 2048, (start + length) * 2048 - 1);
            run("sgdisk", &[&"-a", &"1", &"-n", &range, &path]);
        }
        Self { dir, path, size }
    }

    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        File::open(&self.path).unwrap().read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn write(&self, bytes: &[u8], at: u64) {
        File::options().write(true).open(&self.path).unwrap().write_all_at(bytes, at).unwrap();
    }

    /// What lies before and behind a part of the disk must be as it was.
    fn around(&self, start: u64, length: u64) -> (Vec<u8>, Vec<u8>) {
        let end = start + length;
        let behind = (self.size - end).min(4 * MIB);
        let mut tail = self.bytes(end, behind);
        tail.extend(self.bytes(self.size - COPY, COPY));
        (self.bytes(0, start), tail)
    }

    fn assert_tables_are_whole(&self) {
        let said = String::from_utf8(run("sgdisk", &[&"-v", &self.path])).unwrap();
        assert!(said.contains("No problems found"), "{said}");
    }

    /// The volume in a part of the disk is as long as that, and sound.
    fn assert_holds_a_volume(&self, start: u64, length: u64) {
        let part = self.dir.path().join("part");
        let (skip, count) = (format!("skip={start}"), format!("count={length}"));
        let (from, to) = (format!("if={}", self.path.display()), format!("of={}", part.display()));
        run("dd", &[&"iflag=skip_bytes,count_bytes", &"bs=1M", &"conv=sparse", &skip, &count, &from, &to]);
        run("xfs_repair", &[&"-n", &part]);
        let info = uxfs_ok(&[&"info", &"--json", &part]);
        let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
        assert_eq!(info["blocks"], length / 4096);
    }
}

fn mib(value: u64) -> String {
    format!("{value}M")
}

#[test]
fn a_volume_of_a_partition_s_size_leaves_the_table_at_the_disk_s_end() {
    let disk = Disk::new(&[(65, 900)], COPY);
    let around = disk.around(65 * MIB, 900 * MIB);
    uxfs_ok(&[&"mkfs", &"-q", &disk.path, &"900M", &"--offset", &"65M"]);
    assert!(disk.around(65 * MIB, 900 * MIB) == around, "bytes around the partition changed");
    disk.assert_tables_are_whole();
    disk.assert_holds_a_volume(65 * MIB, 900 * MIB);
}

#[test]
fn without_a_size_the_volume_takes_the_partition_and_no_more() {
    let disk = Disk::new(&[(1, 400), (401, 350), (800, 300)], MIB);
    disk.write(&[0xbb; 1 << 16], 401 * MIB);
    disk.write(&[0xcc; 1 << 16], 800 * MIB);
    for (start, length) in [(1, 400), (800, 300)] {
        let around = disk.around(start * MIB, length * MIB);
        uxfs_ok(&[&"mkfs", &"-q", &disk.path, &"--offset", &mib(start)]);
        assert!(disk.around(start * MIB, length * MIB) == around, "bytes around {start} changed");
        disk.assert_tables_are_whole();
        disk.assert_holds_a_volume(start * MIB, length * MIB);
    }
    assert_eq!(disk.bytes(401 * MIB, 1 << 16), [0xbb; 1 << 16]);
}

/// The same on a loop device, as root would name a disk.
#[test]
fn a_partition_of_a_block_device() {
    let disk = Disk::new(&[(1, 400), (401, 350)], MIB);
    disk.write(&[0xbb; 1 << 16], 401 * MIB);
    let around = disk.around(MIB, 400 * MIB);
    let device = String::from_utf8(run("losetup", &[&"-f", &"--show", &disk.path])).unwrap();
    let made = common::uxfs(&[&"mkfs", &"-q", &device.trim_end(), &"--offset", &"1M"]);
    run("losetup", &[&"-d", &device.trim_end()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(disk.around(MIB, 400 * MIB) == around);
    disk.assert_holds_a_volume(MIB, 400 * MIB);
}

fn refused(disk: &Disk, args: &[&str], code: i32, text: &str) {
    let before = disk.dir.path().join("before");
    run("cp", &[&"--sparse=always", &disk.path, &before]);
    let mut all: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"mkfs", &"-f", &disk.path];
    all.extend(args.iter().map(|arg| arg as &dyn AsRef<std::ffi::OsStr>));
    uxfs_fails(&all, code, text);
    run("cmp", &[&before, &disk.path]);
}

#[test]
fn what_would_run_over_something_else_is_refused() {
    let disk = Disk::new(&[(1, 400), (401, 350), (800, 300)], MIB);
    for (args, text) in [
        (&["--offset", "2M"][..], "no partition begins at byte 2097152 (the GPT"),
        (&["--offset", "760M"], "give the volume's size"),
        (&["450M", "--offset", "1M"], "bytes 1048576 to 472907776 run over partition 2"),
        (&["310M", "--offset", "760M"], "run over partition 3"),
        (&["301M", "--offset", "800M"], "run over the partition table"),
        (&["900M", "--offset", "800M"], "run over the partition table"),
        (&["300M", "--offset", "512"], "run over the partition table"),
    ] {
        refused(&disk, args, 2, text);
    }
    // A table that cannot be believed says nothing of what may be written.
    let plain = Disk::new(&[(1, 400)], MIB);
    plain.write(&[0; 512], 512);
    plain.write(&[0; 512], plain.size - 512);
    plain.write(b"EFI PART", 512);
    refused(&plain, &["--offset", "1M"], 5, "the partition table (GPT) is damaged");
    refused(&plain, &["300M", "--offset", "1M"], 5, "the partition table (GPT) is damaged");
    plain.write(&[0; 4096], 0);
    refused(
        &plain,
        &["--offset", "1M"],
        2,
        "no partition begins at byte 1048576 (there is no partition table)",
    );
}

/// Behind a volume that is shorter than its file, what is there stays, wherever it begins.
#[test]
fn what_lies_behind_a_shorter_volume_stays() {
    let dir = scratch();
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(400 * MIB).unwrap();
    let end = [0xdd; 1 << 17];
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(&end, 400 * MIB - end.len() as u64)
        .unwrap();
    uxfs_ok(&[&"mkfs", &"-q", &path, &"300M"]);
    let mut found = end.map(|_| 0);
    read(&path, 400 * MIB - end.len() as u64, &mut found);
    assert!(found == end);
    run("xfs_repair", &[&"-n", &"-f", &path]);
}

fn read(path: &Path, at: u64, bytes: &mut [u8]) {
    File::open(path).unwrap().read_exact_at(bytes, at).unwrap();
}
