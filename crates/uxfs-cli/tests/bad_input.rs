//! What cannot be opened or found: each has its message and its exit code.
#![forbid(unsafe_code)]

mod common;

use common::forge::Forged;
use common::{Image, refuses_itself, run, scratch, uxfs, uxfs_fails, uxfs_ok};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use xfs_format::log::ItemType;

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_not_xfs_is_named() {
    let dir = scratch();
    let file = dir.path().join("file");
    uxfs_fails(&[&"info", &file], 3, "no such image");
    uxfs_fails(&[&"info", &dir.path()], 3, "a directory of this machine");
    std::fs::write(&file, "").unwrap();
    uxfs_fails(&[&"info", &file], 4, "smaller than a sector");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    uxfs_fails(&[&"info", &file], 4, "not an XFS volume");
    std::fs::write(&file, "just some text\n").unwrap();
    uxfs_fails(&[&"info", &file], 4, "smaller than a sector");
    std::fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
    run("mkfs.ext4", &[&"-q", &file]);
    uxfs_fails(&[&"info", &file], 4, "this is an ext4 volume; uxfs reads XFS");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_cannot_be_an_image_is_told() {
    let image = Image::new(&[]);
    let pipe = image.dir.path().join("pipe");
    run("mkfifo", &[&pipe]);
    uxfs_fails(&[&"info", &pipe], 3, "neither a file nor a block device");
    uxfs_fails(&[&"info", &image.path.join("below")], 3, "no such image");
    for path in ["", "docs"] {
        let location = format!("{}:{path}", image.path.display());
        let hint = format!("is written {}:/path", image.path.display());
        uxfs_fails(&[&"ls", &location], 3, &hint);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_full_disk_is_told() {
    let image = Image::filled(&[]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_uxfs"));
    let output = command.arg("cat").arg(image.at("/docs/large.bin")).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "uxfs: writing the output: No space left on device (os error 28)\n");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_is_marked_for_repair_is_not_opened() {
    let image = Image::new(&[]);
    let shown = run("xfs_db", &[&"-r", &"-c", &"sb 0", &"-c", &"p features_incompat", &image.path]);
    let shown = String::from_utf8(shown).unwrap();
    let bits =
        shown.trim_end().rsplit("0x").next().map(|bits| u32::from_str_radix(bits, 16).unwrap()).unwrap();
    let write = format!("write features_incompat {:#x}", bits | 0x10);
    run("xfs_db", &[&"-x", &"-c", &"sb 0", &"-c", &write, &image.path]);
    let before = std::fs::read(&image.path).unwrap();
    let commands: [&[&dyn AsRef<OsStr>]; 9] = [
        &[&"info", &image.path],
        &[&"ls", &image.path],
        &[&"check", &image.path],
        &[&"tar", &image.path],
        &[&"mkdir", &image.at("/dir")],
        &[&"cp", &"/etc/passwd", &image.at("/")],
        &[&"recover", &image.path],
        &[&"grow", &image.path],
        &[&"label", &image.path, &"new"],
    ];
    for command in commands {
        uxfs_fails(command, 5, "in need of repair");
    }
    assert!(std::fs::read(&image.path).unwrap() == before, "bytes changed");
}

/// It killed the process.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_limit_of_sizes_is_told() {
    let image = Image::filled(&[]);
    let limited = |script: &str, paths: [&std::ffi::OsStr; 2]| {
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &format!("ulimit -f 100; exec \"$0\" {script}"), env!("CARGO_BIN_EXE_uxfs")]);
        let output = shell.args(paths).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(6), "{said}");
        assert!(said.contains("File too large"), "{said}");
    };
    let copy = image.dir.path().join("copy");
    limited("cp \"$1\" \"$2\"", [&image.at("/docs/large.bin"), copy.as_os_str()]);
    assert!(!copy.exists());
    limited("mkfs \"$1\" 300M", [copy.as_os_str(), copy.as_os_str()]);
    assert!(!copy.exists());
}

/// A colon without a slash is no name of a file that was meant.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_copy_to_an_image_with_a_colon_alone_is_no_file_of_the_host() {
    let image = Image::filled(&[]);
    for path in ["", "docs"] {
        let destination = format!("{}:{path}", image.path.display());
        let hint = format!("is written {}:/path", image.path.display());
        uxfs_fails(&[&"cp", &image.at("/docs/small.txt"), &destination], 3, &hint);
        assert!(!std::path::Path::new(&destination).exists());
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_partition_is_found_and_opened() {
    let image = Image::filled(&[]);
    let disk = image.dir.path().join("disk.img");
    let (start, length) = (1 << 20, 400 << 20);
    let mut bytes = vec![0; start + length + (1 << 20)];
    bytes[start..start + length].copy_from_slice(&std::fs::read(&image.path).unwrap());
    let entry =
        [&[0, 0, 0, 0, 0x83, 0, 0, 0][..], &2048u32.to_le_bytes(), &819_200u32.to_le_bytes()].concat();
    bytes[446..462].copy_from_slice(&entry);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(&disk, bytes).unwrap();
    uxfs_fails(&[&"info", &disk], 4, "name the partition to open (as IMAGE@1:/path, or by its place):");
    let hint = "partition 1 (an XFS volume): --offset 1048576 --length 419430400";
    uxfs_fails(&[&"info", &disk], 4, hint);
    let whole = uxfs_ok(&[&"ls", &"-l", &image.path]);
    assert_eq!(uxfs_ok(&[&"ls", &"-l", &disk, &"--offset", &"1048576", &"--length", &"419430400"]), whole);
    assert_eq!(uxfs_ok(&[&"ls", &"-l", &disk, &"--offset=2048s"]), whole);
    uxfs_fails(&[&"ls", &disk, &"--offset=1M", &"--length=100M"], 5, "truncated");
    uxfs_fails(&[&"ls", &disk, &"--offset=2T"], 2, "behind");
    uxfs_fails(&[&"ls", &disk, &"--offset=17"], 2, "sector");
}

/// A wrong name of an image was said to be one of the source.
#[test]
fn a_copy_into_an_image_that_is_not_there_names_that() {
    let dir = scratch();
    let source = dir.path().join("source");
    std::fs::write(&source, "bytes").unwrap();
    let image = dir.path().join("typo.img");
    for path in ["/", "/x", "/x/y"] {
        let missing = format!("uxfs: {}: no such image", image.display());
        uxfs_fails(&[&"cp", &source, &format!("{}:{path}", image.display())], 3, &missing);
    }
    // A directory of the host may have such a name.
    let volume = dir.path().join("volume");
    uxfs_ok(&[&"mkfs", &"-q", &volume, &"300M"]);
    let at = |path: &str| format!("{}:{path}", volume.display());
    uxfs_ok(&[&"cp", &source, &at("/f")]);
    let host = dir.path().join("host:");
    std::fs::create_dir(&host).unwrap();
    uxfs_ok(&[&"cp", &at("/f"), &host.join("f")]);
    assert_eq!(std::fs::read(host.join("f")).unwrap(), b"bytes");
}

/// An image that is written grew by what was read of it, or its first bytes were taken for a copy.
#[test]
fn an_image_is_not_read_or_written_by_a_redirection_too() {
    let dir = scratch();
    let image = dir.path().join("volume");
    let source = dir.path().join("source");
    std::fs::write(&source, vec![7; 100_000]).unwrap();
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &image, &"20M"]);
    let at = |path: &str| format!("{}:{path}", image.display());
    uxfs_ok(&[&"cp", &source, &at("/f")]);
    let image_name = || image.display().to_string();
    let ways = [
        vec!["cp".to_owned(), "-".into(), at("/new")],
        vec!["cp".into(), at("/f"), "-".into()],
        vec!["cat".into(), at("/f")],
        vec!["tar".into(), at("/")],
        vec!["tar".into(), at("/"), "-o".into(), "-".into()],
        vec!["untar".into(), at("/")],
        vec!["untar".into(), at("/"), "-i".into(), image_name()],
        vec!["mkfs".into(), "-f".into(), image_name(), "--from".into(), image_name()],
    ];
    for args in ways {
        let args: Vec<&dyn AsRef<std::ffi::OsStr>> = args.iter().map(|arg| arg as _).collect();
        refuses_itself(&args, &image);
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_truncated_image_is_told() {
    let image = Image::filled(&[]);
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    file.set_len(300 << 20).unwrap();
    uxfs_fails(&[&"info", &image.path], 5, "truncated image");
    file.set_len(100).unwrap();
    uxfs_fails(&[&"info", &image.path], 4, "smaller than a sector");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn damage_is_told() {
    let image = Image::new(&[]);
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&[0xff; 8], 100).unwrap();
    uxfs_fails(&[&"info", &image.path], 5, "superblock");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn features_that_are_not_supported_are_named() {
    let image = Image::new(&[]);
    run("xfs_db", &[&"-x", &"-c", &"sb 0", &"-c", &"write -d features_incompat 0x40000003", &image.path]);
    uxfs_fails(&[&"info", &image.path], 4, "unsupported feature: incompatible feature bit 0x40000000");

    let dir = scratch();
    let (data, other) = (dir.path().join("data"), dir.path().join("other"));
    for file in [&data, &other] {
        std::fs::File::create(file).unwrap().set_len(400 << 20).unwrap();
    }
    let log = format!("logdev={},size=64m", other.display());
    run("mkfs.xfs", &[&"-q", &"-f", &"-l", &log, &data]);
    uxfs_fails(&[&"info", &data], 4, "external log");
    let realtime = format!("rtdev={}", other.display());
    run("mkfs.xfs", &[&"-q", &"-f", &"-m", &"reflink=0", &"-r", &realtime, &data]);
    uxfs_fails(&[&"info", &data], 4, "realtime");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_dirty_log_is_replayed_in_memory_and_can_be_ignored() {
    let image = Image::new(&[]);
    {
        let mount = image.mount(&[]);
        std::fs::write(mount.dir().join("early"), "text").unwrap();
    }
    {
        let mount = image.mount(&[]);
        std::fs::write(mount.dir().join("late"), "text").unwrap();
        run("sync", &[&"-f", &mount.dir()]);
        std::fs::write(mount.dir().join("later"), "text").unwrap();
        run("xfs_io", &[&"-x", &"-c", &"shutdown -f", &mount.dir()]);
    }
    let before = std::fs::read(&image.path).unwrap();
    let checked = uxfs_ok(&[&"check", &image.path]);
    let checked = String::from_utf8_lossy(&checked);
    assert!(checked.starts_with("the log is dirty: it was replayed in memory"), "{checked}");
    assert!(checked.trim_end().ends_with(": clean"), "{checked}");
    let checked = uxfs_ok(&[&"check", &"--json", &image.path]);
    let checked = String::from_utf8_lossy(&checked);
    assert!(
        checked.contains("\"log_clean\":false") && checked.contains("\"log_replayed\":true"),
        "{checked}"
    );
    let replayed = uxfs_ok(&[&"ls", &image.path]);
    assert!(replayed.starts_with(b"early\nlate\n"), "{}", String::from_utf8_lossy(&replayed));
    let listed = uxfs_ok(&[&"ls", &"--norecovery", &image.path]);
    assert!(listed.starts_with(b"early\n"), "{}", String::from_utf8_lossy(&listed));
    uxfs_ok(&[&"info", &"--norecovery", &image.path]);
    // There is no recovery without recovery.
    let refused = uxfs(&[&"recover", &"--norecovery", &image.path]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(
        said,
        "uxfs: recover: --norecovery leaves the log as it is, and there is nothing else to do\n"
    );
    assert!(std::fs::read(&image.path).unwrap() == before, "the image was written");
}

/// A log ends in the midst of something that recovery cannot finish: who reads the volume is told, once, and gets what
/// there is.
#[test]
fn work_in_a_log_that_cannot_be_finished_is_told_to_readers() {
    let free_already = "is free already";
    let cases =
        [(ItemType::Efi, "extents to be freed (EFI)"), (ItemType::EfiRt, "realtime extents to be freed")];
    for (kind, unfinished) in cases {
        let volume = Forged::new("64M");
        // The last blocks of its one group, which nobody has.
        volume.promises_to_free(kind, (64 << 20) / 4096 - 8, 4);
        let before = std::fs::read(&volume.path).unwrap();
        let out = volume.dir.path().join("out");
        let new = volume.dir.path().join("new.img");
        let root = volume.at("/");
        let verbs: [&[&dyn AsRef<OsStr>]; 9] = [
            &[&"ls", &root, &root],
            &[&"stat", &root, &root],
            &[&"find", &root],
            &[&"tree", &root],
            &[&"du", &root],
            &[&"info", &volume.path],
            &[&"xattr", &"list", &root],
            &[&"cp", &"-r", &root, &out],
            &[&"mkfs", &new, &"64M", &"--small", &"--from", &root],
        ];
        for verb in verbs {
            let output = uxfs(verb);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
            let begins = format!(
                "uxfs: {}: what was under way at a crash cannot be finished ({unfinished}): ",
                volume.path.display()
            );
            assert!(said.starts_with(&begins), "{said}");
            assert!(said.contains("may be in the midst of a change"), "{said}");
            assert_eq!(said.contains(free_already), kind == ItemType::Efi, "{said}");
        }
        uxfs_ok(&[&"ls", &"--norecovery", &root]);
        assert!(std::fs::read(&volume.path).unwrap() == before, "the image was written");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn paths_that_lead_nowhere_are_told() {
    let image = Image::filled(&[]);
    uxfs_fails(&[&"cat", &image.at("/nope")], 3, "/nope: no such file or directory");
    uxfs_fails(&[&"cat", &image.at("/docs")], 3, "is a directory, not a regular file");
    uxfs_fails(&[&"cat", &image.at("/special/fifo")], 3, "named pipe");
    uxfs_fails(&[&"ls", &image.at("/docs/small.txt/x")], 3, "not a directory");
    uxfs_fails(&[&"ls", &image.at("/docs/small.txt/")], 3, "not a directory");
    uxfs_fails(&[&"tree", &image.at("/docs/small.txt")], 3, "not a directory");
    uxfs_fails(&[&"cat", &image.at("/links/loop")], 3, "symbolic links");
    uxfs_fails(&[&"cat", &image.at("/links/dangling")], 3, "no such file");
    uxfs_fails(&[&"stat", &image.at(&format!("/{}", "x".repeat(256)))], 3, "the longest possible is 255");
    // Of several, the others are done.
    let output = uxfs(&[&"cat", &image.at("/nope"), &image.at("/docs/small.txt")]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"a few bytes\n");
    // Usage.
    assert_eq!(uxfs(&[&"cat"]).status.code(), Some(2));
    assert_eq!(uxfs(&[&"ls", &"--offset", &"x", &image.path]).status.code(), Some(2));
    assert_eq!(uxfs(&[&"nonsense"]).status.code(), Some(2));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_circle_of_directories_ends() {
    let image = Image::of_prototype("above d--755 0 0\nbelow d--755 0 0\n$\n$");
    let ino = |path: &str| {
        let stat: serde_json::Value =
            serde_json::from_slice(&uxfs_ok(&[&"stat", &"--json", &image.at(path)])).unwrap();
        stat["ino"].as_u64().unwrap()
    };
    let (above, root) = (ino("/above"), ino("/"));
    let (inode, entry) = (format!("inode {above}"), format!("write u.sfdir3.list[0].inumber.i4 {root}"));
    run("xfs_db", &[&"-x", &"-c", &inode, &"-c", &entry, &image.path]);
    let out = scratch();
    let (copy, archive) = (out.path().join("copy"), out.path().join("archive"));
    let verbs: [&[&dyn AsRef<std::ffi::OsStr>]; 6] = [
        &[&"find", &image.path],
        &[&"tree", &image.path],
        &[&"du", &image.path],
        &[&"ls", &"-R", &image.path],
        &[&"cp", &"-r", &image.path, &copy],
        &[&"tar", &image.path, &"-o", &archive],
    ];
    for verb in verbs {
        let output = uxfs(verb);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("/above/below: damaged: directory inode"), "{said}");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_reader_that_goes_away_is_no_failure() {
    let image = Image::filled(&[]);
    for verb in ["find", "tree"] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_uxfs"))
            .arg(verb)
            .arg(&image.path)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{verb}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
