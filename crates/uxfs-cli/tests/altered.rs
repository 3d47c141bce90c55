//! Label, UUID, size and features of volumes that are there: what the ordinary tools and the kernel see then, and what is
//! refused. Needs root, xfsprogs and loop mounts, as the other tests of verbs do.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run, scratch, uxfs, uxfs_fails, uxfs_heeding_signals, uxfs_ok};
use oracles::xfsprogs::Release;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A volume with a tree in it, with features that are written.
fn filled(options: &[&str]) -> Image {
    Image::filled(&[&["-m", "rmapbt=0"], options].concat())
}

/// `xfs_repair` finds nothing, the system's nor the newest one, nor does `uxfs check`.
fn sound(image: &Path) {
    run("xfs_repair", &[&"-n", &image]);
    run(Release::Unstable.path("xfs_repair").unwrap().to_str().unwrap(), &[&"-n", &image]);
    uxfs_ok(&[&"check", &image]);
}

/// A field of a group's superblock, as `xfs_db` shows it.
fn field(image: &Path, ag: u32, name: &str) -> String {
    let (sb, print) = (format!("sb {ag}"), format!("p {name}"));
    let said = run("xfs_db", &[&"-r", &"-c", &sb, &"-c", &print, &image]);
    let said = String::from_utf8(said).unwrap();
    said.trim().split_once(" = ").expect("a field").1.to_owned()
}

fn info(image: &Path) -> Value {
    serde_json::from_slice(&uxfs_ok(&[&"info", &"--json", &image])).unwrap()
}

/// Every command is refused with its code and these words, and no byte changes.
fn refused(image: &Path, commands: &[(&[&str], i32, &str)]) {
    let before = image.with_extension("before");
    run("cp", &[&"--sparse=always", &image, &before]);
    for (command, code, said) in commands {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&command[0], &image];
        args.extend(command[1..].iter().map(|arg| arg as &dyn AsRef<OsStr>));
        let output = uxfs(&args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{command:?}: {text}");
        assert!(text.contains(said), "{command:?}: {text}");
        run("cmp", &[&before, &image]);
    }
    std::fs::remove_file(before).unwrap();
}

/// The kernel leaves a log to be replayed.
fn crash(image: &Image) {
    let mount = image.mount(&[]);
    std::fs::write(mount.dir().join("late"), "late\n").unwrap();
    run("sync", &[&"-f", &mount.dir()]);
    run("xfs_io", &[&"-x", &"-c", &"shutdown -f", &mount.dir()]);
}

/// The kernel changes the volume, with files that are larger than `bytes` all in all, so that new groups get theirs.
fn kernel_fills(image: &Image, bytes: u64) {
    let mount = image.mount(&[]);
    for n in 0..8 {
        std::fs::create_dir(mount.dir().join(format!("new{n}"))).unwrap();
        for file in 0..40 {
            std::fs::write(mount.dir().join(format!("new{n}/{file}")), vec![n; 5000]).unwrap();
        }
        let large = File::create(mount.dir().join(format!("new{n}/large"))).unwrap();
        rustix::fs::fallocate(&large, rustix::fs::FallocateFlags::empty(), 0, bytes / 8 + MIB).unwrap();
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_label_is_in_every_superblock() {
    let image = filled(&["-L", "first"]);
    assert_eq!(uxfs_ok(&[&"label", &image.path]), b"first\n");
    assert_eq!(uxfs_ok(&[&"label", &image.path, &"twelve bytes"]), b"");
    for ag in 0..4 {
        assert_eq!(field(&image.path, ag, "fname"), "\"twelve bytes\"", "{ag}");
    }
    assert_eq!(run("xfs_admin", &[&"-l", &image.path]), b"label = \"twelve bytes\"\n");
    assert_eq!(info(&image.path)["label"], "twelve bytes");
    sound(&image.path);
    refused(
        &image.path,
        &[
            (&["label", "thirteen byte"], 2, "a label has 12 bytes at most"),
            (&["label", "twelve bytes"], 0, ""),
        ],
    );
    let mount = image.mount(&[]);
    assert_eq!(run("xfs_io", &[&"-c", &"label", &mount.dir()]), b"label = \"twelve bytes\"\n");
    run("xfs_io", &[&"-c", &"label -s kernel", &mount.dir()]);
    drop(mount);
    assert_eq!(uxfs_ok(&[&"label", &image.path]), b"kernel\n");
    uxfs_ok(&[&"label", &image.path, &""]);
    assert_eq!(field(&image.path, 3, "fname"), format!("\"{}\"", "\\000".repeat(12)));
    assert_eq!(uxfs_ok(&[&"label", &"--json", &image.path]), b"{\"label\":\"\"}\n");
    sound(&image.path);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_uuid_is_another_one_and_metadata_keep_theirs() {
    let image = filled(&[]);
    let made_with = field(&image.path, 0, "uuid");
    assert_eq!(uxfs_ok(&[&"uuid", &image.path]), format!("{made_with}\n").as_bytes());
    let other = "01234567-89ab-cdef-0123-456789abcdef";
    for wanted in [other, "generate"] {
        let said = String::from_utf8(uxfs_ok(&[&"uuid", &image.path, &wanted])).unwrap();
        let new = said.trim();
        assert!(new != made_with && (wanted == "generate") == (new != other), "{new}");
        for ag in 0..4 {
            assert_eq!(field(&image.path, ag, "uuid"), new, "{ag}");
            assert_eq!(field(&image.path, ag, "meta_uuid"), made_with, "{ag}");
        }
        assert_eq!(info(&image.path)["uuid"], new);
        sound(&image.path);
        // The kernel takes the log for this volume's, and replays what it leaves there itself, as uxfs does.
        crash(&image);
        drop(image.mount(&[]));
        sound(&image.path);
        crash(&image);
        refused(&image.path, &[(&["uuid", "generate"], 7, "the log is dirty")]);
        assert!(uxfs(&[&"recover", &image.path]).status.success());
        uxfs_ok(&[&"mkdir", &image.at(&format!("/{new}"))]);
        sound(&image.path);
    }
    assert_eq!(uxfs_ok(&[&"uuid", &image.path, &"restore"]), format!("{made_with}\n").as_bytes());
    assert_eq!(field(&image.path, 2, "uuid"), made_with);
    assert_eq!(field(&image.path, 2, "features_incompat"), "0xb");
    sound(&image.path);
    refused(
        &image.path,
        &[(&["uuid", "restore"], 0, ""), (&["uuid", &made_with], 0, ""), (&["uuid", "0123"], 2, "invalid")],
    );
    let nil = "00000000-0000-0000-0000-000000000000";
    assert_eq!(uxfs_ok(&[&"uuid", &image.path, &"nil"]), format!("{nil}\n").as_bytes());
    assert_eq!(field(&image.path, 1, "uuid"), nil);
    uxfs_ok(&[&"mkdir", &image.at("/of-none")]);
    assert!(image.mount(&[]).dir().join("of-none").is_dir());
    uxfs_ok(&[&"uuid", &image.path, &"restore"]);
    sound(&image.path);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_grows_into_its_file_and_with_it() {
    for options in [&[][..], &["-m", "finobt=0,inobtcount=0,reflink=0"], &["-b", "size=1k", "-s", "size=1k"]]
    {
        let image = filled(options);
        let before = common::manifest(image.mount(&[]).dir());
        // A part of the last group, then new groups; the file is longer, or becomes so.
        for (file, size, shown) in
            [(Some(444), None, 444), (Some(900), Some("600M"), 600), (None, Some("1G"), 1024)]
        {
            if let Some(mib) = file {
                File::options().write(true).open(&image.path).unwrap().set_len(mib * MIB).unwrap();
            }
            let from = info(&image.path);
            let size: Vec<&dyn AsRef<OsStr>> = size.iter().map(|size| size as &dyn AsRef<OsStr>).collect();
            uxfs_ok(&[&[&"grow" as &dyn AsRef<OsStr>, &image.path], &size[..]].concat());
            let now = info(&image.path);
            let block = now["block_size"].as_u64().unwrap();
            assert_eq!(now["blocks"], shown * MIB / block);
            assert_eq!(now["ag_blocks"], from["ag_blocks"]);
            let groups = now["ag_count"].as_u64().unwrap();
            assert_eq!(groups, (shown * MIB / block).div_ceil(now["ag_blocks"].as_u64().unwrap()));
            for ag in [0, 1, groups - 1] {
                assert_eq!(
                    field(&image.path, ag as u32, "dblocks"),
                    (shown * MIB / block).to_string(),
                    "{ag}"
                );
            }
            sound(&image.path);
        }
        assert_eq!(common::manifest(image.mount(&[]).dir()), before);
        assert_eq!(std::fs::metadata(&image.path).unwrap().len(), 1024 * MIB);
        kernel_fills(&image, 700 * MIB);
        sound(&image.path);
        uxfs_ok(&[&"rm", &"-r", &image.at("/new3"), &image.at("/docs")]);
        uxfs_ok(&[&"cp", &"-a", &"/etc", &image.at("/etc")]);
        sound(&image.path);
        refused(
            &image.path,
            &[
                (&["grow", "1023M"], 2, "a volume cannot become smaller"),
                (&["grow", "-1M"], 2, "unexpected argument"),
                (&["grow", "16777216T"], 2, "too large"),
                (&["grow", "8388608T"], 2, "no file can be as large as that"),
                (&["grow"], 0, ""),
                (&["grow", "1G"], 0, ""),
            ],
        );
    }
}

/// Many groups where there was one, which the kernel finds all.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_smallest_volume_grows_two_hundredfold() {
    let dir = scratch();
    let path = dir.path().join("volume.img");
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &path, &"16M"]);
    uxfs_ok(&[&"grow", &path, &"3200M"]);
    assert_eq!(info(&path)["ag_count"], 200);
    sound(&path);
    let image = Image { dir, path };
    kernel_fills(&image, 2 << 30);
    sound(&image.path);
    uxfs_ok(&[&"rm", &"-r", &image.at("/new1")]);
    uxfs_ok(&[&"grow", &image.path, &"3300M"]);
    sound(&image.path);
}

/// Hundreds of thousands of groups take their time: a signal ends it, and the volume and its file are as long as before.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_growth_that_is_interrupted_leaves_all_as_it_was() {
    const SIZE: u64 = 16 * MIB;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("volume.img");
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &path, &"16M"]);
    let before = std::fs::read(&path).unwrap();
    let child =
        uxfs_heeding_signals().arg("grow").arg(&path).arg("10T").stderr(Stdio::piped()).spawn().unwrap();
    // Some groups are written.
    while std::fs::metadata(&path).unwrap().blocks() * 512 < 2 * SIZE {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(11), "{said}");
    assert_eq!(said, "uxfs: interrupted; the volume is as large as it was\n");
    assert!(std::fs::read(&path).unwrap() == before, "not as it was");
    uxfs_ok(&[&"grow", &path, &"320M"]);
    sound(&path);
}

/// What lay behind it in the same file was gone, and nothing said so.
#[test]
#[ignore = "needs root and xfsprogs"]
fn nothing_that_begins_behind_a_volume_is_run_over() {
    const SECOND: u64 = 400 * MIB;
    for (start, by_kernel_tools) in [(0, false), (0, true), (3 * MIB, false)] {
        let dir = scratch();
        let path = dir.path().join("disk.img");
        let [first, second] = [start, SECOND].map(|start| start.to_string());
        uxfs_ok(&[&"mkfs", &"-q", &"--offset", &first, &path, &"310M"]);
        if by_kernel_tools {
            File::options().write(true).open(&path).unwrap().set_len(SECOND + 310 * MIB).unwrap();
            let device = run("losetup", &[&"-f", &"--show", &"-o", &second, &path]);
            let device = String::from_utf8(device).unwrap();
            run("mkfs.xfs", &[&"-q", &device.trim_end()]);
            run("losetup", &[&"-d", &device.trim_end()]);
        } else {
            uxfs_ok(&[&"mkfs", &"-q", &"--offset", &second, &path, &"310M"]);
        }
        let said = |end: u64| {
            format!(
                "bytes {} to {} run over an XFS volume that begins at byte {SECOND} and would be lost; give a \
                 smaller size, or remove it first",
                start + 310 * MIB,
                start + end
            )
        };
        let over = |size: &'static str, end: u64| {
            let command = ["grow", "--offset", &first, size];
            let command = &command[..if size.is_empty() { 3 } else { 4 }];
            refused(&path, &[(command, 9, &said(end))]);
        };
        over("", SECOND + 310 * MIB - start);
        over("700M", 700 * MIB);
        // The file would have to become longer.
        over("1200M", 1200 * MIB);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SECOND + 310 * MIB);
        if start == 0 {
            let device = String::from_utf8(run("losetup", &[&"-f", &"--show", &path])).unwrap();
            let device = device.trim_end();
            let output = uxfs(&[&"grow", &device]);
            run("losetup", &[&"-d", &device]);
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(9), "{text}");
            assert!(text.contains(&said(SECOND + 310 * MIB)), "{text}");
        }
        let room = (SECOND - start).to_string();
        uxfs_ok(&[&"grow", &"--offset", &first, &path, &room]);
        for place in [&first, &second] {
            uxfs_ok(&[&"--offset", place, &"check", &path]);
        }
        // Behind the last one is nothing.
        uxfs_ok(&[&"--offset", &second, &"grow", &path, &"400M"]);
        uxfs_ok(&[&"--offset", &second, &"check", &path]);
    }
}

/// Group headers behind a volume are those of a growth that was killed, or of a larger volume that was there before.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_left_of_groups_behind_a_volume_is_in_nobodys_way() {
    use std::os::unix::fs::FileExt;
    const SIZE: u64 = 16 * MIB;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("volume.img");
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &path, &"16M"]);
    let mut child = uxfs_heeding_signals().arg("grow").arg(&path).arg("10T").spawn().unwrap();
    while std::fs::metadata(&path).unwrap().blocks() * 512 < 2 * SIZE {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let at = |path: &Path, at: u64| {
        let mut superblock = [0; 512];
        File::open(path).unwrap().read_exact_at(&mut superblock, at).unwrap();
        superblock
    };
    for group in [1, 20] {
        assert!(at(&path, group * SIZE).starts_with(b"XFSB"), "{group}");
    }
    for size in ["300M", "640M"] {
        uxfs_ok(&[&"grow", &path, &size]);
        sound(&path);
    }
    // A label is in all copies, which do not say "in progress" from then on.
    let path = dir.path().join("larger.img");
    uxfs_ok(&[&"mkfs", &"-q", &path, &"900M", &"-d", &"agcount=9"]);
    uxfs_ok(&[&"label", &path, &"larger"]);
    let copy = at(&path, 800 * MIB);
    assert!(copy.starts_with(b"XFSB") && copy[126] == 0);
    uxfs_ok(&[&"mkfs", &"-q", &"-f", &path, &"310M"]);
    uxfs_ok(&[&"grow", &path]);
    assert_eq!(info(&path)["blocks"], 900 * MIB / 4096);
    sound(&path);
}

/// 64 blocks are a group, 63 are left out.
#[test]
#[ignore = "needs root and xfsprogs"]
fn an_end_that_is_too_short_for_a_group_is_left_out() {
    let image = filled(&["-d", "agsize=100m"]);
    let short = (500 << 20) + 63 * 4096;
    let output = uxfs(&[&"grow", &image.path, &short.to_string()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("the last 258048 bytes are left out"), "{said}");
    assert_eq!(info(&image.path)["ag_count"], 5);
    sound(&image.path);
    uxfs_ok(&[&"grow", &image.path, &(short + 4096).to_string()]);
    assert_eq!(info(&image.path)["ag_count"], 6);
    sound(&image.path);
    kernel_fills(&image, 300 * MIB);
    sound(&image.path);
}

/// What is too short for another block is no reason for a longer file.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_file_does_not_become_longer_for_nothing() {
    let image = filled(&[]);
    let before = std::fs::metadata(&image.path).unwrap().len();
    for more in [512, 63 * 4096] {
        let size = before + more;
        let output = uxfs(&[&"grow", &image.path, &size.to_string()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::metadata(&image.path).unwrap().len(), before, "{more}");
    }
    sound(&image.path);
}

/// It replayed the log that was not to be replayed.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_whose_log_is_not_replayed_does_not_grow() {
    let image = filled(&[]);
    crash(&image);
    let said = "a volume that is opened without recovery cannot be written";
    let commands: [(&[&str], i32, &str); 2] =
        [(&["grow", "--norecovery", "600M"], 4, said), (&["grow", "--norecovery"], 4, said)];
    refused(&image.path, &commands);
    assert_eq!(info(&image.path)["log_clean"], false);
}

/// A volume in a partition takes the partition, and no more.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_in_a_partition_grows_to_its_end() {
    let dir = scratch();
    let path = dir.path().join("disk.img");
    File::create(&path).unwrap().set_len(1000 * MIB).unwrap();
    for (number, range) in [(1, "1:2048:1026047"), (2, "2:1026048:2000000")] {
        run("sgdisk", &[&"-a", &"1", &"-n", &range, &path]);
        let partition = format!("{}@{number}", path.display());
        uxfs_ok(&[&"mkfs", &"-q", &partition, &"310M"]);
    }
    let second = info(Path::new(&format!("{}@2", path.display())));
    let (first, behind) = (format!("{}@1", path.display()), dir.path().join("behind"));
    let (skip, from) = (format!("skip={}", 1_026_048 * 512), format!("if={}", path.display()));
    let copied = |to: &Path| {
        let to = format!("of={}", to.display());
        run("dd", &[&"iflag=skip_bytes", &"bs=1M", &"conv=sparse", &skip, &from, &to]);
    };
    copied(&behind);
    refused(Path::new(&path), &[(&["grow"], 4, "a whole disk")]);
    let output = uxfs(&[&"grow", &first, &"501M"]);
    assert_eq!(output.status.code(), Some(10), "{}", String::from_utf8_lossy(&output.stderr));
    uxfs_ok(&[&"grow", &first]);
    assert_eq!(info(Path::new(&first))["blocks"], (1_026_048 - 2048) / 8);
    uxfs_ok(&[&"check", &first]);
    let now = dir.path().join("now");
    copied(&now);
    run("cmp", &[&behind, &now]);
    assert_eq!(info(Path::new(&format!("{}@2", path.display()))), second);
}

/// A volume that is named by its offset went on over the next partition, and up to the disk's last byte.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_at_an_offset_grows_to_the_end_of_its_partition() {
    let dir = scratch();
    let path = dir.path().join("disk.img");
    File::create(&path).unwrap().set_len(1500 * MIB).unwrap();
    run("sgdisk", &[&"-n", &"1:2048:+512M", &"-n", &"2:0:+512M", &path]);
    let [first, second] = [1, 2].map(|number| format!("{}@{number}", path.display()));
    for partition in [&first, &second] {
        uxfs_ok(&[&"mkfs", &"-q", partition, &"310M"]);
    }
    let sum = || run("sha256sum", &[&path]);
    let before = sum();
    let larger =
        |disk: &dyn AsRef<OsStr>| uxfs(&[&"--offset" as &dyn AsRef<OsStr>, &"1M", &"grow", disk, &"700M"]);
    let as_file = larger(&path);
    let device = String::from_utf8(run("losetup", &[&"-f", &"--show", &path])).unwrap();
    let as_device = larger(&device.trim_end());
    run("losetup", &[&"-d", &device.trim_end()]);
    for refused in [as_file, as_device] {
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(10), "{said}");
    }
    assert_eq!(sum(), before, "nothing was written");
    uxfs_ok(&[&"--offset", &"1M", &"grow", &path]);
    assert_eq!(info(Path::new(&first))["blocks"], 512 * MIB / 4096);
    for partition in [&first, &second] {
        uxfs_ok(&[&"check", partition]);
    }
    // Behind the last partition is the table's copy.
    let start = 1024 * 1024 + 512 * MIB;
    uxfs_ok(&[&"--offset", &start.to_string(), &"grow", &path]);
    assert_eq!(info(Path::new(&second))["blocks"], 512 * MIB / 4096);
    run("sgdisk", &[&"-v", &path]);
    // A table that cannot be believed does not say what comes behind.
    let disk = File::options().read(true).write(true).open(&path).unwrap();
    for at in [512, 1500 * MIB - 512] {
        // Of its checksum, which may be anything.
        let mut byte = [0];
        disk.read_exact_at(&mut byte, at + 16).unwrap();
        disk.write_all_at(&[!byte[0]], at + 16).unwrap();
    }
    drop(disk);
    let refused = uxfs(&[&"--offset" as &dyn AsRef<OsStr>, &"1M", &"grow", &path]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(5) && said.contains("partition table (GPT) is damaged"), "{said}");
}

/// What a kill between the superblock and its copies leaves: nobody said what to do about it, and `recover` that there was
/// nothing to do.
#[test]
#[ignore = "needs root and xfsprogs"]
fn copies_of_the_superblock_that_lag_behind_are_brought_up_to_date() {
    use std::os::unix::fs::FileExt;
    let image = filled(&[]);
    let info_before = info(&image.path);
    let number = |field: &str| info_before[field].as_u64().unwrap();
    let (group, groups) = (number("ag_blocks") * number("block_size"), number("ag_count"));
    let disk = || File::options().read(true).write(true).open(&image.path).unwrap();
    let mut copies = vec![[0; 512]; groups as usize];
    for (copy, nth) in copies.iter_mut().zip(0..).skip(1) {
        disk().read_exact_at(copy, nth * group).unwrap();
    }
    uxfs_ok(&[&"uuid", &image.path, &"generate"]);
    for (copy, nth) in copies.iter().zip(0..).skip(1) {
        disk().write_all_at(copy, nth * group).unwrap();
    }
    assert_eq!(uxfs(&[&"check", &image.path]).status.code(), Some(5));
    let before = std::fs::read(&image.path).unwrap();
    let would_say = uxfs_ok(&[&"recover", &"--dry-run", &image.path]);
    let would_say_json = uxfs_ok(&[&"--json", &"recover", &"--dry-run", &image.path]);
    assert!(std::fs::read(&image.path).unwrap() == before, "a dry run changed it");
    let said = uxfs_ok(&[&"recover", &image.path]);
    assert_eq!(String::from_utf8_lossy(&would_say), String::from_utf8_lossy(&said));
    let would_say_json = String::from_utf8(would_say_json).unwrap();
    assert!(would_say_json.contains("\"superblock_copies_updated\":true"), "{would_say_json}");
    assert!(would_say_json.contains("\"written\":false"), "{would_say_json}");
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains("the log is clean") && said.contains("copies of the superblock brought up"),
        "{said}"
    );
    sound(&image.path);
    let said = String::from_utf8(uxfs_ok(&[&"--json", &"recover", &image.path])).unwrap();
    assert!(said.contains("\"superblock_copies_updated\":false"), "{said}");
}

/// `xfs_repair -L` leaves a header behind the end of the log that it zeroes. A recovery clears it, and says so.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_left_behind_the_end_of_the_log_is_told_and_cleared() {
    let image = filled(&[]);
    let mount = image.mount(&[]);
    std::fs::create_dir(mount.dir().join("more")).unwrap();
    run("xfs_io", &[&"-x", &"-c", &"shutdown -f", &mount.dir()]);
    drop(mount);
    run("xfs_repair", &[&"-L", &image.path]);
    let before = std::fs::read(&image.path).unwrap();
    refused(&image.path, &[(&["uuid", "generate"], 7, "left behind the end of the log")]);
    let would_say = uxfs_ok(&[&"recover", &"--dry-run", &image.path]);
    assert!(std::fs::read(&image.path).unwrap() == before, "a dry run changed it");
    let said = uxfs_ok(&[&"recover", &image.path]);
    assert_eq!(String::from_utf8_lossy(&would_say), String::from_utf8_lossy(&said));
    assert!(String::from_utf8_lossy(&said).contains("left behind the end of the log"));
    let again = String::from_utf8(uxfs_ok(&[&"recover", &image.path])).unwrap();
    assert_eq!(again, "the log is clean: nothing to recover\n");
    uxfs_ok(&[&"uuid", &image.path, &"generate"]);
    sound(&image.path);
}

/// On a block device there is nothing that could become longer.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_on_a_block_device_grows_to_its_end() {
    let image = filled(&[]);
    File::options().write(true).open(&image.path).unwrap().set_len(700 * MIB).unwrap();
    let device = String::from_utf8(run("losetup", &[&"-f", &"--show", &image.path])).unwrap();
    let device = device.trim_end();
    let tooth = uxfs(&[&"grow", &device, &"701M"]);
    let grown = uxfs(&[&"grow", &device]);
    run("losetup", &[&"-d", &device]);
    let said = String::from_utf8_lossy(&tooth.stderr).into_owned();
    assert!(tooth.status.code() == Some(10) && said.contains("does not fit on the device"), "{said}");
    assert!(grown.status.success(), "{}", String::from_utf8_lossy(&grown.stderr));
    assert_eq!(info(&image.path)["blocks"], 700 * MIB / 4096);
    sound(&image.path);
}

/// It was opened, and the volume shut down by the first write that failed. The volume is one that uxfs writes: the
/// exit code says that the host refuses.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_block_device_that_only_is_read_is_not_opened_for_writing() {
    let image = filled(&[]);
    let device = String::from_utf8(run("losetup", &[&"-f", &"-r", &"--show", &image.path])).unwrap();
    let device = device.trim_end();
    let before = std::fs::read(&image.path).unwrap();
    let (root, dir) = (format!("{device}:/"), format!("{device}:/dir"));
    let tried = [
        &["label", device, "new"][..],
        &["grow", device],
        &["recover", device],
        &["mkfs", "-f", device],
        &["mkdir", &dir],
        &["cp", "/etc/passwd", &root],
        &["rm", "-r", &dir],
        &["chmod", "700", &root],
    ]
    .map(|command| uxfs(&command.iter().map(|word| word as &dyn AsRef<OsStr>).collect::<Vec<_>>()));
    let read = uxfs(&[&"ls", &device]);
    run("losetup", &[&"-d", &device]);
    for refused in tried {
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(6) && said.contains("the device is read-only"), "{said}");
    }
    assert!(read.status.success());
    assert!(std::fs::read(&image.path).unwrap() == before, "bytes changed");
}

/// As old as `mkfs.xfs` makes them for old kernels, and with inode trees of more than a level.
#[test]
#[ignore = "needs root and xfsprogs"]
fn features_are_switched_on_in_place() {
    let options = ["-b", "size=1k", "-m", "bigtime=0,inobtcount=0", "-i", "nrext64=0"];
    let image = filled(&options);
    let mount = image.mount(&[]);
    for n in 0..20_000 {
        std::fs::write(mount.dir().join(format!("many/more-{n}")), "").unwrap();
    }
    // Chunks with free inodes here and there.
    for n in (0..20_000).step_by(97) {
        std::fs::remove_file(mount.dir().join(format!("many/more-{n}"))).unwrap();
    }
    drop(mount);
    refused(
        &image.path,
        &[
            (&["upgrade", "-O", "rmapbt"], 2, "rmapbt cannot be switched on in place"),
            (&["upgrade", "-O", "bigtime=0"], 2, "bigtime cannot be switched off"),
            (&["upgrade"], 2, "required"),
        ],
    );
    uxfs_ok(&[&"upgrade", &image.path, &"-O", &"inobtcount=1"]);
    assert_eq!(field(&image.path, 3, "features_ro_compat"), "0xd");
    sound(&image.path);
    let blocks = |name: &str| {
        let counts = (0..4).map(|ag| {
            let (agi, print) = (format!("agi {ag}"), format!("p {name}"));
            let said = run("xfs_db", &[&"-r", &"-c", &agi, &"-c", &print, &image.path]);
            String::from_utf8(said).unwrap().trim().rsplit(' ').next().unwrap().parse::<u32>().unwrap()
        });
        counts.max().unwrap()
    };
    assert!(blocks("ino_blocks") > 3, "the tree has levels");
    // What is there is told, and is no reason to leave the rest.
    let output = uxfs(&[&"upgrade", &image.path, &"-O", &"inobtcount,bigtime,nrext64"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.ends_with(": the volume has inobtcount already; the rest is switched on\n"), "{said}");
    let features = info(&image.path)["features"].to_string();
    assert!(["bigtime", "inobtcount", "nrext64"].iter().all(|one| features.contains(one)), "{features}");
    sound(&image.path);
    refused(
        &image.path,
        &[
            (&["upgrade", "-O", "bigtime"], 2, "the volume has bigtime already"),
            (&["upgrade", "-O", "inobtcount"], 2, "the volume has inobtcount already"),
            (&["upgrade", "-O", "nrext64"], 2, "the volume has nrext64 already"),
            (&["upgrade", "-O", "nrext64,bigtime"], 2, "the volume has nrext64, bigtime already"),
        ],
    );
    // The kernel writes times that only bigtime has, makes and removes inodes, and keeps the counts.
    let mount = image.mount(&[]);
    run("touch", &[&"-d", &"2200-01-01", &mount.dir().join("many/entry-00007")]);
    for n in 0..10_000 {
        std::fs::write(mount.dir().join(format!("deep/new-{n}")), "").unwrap();
    }
    run("rm", &[&"-r", &mount.dir().join("many")]);
    drop(mount);
    sound(&image.path);
    uxfs_ok(&[&"cp", &"-a", &"/etc", &image.at("/etc")]);
    uxfs_ok(&[&"rm", &"-r", &image.at("/deep")]);
    sound(&image.path);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_is_mounted_is_left_alone() {
    let image = filled(&["-m", "bigtime=0"]);
    let mount = image.mount(&[]);
    for command in
        [&["label", "new"][..], &["uuid", "generate"], &["grow", "500M"], &["upgrade", "-O", "bigtime"]]
    {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&command[0], &image.path];
        args.extend(command[1..].iter().map(|arg| arg as &dyn AsRef<OsStr>));
        uxfs_fails(&args, 8, "");
    }
    drop(mount);
    assert_eq!(std::fs::metadata(&image.path).unwrap().len(), 400 * MIB);
    assert_eq!(info(&image.path)["blocks"], 102_400);
    sound(&image.path);
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn features_that_cannot_be_are_refused() {
    let old = filled(&["-m", "finobt=0,inobtcount=0,reflink=0,bigtime=0"]);
    refused(
        &old.path,
        &[
            (&["upgrade", "-O", "inobtcount"], 4, "inobtcount needs finobt"),
            (&["upgrade", "-O", "bigtime,inobtcount"], 4, "inobtcount needs finobt"),
        ],
    );
    crash(&old);
    refused(&old.path, &[(&["upgrade", "-O", "bigtime"], 7, "the log is dirty")]);
    let v4 = Image::of_prototype("");
    refused(
        &v4.path,
        &[
            (&["upgrade", "-O", "bigtime"], 4, "version 4 format"),
            (&["label", "other"], 4, "version 4 format"),
            (&["uuid", "generate"], 4, "version 4 format"),
            (&["grow", "500M"], 4, "version 4 format"),
        ],
    );
    // Large extent counts make deeper maps, and so ask for more of the log.
    let dir = scratch();
    let tight = dir.path().join("tight.img");
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &tight, &"40M", &"-b", &"size=1K", &"--compat", &"6.1"]);
    refused(&tight, &[(&["upgrade", "-O", "nrext64"], 10, "nrext64 needs a log of")]);
    uxfs_fails(&[&"upgrade", &dir.path().join("none"), &"-O", &"bigtime"], 3, "no such");
}
