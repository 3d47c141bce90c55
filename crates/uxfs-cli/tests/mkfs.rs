//! `uxfs mkfs`: what it makes, refuses and leaves alone. Needs root, xfs_repair and loop mounts.
#![forbid(unsafe_code)]

mod common;

use common::{Image, run, scratch, uxfs, uxfs_fails, uxfs_heeding_signals, uxfs_ok};
use oracles::xfsprogs::Release;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn assert_sound(image: &Path) {
    run("xfs_repair", &[&"-n", &"-f", &"-o", &"force_geometry", &image]);
}

fn object(text: &[u8]) -> serde_json::Value {
    serde_json::from_slice(text).expect("one JSON object")
}

const UUID: &str = "uuid=3e3a4f8c-7a52-4a5e-9f0e-0f6d1b3c5a77";

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_new_image_is_made_as_asked() {
    let dir = scratch();
    let image = dir.path().join("new.img");
    let shown = uxfs_ok(&[
        &"mkfs",
        &image,
        &"512M",
        &"-L",
        &"data",
        &"-b",
        &"size=1k",
        &"-i",
        &"size=512,nrext64=1",
        &"-d",
        &"agcount=3",
        &"-n",
        &"size=8k",
        &"-l",
        &"size=80M",
        &"-m",
        &UUID,
        &"-m",
        &"reflink=0,finobt=0",
        &"--json",
    ]);
    let info = object(&shown);
    assert_eq!(info["label"], "data");
    assert_eq!(info["uuid"], UUID.trim_start_matches("uuid="));
    assert_eq!((&info["block_size"], &info["ag_count"]), (&1024.into(), &3.into()));
    assert_eq!((&info["dir_block_size"], &info["log_blocks"]), (&8192.into(), &81920.into()));
    let features = info["features"].to_string();
    assert!(features.contains("nrext64") && features.contains("bigtime"), "{features}");
    assert!(
        !features.contains("reflink") && !features.contains("finobt") && !features.contains("inobtcount")
    );
    assert_eq!(info["log_clean"], true);
    assert_eq!(uxfs_ok(&[&"ls", &image]), b"");
    assert_sound(&image);
    let of = std::fs::metadata(&image).unwrap();
    assert_eq!(of.len(), 512 << 20);
    assert!(of.blocks() * 512 < 1 << 20, "{} blocks", of.blocks());
    let text = uxfs_ok(&[&"mkfs", &"-f", &image]);
    assert!(String::from_utf8(text).unwrap().starts_with("XFS version 5\n"));
    assert_eq!(uxfs_ok(&[&"mkfs", &"-qf", &image]), b"");
    assert_sound(&image);
}

#[test]
fn the_same_options_give_the_same_image() {
    let dir = scratch();
    let [one, two, three] = ["one", "two", "three"].map(|name| dir.path().join(name));
    let bytes = |path: &Path| std::fs::read(path).unwrap();
    for image in [&one, &two] {
        uxfs_ok(&[
            &"mkfs",
            &"-q",
            &"--small",
            &image,
            &"20M",
            &"-m",
            &UUID,
            &"--time",
            &"2026-01-31T12:00:00Z",
        ]);
    }
    assert!(bytes(&one) == bytes(&two));
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &three, &"20M", &"-m", &UUID, &"--time", &"1769860801"]);
    assert!(bytes(&one) != bytes(&three));
    let listed = uxfs_ok(&[&"stat", &"--json", &three]);
    assert!(String::from_utf8_lossy(&listed).contains("2026-01-31T12:00:01.000000000Z"));
}

/// Blocks of a volume that had the UUID before are as good as the new one's to whoever recovers, and newer than its log.
#[test]
#[ignore = "needs root and xfsprogs"]
fn of_a_volume_with_the_same_uuid_nothing_stays() {
    let dir = scratch();
    let (used, new) = (dir.path().join("used.img"), dir.path().join("new.img"));
    let at = format!("{}:/", used.display());
    let make = |image: &Path| {
        let options = ["-q", "-f", "--small", "-l", "size=10M", "--time", "1000000000", "-m", UUID];
        let options = options.iter().map(|option| option as &dyn AsRef<std::ffi::OsStr>);
        let made: Vec<_> =
            [&"mkfs" as _].into_iter().chain(options).chain([&image as _, &"200M" as _]).collect();
        uxfs_ok(&made);
    };
    make(&used);
    for nth in 0..3 {
        let tree = dir.path().join(format!("tree{nth}"));
        std::fs::create_dir(&tree).unwrap();
        (0..2000)
            .for_each(|file| std::fs::write(tree.join(format!("a-file-of-some-name-{file}")), "x").unwrap());
        uxfs_ok(&[&"cp", &"-r", &tree, &at]);
    }
    make(&used);
    make(&new);
    assert!(std::fs::read(&used).unwrap() == std::fs::read(&new).unwrap());
    assert_sound(&used);
}

/// The size that was asked for was refused as larger than the file that was made for it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_size_is_rounded_down_to_whole_blocks() {
    let dir = scratch();
    let image = dir.path().join("image");
    for (size, shape) in [("20943k", "-ssize=4096"), ("20943k", "-ssize=512"), ("20971777", "-bsize=1024")] {
        for given in [&[&size as &dyn AsRef<std::ffi::OsStr>][..], &[&"-d", &format!("size={size}")]] {
            let _ = std::fs::remove_file(&image);
            uxfs_ok(
                &[&[&"mkfs" as _, &"-q" as _, &"--small" as _, &shape as _, &image as _], given].concat(),
            );
            let block = if shape.starts_with("-b") { 1024 } else { 4096 };
            let bytes = if size == "20943k" { 20943 << 10 } else { 20_971_777 };
            assert_eq!(std::fs::metadata(&image).unwrap().len(), bytes / block * block);
            let info = object(&uxfs_ok(&[&"info", &"--json", &image]));
            assert_eq!(info["blocks"], bytes / block);
            assert_sound(&image);
        }
    }
    // In a file that is longer, too.
    std::fs::File::create(&image).unwrap().set_len(40 << 20).unwrap();
    uxfs_ok(&[&"mkfs", &"-q", &"--small", &"-ssize=4096", &image, &"20943k"]);
    assert_eq!(object(&uxfs_ok(&[&"info", &"--json", &image]))["blocks"], 5235);
}

#[test]
fn a_value_without_its_name_is_told_which_it_wants() {
    let dir = scratch();
    let image = dir.path().join("image");
    for (letter, value) in [("-b", "4096"), ("-s", "4k"), ("-i", "512"), ("-n", "8k"), ("-l", "80M")] {
        let told =
            format!("{letter} {value}: a value without its name; a size is written {letter} size={value}");
        uxfs_fails(&[&"mkfs", &letter, &value, &image, &"300M"], 2, &told);
    }
    uxfs_fails(&[&"mkfs", &"-m", &"4096", &image, &"300M"], 2, "-m 4096: this option is not known");
    assert!(!image.exists());
}

/// Runs the command with a time of its environment.
fn at_source_date(time: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uxfs"));
    command.args(args.iter().map(|arg| arg.as_ref())).env("SOURCE_DATE_EPOCH", time).output().unwrap()
}

/// Only `mkfs` heeded the time that reproducible builds give.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_environment_s_time_is_that_of_what_is_made() {
    let dir = scratch();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("old/sub")).unwrap();
    std::fs::write(tree.join("old/sub/file"), "bytes").unwrap();
    run("touch", &[&"-d", &"@1000", &tree.join("old/sub/file")]);
    let archive = dir.path().join("tar");
    // Without entries of the directories.
    run("tar", &[&"-C", &tree, &"-cf", &archive, &"old/sub/file"]);
    for image in [&one, &two] {
        let at = |path: &str| format!("{}:{path}", image.display());
        let ok = |args: &[&dyn AsRef<std::ffi::OsStr>]| {
            let output = at_source_date("86400", args);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        ok(&[&"mkfs", &"-q", &"--small", &image, &"20M", &"-m", &UUID]);
        ok(&[&"mkdir", &"-p", &at("/new/below")]);
        ok(&[&"mkdir", &"-m", &"700", &"--owner", &"5:6", &at("/old")]);
        ok(&[&"untar", &"-i", &archive, &at("/")]);
        for path in ["/", "/new", "/new/below", "/old", "/old/sub", "/old/sub/file"] {
            let said = object(&uxfs_ok(&[&"stat", &"--json", &at(path)]));
            let content = if path.ends_with("file") { 1000 } else { 86400 };
            let time = |seconds: i64| jiff::Timestamp::from_second(seconds).unwrap();
            let expected = [("mtime", content), ("ctime", 86400), ("btime", 86400), ("atime", 86400)];
            for (key, seconds) in expected {
                let found: jiff::Timestamp = said[key].as_str().unwrap().parse().unwrap();
                assert_eq!(found, time(seconds), "{key} of {path}");
            }
        }
        // A directory that was there, and that the archive does not name, stays what it is.
        let old = object(&uxfs_ok(&[&"stat", &"--json", &at("/old")]));
        assert_eq!((&old["uid"], &old["gid"]), (&5.into(), &6.into()), "{old}");
        assert_eq!(old["mode"], "0700");
        assert_sound(image);
    }
    assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap());
    let before = std::fs::read(&one).unwrap();
    for args in [
        vec!["mkdir".to_owned(), format!("{}:/x", one.display())],
        vec!["untar".to_owned(), "-i".to_owned(), archive.display().to_string(), one.display().to_string()],
    ] {
        let args: Vec<&dyn AsRef<std::ffi::OsStr>> = args.iter().map(|arg| arg as _).collect();
        let wrong = at_source_date("yesterday", &args);
        assert_eq!(wrong.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&wrong.stderr).contains("SOURCE_DATE_EPOCH: `yesterday`"));
    }
    assert!(std::fs::read(&one).unwrap() == before);
    for verb in ["mkdir", "untar", "mkfs"] {
        assert!(String::from_utf8_lossy(&uxfs_ok(&[&verb, &"--help"])).contains("SOURCE_DATE_EPOCH"));
    }
}

/// Verbs other than these three changed things by the clock.
#[test]
#[ignore = "needs root and xfsprogs"]
fn every_verb_that_changes_a_volume_does_so_at_the_environment_s_time() {
    let dir = scratch();
    let image = dir.path().join("image");
    let at = |path: &str| format!("{}:{path}", image.display());
    let host = dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    std::fs::write(host.join("file"), "bytes").unwrap();
    run("touch", &[&"-d", &"@1000", &host.join("file"), &host]);
    run("touch", &[&"-a", &"-d", &"@2000", &host.join("file")]);
    let host = host.to_str().unwrap();
    let ok = |time: i64, words: &str| {
        let words = words.replace("$H", host);
        let args: Vec<String> = words.split(' ').map(|word| word.replace("$I:", &at(""))).collect();
        let args: Vec<&dyn AsRef<std::ffi::OsStr>> = args.iter().map(|arg| arg as _).collect();
        let output = at_source_date(&time.to_string(), &args);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let times = |path: &str| {
        let said = object(&uxfs_ok(&[&"stat", &"--json", &at(path)]));
        ["mtime", "ctime", "btime", "atime"].map(|key| {
            let found: jiff::Timestamp = said[key].as_str().unwrap().parse().unwrap();
            assert_eq!(found.subsec_nanosecond(), 0, "{key} of {path}");
            found.as_second()
        })
    };
    let made = uxfs_ok(&[&"mkfs", &"-q", &"--small", &"--time", &"1", &image, &"20M"]);
    assert!(made.is_empty());
    // What is done, something that it changes, and which of its times that moves: those of content, of the inode, of
    // birth and of the last read.
    const ALL: [bool; 4] = [true; 4];
    const CONTENT: [bool; 4] = [true, true, false, false];
    const INODE: [bool; 4] = [false, true, false, false];
    let verbs = [
        ("mkdir $I:/dir", "/dir", ALL),
        ("cp $H/file $I:/dir/file", "/dir/file", ALL),
        ("cp $H/file $I:/dir/other", "/dir", CONTENT),
        ("cp $H/file $I:/dir/file", "/dir/file", CONTENT),
        ("cp --replace $H/file $I:/dir/file", "/dir/file", ALL),
        ("cp -a $H $I:/tree", "/tree/file", [false, true, true, true]),
        ("cp $I:/dir/file $I:/dir/copy", "/dir/copy", ALL),
        ("chmod 600 $I:/dir/file", "/dir/file", INODE),
        ("chown 7:8 $I:/dir/file", "/dir/file", INODE),
        ("chattr +d $I:/dir/file", "/dir/file", INODE),
        ("truncate -s 3 $I:/dir/file", "/dir/file", CONTENT),
        ("truncate -s 3 $I:/dir/new", "/dir/new", ALL),
        ("xattr set $I:/dir/file user.color red", "/dir/file", INODE),
        ("xattr rm $I:/dir/file user.color", "/dir/file", INODE),
        ("ln $I:/dir/file $I:/dir/link", "/dir/file", INODE),
        ("ln -s target $I:/dir/symlink", "/dir/symlink", ALL),
        ("ln -s target $I:/dir/third", "/dir", CONTENT),
        ("mv $I:/dir/file $I:/dir/moved", "/dir/moved", INODE),
        ("mv $I:/dir/moved $I:/moved", "/dir", CONTENT),
        ("rm $I:/dir/link", "/moved", INODE),
        ("rm $I:/dir/copy", "/dir", CONTENT),
        ("mkdir $I:/dir/sub", "/dir", CONTENT),
        ("rmdir $I:/dir/sub", "/dir", CONTENT),
        ("rm -r $I:/dir", "/", CONTENT),
    ];
    for (nth, (verb, path, moved)) in (1..).zip(verbs) {
        let (time, before) = (86400 * nth, uxfs(&[&"stat", &at(path)]).status.success().then(|| times(path)));
        ok(time, verb);
        let after = times(path);
        assert_eq!(after.map(|found| found == time), moved, "{verb}: {before:?}, {after:?}");
        let stayed = before.into_iter().flat_map(|before| before.into_iter().zip(after).zip(moved));
        for ((before, after), moved) in stayed {
            // A new one that takes an old one's place has times of its own.
            assert!(moved || before == after || verb.contains("--replace"), "{verb}: {before}, {after}");
        }
    }
    // No verb is left out: the others change no volume that is there, or nothing in it that has a time, or are another
    // test's.
    const OTHERS: &str =
        "info ls stat cat tree find du tar untar check recover mkfs label uuid grow upgrade demo bench help";
    let help = String::from_utf8(uxfs_ok(&[&"--help"])).unwrap();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        let verb = line.split_whitespace().next().unwrap();
        let is_tried = verbs.iter().any(|(words, ..)| words.split(' ').next() == Some(verb));
        assert!(is_tried || OTHERS.split(' ').any(|other| other == verb), "{verb}");
    }
    assert_eq!(times("/tree/file")[0], 1000, "the content's time is kept");
    assert_sound(&image);
    let before = std::fs::read(&image).unwrap();
    for (verb, ..) in verbs {
        let words: Vec<String> =
            verb.split(' ').map(|word| word.replace("$I:", &at("")).replace("$H", host)).collect();
        let args: Vec<&dyn AsRef<std::ffi::OsStr>> = words.iter().map(|arg| arg as _).collect();
        let wrong = at_source_date("yesterday", &args);
        assert_eq!(wrong.status.code(), Some(2), "{verb}");
        assert!(String::from_utf8_lossy(&wrong.stderr).contains("SOURCE_DATE_EPOCH: `yesterday`"), "{verb}");
        let help = uxfs_ok(&[&verb.split(' ').next().unwrap(), &"--help"]);
        assert!(String::from_utf8_lossy(&help).contains("SOURCE_DATE_EPOCH"), "{verb}");
    }
    assert!(std::fs::read(&image).unwrap() == before, "bytes changed");
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn what_is_there_is_not_overwritten_unasked() {
    let dir = scratch();
    let image = dir.path().join("image");
    uxfs_ok(&[&"mkfs", &"-q", &image, &"300M", &"-L", &"first"]);
    uxfs_fails(
        &[&"mkfs", &image],
        9,
        "this is an XFS volume, which would be lost; say so if that is wanted (-f)",
    );
    // Nor does the file grow.
    uxfs_fails(&[&"mkfs", &image, &"400M"], 9, "would be lost");
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 300 << 20);
    assert_eq!(object(&uxfs_ok(&[&"info", &"--json", &image]))["label"], "first");
    uxfs_ok(&[&"mkfs", &"-q", &"-f", &image, &"400M", &"-L", &"second"]);
    let info = object(&uxfs_ok(&[&"info", &"--json", &image]));
    assert_eq!((&info["label"], &info["blocks"]), (&"second".into(), &102_400.into()));
    assert_sound(&image);

    let other = dir.path().join("other");
    std::fs::File::create(&other).unwrap().set_len(300 << 20).unwrap();
    run("mkfs.ext4", &[&"-q", &"-F", &other]);
    uxfs_fails(&[&"mkfs", &other], 9, "an ext4 volume");
    uxfs_ok(&[&"mkfs", &"-q", &"-f", &other]);
    assert_sound(&other);
    let kind = run("blkid", &[&"-p", &"-o", &"value", &"-s", &"TYPE", &other]);
    assert_eq!(kind, b"xfs\n");
}

#[test]
fn a_part_of_an_image() {
    let dir = scratch();
    let image = dir.path().join("disk");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(402 << 20).unwrap();
    file.write_all_at(&[0xaa; 4096], (1 << 20) - 4096).unwrap();
    file.write_all_at(&[0xbb; 4096], 401 << 20).unwrap();
    drop(file);
    uxfs_ok(&[&"mkfs", &"-q", &"--offset", &"1M", &"--length", &"400M", &image]);
    let info = object(&uxfs_ok(&[&"info", &"--json", &"--offset", &"1M", &"--length", &"400M", &image]));
    assert_eq!(info["blocks"], 102_400);
    let mut around = [0; 4096];
    let file = std::fs::File::open(&image).unwrap();
    file.read_exact_at(&mut around, (1 << 20) - 4096).unwrap();
    assert_eq!(around, [0xaa; 4096]);
    file.read_exact_at(&mut around, 401 << 20).unwrap();
    assert_eq!(around, [0xbb; 4096]);
}

/// Only the place where the new volume begins was looked at.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_volume_that_begins_elsewhere_is_not_run_over_unasked() {
    let dir = scratch();
    let (image, ext) = (dir.path().join("image"), dir.path().join("ext"));
    uxfs_ok(&[&"mkfs", &"-q", &image, &"320M"]);
    File::create(&ext).unwrap().set_len(700 << 20).unwrap();
    run("mkfs.ext4", &[&"-q", &"-F", &"-b", &"4096", &ext, &"81920"]);
    for (image, what) in [(&image, "an XFS volume"), (&ext, "an ext4 volume")] {
        let before = dir.path().join("before");
        run("cp", &[&"--sparse=always", &image, &before]);
        let text = format!("{what} that begins at byte 0 and would be lost; say so if that is wanted (-f)");
        uxfs_fails(&[&"mkfs", &image, &"320M", &"--offset", &"1M"], 9, &text);
        uxfs_fails(&[&"mkfs", &image, &"--offset", &"319M", &"--length", &"320M"], 9, &text);
        run("cmp", &[&before, &image]);
        // Behind it there is room, whether the file is long enough or grows.
        uxfs_ok(&[&"mkfs", &"-q", &image, &"320M", &"--offset", &"320M"]);
        uxfs_ok(&[&"mkfs", &"-q", &"-f", &image, &"320M", &"--offset", &"1M"]);
    }
    // Nobody knows how long this is: it reaches to the end of the file, as that was before it grew.
    let packed = dir.path().join("packed");
    let file = File::create(&packed).unwrap();
    file.write_all_at(&[0x1f, 0x8b], 0).unwrap();
    file.set_len(10 << 20).unwrap();
    drop(file);
    uxfs_fails(&[&"mkfs", &packed, &"320M", &"--offset", &"9M"], 9, "a gzip file");
    assert_eq!(packed.metadata().unwrap().len(), 10 << 20);
    uxfs_ok(&[&"mkfs", &"-q", &packed, &"320M", &"--offset", &"10M"]);
}

#[test]
fn what_cannot_be_made_is_refused_and_leaves_nothing() {
    let dir = scratch();
    let image = dir.path().join("never");
    let image = image.as_path();
    uxfs_fails(&[&"mkfs", &image], 3, "no such file; give a size, and it is made (uxfs mkfs IMAGE SIZE)");
    for (args, text) in [
        (&["100M"][..], "too small"),
        (&["1G", "-b", "size=512"], "blocks of 512 bytes are not possible"),
        (
            &["1G", "-b", "size=1k", "-i", "size=1k"],
            "inodes of 1024 bytes are not possible with blocks of 1024",
        ),
        (&["1G", "-s", "size=8k"], "sectors of 8192 bytes"),
        (&["1G", "-l", "size=10M"], "a log of 2560 blocks is not possible"),
        (&["1G", "-d", "agcount=100"], "100 groups are not possible"),
        (&["1G", "-d", "agcount=2,agsize=512M"], "give one"),
        (&["1G", "-L", "thirteen-long"], "a label has 12 bytes at most"),
        (&["1G", "-m", "crc=0"], "-m crc=0: this option is not known, or what it does is not handled"),
        (&["1G", "-m", "finobt=0,inobtcount=1"], "inobtcount needs finobt"),
        (&["1G", "-m", "uuid=none"], "-m uuid=none"),
        (&["1G", "-d", "su=64k"], "-d su=64k: this option is not known"),
        (&["1G", "-i", "maxpct=50"], "-i maxpct=50: this option is not known"),
        (&["8388608T"], "no file can be as large"),
    ] {
        let mut all: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"mkfs", &image];
        all.extend(args.iter().map(|arg| arg as &dyn AsRef<std::ffi::OsStr>));
        uxfs_fails(&all, 2, text);
        assert!(!image.exists(), "{args:?}");
    }
    uxfs_fails(&[&"mkfs", &dir.path(), &"1G"], 3, "neither a regular file nor a block device");
    // What the host cannot do: no file on it can be that large, or the directory is missing.
    let missing = dir.path().join("none/image");
    assert_eq!(uxfs(&[&"mkfs", &missing, &"1G"]).status.code(), Some(3));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn a_block_device_takes_a_volume() {
    let dir = scratch();
    let file = dir.path().join("file");
    std::fs::File::create(&file).unwrap().set_len(320 << 20).unwrap();
    let device = String::from_utf8(run("losetup", &[&"-f", &"--show", &"-b", &"4096", &file])).unwrap();
    let device = device.trim();
    let made = uxfs(&[&"mkfs", &"--json", &device, &"-L", &"on-a-disk"]);
    let small_sectors = uxfs(&[&"mkfs", &"-f", &device, &"-s", &"size=512"]);
    run("losetup", &[&"-d", &device]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(object(&made.stdout)["sector_size"], 4096);
    assert_eq!(small_sectors.status.code(), Some(2), "{}", String::from_utf8_lossy(&small_sectors.stderr));
    assert_eq!(object(&uxfs_ok(&[&"info", &"--json", &file]))["label"], "on-a-disk");
    assert_sound(&file);
}

/// Some thousand files, so that the journal writes many checkpoints and comes round: which of them holds a change, and
/// what is written back between two, must follow from the changes alone.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_same_tree_gives_the_same_image() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    for sub in 0..40 {
        let sub = tree.join(format!("sub-{sub}"));
        std::fs::create_dir_all(&sub).unwrap();
        for nth in 0..80 {
            let file = sub.join(format!("a-file-{nth}"));
            std::fs::write(&file, vec![nth as u8; nth * 97 % 9000]).unwrap();
            std::fs::hard_link(&file, sub.join(format!("one-more-name-of-{nth}"))).unwrap();
            std::os::unix::fs::symlink("a-file-0", sub.join(format!("link-{nth}"))).unwrap();
        }
        let sparse = std::fs::File::create(sub.join("sparse")).unwrap();
        sparse.write_all_at(b"far out", 1 << 20).unwrap();
        sparse.set_len(2 << 20).unwrap();
    }
    let archive = dir.path().join("tar");
    run("tar", &[&"--sort=name", &"-C", &tree, &"-cf", &archive, &"."]);
    let image = dir.path().join("image");
    let made = |from: &Path, shape: &[&dyn AsRef<std::ffi::OsStr>]| {
        let fixed: [&dyn AsRef<std::ffi::OsStr>; 10] =
            [&"mkfs", &"-qf", &"--small", &image, &"256M", &"-m", &UUID, &"--time", &"86400", &"--from"];
        uxfs_ok(&[&fixed[..], &[&from], shape].concat());
        assert_sound(&image);
        std::fs::read(&image).unwrap()
    };
    // The least log that a set of features takes comes round the more often.
    for (from, shape, log) in [
        (&tree, "--compat=6.1 -bsize=1k", 6),
        (&archive, "--compat=6.1 -isize=2k", 6),
        (&tree, "-isize=512", 8),
    ] {
        let size = format!("-lsize={log}M");
        let words: Vec<&str> = shape.split(' ').chain([&*size]).collect();
        let shape: Vec<_> = words.iter().map(|word| word as &dyn AsRef<std::ffi::OsStr>).collect();
        let first = made(from, &shape);
        assert!(first == made(from, &shape), "{}", from.display());
        // Where the last change of the superblock lies in the log, in blocks of 512 bytes; an eighth is a checkpoint.
        let xfs_db = Release::Unstable.path("xfs_db").unwrap();
        let lsn = run(xfs_db.to_str().unwrap(), &[&"-r", &"-c", &"sb 0", &"-c", &"print lsn", &image]);
        let lsn = String::from_utf8(lsn).unwrap();
        let lsn = u64::from_str_radix(lsn.trim().trim_start_matches("lsn = 0x"), 16).unwrap();
        let length = log << 11;
        let blocks = ((lsn >> 32) - 1) * length + (lsn & 0xffff_ffff);
        assert!(blocks > length / 4, "the journal wrote {blocks} blocks only: too little to tell");
    }
}

/// Deeper than a path of the host may be long, and than directories are kept open.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_deep_tree_goes_in_whole() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let mut at = rustix::fs::open(&tree, OFlags::PATH, Mode::empty()).unwrap();
    let name = "a-directory-with-a-name-of-some-length";
    for _ in 0..300 {
        rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
        rustix::fs::symlinkat("to nowhere", &at, "link-behind").unwrap();
        at = rustix::fs::openat(&at, name, OFlags::PATH, Mode::empty()).unwrap();
    }
    let image = Image { path: dir.path().join("image"), dir };
    uxfs_ok(&[&"mkfs", &"-q", &"--from", &tree, &image.path, &"300M"]);
    assert_sound(&image.path);
    let mounted = image.mount(&["ro"]);
    let listed = |dir: &Path| {
        let found = run("find", &[&dir, &"-mindepth", &"1", &"-printf", &"%d %y %f %l\n"]);
        let mut lines: Vec<Vec<u8>> = found.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort_unstable();
        lines
    };
    let ours = listed(mounted.dir());
    assert_eq!(ours.len(), 601);
    assert_eq!(ours, listed(&tree));
}

/// Starts to fill an image from an archive of which only the first half ever comes; gives the process when what came is
/// in the volume, as it says.
fn half_filled(image: &Path, dir: &Path, args: &[&str]) -> (Child, File) {
    let pipe = dir.join("pipe");
    let _gone = std::fs::remove_file(&pipe);
    run("mkfifo", &[&pipe]);
    std::fs::write(dir.join("first"), "text").unwrap();
    std::fs::write(dir.join("second"), vec![7; 1 << 20]).unwrap();
    let archive = run("tar", &[&"-C", &dir, &"-c", &"first", &"second"]);
    let mut mkfs = uxfs_heeding_signals();
    mkfs.args(["-v", "mkfs", "-q"]).arg(image).args(args).arg("--from").arg(&pipe).stderr(Stdio::piped());
    let mut mkfs = mkfs.spawn().unwrap();
    let mut pipe = File::options().write(true).open(&pipe).unwrap();
    pipe.write_all(&archive[..archive.len() / 2]).unwrap();
    // It has said a name, hence made a volume.
    let mut said = String::new();
    BufReader::new(mkfs.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("first"), "{said}");
    (mkfs, pipe)
}

/// Neither uxfs nor anybody else takes it for a volume.
fn assert_no_volume(image: &Path, dir: &Path, offset: u64) {
    uxfs_fails(&[&"info", &"--offset", &offset.to_string(), &image], 4, "not an XFS volume");
    let found = Command::new("blkid").args(["-p", "-O", &offset.to_string()]).arg(image).output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
    let at = dir.join("at");
    std::fs::create_dir_all(&at).unwrap();
    let mut mounted = Command::new("mount");
    mounted.args(["-t", "xfs", "-o", &format!("loop,offset={offset}")]);
    assert!(!mounted.arg(image).arg(&at).output().unwrap().status.success());
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn whoever_is_killed_while_filling_leaves_no_volume() {
    let dir = scratch();
    let old = dir.path().join("old");
    uxfs_ok(&[&"mkfs", &"-q", &old, &"300M", &"-L", &"old"]);
    let disk = dir.path().join("disk");
    File::create(&disk).unwrap().set_len(400 << 20).unwrap();
    let cases: [(_, &[&str], u64); 3] = [
        (dir.path().join("new"), &["300M"], 0),
        (old, &["-f"], 0),
        (disk, &["--offset", "64M", "--length", "300M"], 64 << 20),
    ];
    for (image, args, offset) in cases {
        let (mut mkfs, _pipe) = half_filled(&image, dir.path(), args);
        // As it is now, since nobody reads what is being written.
        let now = dir.path().join("now");
        run("cp", &[&"--sparse=always", &image, &now]);
        assert_no_volume(&now, dir.path(), offset);
        mkfs.kill().unwrap();
        mkfs.wait().unwrap();
        assert_no_volume(&image, dir.path(), offset);
        // Nor is anything in the way of the next try.
        let source = dir.path().join("source");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("file"), "content\n").unwrap();
        let mut again: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"mkfs", &"-q", &image, &"--from", &source];
        again.extend(args.iter().map(|arg| arg as &dyn AsRef<std::ffi::OsStr>));
        uxfs_ok(&again);
        let mut at = image.clone().into_os_string();
        at.push(":/file");
        assert_eq!(uxfs_ok(&[&"cat", &"--offset", &offset.to_string(), &at]), b"content\n");
    }
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn filling_that_fails_or_is_interrupted_leaves_no_volume() {
    let dir = scratch();
    for interrupted in [true, false] {
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        uxfs_ok(&[&"mkfs", &"-qf", &old, &"300M", &"-L", &"old"]);
        for (image, args) in [(&new, &["300M"][..]), (&old, &["-f"])] {
            let (mkfs, pipe) = half_filled(image, dir.path(), args);
            if interrupted {
                kill_process(Pid::from_child(&mkfs), Signal::INT).unwrap();
            }
            // The archive ends in the middle.
            drop(pipe);
            let ended = mkfs.wait_with_output().unwrap();
            let (code, said) = (ended.status.code(), String::from_utf8(ended.stderr).unwrap());
            assert_eq!(code == Some(11), interrupted, "{code:?}");
            assert_eq!(said.ends_with("uxfs: interrupted; no volume was made\n"), interrupted, "{said}");
            assert_ne!(code, Some(0));
            if image == &new {
                assert!(!new.exists());
            } else {
                assert_no_volume(&old, dir.path(), 0);
            }
        }
    }
}

/// What cannot be what a volume is filled with is seen before anything is lost.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_wrong_source_leaves_what_is_there() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let (old, before) = (at("old"), at("before"));
    uxfs_ok(&[&"mkfs", &"-q", &old, &"300M", &"-L", &"old"]);
    run("cp", &[&"--sparse=always", &old, &before]);
    let lines: String =
        (0..1000_u64).map(|line| format!("{}\n", line.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    std::fs::write(at("text"), lines).unwrap();
    std::fs::write(at("short"), "no archive\n").unwrap();
    std::fs::write(at("empty"), "").unwrap();
    let archive = run("tar", &[&"-C", &dir.path(), &"-c", &"text"]);
    std::fs::write(at("cut.tar"), &archive[..300]).unwrap();
    std::fs::write(at("archive.tar"), &archive).unwrap();
    run("gzip", &[&at("archive.tar")]);
    std::fs::create_dir(at("locked")).unwrap();
    run("chmod", &[&"000", &at("locked")]);
    let cases: [(&str, i32, &str); 7] = [
        ("text", 4, "text: this is not a tar archive"),
        ("empty", 4, "empty: this is not a tar archive: it is empty"),
        ("short", 5, "short: the archive is broken: it ends within a header"),
        ("cut.tar", 5, "it ends within a header"),
        ("archive.tar.gz", 4, "archive.tar.gz: this is not a tar archive"),
        ("locked", 6, "locked: Permission denied"),
        ("nothing", 3, "no such file"),
    ];
    for directory in [dir.path(), &old, &before] {
        std::os::unix::fs::chown(directory, Some(1000), Some(1000)).unwrap();
    }
    for (source, code, text) in cases {
        let output = Command::new("setpriv")
            .args(["--reuid", "1000", "--regid", "1000", "--clear-groups", env!("CARGO_BIN_EXE_uxfs")])
            .args(["mkfs", "-f", "--from"])
            .args([at(source), old.clone()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{source}: {said}");
        assert!(said.contains(text), "{source}: {said}");
        run("cmp", &[&before, &old]);
    }
    // An archive with nothing in it is one.
    let empty = run("tar", &[&"-c", &"-T", &"/dev/null"]);
    std::fs::write(at("empty.tar"), empty).unwrap();
    uxfs_ok(&[&"mkfs", &"-qf", &old, &"--from", &at("empty.tar")]);
}

/// What no volume can hold is left out, told of, and the exit code says that there was something.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_file_that_cannot_be_made_is_left_out_and_told() {
    let dir = scratch();
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Char);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_device_major(1 << 14).unwrap();
    header.set_device_minor(1).unwrap();
    header.set_mode(0o600);
    header.set_size(0);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, "odd", &[][..]).unwrap();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_device_major(0).unwrap();
    header.set_size(5);
    archive.append_data(&mut header, "file", &b"text\n"[..]).unwrap();
    std::fs::write(dir.path().join("tar"), archive.into_inner().unwrap()).unwrap();
    let image = dir.path().join("image");
    let output = uxfs(&[&"mkfs", &"-q", &image, &"300M", &"--from", &dir.path().join("tar")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("uxfs: odd: ") && said.lines().count() == 1, "{said}");
    assert_sound(&image);
    let mut at = image.into_os_string();
    at.push(":/");
    assert_eq!(uxfs_ok(&[&"ls", &at]), b"file\n");
}

/// Every file that came behind the first for which the host had no room was tried, and told of: a line each.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_host_without_room_is_told_of_once() {
    struct Full(tempfile::TempDir);
    impl Drop for Full {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0.path()).status();
        }
    }
    let (full, source) = (Full(scratch()), scratch());
    run("mount", &[&"-t", &"tmpfs", &"-o", &"size=16m", &"tmpfs", &full.0.path()]);
    for nth in 0..1500 {
        std::fs::write(source.path().join(nth.to_string()), vec![7; 30_000]).unwrap();
    }
    let image = full.0.path().join("image");
    let filled = uxfs(&[&"mkfs", &image, &"300M", &"--from", &source.path()]);
    let told = String::from_utf8(filled.stderr).unwrap();
    assert_eq!(filled.status.code(), Some(6), "{told}");
    assert!(told.lines().count() == 1 && told.contains("No space left"), "{told}");
    assert!(!image.exists());
}

/// A file need not be a whole number of sectors.
#[test]
#[ignore = "needs root and xfsprogs"]
fn what_lies_behind_a_volume_is_kept_to_the_byte() {
    const SIZE: u64 = 64 << 20;
    let dir = scratch();
    let image = dir.path().join("image");
    let made = |length: u64, args: &[&str]| {
        let file = File::create(&image).unwrap();
        file.set_len(length).unwrap();
        file.write_all_at(b"tail", length - 4).unwrap();
        drop(file);
        let mut all: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"mkfs", &"-q", &"--small"];
        all.extend(args.iter().map(|arg| arg as &dyn AsRef<std::ffi::OsStr>));
        let output = uxfs(&all);
        let (mut tail, after) = ([0; 4], File::open(&image).unwrap());
        assert_eq!(after.metadata().unwrap().len(), length, "{args:?}");
        after.read_exact_at(&mut tail, length - 4).unwrap();
        assert_eq!(&tail, b"tail", "{args:?}");
        output.status.code()
    };
    let name = image.to_str().unwrap();
    let part = (SIZE + 3586).to_string();
    assert_eq!(made(SIZE + 4000, &["--length", &part, name]), Some(0));
    assert_sound(&image);
    // What is refused cuts nothing off, and adds nothing.
    for (length, start) in [((65 << 20) + 3000, (1 << 20) + 512), ((65 << 20) + 400, (1 << 20) + 100)] {
        let start = u64::to_string(&start);
        for length in [length, SIZE / 2] {
            let args = ["-f", "-s", "size=4096", "--offset", &start, name, "64M"];
            assert_eq!(made(length, &args), Some(2));
        }
    }
}

/// Where a process cannot see its own descriptors.
#[test]
#[ignore = "needs root and xfsprogs"]
fn a_new_image_is_made_without_proc() {
    let dir = scratch();
    let image = dir.path().join("image");
    let script = "mount -t tmpfs none /proc && exec \"$0\" mkfs -q --small \"$1\" 64M";
    run("unshare", &[&"-m", &"sh", &"-c", &script, &env!("CARGO_BIN_EXE_uxfs"), &image]);
    assert_sound(&image);
}
