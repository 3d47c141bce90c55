//! Volumes in partitions: what lies around them stays, byte for byte. The tables are made by sgdisk.
#![forbid(unsafe_code)]

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
#[ignore = "needs root and xfsprogs"]
fn a_volume_of_a_partition_s_size_leaves_the_table_at_the_disk_s_end() {
    let disk = Disk::new(&[(65, 900)], COPY);
    let around = disk.around(65 * MIB, 900 * MIB);
    uxfs_ok(&[&"mkfs", &"-q", &disk.path, &"900M", &"--offset", &"65M"]);
    assert!(disk.around(65 * MIB, 900 * MIB) == around, "bytes around the partition changed");
    disk.assert_tables_are_whole();
    disk.assert_holds_a_volume(65 * MIB, 900 * MIB);
}

#[test]
#[ignore = "needs root and xfsprogs"]
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

/// What a write to a disk's start leaves of its table: the copy at its end.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_table_of_which_the_copy_is_left_is_not_run_over_unasked() {
    let disk = Disk::new(&[(1, 400), (401, 350)], MIB);
    disk.write(&[0; 34 * 512], 0);
    disk.write(&[0xaa; 1 << 16], MIB);
    for size in ["700M", "752M", "900M"] {
        let before = disk.dir.path().join("before");
        run("cp", &[&"--sparse=always", &disk.path, &before]);
        let what =
            "this is a whole disk with a partition table, which would be lost; say so if that is wanted (-f)";
        uxfs_fails(&[&"mkfs", &disk.path, &size], 9, what);
        run("cmp", &[&before, &disk.path]);
    }
    uxfs_ok(&[&"mkfs", &"-q", &"-f", &disk.path, &"700M"]);
}

/// The same on a loop device, as root would name a disk.
#[test]
#[ignore = "needs root and xfsprogs"]
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
#[ignore = "needs root and xfsprogs"]
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

/// Neither the volume in a partition nor what else lies in one is run over unasked from within it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn inside_of_a_partition_nothing_is_made_unasked() {
    let disk = Disk::new(&[(1, 400), (401, 350)], MIB);
    uxfs_ok(&[&"mkfs", &"-q", &disk.path, &"--offset", &"1M"]);
    let before = disk.dir.path().join("before");
    run("cp", &[&"--sparse=always", &disk.path, &before]);
    for (offset, number) in [("5M", 1), ("405M", 2)] {
        let text = format!("begin inside of partition {number}, and not at its start");
        uxfs_fails(&[&"mkfs", &disk.path, &"--offset", &offset, &"310M"], 9, &text);
    }
    run("cmp", &[&before, &disk.path]);
    uxfs_ok(&[&"mkfs", &"-q", &disk.path, &"--offset", &"401M"]);
    disk.assert_tables_are_whole();
    disk.assert_holds_a_volume(MIB, 400 * MIB);
    uxfs_ok(&[&"mkfs", &"-q", &"-f", &disk.path, &"--offset", &"5M", &"310M"]);
}

/// A volume may be longer than the partition that it is in, since the table was changed.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_reaches_behind_its_partition_is_not_run_over_unasked() {
    let disk = Disk::new(&[(1, 400), (401, 350)], MIB);
    uxfs_ok(&[&"mkfs", &"-q", &disk.path, &"--offset", &"1M"]);
    run("sgdisk", &[&"-a", &"1", &"-d", &"1", &"-n", &"1:2048:20479", &"-n", &"3:20480:819199", &disk.path]);
    let text = "run over an XFS volume that begins at byte 1048576";
    uxfs_fails(&[&"mkfs", &disk.path, &"--offset", &"10M"], 9, text);
    uxfs_ok(&[&"mkfs", &"-q", &disk.path, &"--offset", &"401M"]);
}

/// Behind a volume that is shorter than its file, what is there stays, wherever it begins.
#[test]
#[ignore = "needs root and xfsprogs"]
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

/// A disk with an MBR: two primary partitions and two logical ones, in MiB.
const LOGICAL: [(u32, u64, u64); 4] = [(1, 1, 50), (2, 51, 50), (5, 102, 50), (6, 153, 40)];

fn disk_with_mbr() -> Disk {
    let dir = scratch();
    let path = dir.path().join("disk.img");
    let size = 200 * MIB;
    File::create(&path).unwrap().set_len(size).unwrap();
    let disk = Disk { dir, path, size };
    let entry = |kind: u8, first: u64, sectors: u64| {
        let mut entry = vec![0; 16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&u32::try_from(first).unwrap().to_le_bytes());
        entry[12..].copy_from_slice(&u32::try_from(sectors).unwrap().to_le_bytes());
        entry
    };
    let record = |at: u64, entries: &[Vec<u8>]| {
        disk.write(&entries.concat(), at * MIB + 446);
        disk.write(&[0x55, 0xaa], at * MIB + 510);
    };
    let mib = |mib: u64| mib * 2048;
    record(0, &[entry(0x83, mib(1), mib(50)), entry(0x83, mib(51), mib(50)), entry(0x05, mib(101), mib(99))]);
    record(101, &[entry(0x83, mib(1), mib(50)), entry(0x05, mib(51), mib(41))]);
    record(152, &[entry(0x83, mib(1), mib(40))]);
    // Another reader of such tables agrees.
    for (number, start, length) in LOGICAL {
        let said = run("partx", &[&"-g", &"-o", &"START,SECTORS", &"-n", &number.to_string(), &disk.path]);
        let said = String::from_utf8(said).unwrap();
        let words: Vec<u64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!(words, [mib(start), mib(length)]);
    }
    disk
}

/// Every verb finds the volume in a partition by its number.
fn all_verbs(disk: &Disk, numbers: &[u32]) {
    let image = |number: u32| format!("{}@{number}", disk.path.display());
    let at = |number: u32, path: &str| format!("{}:{path}", image(number));
    let dir = disk.dir.path();
    std::fs::write(dir.join("file"), "content\n").unwrap();
    for &number in numbers {
        uxfs_ok(&[&"mkfs", &"-q", &"--small", &image(number), &"-L", &format!("part{number}")]);
    }
    for &number in numbers {
        let info = String::from_utf8(uxfs_ok(&[&"info", &image(number)])).unwrap();
        assert!(info.contains(&format!("part{number}")), "{info}");
        uxfs_ok(&[&"mkdir", &at(number, "/dir")]);
        uxfs_ok(&[&"cp", &dir.join("file"), &at(number, "/dir/file")]);
        uxfs_ok(&[&"mv", &at(number, "/dir/file"), &at(number, "/file")]);
        uxfs_ok(&[&"ln", &at(number, "/file"), &at(number, "/link")]);
        assert_eq!(uxfs_ok(&[&"cat", &at(number, "/link")]), b"content\n");
        uxfs_ok(&[&"check", &image(number)]);
        uxfs_ok(&[&"recover", &image(number)]);
        uxfs_ok(&[&"rm", &at(number, "/link")]);
        assert_eq!(uxfs_ok(&[&"ls", &image(number)]), b"dir\nfile\n");
    }
    // From one partition to another of the same image.
    let (one, two) = (numbers[0], numbers[1]);
    uxfs_ok(&[&"cp", &at(one, "/file"), &at(two, "/copied")]);
    assert_eq!(uxfs_ok(&[&"ls", &image(one)]), b"dir\nfile\n");
    assert_eq!(uxfs_ok(&[&"cat", &at(two, "/copied")]), b"content\n");
    uxfs_fails(&[&"mv", &at(one, "/file"), &at(two, "/moved")], 2, "another image; copy it");
    uxfs_fails(&[&"ln", &at(one, "/file"), &at(two, "/linked")], 2, "not in the image of the new name");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn partitions_of_a_gpt_are_named_by_number() {
    let disk = Disk::new(&[(1, 40), (41, 60), (120, 40)], MIB);
    all_verbs(&disk, &[1, 2, 3]);
    disk.assert_tables_are_whole();
    for (start, length) in [(1, 40), (41, 60), (120, 40)] {
        disk.assert_holds_a_volume(start * MIB, length * MIB);
    }
    let image = |number: u32| format!("{}@{number}", disk.path.display());
    for verb in ["info", "check", "recover", "ls", "mkfs"] {
        uxfs_fails(&[&verb, &image(4)], 3, "there is no partition 4: the GPT partition table has 1, 2, 3");
        uxfs_fails(&[&verb, &image(0)], 3, "there is no partition 0");
    }
    let both = "a partition is named, and so says where the volume is";
    uxfs_fails(&[&"info", &"--offset", &"1M", &image(1)], 2, both);
    // The disk was cut off.
    File::options().write(true).open(&disk.path).unwrap().set_len(130 * MIB).unwrap();
    uxfs_fails(&[&"info", &image(3)], 5, "partition 3 ends at byte 167772160, past the end of the image");
    assert_eq!(uxfs_ok(&[&"ls", &image(1)]), b"dir\nfile\n");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn partitions_of_an_mbr_are_named_by_number() {
    let disk = disk_with_mbr();
    let numbers = LOGICAL.map(|(number, ..)| number);
    let tables = || [0, 101, 152].map(|mib| disk.bytes(mib * MIB, 512));
    let before = tables();
    all_verbs(&disk, &numbers);
    assert!(tables() == before);
    for (_, start, length) in LOGICAL {
        disk.assert_holds_a_volume(start * MIB, length * MIB);
    }
    // The third holds the logical ones, and is none.
    uxfs_fails(&[&"info", &format!("{}@3", disk.path.display())], 3, "has 1, 2, 5, 6");
}

#[test]
fn names_that_look_like_a_partition() {
    let dir = scratch();
    let image = dir.path().join("x@2");
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &image, &"20M"]);
    let at = format!("{}:/dir", image.display());
    uxfs_ok(&[&"mkdir", &at]);
    assert_eq!(uxfs_ok(&[&"ls", &image]), b"dir\n");
    let numbered = format!("{}@1", image.display());
    uxfs_fails(&[&"ls", &numbered], 3, "there is no partition 1, as there is no partition table");
    uxfs_fails(&[&"mkfs", &"-f", &numbered], 3, "there is no partition 1");
    uxfs_fails(&[&"ls", &dir.path().join("none@2")], 3, "no such image");
}
